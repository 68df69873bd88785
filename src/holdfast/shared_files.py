"""Files in places that other users can write to: the only module that opens, creates, replaces and deletes them.

The rule: a path is used once, to open its directory. Everything else is done by descriptor, relative to an open
directory, so that no user can put another file in place between a check and its use. No function follows a symbolic
link or waits for a FIFO. A new file has its group and its mode before it has content. Only a file that this process has
just created gets another mode or group.

Who is trusted with the files of a directory follows from the directory:

- This user, root and the owner of the directory always are: they could replace every file in it.
- If the group may write to the directory, and not all users, the group shares the files: its members are trusted.
- If all users may write to it, as to /tmp, a file of another user counts as planted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import time
import weakref
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from holdfast.host import NETWORK, filesystem
from holdfast.interrupts import raise_if_of_signal, suppress_unless_signal
from holdfast.names import new_token

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

T = TypeVar("T")
_SAFE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
READ = os.O_RDONLY | _SAFE
_FOLDER = READ | os.O_DIRECTORY
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | _SAFE
_KINDS = {
    stat.S_IFREG: "a regular file",
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
}
_PRIVATE = 0o600
_TRIES, _PAUSE_S = 25, 0.02


class UntrustedFile(PermissionError):
    """A file that this process refuses to use. `planted`: true if an untrusted user owns the file or may change it."""

    def __init__(self, path: str, why: str, *, planted: bool = False) -> None:
        super().__init__(errno.EPERM, why, path)
        self.planted = planted

    def __reduce__(self) -> tuple[type[UntrustedFile], tuple[str, str], dict[str, bool]]:
        return UntrustedFile, (self.filename, self.strerror or ""), {"planted": self.planted}


class Folder:
    """An open directory, and the rule about who shares the files in it.

    `readable`: users who may read the directory may read the files in it; otherwise only those who may write them.
    `private`: the files are for this user alone, also if the group may write to the directory.
    """

    def __init__(self, path: str | os.PathLike[str], *, readable: bool = False, private: bool = False) -> None:
        # The path is the choice of the program, so a link at its end is followed.
        self._begin(os.fspath(path), os.open(path, _FOLDER & ~os.O_NOFOLLOW))
        status = os.fstat(self.descriptor)
        self.for_all = bool(status.st_mode & stat.S_IWOTH)
        self.shared = bool(status.st_mode & stat.S_IWGRP) and not (self.for_all or private)
        self.group = status.st_gid if self.shared else -1
        seen = status.st_mode if readable else 0
        self.folder_mode = seen & 0o055 | status.st_mode & stat.S_ISGID | (0o2770 if self.shared else 0o700)
        self.file_mode = seen & 0o044 | (0o660 if self.shared else 0o600)

    def _begin(self, path: str, descriptor: int) -> None:
        self.path, self.descriptor = path, descriptor
        # A folder may be in use by threads, so the garbage collector closes it, unless `close` did.
        self.close = weakref.finalize(self, os.close, self.descriptor)
        self.close.atexit = False
        status = os.fstat(descriptor)
        self.identity = (status.st_dev, status.st_ino)
        self.owner = status.st_uid

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Folders inside.

    def open_folder(self, name: str) -> Folder:
        """Open a directory inside, to which the same rule applies; refuse a link, and an untrusted user's directory."""
        descriptor = _open(name, _FOLDER, self.descriptor, self.path)
        try:
            self.check(name, os.fstat(descriptor), stat.S_IFDIR)
        except BaseException:
            os.close(descriptor)
            raise
        # The rule comes from above: the creator of the folder may be about to set its mode.
        child = copy(self)
        child._begin(f"{self.path}/{name}", descriptor)  # noqa: SLF001
        child.for_all = False
        return child

    def make_folder(self, name: str) -> Folder:
        """Open a directory inside, and create it with the mode of this directory if it is missing."""
        with contextlib.suppress(FileExistsError):
            os.close(self.new_folder(name))
        return self.open_folder(name)

    def new_folder(self, name: str) -> int:
        """Create a directory inside with the group and the mode of this directory, and return its descriptor."""
        try:
            os.mkdir(name, self.folder_mode & 0o777, dir_fd=self.descriptor)
        except OSError as error:
            raise_if_of_signal(error)
            raise _named(error, f"{self.path}/{name}") from None
        descriptor = _open(name, _FOLDER, self.descriptor, self.path)
        try:
            self._share(descriptor, name, self.folder_mode)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    # Files.

    def open(self, name: str, flags: int = READ, *, any_mode: bool = False) -> int:
        """Open a regular file that exists; refuse every other kind of file, and a file of an untrusted user."""
        descriptor = _open(name, flags | _SAFE, self.descriptor, self.path)
        try:
            self.check(name, os.fstat(descriptor), any_mode=any_mode)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def create(self, name: str, *, inside: int = -1) -> int:
        """Create a file, which must not exist, with its group and mode; return the descriptor, for both directions.

        `inside`: the descriptor of a directory below this one, which gets the file.
        """
        parent = inside if inside >= 0 else self.descriptor
        descriptor = _open(name, _NEW, parent, self.path, self.file_mode)
        if self.file_mode == _PRIVATE:
            return descriptor  # no umask makes it less private
        try:
            self._share(descriptor, name, self.file_mode)
        except BaseException:
            os.close(descriptor)
            unlink(name, parent)
            raise
        return descriptor

    def create_like(self, name: str, model: os.stat_result | None) -> int:
        """Create a file with the group and the mode of another one; without another one, as the umask has it."""
        descriptor = _open(name, _NEW, self.descriptor, self.path, 0o666 if model is None else 0o600)
        try:
            if model is not None:
                _give(descriptor, model.st_gid, stat.S_IMODE(model.st_mode) & 0o777)
        except BaseException:
            os.close(descriptor)
            self.remove(name)
            raise
        return descriptor

    def open_or_create(self, name: str) -> int:
        """Open a file for both directions; create it if it is missing."""
        while True:
            with contextlib.suppress(FileNotFoundError):
                return self.open(name, os.O_RDWR)
            with contextlib.suppress(FileExistsError):
                return self.create(name)

    def open_fifo(self, name: str) -> int:
        """Create a FIFO of this process and open it, for both directions, so that it never ends with a writer."""
        with contextlib.suppress(FileExistsError):
            os.mkfifo(name, self.file_mode, dir_fd=self.descriptor)
        descriptor = _open(name, os.O_RDWR | _SAFE, self.descriptor, self.path)
        try:
            self.check(name, os.fstat(descriptor), stat.S_IFIFO)
            self._share(descriptor, name, self.file_mode)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def open_wakeups(self, name: str) -> int:
        """Open a FIFO of another process for writing; `OSError` if no process reads from it."""
        descriptor = _open(name, os.O_WRONLY | _SAFE, self.descriptor, self.path)
        try:
            self.check(name, os.fstat(descriptor), stat.S_IFIFO)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def read(self, name: str, limit: int, *, any_mode: bool = False) -> bytes:
        """Return the first `limit` bytes of a file."""
        descriptor = self.open(name, any_mode=any_mode)
        try:
            return os.read(descriptor, limit)
        finally:
            os.close(descriptor)

    def write_new(self, name: str, body: bytes, *, lasting: bool = False, inside: int = -1) -> None:
        """Create a file with this content, or none at all. `lasting`: the content is on the disk at the end."""
        descriptor = self.create(name, inside=inside)
        try:
            if os.write(descriptor, body) != len(body):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if lasting:
                os.fsync(descriptor)
        except BaseException:
            unlink(name, inside if inside >= 0 else self.descriptor)
            raise
        finally:
            os.close(descriptor)

    def status(self, name: str) -> os.stat_result:
        """Return the status of an entry, and of a link itself."""
        return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)

    def link(self, name: str, new: str, to: Folder | None = None) -> None:
        """Give a file a second name, which must not exist, also in another directory."""
        link(name, new, self.descriptor, to.descriptor if to is not None else -1)

    def move(self, name: str, new: str, to: Folder | None = None) -> None:
        """Rename an entry, also into another directory, and replace a file that has the new name."""
        target = self if to is None else to
        try:
            os.rename(name, new, src_dir_fd=self.descriptor, dst_dir_fd=target.descriptor)
        except OSError as error:
            raise_if_of_signal(error)
            raise _named(error, f"{target.path}/{new}") from None

    def symlink(self, name: str, target: str) -> None:
        """Create a symbolic link, which must not exist."""
        os.symlink(target, name, dir_fd=self.descriptor)

    def names(self) -> list[str]:
        """Return the names of all entries."""
        return os.listdir(self.descriptor)

    def remove(self, name: str) -> None:
        """Remove a file, a link or a FIFO, if it exists; never what a link leads to."""
        with contextlib.suppress(FileNotFoundError):
            unlink(name, self.descriptor)

    def remove_tree(self, name: str) -> None:
        """Remove a directory with all its content, or a file; follow no link, and raise no error."""
        with suppress_unless_signal(OSError):
            self.remove(name)
        shutil.rmtree(name, ignore_errors=True, dir_fd=self.descriptor)

    def drop_folder(self, name: str, files: Iterable[str]) -> None:
        """Remove a directory with these files, if it contains nothing else; raise no error."""
        with suppress_unless_signal(OSError):
            drop_folder(name, self.descriptor, files)

    def sync(self) -> None:
        """Write the names in this directory to the disk."""
        os.fsync(self.descriptor)

    # Trust.

    def check(self, name: str, status: os.stat_result, kind: int = stat.S_IFREG, *, any_mode: bool = False) -> None:
        """Raise `UntrustedFile` unless the entry is of this kind, of a trusted user, and not writable for all users.

        `any_mode`: the program chose the mode, and all users may be allowed to write.
        """
        path, uid = f"{self.path}/{name}", status.st_uid
        self.check_owner(name, status)
        if stat.S_IFMT(status.st_mode) != kind:
            raise _wrong_kind(path, status, kind)
        if status.st_mode & stat.S_IWOTH and not any_mode:
            advice = f"run chmod o-w on it if you trust its content, which belongs to user {uid}"
            mode = stat.S_IMODE(status.st_mode)
            raise UntrustedFile(path, f"all users can write to this (mode {mode:o}): {advice}", planted=True)
        if kind == stat.S_IFREG and self.for_all and status.st_nlink > 1:
            raise UntrustedFile(path, f"this file of user {uid} has a second name (a hard link): remove this name")

    def check_owner(self, name: str, status: os.stat_result) -> None:
        """Raise `UntrustedFile` if the entry belongs to an untrusted user."""
        uid = status.st_uid
        if self.shared or uid in (0, self.owner) or self._is_mine(uid):
            return
        place = "all users can write to its directory" if self.for_all else "its directory belongs to another user"
        why = (
            f"this belongs to user {uid}, who is not trusted here: {place}. Use a directory that only this user, "
            "or one group, can write to; or let its owner remove it"
        )
        raise UntrustedFile(f"{self.path}/{name}", why, planted=True)

    def _is_mine(self, uid: int) -> bool:
        """Return true if new files of this process belong to that user: a file server may show another user for it."""
        if uid == os.geteuid():
            return True
        if not filesystem(Path(self.path)).startswith(NETWORK):
            return False
        probe = f".holdfast.{new_token()}"
        descriptor = _open(probe, _NEW, self.descriptor, self.path, 0o600)
        try:
            return os.fstat(descriptor).st_uid == uid
        finally:
            os.close(descriptor)
            self.remove(probe)

    def _share(self, descriptor: int, name: str, mode: int) -> None:
        """Give a new entry its group and its mode, which the umask may have reduced."""
        status = os.fstat(descriptor)
        if stat.S_IMODE(status.st_mode) == mode and self.group in (-1, status.st_gid):
            return
        # Another user who may write to this directory can have put an entry of this user in its place.
        is_other = not self._is_mine(status.st_uid) or (stat.S_ISDIR(status.st_mode) and os.listdir(descriptor))
        if is_other:
            raise UntrustedFile(
                f"{self.path}/{name}", f"another process replaced this by an entry of user {status.st_uid}"
            )
        _give(descriptor, self.group, mode)


