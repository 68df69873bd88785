"""The law of once: a note says that the work of a lease was done, and only its holder may leave one.

To begin is to acquire, unless there is a note. To finish is to release and, if that was the holder's to give, to leave
the note, in the same step. So nobody can begin between the end of the work and the note of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from holdfast.commands import (
    BeginOnce,
    ClaimEntry,
    Done,
    DoneMarker,
    FetchMail,
    FinishOnce,
    IsDone,
    LeaseInfo,
    ListEntries,
    MarkDone,
    Released,
    ReleaseEntry,
    SendToOwner,
    Show,
)
from holdfast.rules import registry as directory
from holdfast.rules.lease_record import Moment

UNKNOWN = DoneMarker("", exists=False)


class StoredMarker(NamedTuple):
    """What was left, and until when it counts."""

    text: str
    until_us: int


def keep(before: StoredMarker | None, command: MarkDone, moment: Moment) -> tuple[StoredMarker, Done]:  # noqa: ARG001 - the newest counts
    """Leave a note."""
    return StoredMarker(command.marker, moment.wall_us + command.window_ms * 1000), Done()


def seen(before: StoredMarker | None, command: IsDone, moment: Moment) -> tuple[StoredMarker | None, DoneMarker]:  # noqa: ARG001
    """The note, if it still counts."""
    if before is None or before.until_us <= moment.wall_us:
        return before, UNKNOWN
    return before, DoneMarker(before.text, exists=True)


def compound(
    command: Any, apply_lease: Callable[[Any], Any], apply_counter: Callable[[Any], Any], state: directory.RegistryState
) -> Any:
    """Answer what is no command of a lease alone, from the engine's answers to its parts: all in one step."""
    if type(command) is BeginOnce:
        known = apply_counter(IsDone(command.name))
        return apply_lease(command.ask) if known == UNKNOWN else known
    if type(command) is FinishOnce:
        return _finish(command, apply_lease, apply_counter)
    if type(command) in (ClaimEntry, ReleaseEntry, ListEntries, SendToOwner, FetchMail):
        return directory.entry(command, apply_lease, state)
    return apply_counter(command)


def _finish(command: FinishOnce, apply_lease: Callable[[Any], Any], apply_counter: Callable[[Any], Any]) -> Any:
    """The note is left by the copy that releases: one that comes later must not bring back what was forgotten since.

    Nor may one that was only offered the lease, and never knew.
    """
    now = apply_lease(Show(command.name))
    answer = apply_lease(command.end)
    held = isinstance(now, LeaseInfo) and now.holder is not None and now.holder.token == command.end.token
    if held and not now.offered and type(answer) is Released:
        apply_counter(command.mark)
    return answer
