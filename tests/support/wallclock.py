"""A wall clock for one program, which a test may set while the program runs.

Only the wall clock changes. Monotonic clocks and sleeps stay those of the machine; so a failure means that some code
decided by the wall clock. It needs a C compiler, once; without one, `available()` is false.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from functools import cache
from pathlib import Path

VARIABLE = "HOLDFAST_WALL_CLOCK"

_SOURCE = Path(__file__).with_name("wallclock.c")
_NUMBER = struct.Struct("=q")


@cache
def compiler() -> str | None:
    """Return the C compiler of this machine, if it has one."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def available() -> bool:
    """Return whether this machine can give a program its own clock."""
    return os.uname().sysname == "Linux" and compiler() is not None


def missing() -> str:
    """Return why this machine cannot give a program its own clock, and what would help; empty if it can."""
    return (
        ""
        if available()
        else "no program can have its own clock here: that takes Linux, and cc, gcc or clang on the PATH"
    )


class WallClock:
    """One clock: start a program with `env`, then `set` how far its wall clock is ahead."""

    def __init__(self, directory: str | os.PathLike[str], name: str) -> None:
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / f"{name}.clock"
        self._library = folder / "wallclock.so"
        if not self._library.exists():
            _compile(self._library)
        self.set(0)

    @property
    def env(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), VARIABLE: str(self._file)}

    def set(self, seconds: float) -> None:
        """Set the program's wall clock ahead by that much; a negative number sets it behind."""
        # In place and in one write: the program maps this file.
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, _NUMBER.pack(round(seconds * 1e9)))
        finally:
            os.close(descriptor)


def _compile(library: Path) -> None:
    program = compiler()
    if program is None:
        raise FileNotFoundError("this machine has no C compiler, so that no program can have its own clock")
    draft = library.with_suffix(f".{os.getpid()}")
    make = [program, "-shared", "-fPIC", "-O2", "-o", str(draft), str(_SOURCE)]
    subprocess.run(make, check=True, capture_output=True)
    draft.replace(library)
