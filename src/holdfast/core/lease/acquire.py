"""Acquire, wait, release, undo: the life of a lease, once, for every engine and both faces.

A command that may have been applied is sent again with the same token. Whatever ends an acquire before a caller owns
the lease is followed by an undo. State changes after the answer, never before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, cast

from holdfast.clock import NEVER_NS, NS, NS_PER_MS
from holdfast.commands import (
    Answer,
    Busy,
    DoneMarker,
    Granted,
    LeaveUnfinished,
    NotHeld,
    Refused,
    ReleaseCommand,
    Released,
)
from holdfast.core.client import ABORTING, CLOSED, OPEN
from holdfast.core.keeper.keeper import WIRE_NS
from holdfast.core.lease.confirm import confirmed
from holdfast.core.lease.lease import ENDED, ENDING, HELD, LOST, DoneAlready, LeaseBase, jittered, waited_out
from holdfast.errors import (
    GONE,
    MOVING,
    PASSING,
    Closed,
    Fenced,
    HoldfastError,
    LeaseLost,
    NotAcquired,
    ReplyLost,
    Unavailable,
)
from holdfast.names import holder_shown
from holdfast.observer import DEBUG, debugging
from holdfast.rules import trust

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from holdfast.commands import AcquireCommand
    from holdfast.core.client import Client

# An engine in trouble is asked again, ever less often, and by no two waiters in step.
_RETRY_NS = 50 * NS_PER_MS
_RETRY_MAX_NS = 800 * NS_PER_MS
# How long replicas may take to hear of a grant.
_CONFIRM_NS = NS
# The last word is said when patience ends; its answer may take this much longer if the engine is in trouble.
_LAST_WORD_NS = 500 * NS_PER_MS


def undo(lease: LeaseBase) -> None:
    """Take back what no caller owns; the keeper does it, even if the engine cannot be reached just now."""
    if lease._state is not ENDED:
        lease._client.keeper.undo(lease)
        lease._state = ENDED
    lease._client.keeper.stop_heartbeat(lease)
    lease._client.transport.forget(lease.token)
    lease._client.keeper.forget(lease)


def end(lease: LeaseBase, to: str = "") -> None:
    """Have the keeper finish a release that was interrupted; where nothing is left to release, nothing happens."""
    if lease._state in (HELD, ENDING):
        lease._client.keeper.finish_release(lease, lease._giving_back(to))
        lease._state = ENDED
        lease._wake()
    lease._client.keeper.forget(lease)


async def acquire(lease: LeaseBase, wait_ns: int | None) -> None:
    """Ask until the lease is granted or patience ends.

    `None` waits for ever. 0 is one decision: the engine is asked once, and again only if its answer was lost.
    """
    client = lease._client
    began_ns = client.clock.now_ns()
    until_ns = NEVER_NS if wait_ns is None else began_ns + wait_ns
    # One decision has the wire timeout for its re-sends; whoever waits has the rest of its patience.
    give_up_ns = began_ns + WIRE_NS if wait_ns == 0 else until_ns
    client.begin(lease)
    try:
        # The first question is asked here, not in `_send`: mostly it is the only one, and every frame costs.
        try:
            answer = _ask(lease, began_ns, until_ns, give_up_ns)
            if not isinstance(answer, tuple):
                answer = await answer
        except Unavailable as error:
            answer = await _send(lease, until_ns, give_up_ns, error)
        lease._reached = True
        if not _is_granted(lease, answer, give_up_ns):
            await _stand_in_line(lease, answer, began_ns, until_ns, give_up_ns)
        if lease._confirm:
            await _confirm(lease)
    except BaseException:
        undo(lease)
        raise
    keeper = client.keeper
    if lease._due_ns < keeper.wakes_before_ns:
        keeper.wake()
    if client.observer is not None or debugging(DEBUG):
        client.emit("granted", lease._known_as, lease._fence, (client.clock.now_ns() - began_ns) / NS)


def _ask(lease: LeaseBase, sent_ns: int, until_ns: int, give_up_ns: int) -> Answer | Awaitable[Answer]:
    """The question, sent now. After patience has ended it is the last word: now, or not at all."""
    lease._sent_ns = sent_ns
    ask = lease._ask(sent_ns < until_ns)
    bound_ns = None if give_up_ns == NEVER_NS else max(give_up_ns, sent_ns + _LAST_WORD_NS)
    return lease._client.transport.apply(ask, bound_ns)


async def _stand_in_line(lease: LeaseBase, answer: Answer, began_ns: int, until_ns: int, give_up_ns: int) -> None:
    """Wait and ask again, until the lease is granted or patience ends."""
    client, clock = lease._client, lease._client.clock
    queued = False
    try:
        while True:
            told: Answer | None = None
            if isinstance(answer, Granted):
                await _wait_out(lease, answer, began_ns, until_ns)
            else:
                if isinstance(answer, DoneMarker):
                    raise DoneAlready(answer)
                if not isinstance(answer, Busy) or answer.position is None:
                    raise _not_acquired(lease, answer, began_ns)
                sure = _remember(lease, answer)
                if not queued:
                    queued = True
                    client.keeper.start_heartbeat(lease, answer.remaining_ms, answer.holder)
                    client.emit("waiting", lease._known_as, answer.fence, detail=_holder(answer))
                _refuse_if_closed(client)
                nap_ms = trust.recheck_after_ms(answer.position or 0, answer.remaining_ms, lease._ttl_ms)
                if sure:  # else it is asked at once: by now another run of the engine answers
                    told = await _wait(lease, min(until_ns, clock.now_ns() + nap_ms * NS_PER_MS))
                    _refuse_if_closed(client)
            if told is None:
                told = await _send(lease, until_ns, give_up_ns)
            answer = told
            if _is_granted(lease, answer, give_up_ns):
                return
    finally:
        if queued:
            client.keeper.stop_heartbeat(lease)


def _is_granted(lease: LeaseBase, answer: Answer, give_up_ns: int) -> bool:
    """Whether the answer makes the lease the caller's. One that comes too late proves nothing: ask again."""
    if type(answer) is not Granted:
        return False
    client, sent_ns = lease._client, lease._sent_ns
    now_ns = client.clock.now_ns()
    if now_ns >= sent_ns + trust.spans_ns(lease._ttl_ms)[0]:
        if now_ns >= give_up_ns:
            late_s = (now_ns - sent_ns) / NS
            raise Unavailable(client.engine.name, "stalled", f"an answer took {late_s:.3f} s")
        return False
    if answer.item:
        lease._told(answer)
    if (
        client.engine.restarts
        and client.restart_guard.until_ns(lease._about, lease._awaited, life=answer.life) > now_ns
    ):
        return False
    if client.state is not OPEN:
        _refuse_if_closed(client)
    lease._granted(answer.fence, sent_ns)
    return True


