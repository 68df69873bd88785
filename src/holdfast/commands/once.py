"""What is asked about work that is to be done once, and what is answered."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.commands.lease import Acquire, Release


class MarkDone(NamedTuple):
    """Keep this note under the name for a while."""

    name: str
    marker: str
    window_ms: int
    kind: str = "o"


class IsDone(NamedTuple):
    """Is a note kept there? Changes nothing."""

    name: str
    kind: str = "o"


class BeginOnce(NamedTuple):
    """Give me the lease, unless a note says that its work was done; in one step."""

    ask: Acquire

    @property
    def name(self) -> str:
        return self.ask.name


class FinishOnce(NamedTuple):
    """Give the lease back and keep a note that its work was done; in one step, and only if it was mine to give."""

    end: Release
    mark: MarkDone

    @property
    def name(self) -> str:
        return self.end.name


class DoneMarker(NamedTuple):
    """The note that is kept; `exists` is false if there is none."""

    marker: str
    exists: bool
