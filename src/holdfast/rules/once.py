"""The rules of `once`: a marker says that the work of a lease was done, and only the holder may store it.

`BeginOnce` acquires the lease unless there is a marker. `FinishOnce` releases the lease and, if the token held it,
stores the marker in the same step. So no other caller can begin between the end of the work and its marker.
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
from holdfast.rules import registry
from holdfast.rules.lease_record import Moment

NOT_DONE = DoneMarker("", exists=False)


class StoredMarker(NamedTuple):
    """A marker and the end of its window, on the engine's calendar."""

    text: str
    until_us: int


def mark_done(before: StoredMarker | None, command: MarkDone, moment: Moment) -> tuple[StoredMarker, Done]:  # noqa: ARG001 - the newest marker wins
    """Store the marker."""
    return StoredMarker(command.marker, moment.wall_us + command.window_ms * 1000), Done()


def is_done(before: StoredMarker | None, command: IsDone, moment: Moment) -> tuple[StoredMarker | None, DoneMarker]:  # noqa: ARG001
    """Return the marker, if its window has not ended."""
    if before is None or before.until_us <= moment.wall_us:
        return before, NOT_DONE
    return before, DoneMarker(before.text, exists=True)


def compound(
    command: Any, apply_lease: Callable[[Any], Any], apply_counter: Callable[[Any], Any], state: registry.RegistryState
) -> Any:
    """Answer a command that is made of others, or a counter command, all in one step.

    The engine runs the commands of a lease through `apply_lease`, those of a counter through `apply_counter`.
    """
    if type(command) is BeginOnce:
        marker = apply_counter(IsDone(command.name))
        return apply_lease(command.acquire) if marker == NOT_DONE else marker
    if type(command) is FinishOnce:
        return _finish(command, apply_lease, apply_counter)
    if type(command) in (ClaimEntry, ReleaseEntry, ListEntries, SendToOwner, FetchMail):
        return registry.apply(command, apply_lease, state)
    return apply_counter(command)


def _finish(command: FinishOnce, apply_lease: Callable[[Any], Any], apply_counter: Callable[[Any], Any]) -> Any:
    """Release the lease and store the marker.

    Only the copy of the command that releases stores it: a later copy must not restore a marker that was deleted in
    between. A token that was only offered the lease stores none either, because its caller never did the work.
    """
    now = apply_lease(Show(command.name))
    answer = apply_lease(command.release)
    held = isinstance(now, LeaseInfo) and now.holder is not None and now.holder.token == command.release.token
    if held and not now.offered and type(answer) is Released:
        apply_counter(command.mark)
    return answer
