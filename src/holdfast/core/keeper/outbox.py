"""The outbox of the keeper: commands that must still reach the engine, and the events about their results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.clock import NS
from holdfast.commands import Command, NotHeld, Undo, UndoBorrow, UndoReserve
from holdfast.commands.queue import RecordOutcomes
from holdfast.errors import LossReason

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.commands import Answer
    from holdfast.core.keeper.reporter import Reporter
    from holdfast.engines import Reply


class PendingCommand:
    """A command that must still reach the engine; after `until_ns` the lease has expired by its ttl anyway.

    `name` and `fence` are for people. `since_ns`: when the engine granted the lease that the command gives back; 0 if
    there is no lease, or if the keeper has already reported its end. The keeper calls `on_answer` with the answer.
    """

    __slots__ = ("command", "due_ns", "fence", "name", "on_answer", "since_ns", "until_ns")

    def __init__(
        self,
        command: Command,
        until_ns: int,
        name: str,
        fence: int | None = None,
        since_ns: int = 0,
        on_answer: Callable[[Answer], object] | None = None,
    ) -> None:
        self.command = command
        self.until_ns = until_ns
        self.name = name
        self.fence = fence
        self.since_ns = since_ns
        self.on_answer = on_answer
        self.due_ns = 0


def consumers_with_outcomes(commands: list[PendingCommand]) -> set[str]:
    """Return the tokens of the consumers with message outcomes among these commands."""
    return {pending.command.token for pending in commands if isinstance(pending.command, RecordOutcomes)}


def is_undo(command: Command) -> bool:
    """Return whether the command takes back a lease or a reserved amount that no caller has."""
    return isinstance(command, Undo | UndoBorrow | UndoReserve)


def emit_end(reporter: Reporter, pending: PendingCommand, answer: Reply, now_ns: int) -> None:
    """Emit the event for an answered command: the lease ended by this command, or had ended before."""
    if is_undo(pending.command):
        reporter.emit("undone", pending.name, pending.fence)
    elif pending.since_ns and isinstance(answer, NotHeld) and answer.reason != LossReason.RELEASED:
        detail = f"{answer.reason} {answer.detail}".strip()
        reporter.emit("delivery_abandoned", pending.name, pending.fence, detail=detail)
    elif pending.since_ns:
        reporter.emit("released", pending.name, pending.fence, (now_ns - pending.since_ns) / NS)
