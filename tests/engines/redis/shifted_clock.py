"""A wall clock of a server that a test can set: a small library, preloaded into it. It needs a C compiler."""

import shutil
import struct
import subprocess
import time
from pathlib import Path

import pytest

from holdfast.testing import eventually

SOURCE = Path(__file__).with_name("shifted_clock.c")


class ShiftedClock:
    """How a server has to be started, and by how much its wall clock is off."""

    def __init__(self, folder):
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("no C compiler on this machine, so the clock of a server cannot be set")
        library, self._file = folder / "shifted_clock.so", folder / "shift"
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE], check=True)
        self._file.write_bytes(bytes(8))
        self.environment = {"LD_PRELOAD": str(library), "SHIFTED_CLOCK": str(self._file)}

    def shift(self, seconds, server=None):
        """Set the clock off by that many seconds, and wait until the server has seen it: Valkey looks on its tick."""
        with self._file.open("r+b") as file:
            file.write(struct.pack("=q", round(seconds * 1e6)))
        if server is not None:
            eventually(lambda: abs(_time(server) - time.time() - seconds) < 0.3, 5, "the clock to be set")


def _time(server):
    seconds, micros = server.command("TIME")
    return int(seconds) + int(micros) / 1e6
