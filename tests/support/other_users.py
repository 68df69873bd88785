"""Other users of this machine, for tests of hostile files. Only root can become or name another user."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

MALLORY, ANN, BEN, TEAM = 65534, 4001, 4002, 4242


def need_root() -> None:
    """Skip the test by name unless it runs as root."""
    if os.getuid() != 0:
        pytest.skip("only root can become another user: run it as root")


@contextmanager
def public_directory(mode: int, gid: int = -1) -> Iterator[Path]:
    """A directory that every user of this machine can reach, with this mode."""
    with tempfile.TemporaryDirectory() as above:
        os.chmod(above, 0o755)
        path = Path(above) / "shared"
        path.mkdir()
        if gid >= 0:
            os.chown(path, -1, gid)
        path.chmod(mode)
        yield path


def give_to(uid: int, path: Path, mode: int | None = None) -> None:
    """Make another user the owner of a file or of a whole directory, as if that user had created it."""
    for each in [path, *path.rglob("*")] if path.is_dir() and not path.is_symlink() else [path]:
        os.chown(each, uid, uid, follow_symlinks=False)
        if mode is not None and not each.is_symlink():
            each.chmod(mode | (0o111 if each.is_dir() else 0))


def snapshot(path: Path) -> dict[str, tuple[object, ...]]:
    """Return every entry below a directory with its owner, mode and content."""

    def facts(each: Path) -> tuple[object, ...]:
        status = each.lstat()
        content = each.read_bytes() if stat.S_ISREG(status.st_mode) else None
        return status.st_uid, status.st_gid, status.st_mode, status.st_mtime_ns, content

    return {str(each): facts(each) for each in sorted(path.rglob("*"))}


def as_user(uid: int, work: Callable[[], object], gid: int | None = None) -> int:
    """Call `work` in a child process of that user; return the exit status: 0, or 1 if it raised."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgroups([])
            os.setgid(uid if gid is None else gid)
            os.setuid(uid)
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
