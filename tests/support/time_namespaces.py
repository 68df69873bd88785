"""Programs that run in another time namespace: the same boot of the machine, another boot-time clock."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

SHIFT_S = 100_000
_ENTER = ("unshare", "--time", "--boottime", str(SHIFT_S), "--")


def _is_possible() -> bool:
    if os.geteuid() or shutil.which("unshare") is None:
        return False
    return subprocess.run((*_ENTER, "true"), capture_output=True, check=False).returncode == 0


needs_time_namespaces = pytest.mark.skipif(not _is_possible(), reason="needs root and time namespaces")


def start_elsewhere(program: str) -> subprocess.Popen[str]:
    """Start a Python program with another boot-time clock."""
    pipe = subprocess.PIPE
    return subprocess.Popen((*_ENTER, sys.executable, "-c", program), stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def run_elsewhere(program: str) -> str:
    """Run a Python program with another boot-time clock; return what it printed, without the last line break."""
    with start_elsewhere(program) as process:
        printed, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    return printed.rstrip("\n")
