"""The rules of `once`: a marker says that the work of a lease was done, and only the holder may store it.

`BeginOnce` acquires the lease unless there is a marker. `FinishOnce` releases the lease and, if the token held it,
stores the marker in the same step. So no other caller can begin between the end of the work and its marker.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from holdfast.commands import (
    BeginOnce,
    Done,
    DoneMarker,
    FinishOnce,
    IsDone,
    LeaseInfo,
    MarkDone,
    Released,
    Show,
)
from holdfast.rules.lease_record import Moment
from holdfast.rules.registry import Parts

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


def begin(parts: Parts, command: BeginOnce, moment: Moment) -> Any:  # noqa: ARG001 - the signature of all rules
    """Acquire the lease, or return the marker if there is one."""
    marker = parts.counter(IsDone(command.name))
    return parts.lease(command.acquire) if marker == NOT_DONE else marker


def finish(parts: Parts, command: FinishOnce, moment: Moment) -> Any:  # noqa: ARG001 - the signature of all rules
    """Release the lease and store the marker.

    Only the copy of the command that releases the lease stores the marker: a later copy must not restore a marker that
    was deleted in between. A token with an unconfirmed offer stores no marker either: its caller never did the work.
    """
    now = parts.lease(Show(command.name))
    answer = parts.lease(command.release)
    held = isinstance(now, LeaseInfo) and now.holder is not None and now.holder.token == command.release.token
    if held and not now.offered and type(answer) is Released:
        parts.counter(command.mark)
    return answer
