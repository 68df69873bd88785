"""What the keeper owes: commands that must still be told, and names whose waiters are to be marked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.commands import Command, TakeBack, Tend, Undo
from holdfast.observer import Observer, tell

if TYPE_CHECKING:
    from holdfast.commands.queues import Reaped


class Chore:
    """A command that must still reach the engine; after `until_ns` the ttl has done its work."""

    __slots__ = ("command", "due_ns", "until_ns")

    def __init__(self, command: Command, until_ns: int) -> None:
        self.command = command
        self.until_ns = until_ns
        self.due_ns = 0


class Vigil:
    """One name that this client's waiters wait for: how many they are, and when and how to say again that they live.

    The engine's answer tells when the present lease ends. The next mark comes just then, if not earlier: so the end of
    a lease is seen in time by every client, whatever places its waiters have in the queue.
    """

    __slots__ = ("due_ns", "mark", "marked_ns", "since_ns", "waiters")

    def __init__(self, mark: Command, since_ns: int, due_ns: int) -> None:
        self.mark = mark
        self.since_ns = since_ns
        self.marked_ns = 0
        self.waiters: set[str] = set()  # tokens, so that the end of a wait may be said twice
        self.due_ns = due_ns


def undoing(mark: Command, token: str) -> Undo | TakeBack:
    """What takes a waiter out of the queue that is marked so."""
    return TakeBack(mark.name, token, mark.roof) if isinstance(mark, Tend) else Undo(mark.name, token)


def tell_reaped(observer: Observer | None, name: str, answer: Reaped) -> None:
    """What a look for dead consumers has found, if it was anything."""
    if answer.amnesty:
        tell(observer, "amnesty", name, detail="nobody has looked for dead consumers for long: all get time")
    if answer.consumers or answer.moved or answer.died:
        found = f"{answer.consumers} consumers, {answer.moved} messages ready again, {answer.died} dead"
        tell(observer, "reaped", name, detail=found)