async def _wait_out(lease: LeaseBase, answer: Granted, began_ns: int, until_ns: int) -> None:
    """A grant that is not to be taken yet: it came too late to prove anything, or the engine was replaced.

    In the second case somebody may still trust what the engine has forgotten. Asked for again and again, the grant
    stands meanwhile, so that nobody else gets it either.
    """
    client, now_ns = lease._client, lease._client.clock.now_ns()
    left_ns = client.restart_guard.until_ns(lease._about, lease._awaited, life=answer.life) - now_ns
    if left_ns <= 0:
        return
    if now_ns >= until_ns:
        waited_s = (now_ns - began_ns) / NS
        raise NotAcquired(lease.name, reason="engine restarted", waited=waited_s, remaining=left_ns / NS)
    _refuse_if_closed(client)
    await client.transport.waker().wait(min(until_ns, now_ns + min(left_ns, trust.spans_ns(lease._ttl_ms)[1])))


def _remember(lease: LeaseBase, answer: Busy) -> bool:
    """Keep what was heard of others, for the case that the engine forgets; false if it may have done so already."""
    client, now_ns = lease._client, lease._client.clock.now_ns()
    until_ns = now_ns + (answer.all_ms or answer.remaining_ms) * NS_PER_MS
    return client.restart_guard.heard(lease._awaited, answer.life or answer.fence, lease._sent_ns, until_ns, now_ns)


async def _confirm(lease: LeaseBase) -> None:
    """Have every known replica hear of the grant; without that it does not count, and is undone."""
    client = lease._client
    lease._sent_ns = sent_ns = client.clock.now_ns()
    until_ns = sent_ns + min(_CONFIRM_NS, trust.spans_ns(lease._ttl_ms)[1])
    answer = await confirmed(client, lease._ask(wait=False), until_ns)
    if not isinstance(answer, Granted) or answer.fence != lease.fence or lease._state is not HELD:
        raise Unavailable(client.engine.name, "not confirmed", f"lease {lease.name!r} was lost meanwhile")
    lease._trust_from(sent_ns, lease._ttl_ms)


