"""A wall clock that one program has for its own, and that a test may turn while the program runs.

The rule: only the calendar moves. The clocks that measure, and sleeps, are the machine's; so what breaks broke because
somebody decided by the calendar. It needs a C compiler, once; where there is none, `available()` is false.
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
    """The C compiler of this machine, if it has one."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def available() -> bool:
    """Whether a program can be given a clock of its own here."""
    return os.uname().sysname == "Linux" and compiler() is not None


def missing() -> str:
    """Why no program can be given a clock of its own here, and what would help; empty if one can."""
    return (
        ""
        if available()
        else "no clock can be set for a program here: that takes Linux, and cc, gcc or clang on the PATH"
    )


class WallClock:
    """One clock: start a program with `env`, and `set` how far it is ahead."""

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
        """From now on the program's calendar is that much ahead; less than nothing is behind."""
        # In place and in one write: the program has this very file mapped.
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, _NUMBER.pack(round(seconds * 1e9)))
        finally:
            os.close(descriptor)


def _compile(library: Path) -> None:
    program = compiler()
    if program is None:
        raise FileNotFoundError("no C compiler here: a program cannot be given a clock of its own")
    draft = library.with_suffix(f".{os.getpid()}")
    make = [program, "-shared", "-fPIC", "-O2", "-o", str(draft), str(_SOURCE)]
    subprocess.run(make, check=True, capture_output=True)
    draft.replace(library)