@contextlib.contextmanager
def opened(directory: str | os.PathLike[str], *parts: str, make: bool = False) -> Iterator[Folder]:
    """Open a directory whose files its readers may read, or one inside it; follow no link inside.

    `make`: create the missing directories inside.
    """
    folder = Folder(directory, readable=True)
    try:
        for part in parts:
            inside = folder.make_folder(part) if make else folder.open_folder(part)
            folder.close()
            folder = inside
        yield folder
    finally:
        folder.close()


def make_path(path: str | os.PathLike[str]) -> Folder:
    """Open a directory for files of this user alone; create it and its missing parents, for this user alone."""
    try:
        return Folder(path, private=True)
    except FileNotFoundError:
        parent, name = os.path.split(os.fspath(path))
        with make_path(parent) as above:
            return above.make_folder(name)


def is_movable(path: str | os.PathLike[str]) -> bool:
    """Return true if all users may move and remove the files of a directory: there is no sticky bit."""
    return os.stat(path).st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH


def open_folder(name: str, parent: int) -> int:
    """Return a descriptor of a directory inside a trusted one; follow no link."""
    return os.open(name, _FOLDER, dir_fd=parent)


def open_file(name: str, parent: int) -> int:
    """Return a descriptor of a file inside a trusted directory, for reading; follow no link, wait for no FIFO."""
    return os.open(name, READ, dir_fd=parent)


