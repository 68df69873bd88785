"""Send a command again after a lost reply, and interpret the answer to the second copy.

After a lost reply, the client does not know whether the engine applied the command. Every command carries its token (or
a fence), so the engine applies it once, however many copies arrive; but the answer to the second copy may differ from
the answer to the first. So each caller defines what that answer means (`second_answer`). Only this module may catch
`ReplyLost`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from holdfast.clock import NS, NS_PER_MS, jittered
from holdfast.core.step import Ready
from holdfast.errors import ReplyLost, Unavailable

if TYPE_CHECKING:
    from holdfast.commands import Answer, Command
    from holdfast.core.client import Client

# How long one exchange with the engine may take, with its resends.
WIRE_NS = 2 * NS
# The shortest time between two reports about one command.
_REPORT_NS = NS


class ResendPolicy(NamedTuple):
    """How long to pause before each further copy: twice as long each time, up to `longest_ns`.

    With `last_copy`, send one more copy when the time is over: a waiter must leave the waiting line in any case.
    """

    shortest_ns: int
    longest_ns: int
    last_copy: bool = False

    def pause_ns(self, copies: int, now_ns: int) -> int:
        """Return the pause before the next copy. Longer pauses vary, so that no two waiters retry in step."""
        pause_ns = min(self.shortest_ns << min(copies, 16), self.longest_ns)
        return pause_ns if self.shortest_ns == self.longest_ns else jittered(pause_ns, now_ns)


# For a command that has only the wire timeout.
STEADY = ResendPolicy(50 * NS_PER_MS, 50 * NS_PER_MS)
# For a caller that may wait for long.
PATIENT = ResendPolicy(50 * NS_PER_MS, 800 * NS_PER_MS, last_copy=True)
# For the keeper, which has many commands to send.
KEEPER = ResendPolicy(100 * NS_PER_MS, 1000 * NS_PER_MS)

Send = Callable[[], "Answer | Awaitable[Answer]"]
ShouldResend = Callable[[Unavailable, bool, bool], bool]
SecondAnswer = Callable[["Answer"], Awaitable["Answer"]]


def reply_lost(error: BaseException) -> bool:
    """Return whether the engine may have applied the command, although no answer came."""
    return isinstance(error, ReplyLost)


def public_error(error: Unavailable) -> Unavailable:
    """Return the error as a caller of the library may see it: `ReplyLost` becomes `Unavailable`."""
    if not isinstance(error, ReplyLost):
        return error
    public = Unavailable(error.engine, error.reason, error.detail)
    public.__cause__ = error
    return public


def raise_public(error: Unavailable) -> NoReturn:
    """Raise the error as a caller of the library may see it."""
    raise public_error(error)


async def resend(
    client: Client,
    send: Send,
    error: Unavailable,
    until_ns: int,
    *,
    policy: ResendPolicy = STEADY,
    should_resend: ShouldResend | None = None,
    second_answer: SecondAnswer | None = None,
    lost: bool = False,
) -> Answer:
    """Send a command again until the engine answers, and return the answer. `error`: the error of the first copy.

    `should_resend(error, lost, report)` decides whether to send another copy; by default, if a reply was lost. `lost`:
    true if the engine may have applied any copy so far. `report`: true at most once a second. `second_answer`
    interprets the answer if the engine may have applied an earlier copy. Raise `Unavailable` at `until_ns`, or when
    `should_resend` returns false.
    """
    clock, reported_ns, copies = client.clock, 0, 0
    while True:
        now_ns = clock.now_ns()
        lost = lost or isinstance(error, ReplyLost)
        report = not reported_ns or now_ns - reported_ns >= _REPORT_NS
        if report:
            reported_ns = now_ns
        if not (lost if should_resend is None else should_resend(error, lost, report)):
            raise public_error(error)
        pause_ns = policy.pause_ns(copies, now_ns)
        if now_ns + (0 if policy.last_copy else pause_ns) >= until_ns:
            raise public_error(error)
        drop_traceback(error)
        await client.transport.waker().wait(min(until_ns, now_ns + pause_ns))
        copies += 1
        try:
            answer = send()
            if not isinstance(answer, Ready):
                answer = await answer
        except Unavailable as new_error:
            error = new_error
        else:
            client.answered()
            return await second_answer(answer) if lost and second_answer is not None else answer


async def send_safely(
    client: Client,
    command: Command,
    second_answer: SecondAnswer | None = None,
    in_doubt: Callable[[], object] | None = None,
) -> Answer:
    """Send a command that belongs to no lease; after a lost reply, send it again, for the wire timeout at most.

    If the command cannot have reached the engine, raise `Unavailable` at once. `in_doubt()` runs if the call ends
    without an answer (an error, a cancellation, an interrupt) although the engine may have applied the command.
    """

    def send() -> Answer | Awaitable[Answer]:
        client.refuse_if_closed()
        return client.transport.apply(command)

    client.refuse_if_closed()
    until_ns = client.clock.now_ns() + WIRE_NS
    doubtful = True
    try:
        try:
            answer = send()
            return answer if isinstance(answer, Ready) else await answer
        except Unavailable as error:
            doubtful = isinstance(error, ReplyLost)
            return await resend(client, send, error, until_ns, second_answer=second_answer)
    except BaseException:
        if doubtful and in_doubt is not None:
            in_doubt()
        raise


async def send_confirmed(client: Client, command: Command, until_ns: int | None = None) -> Answer:
    """Send a command that counts only once every known replica has it, and return its answer.

    Raise `Unavailable` with the reason `not confirmed` if a replica lacks it; the engine may still have applied it.
    """
    bound_ns = client.clock.now_ns() + WIRE_NS if until_ns is None else until_ns

    async def send() -> Answer:
        client.refuse_if_closed()
        (answer,) = await client.transport.confirm((command,), bound_ns)
        if isinstance(answer, Unavailable):
            raise answer
        return answer

    try:
        return await send()
    except Unavailable as error:
        return await resend(client, send, error, bound_ns)


def drop_traceback(error: BaseException) -> None:
    """Delete the traceback of an error that the library handled.

    The traceback refers to the lease, so the lease could not be freed while the error exists. The causes of the error
    belong to the library too. Its context may belong to the caller, and stays unchanged.
    """
    each: BaseException | None = error
    while each is not None:
        each.__traceback__, each = None, each.__cause__