async def _wait(lease: LeaseBase, until_ns: int) -> Answer | None:
    """Sleep until it is worth asking again; an engine that can ask in the same step has the answer already.

    Such a question was sent before the sleep, and the lease that comes of it counts from then.
    """
    client = lease._client
    ask = cast("AcquireCommand", lease._ask(wait=True))
    lease._sent_ns = client.clock.now_ns()
    try:
        return await client.transport.wait(ask, until_ns)
    except Unavailable as error:
        # It may have been asked, and the answer did not come. Asked again, the trouble is told and waited out.
        lease._resent = lease._resent or isinstance(error, ReplyLost)
        return None


async def _send(lease: LeaseBase, until_ns: int, give_up_ns: int, error: Unavailable | None = None) -> Answer:
    """Send the question until it is answered; `error` is what has become of it so far.

    An engine that cannot be reached at all is told at once. One that was reached and then lost is asked again, with
    the same token, until it is time to give up.
    """
    client, told_ns, pause_ns = lease._client, 0, _RETRY_NS
    while True:
        if error is not None:
            now_ns = client.clock.now_ns()
            if not told_ns or now_ns - told_ns >= NS:
                told_ns = now_ns
                client.emit("unavailable", lease._known_as, detail=str(error))
            _refuse_if_hopeless(lease, error, now_ns, give_up_ns)
            waited_out(error)
            await client.transport.waker().wait(min(give_up_ns, now_ns + jittered(pause_ns, now_ns)))
            pause_ns = min(2 * pause_ns, _RETRY_MAX_NS)
        try:
            answer = _ask(lease, client.clock.now_ns(), until_ns, give_up_ns)
            if not isinstance(answer, tuple):
                answer = await answer
        except Unavailable as trouble:
            error = trouble
        else:
            lease._reached = True
            return answer


def _refuse_if_hopeless(lease: LeaseBase, error: Unavailable, now_ns: int, give_up_ns: int) -> None:
    """Go on only if the engine was reached once, its trouble may pass, and there is time."""
    lost = isinstance(error, ReplyLost)
    lease._resent = lease._resent or lost
    lease._reached = lease._reached or lease._resent or error.reason == MOVING
    if not lease._reached:
        lease._sent_ns = 0  # nothing has arrived, so there is nothing to undo
        raise error
    if not (lost or error.reason in PASSING) or now_ns >= give_up_ns:
        raise Unavailable(error.engine, error.reason, error.detail) from error
    _refuse_if_closed(lease._client)


def _refuse_if_closed(client: Client) -> None:
    if client.state in (ABORTING, CLOSED):
        raise Closed


def _not_acquired(lease: LeaseBase, answer: Answer, began_ns: int) -> HoldfastError:
    client = lease._client
    waited_s = (client.clock.now_ns() - began_ns) / NS
    if not isinstance(answer, Busy):
        reason = answer.reason if isinstance(answer, Refused) else repr(answer)
        return lease._refusal(reason, waited_s)
    holder = _holder(answer) if answer.holder else ""
    why = f"held by {holder}" if holder else answer.reason
    client.emit("refused", lease._known_as, answer.fence, waited_s, detail=why)
    if not lease._resent:
        # The engine has just said that this token is neither holder nor waiter, and no copy is under way.
        lease._state = ENDED
        client.keeper.forget(lease)
    remaining_s = answer.remaining_ms / 1000
    facts = {"holder": holder, "fence": answer.fence, "remaining": remaining_s}
    refusal = NotAcquired(lease.name, reason=answer.reason, waited=waited_s, **facts)  # type: ignore[arg-type]
    if answer.holder == client.packed:
        refusal.add_note("this process holds it itself: whoever holds a lock enters it again only if it is reentrant")
    return refusal


def _holder(answer: Busy) -> str:
    """Who has it, for people; of many rights it is not one who does."""
    return holder_shown(answer.holder) if answer.holder else answer.reason


