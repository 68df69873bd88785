"""The commands and answers of `once`: work that is done at most once per idempotency key."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.commands.lease import Acquire, ReleaseLease


class MarkDone(NamedTuple):
    """Store the marker that says that the work of this name was done, for `window_ms`."""

    name: str
    marker: str
    window_ms: int
    kind: str = "o"


class IsDone(NamedTuple):
    """Return the marker of this name. Changes nothing."""

    name: str
    kind: str = "o"


class BeginOnce(NamedTuple):
    """Acquire the lease, unless a marker says that its work was done; in one step."""

    acquire: Acquire

    @property
    def name(self) -> str:
        return self.acquire.name


class FinishOnce(NamedTuple):
    """Release the lease and store the marker that its work was done, in one step, if the token holds the lease."""

    release: ReleaseLease
    mark: MarkDone

    @property
    def name(self) -> str:
        return self.release.name


class DoneMarker(NamedTuple):
    """The stored marker; `exists` is false if there is none."""

    marker: str
    exists: bool
