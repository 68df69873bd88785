"""The directory in which the engine lives: found, tried, made, and never mistaken for another one.

Everything is in `.holdfast` inside the directory that the URL names. That directory must be there already: a volume
that is not mounted shall not be replaced by an empty folder of its mount point. What the engine relies on is tried
once, when it is opened, and never hoped for. Nothing is followed that is a symbolic link.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from typing import TYPE_CHECKING

from holdfast.host import NETWORK, TELLING, filesystem, patiently, trouble
from holdfast.errors import InvalidConfig, Unavailable
from holdfast.names import new_token

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HOME = ".holdfast"
NAME = "file"
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FRESH = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Beginnings of what is made in passing: a trial of the filesystem, the draft of an id.
_TRIAL, _DRAFT = ".try.", "id."
UNFINISHED = (_TRIAL, _DRAFT)
_REFUSED = ("cifs", "smb")
_ID_MAX = 200


class Ground:
    """One shared directory, as one client has it open."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / HOME
        self.kind = filesystem(root)
        self.network = self.kind.startswith(NETWORK)
        if self.kind.startswith(_REFUSED):
            raise InvalidConfig("url", f"file://{root}", f"the filesystem there is {self.kind}, which was not tested")
        try:
            above = os.stat(root)
        except OSError as error:
            raise trouble(NAME, error) from error
        # As the directory itself: where its group may write, the group shares the leases.
        shared = above.st_mode & stat.S_IWGRP
        self._group = above.st_gid if shared else -1
        self.folder_mode = 0o2770 if shared else 0o700
        self.file_mode = 0o660 if shared else 0o600
        self.leases = self.clients = -1
        self._open: list[int] = []
        self._identity = (0, 0)

    def open(self) -> None:
        """Make what is missing, and try what is relied on. May be said twice."""
        if self.leases >= 0:
            return
        try:
            patiently(self._open_all) if self._group >= 0 else self._open_all()
        except OSError as error:
            raise self.unavailable(error) from error

    def _open_all(self) -> None:
        try:
            home = self._folder(str(self.home), None)
            try:
                self._identity = _identity(home)
                if not self._is_tried(home):
                    _try_out(self, home)
                self.clients = self._kept("clients", home)
                self.leases = self._kept("leases", home)
            finally:
                os.close(home)
        except OSError:
            self.close()
            raise

    def _is_tried(self, home: int) -> bool:
        """Whether somebody has tried it before: the folder of leases is made last."""
        with contextlib.suppress(FileNotFoundError):
            os.stat("leases", dir_fd=home, follow_symlinks=False)
            return True
        return False

    def _kept(self, path: str, home: int) -> int:
        self._open.append(self._folder(path, home))
        return self._open[-1]

    def _folder(self, path: str, parent: int | None) -> int:
        try:
            os.mkdir(path, self.folder_mode & 0o777, dir_fd=parent)
        except FileExistsError:
            return os.open(path, DIRECTORY, dir_fd=parent)
        descriptor = os.open(path, DIRECTORY, dir_fd=parent)
        if self._group >= 0 and os.fstat(descriptor).st_gid != self._group:
            with contextlib.suppress(PermissionError):  # its maker is not of that group
                os.fchown(descriptor, -1, self._group)
        os.fchmod(descriptor, self.folder_mode)  # whatever the umask took away
        return descriptor

    def location(self) -> str:
        """An id of this directory, which is the same through every path and mount that leads here."""
        self.open()
        try:
            home = os.open(self.home, DIRECTORY)
            try:
                found = self._read_id(home) or self._make_id(home)
            finally:
                os.close(home)
        except OSError as error:
            raise self.unavailable(error) from error
        if not found:
            raise Unavailable(NAME, "corrupt", f"{self.home}/id is empty: remove it when nobody uses the directory")
        return found

    def _read_id(self, home: int) -> str:
        try:
            descriptor = os.open("id", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=home)
        except FileNotFoundError:
            return ""
        try:
            return os.read(descriptor, _ID_MAX).decode("ascii", "replace")
        finally:
            os.close(descriptor)

    def _make_id(self, home: int) -> str:
        draft = f"{_DRAFT}{new_token()}"
        self.write_new(draft, new_token().encode(), home, lasting=True)  # markers will name it for good
        with contextlib.suppress(FileExistsError):
            os.link(draft, "id", src_dir_fd=home, dst_dir_fd=home)
        os.unlink(draft, dir_fd=home)
        return self._read_id(home)

    def unavailable(self, error: OSError) -> Unavailable:
        """What the system says, in our words; a name inside of our directory says nothing to anybody."""
        if not os.path.isabs(str(error.filename)):
            error.filename = str(self.home)
        return trouble(NAME, error)

    def refuse_stranger(self) -> None:
        """`Unavailable` if the path leads elsewhere by now: a volume that went away, a directory made anew."""
        try:
            seen = os.stat(self.home, follow_symlinks=False)
        except OSError as error:
            raise Unavailable(NAME, "replaced", f"{self.home}: {error.strerror}") from error
        if (seen.st_dev, seen.st_ino) != self._identity:
            raise Unavailable(NAME, "replaced", f"{self.home} is no longer the directory that was opened")

    def write_new(self, name: str, body: bytes, folder: int, *, lasting: bool = False) -> None:
        """A new file with this content and the right mode, or none at all."""
        descriptor = os.open(name, FRESH, self.file_mode, dir_fd=folder)
        try:
            if os.write(descriptor, body) != len(body):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if self.file_mode & 0o060:
                os.fchmod(descriptor, self.file_mode)
            if lasting:
                os.fsync(descriptor)
        except BaseException:
            os.close(descriptor)
            os.unlink(name, dir_fd=folder)
            raise
        os.close(descriptor)

    def close(self) -> None:
        """May be said twice, also where the first was interrupted: no number is closed again, it may be another's."""
        while self._open:
            os.close(self._open.pop())
        self.leases = self.clients = -1


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _try_out(ground: Ground, home: int) -> None:
    """Every operation that only one may win, tried on this very filesystem."""
    place = f"{_TRIAL}{new_token()}"
    os.mkdir(place, 0o700, dir_fd=home)
    folder = os.open(place, DIRECTORY, dir_fd=home)
    try:
        failed = [what for what, holds in _TRIALS if not _holds(holds, ground, folder)]
    finally:
        _clear(folder)
        os.close(folder)
        os.rmdir(place, dir_fd=home)
    if failed:
        rule = f"the filesystem there ({ground.kind or 'of unknown type'}) has no {', no '.join(failed)}"
        raise InvalidConfig("url", f"file://{ground.root}", rule)