def link(name: str, new: str, folder: int, to: int = -1) -> None:
    """Give a file a second name, which must not exist, in its directory or in another one."""
    os.link(name, new, src_dir_fd=folder, dst_dir_fd=to if to >= 0 else folder, follow_symlinks=False)


def unlink(name: str, folder: int) -> None:
    """Remove a file, a link or a FIFO from a directory."""
    os.unlink(name, dir_fd=folder)


def drop_folder(name: str, parent: int, files: Iterable[str]) -> None:
    """Remove a directory with these files; raise `OSError` if it contains anything else."""
    folder = open_folder(name, parent)
    try:
        for each in files:
            with suppress_unless_signal(OSError):
                unlink(each, folder)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=parent)


def retry_if_denied(call: Callable[[], T], *folders: str | os.PathLike[str]) -> T:
    """Call `call`; while it raises `PermissionError`, repeat it for half a second.

    Another process may have created a folder and not yet set its mode.

    A network filesystem remembers for half a minute that a folder denied access, and asks the server again when a
    process opens the folder: so this function opens `folders`, the folders on the path.
    """
    for _ in range(_TRIES):
        with contextlib.suppress(PermissionError):
            return call()
        time.sleep(_PAUSE_S)
        for folder in folders:
            with suppress_unless_signal(OSError):
                os.close(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    return call()


def _open(name: str, flags: int, parent: int, path: str, mode: int = 0o600) -> int:
    """Open an entry of a directory; an error names the whole path."""
    try:
        return os.open(name, flags, mode, dir_fd=parent)
    except OSError as error:
        raise_if_of_signal(error)
        if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO):
            raise _named(error, f"{path}/{name}") from None
        # The kernel refused the kind of the entry: say which kind it is, and whose.
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        kind = stat.S_IFDIR if flags & os.O_DIRECTORY else stat.S_IFREG
        raise _wrong_kind(f"{path}/{name}", status, kind) from None


def _wrong_kind(path: str, status: os.stat_result, wanted: int) -> UntrustedFile:
    found = _KINDS.get(stat.S_IFMT(status.st_mode), "a device")
    why = f"this is {found} of user {status.st_uid}, and must be {_KINDS[wanted]}: remove it if no program needs it"
    return UntrustedFile(path, why)


def _give(descriptor: int, group: int, mode: int) -> None:
    """Set the group (-1: leave it) and the mode of a file that this process has just created."""
    if group not in (-1, os.fstat(descriptor).st_gid):
        try:
            os.fchown(descriptor, -1, group)
        except PermissionError:  # this user is not in that group, and its own group gets no more than all users get
            mode = mode & ~0o2070 | (mode & 0o007) << 3
    os.fchmod(descriptor, mode)


def _named(error: OSError, path: str) -> OSError:
    error.filename = path
    return error
