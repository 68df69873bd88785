"""The test's side of pause points in other processes.

Test and child communicate only by files in one directory (see `holdfast.failpoints`), so that pause points work
whatever state the paused process is in.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from holdfast import failpoints
from holdfast.testing.waiting import eventually

if TYPE_CHECKING:
    import os


class PausePoints:
    """The points at which the children of a test stop; `directory` holds the files."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)

    @property
    def env(self) -> dict[str, str]:
        """The environment variables that make a child stop at these points."""
        return {failpoints.VARIABLE: str(self.directory)}

    def arm(self, name: str) -> None:
        """Let children stop at the point `name` from now on."""
        self._file(name, "reached").unlink(missing_ok=True)
        self._file(name, "go").unlink(missing_ok=True)
        self._file(name, "arm").touch()

    def disarm(self, name: str) -> None:
        """Let children pass the point `name` again; a child that already waits there waits on until `go`."""
        self._file(name, "arm").unlink(missing_ok=True)

    def wait_reached(self, name: str, timeout: float | None = 10.0) -> int:
        """Wait until a child has stopped at the point `name`, for `timeout` seconds at most; return its pid."""
        reached = self._file(name, "reached")
        eventually(reached.exists, timeout, f"the point {name!r} to be reached")
        return int(reached.read_text())

    def go(self, name: str) -> None:
        """Let the child that waits at the point `name` and all later ones pass."""
        self._file(name, "go").touch()

    def _file(self, name: str, kind: str) -> Path:
        return self.directory / f"{name}.{kind}"