def _holds(trial: Callable[[Ground, int], bool], ground: Ground, folder: int) -> bool:
    try:
        return trial(ground, folder)
    except OSError as error:
        if error.errno in TELLING:
            raise
        return False


def _links(ground: Ground, folder: int) -> bool:
    ground.write_new("a", b"a", folder)
    ground.write_new("b", b"b", folder)
    os.link("a", "c", src_dir_fd=folder, dst_dir_fd=folder)
    try:
        os.link("b", "c", src_dir_fd=folder, dst_dir_fd=folder)
    except FileExistsError:
        return True
    return False


def _renames(ground: Ground, folder: int) -> bool:
    for name, inside in (("d", "x"), ("e", "y"), ("f", "")):
        os.mkdir(name, 0o700, dir_fd=folder)
        if inside:
            ground.write_new(f"{name}/{inside}", b"", folder)
    try:
        os.rename("d", "e", src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        os.rename("d", "f", src_dir_fd=folder, dst_dir_fd=folder)  # an empty one is replaced
        os.stat("f/x", dir_fd=folder)
        return True
    return False


def _locks(ground: Ground, folder: int) -> bool:
    if ground.network:
        return True  # not relied on there
    descriptors = [os.open("l", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=folder) for _ in range(2)]
    try:
        fcntl.flock(descriptors[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(descriptors[1], fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return False


_TRIALS = (
    ("link that only one can win", _links),
    ("rename that cannot overwrite", _renames),
    ("lock that a second descriptor respects", _locks),
)


def _clear(folder: int) -> None:
    for name in ("a", "b", "c", "l", "d/x", "e/y", "f/x"):
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=folder)
    for name in ("d", "e", "f"):
        with contextlib.suppress(OSError):
            os.rmdir(name, dir_fd=folder)
