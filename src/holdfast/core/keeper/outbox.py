"""What the keeper owes: commands that must still be told, and what is said of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from holdfast.clock import NS
from holdfast.commands import Command, NotHeld, Undo, UndoBorrow
from holdfast.commands.queue import RecordOutcomes
from holdfast.observer import emit

if TYPE_CHECKING:
    from holdfast.engines import Reply
    from holdfast.observer import Observer


class PendingCommand:
    """A command that must still reach the engine; after `until_ns` the ttl has done its work.

    `name` and `fence` say what it is about, as people know it. `since_ns` is when the lease was granted that it gives
    back; 0 where there is none, or where its end has been told.
    """

    __slots__ = ("command", "due_ns", "fence", "name", "since_ns", "until_ns")

    def __init__(self, command: Command, until_ns: int, name: str, fence: int | None = None, since_ns: int = 0) -> None:
        self.command = command
        self.until_ns = until_ns
        self.name = name
        self.fence = fence
        self.since_ns = since_ns
        self.due_ns = 0


def concluding(chores: list[PendingCommand]) -> set[str]:
    """The consumers of whose messages the engine is still to hear."""
    return {pending.command.token for pending in chores if isinstance(pending.command, RecordOutcomes)}


def is_undo(command: Command) -> bool:
    """Whether it takes back what nobody owns."""
    return isinstance(command, Undo | UndoBorrow)


def tell_end(observer: Observer | None, pending: PendingCommand, answer: Reply, now_ns: int) -> None:
    """The engine has answered: it has heard of the end, or says that there was one before."""
    if is_undo(pending.command):
        emit(observer, "undone", pending.name, pending.fence)
    elif pending.since_ns and isinstance(answer, NotHeld) and answer.reason != "released":
        emit(
            observer,
            "delivery_abandoned",
            pending.name,
            pending.fence,
            detail=f"{answer.reason} {answer.detail}".strip(),
        )
    elif pending.since_ns:
        emit(observer, "released", pending.name, pending.fence, (now_ns - pending.since_ns) / NS)


class _Logged(NamedTuple):
    at_ns: int
    left_out: int


class Sparing:
    """How often the same trouble is logged: at once, and then once a second, with how many times it was not.

    A client may hold thousands of leases, and each is tried again ten times a second. The observer is told of each.
    """

    def __init__(self) -> None:
        self._last: dict[str, _Logged] = {}

    def lines(self, kind: str, now_ns: int) -> int:
        """How many times this one line stands for; 0: not now."""
        last = self._last.get(kind)
        if last is not None and now_ns < last.at_ns + NS:
            self._last[kind] = last._replace(left_out=last.left_out + 1)
            return 0
        self._last[kind] = _Logged(now_ns, 0)
        return 1 if last is None else last.left_out + 1
