"""The law of once: a note says that the work of a lease was done, and only its holder may leave one.

To begin is to acquire, unless there is a note. To finish is to release and, if that was the holder's to give, to leave
the note, in the same step. So nobody can begin between the end of the work and the note of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from holdfast.commands import (
    Begin,
    ClaimEntry,
    Done,
    FetchMail,
    Finish,
    Finished,
    Keep,
    ListEntries,
    Released,
    ReleaseEntry,
    Seen,
    SendToOwner,
    Show,
    Standing,
)
from holdfast.rules import registry as directory
from holdfast.rules.lease_record import Moment

UNKNOWN = Finished("", known=False)


class Note(NamedTuple):
    """What was left, and until when it counts."""

    text: str
    until_us: int


def keep(before: Note | None, command: Keep, moment: Moment) -> tuple[Note, Done]:  # noqa: ARG001 - the newest counts
    """Leave a note."""
    return Note(command.note, moment.wall_us + command.window_ms * 1000), Done()


def seen(before: Note | None, command: Seen, moment: Moment) -> tuple[Note | None, Finished]:  # noqa: ARG001
    """The note, if it still counts."""
    if before is None or before.until_us <= moment.wall_us:
        return before, UNKNOWN
    return before, Finished(before.text, known=True)


def compound(
    command: Any, of_lease: Callable[[Any], Any], of_tally: Callable[[Any], Any], shelves: directory.RegistryIndex
) -> Any:
    """Answer what is no command of a lease alone, from the engine's answers to its parts: all in one step."""
    if type(command) is Begin:
        known = of_tally(Seen(command.name))
        return of_lease(command.ask) if known == UNKNOWN else known
    if type(command) is Finish:
        return _finish(command, of_lease, of_tally)
    if type(command) in (ClaimEntry, ReleaseEntry, ListEntries, SendToOwner, FetchMail):
        return directory.entry(command, of_lease, shelves)
    return of_tally(command)


def _finish(command: Finish, of_lease: Callable[[Any], Any], of_tally: Callable[[Any], Any]) -> Any:
    """The note is left by the copy that releases: one that comes later must not bring back what was forgotten since.

    Nor may one that was only offered the lease, and never knew.
    """
    now = of_lease(Show(command.name))
    answer = of_lease(command.end)
    held = isinstance(now, Standing) and now.holder is not None and now.holder.token == command.end.token
    if held and not now.offered and type(answer) is Released:
        of_tally(command.keep)
    return answer
