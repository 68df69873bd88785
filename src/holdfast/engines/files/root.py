"""The shared directory: open it, test it, prepare it, and never mistake another directory for it.

The engine keeps everything in `.holdfast` inside the directory that the URL names. That directory must exist: the
engine does not create it, so that it never uses an empty mount point instead of a volume that is not mounted. The first
open tests every operation that the engine relies on. The engine follows no symbolic link. It refuses a `.holdfast` of
another layout, and changes nothing in it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from typing import TYPE_CHECKING

from holdfast.engines.files import HOME
from holdfast.engines.files.codec import LAYOUT
from holdfast.errors import InvalidConfig, Unavailable, UnavailableReason
from holdfast.host import KNOWN_ERRORS, NETWORK, filesystem, retry_denied, unavailable_error
from holdfast.names import new_token

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NAME = "file"
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FRESH = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# How the names of temporary entries begin: a trial of the filesystem, the draft of a file.
_TRIAL, _DRAFT = ".try.", ".draft."
UNFINISHED = (_TRIAL, _DRAFT)
_REFUSED = ("cifs", "smb")
_SHORT = 200
# The layout of a `.holdfast` without a layout file.
_UNMARKED = "1"


class Root:
    """One shared directory, as one client has it open."""

    def __init__(self, root: Path) -> None:
        self.directory = root
        self.home = root / HOME
        self.kind = filesystem(root)
        self.network = self.kind.startswith(NETWORK)
        if self.kind.startswith(_REFUSED):
            raise InvalidConfig("url", f"file://{root}", f"the filesystem there is {self.kind}, which was not tested")
        try:
            above = os.stat(root)
        except OSError as error:
            raise unavailable_error(NAME, error) from error
        # If the group of the directory may write there, the group shares the leases.
        shared = above.st_mode & stat.S_IWGRP
        self._group = above.st_gid if shared else -1
        self.folder_mode = 0o2770 if shared else 0o700
        self.file_mode = 0o660 if shared else 0o600
        self.leases = self.clients = -1
        self._open: list[int] = []
        self._identity = (0, 0)

    def open(self) -> None:
        """Create the missing folders, and test what the engine relies on. A second call does nothing."""
        if self.leases >= 0:
            return
        try:
            retry_denied(self._open_all) if self._group >= 0 else self._open_all()
        except OSError as error:
            raise self.unavailable(error) from error

    def _open_all(self) -> None:
        try:
            home = self._folder(str(self.home), None)
            try:
                self._identity = _identity(home)
                if self._is_prepared(home):
                    self._refuse_other_layout(home)
                else:
                    _test_filesystem(self, home)
                    self._publish("layout", str(LAYOUT), home)
                self.clients = self._open_kept("clients", home)
                self.leases = self._open_kept("leases", home)
            finally:
                os.close(home)
        except OSError:
            self.close()
            raise

    def _is_prepared(self, home: int) -> bool:
        """Return true if a client has tested the filesystem before: the folder of leases is created last."""
        with contextlib.suppress(FileNotFoundError):
            os.stat("leases", dir_fd=home, follow_symlinks=False)
            return True
        return False

    def _refuse_other_layout(self, home: int) -> None:
        layout = self._read("layout", home) or _UNMARKED
        if layout != str(LAYOUT):
            detail = (
                f"{self.home} has layout {layout}, and this version of holdfast uses layout {LAYOUT}: stop every "
                f"process that uses it and move {self.home} away, or install the version that wrote it"
            )
            raise Unavailable(NAME, UnavailableReason.OTHER_LAYOUT, detail)

    def _open_kept(self, path: str, home: int) -> int:
        """Open a folder, create it if it is missing, and keep its descriptor until `close`."""
        self._open.append(self._folder(path, home))
        return self._open[-1]

    def _folder(self, path: str, parent: int | None) -> int:
        try:
            os.mkdir(path, self.folder_mode & 0o777, dir_fd=parent)
        except FileExistsError:
            return os.open(path, DIRECTORY, dir_fd=parent)
        descriptor = os.open(path, DIRECTORY, dir_fd=parent)
        if self._group >= 0 and os.fstat(descriptor).st_gid != self._group:
            with contextlib.suppress(PermissionError):  # this user is not in that group
                os.fchown(descriptor, -1, self._group)
        os.fchmod(descriptor, self.folder_mode)  # restore the bits that the umask removed
        return descriptor

    def location(self) -> str:
        """Return an id of this directory, which is the same through every path and mount that leads here."""
        self.open()
        try:
            home = os.open(self.home, DIRECTORY)
            try:
                found = self._read("id", home) or self._publish("id", new_token(), home)
            finally:
                os.close(home)
        except OSError as error:
            raise self.unavailable(error) from error
        if not found:
            raise Unavailable(
                NAME,
                UnavailableReason.CORRUPT,
                f"{self.home}/id is empty: remove it when no process uses the directory",
            )
        return found

    def _read(self, name: str, home: int) -> str:
        """Return the content of a small file; empty if there is none."""
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=home)
        except FileNotFoundError:
            return ""
        try:
            return os.read(descriptor, _SHORT).decode("ascii", "replace")
        finally:
            os.close(descriptor)

    def _publish(self, name: str, content: str, home: int) -> str:
        """Create a small file with this content, whole or not at all; return the content that the first writer gave."""
        draft = f"{_DRAFT}{new_token()}"
        self.write_new(draft, content.encode(), home, lasting=True)  # all later clients rely on this content
        with contextlib.suppress(FileExistsError):
            os.link(draft, name, src_dir_fd=home, dst_dir_fd=home)
        os.unlink(draft, dir_fd=home)
        return self._read(name, home)

    def unavailable(self, error: OSError) -> Unavailable:
        """Return the `Unavailable` for an error of the system; it names `.holdfast`, not a file inside."""
        if not os.path.isabs(str(error.filename)):
            error.filename = str(self.home)
        return unavailable_error(NAME, error)

    def refuse_replaced(self) -> None:
        """Raise `Unavailable` if the path leads elsewhere now: the volume is gone, or the directory is another one."""
        try:
            seen = os.stat(self.home, follow_symlinks=False)
        except OSError as error:
            raise Unavailable(NAME, UnavailableReason.REPLACED, f"{self.home}: {error.strerror}") from error
        if (seen.st_dev, seen.st_ino) != self._identity:
            raise Unavailable(
                NAME, UnavailableReason.REPLACED, f"{self.home} is no longer the directory that was opened"
            )

    def write_new(self, name: str, body: bytes, folder: int, *, lasting: bool = False) -> None:
        """Create a file with this content and the right mode, or none at all."""
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
        """Close the descriptors. A second call, also after an interrupt, closes no descriptor again."""
        while self._open:
            os.close(self._open.pop())
        self.leases = self.clients = -1


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _test_filesystem(root: Root, home: int) -> None:
    """Test on this filesystem every operation that only one client may win; `InvalidConfig` names those that fail."""
    trial = f"{_TRIAL}{new_token()}"
    os.mkdir(trial, 0o700, dir_fd=home)
    folder = os.open(trial, DIRECTORY, dir_fd=home)
    try:
        failed = [what for what, holds in _TRIALS if not _holds(holds, root, folder)]
    finally:
        _clear(folder)
        os.close(folder)
        os.rmdir(trial, dir_fd=home)
    if failed:
        rule = f"the filesystem there ({root.kind or 'of unknown type'}) has no {', no '.join(failed)}"
        raise InvalidConfig("url", f"file://{root.directory}", rule)


def _holds(trial: Callable[[Root, int], bool], root: Root, folder: int) -> bool:
    try:
        return trial(root, folder)
    except OSError as error:
        if error.errno in KNOWN_ERRORS:
            raise
        return False


def _links(root: Root, folder: int) -> bool:
    root.write_new("a", b"a", folder)
    root.write_new("b", b"b", folder)
    os.link("a", "c", src_dir_fd=folder, dst_dir_fd=folder)
    try:
        os.link("b", "c", src_dir_fd=folder, dst_dir_fd=folder)
    except FileExistsError:
        return True
    return False


def _renames(root: Root, folder: int) -> bool:
    for name, inside in (("d", "x"), ("e", "y"), ("f", "")):
        os.mkdir(name, 0o700, dir_fd=folder)
        if inside:
            root.write_new(f"{name}/{inside}", b"", folder)
    try:
        os.rename("d", "e", src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        os.rename("d", "f", src_dir_fd=folder, dst_dir_fd=folder)  # a rename replaces an empty folder
        os.stat("f/x", dir_fd=folder)
        return True
    return False


def _locks(root: Root, folder: int) -> bool:
    if root.network:
        return True  # the engine does not rely on locks there
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
