"""A small disk for a test: a real tmpfs that can be filled, emptied and made read-only."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


class SmallDisk:
    """A mounted tmpfs of a fixed size."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / ".filler"

    def fill(self, leave: int = 0) -> None:
        """Write a file until the disk is full, then give back `leave` bytes, a multiple of the page size."""
        self.empty()
        with self._filler.open("xb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"x" * 4096)
        assert os.statvfs(self.path).f_bavail == 0
        os.truncate(self._filler, max(0, self._filler.stat().st_size - leave))

    def empty(self) -> None:
        """Remove the file that fills the disk."""
        self._filler.unlink(missing_ok=True)

    def read_only(self) -> None:
        """Remount the disk; refused by the kernel while a file is open for writing."""
        _mount("-o", "remount,ro", str(self.path))

    def writable(self) -> None:
        _mount("-o", "remount,rw", str(self.path))


@contextlib.contextmanager
def small_disk(path: Path, size: str = "1m") -> Iterator[SmallDisk]:
    """Mount a tmpfs at a new directory, and unmount it at the end. Skip the test where that is not permitted."""
    if os.getuid() != 0:
        pytest.skip("only root can mount a small disk: run it as root")
    path.mkdir()
    mounted = _mount("-t", "tmpfs", "-o", f"size={size},mode=755", "none", str(path), check=False)
    if mounted.returncode != 0:
        pytest.skip(f"this machine mounts no tmpfs: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(("umount", "-l", str(path)), check=True, capture_output=True)


def _mount(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(("mount", *arguments), check=check, capture_output=True, text=True)
