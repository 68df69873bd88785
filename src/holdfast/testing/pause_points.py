"""The test's side of pause points in other processes.

The rule: nothing but files in one directory (see `holdfast.failpoints`), so that it works whatever state the
paused process is in.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from holdfast import failpoints
from holdfast.testing.waiting import eventually

if TYPE_CHECKING:
    import os


class PausePoints:
    """The points at which the children of a test shall stop."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)

    @property
    def env(self) -> dict[str, str]:
        """What a child needs in its environment to stop at these points."""
        return {failpoints.VARIABLE: str(self.directory)}

    def arm(self, name: str) -> None:
        """From now on a child that reaches the point stops there."""
        self._file(name, "reached").unlink(missing_ok=True)
        self._file(name, "go").unlink(missing_ok=True)
        self._file(name, "arm").touch()

    def disarm(self, name: str) -> None:
        """Children pass the point again; one that waits there waits on until `go`."""
        self._file(name, "arm").unlink(missing_ok=True)

    def wait_reached(self, name: str, timeout: float | None = 10.0) -> int:
        """Wait until a child stands at the point; return its pid."""
        reached = self._file(name, "reached")
        eventually(reached.exists, timeout, f"the point {name!r} to be reached")
        return int(reached.read_text())

    def go(self, name: str) -> None:
        """Let everyone pass: who waits at the point, and who comes later."""
        self._file(name, "go").touch()

    def _file(self, name: str, kind: str) -> Path:
        return self.directory / f"{name}.{kind}"
