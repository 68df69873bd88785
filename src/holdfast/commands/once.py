"""What is asked about work that is to be done once, and what is answered."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.commands.lease import Acquire, Release


class Keep(NamedTuple):
    """Keep this note under the name for a while."""

    name: str
    note: str
    window_ms: int
    shelf: str = "o"


class Seen(NamedTuple):
    """Is a note kept there? Changes nothing."""

    name: str
    shelf: str = "o"


class Begin(NamedTuple):
    """Give me the lease, unless a note says that its work was done; in one step."""

    ask: Acquire

    @property
    def name(self) -> str:
        return self.ask.name


class Finish(NamedTuple):
    """Give the lease back and keep a note that its work was done; in one step, and only if it was mine to give."""

    end: Release
    keep: Keep

    @property
    def name(self) -> str:
        return self.end.name


class Finished(NamedTuple):
    """The note that is kept; `known` is false if there is none."""

    note: str
    known: bool