async def release(lease: LeaseBase, to: str = "") -> None:
    """Give the lease back. `LeaseLost` if it was not there to be given; said twice, the second is no more than true."""
    try:
        client = lease._client
        now_ns = client.clock.now_ns()
        with client.keeper.guard:
            state = lease._state
            if state is HELD and now_ns < lease._deadline_ns:
                lease._state = ENDING
        if state is ENDED or state is ENDING:
            return
        command = lease._giving_back(to)
        if state is LOST or lease._state is HELD:
            _too_late(lease, command)
        answer: Answer | None = LeaveUnfinished()
        while isinstance(answer, LeaveUnfinished):  # a consumer that has much gives it back in steps
            now_ns = client.clock.now_ns()
            try:
                reply = client.transport.apply(command, now_ns + WIRE_NS)
                answer = reply if isinstance(reply, tuple) else await reply
            except Unavailable as error:
                answer = await _release_again(lease, command, now_ns, error)
        _released(lease, command, answer)
    except LeaseLost:
        raise
    except BaseException:
        # Interrupted: either it is still the caller's, who may say so again, or the keeper finishes it.
        if lease._state is not HELD:
            end(lease, to)
        raise


def _too_late(lease: LeaseBase, command: ReleaseCommand) -> NoReturn:
    """There is nothing left to give back: the holder is told."""
    lease._lose("expired", lease._trouble)  # no effect if it is known to be lost already
    # Our clock stops earlier than the engine's.
    late = lease._late(command) if lease._why[0] == "expired" else None
    if late is not None:
        lease._client.keeper.finish_release(lease, late)
    raise lease._loss()


async def _release_again(lease: LeaseBase, command: ReleaseCommand, first_ns: int, error: Unavailable) -> Answer | None:
    """The engine's answer after trouble on the way, or `None` if it could not be told within the wire timeout."""
    client = lease._client
    sent_before, told_ns = False, 0
    while True:
        if error.reason in GONE:
            return NotHeld(error.reason, str(error))
        now_ns = client.clock.now_ns()
        if not told_ns or now_ns - told_ns >= NS:
            told_ns = now_ns
            client.emit("release_delayed", lease._known_as, lease._fence, detail=str(error))
        sent_before = sent_before or isinstance(error, ReplyLost)
        if now_ns + _RETRY_NS >= first_ns + WIRE_NS:
            return None
        await client.transport.waker().wait(now_ns + _RETRY_NS)
        try:
            reply = client.transport.apply(command, first_ns + WIRE_NS)
            answer = reply if isinstance(reply, tuple) else await reply
        except Unavailable as trouble:
            error = trouble
            continue
        if isinstance(answer, NotHeld) and sent_before and answer.reason in ("expired", "released"):
            # The first copy left inside the trusted deadline, so it was ours to give: it has been given.
            return Released()
        return answer


def _released(lease: LeaseBase, command: ReleaseCommand, answer: Answer | None) -> None:
    if isinstance(answer, NotHeld):
        lease._lose(answer.reason, answer.detail, since=ENDING)
        raise lease._loss()
    client = lease._client
    lease._state = ENDED
    if lease._wakers:
        lease._wake()
    if answer is None:
        client.keeper.finish_release(lease, command)
        return
    client.keeper.forget(lease)
    if client.observer is not None or debugging(DEBUG):
        client.emit("released", lease._known_as, lease._fence, (client.clock.now_ns() - lease._since_ns) / NS)


async def leave(lease: LeaseBase, error: BaseException | None, to: str = "") -> None:
    """End a block: the work has settled, now the lease is given back or its loss is told.

    A loss outweighs the work's own error, which becomes its cause. Only an interruption (KeyboardInterrupt, a
    cancelled task, SystemExit) goes on unchanged, with a note. A refused write is told to the observer on its way out.
    """
    _tell_fenced(lease, error)
    try:
        await release(lease, to)
    except LeaseLost as lost:
        if error is None:
            raise
        if isinstance(error, LeaseLost) and (error.name, error.fence) == (lost.name, lost.fence):
            return  # the work has told this very loss, by check() or release(): it passes as it is
        if isinstance(error, Exception):
            raise lost from error
        error.add_note(str(lost))


def _tell_fenced(lease: LeaseBase, error: BaseException | None) -> None:
    """Once for each refusal of this lease's own fence: the block around it, of another lease, sees it pass too."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            _tell_fenced(lease, one)
    elif isinstance(error, Fenced) and error.fence == lease._fence:
        lease._client.emit("fenced", lease._known_as, error.fence, detail=str(error))
