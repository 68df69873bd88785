"""The numbered versions of one name: a log to which only one client can add the next version.

A version is a file whose name is its number, complete before any other client can see it. The highest number is the
truth. A client makes the next version by one `link`, which fails if the number exists: so of all clients that read the
same version one wins, and the others read again. No client ever removes or renames the highest version, and a client
that takes over deletes nothing.

A client makes the first version by renaming a folder that contains it into place, which succeeds only where there is no
folder with a version. When a name no longer needs to be remembered, a client removes its versions from the lowest
number up.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from holdfast import failpoints
from holdfast.engines.files.root import NAME
from holdfast.errors import UnreadableRecord
from holdfast.interrupts import raise_if_of_signal, suppress_unless_signal
from holdfast.names import new_token
from holdfast.shared_files import drop_folder, link, open_file, open_folder, unlink

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.engines.files.root import Root

_DIGITS = 16
_NUMBER_MAX = 10**_DIGITS - 1
_FIRST = 1
_UNREADABLE = ".unreadable."
_BODY_MAX = 16 * 1024 * 1024
# How many versions stay below the newest. On a network a listing may be old, but never so old that it hides this many.
_KEEP, _KEEP_NETWORK = 4, 64
_LOOKS = 50
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST)
_GONE = (errno.ENOENT, errno.ESTALE)
_NOT_A_FILE = (errno.ELOOP, errno.ENXIO, errno.EMLINK)


class Version(NamedTuple):
    """The number and the content of the highest version; 0 if there is none."""

    number: int
    body: bytes


NO_VERSION = Version(0, b"")


class WriteResult(Enum):
    """Done; lost to another client; or unsure: then the caller applies the command to the highest version again."""

    DONE = "done"
    LOST = "lost"
    UNSURE = "unsure"


class VersionLog:
    """The versions of one name. The log keeps a descriptor of their folder open for the length of one command."""

    def __init__(self, root: Root, folder: str) -> None:
        self._root = root
        self._name = folder
        self._folder = -1
        self.numbers: list[int] = []

    def read(self) -> Version:
        """Return the highest version."""
        for left in reversed(range(_LOOKS)):
            self.close()
            try:
                self._folder = open_folder(self._name, self._root.leases)
                self._list()
                if not self.numbers:
                    return NO_VERSION
                return Version(self.numbers[-1], self._body(self.numbers[-1]))
            except OSError as error:
                raise_if_of_signal(error)
                if error.errno not in _GONE or not left:
                    raise
                if self._folder < 0:
                    return NO_VERSION
                # Another client removed the folder or its highest version meanwhile: look again.
        raise AssertionError("the last look returns or raises")

    def read_older(self) -> list[bytes]:
        """Return the contents of the versions below the highest, as far as they can be read."""
        found: list[bytes] = []
        for number in self.numbers[-1 - _KEEP_NETWORK : -1]:
            with suppress_unless_signal(OSError):
                found.append(self._body(number))
        return found

    def write(self, base: Version, body: bytes, visible: Callable[[], None] = lambda: None) -> WriteResult:
        """Add the next version. Call `visible` as soon as others may see it, before removing old versions."""
        if base.number == 0:
            return self._write_first(body)
        private, public = f".{new_token()}", _file(base.number + 1)
        try:
            self._root.leases_folder.write_new(private, body, inside=self._folder)
        except OSError as error:
            raise_if_of_signal(error)
            if error.errno in _GONE:
                return WriteResult.LOST  # another client removed the folder meanwhile
            raise
        try:
            failpoints.point("files.before-link")
            result = self._link(private, public)
            if result is not WriteResult.LOST:
                visible()
        finally:
            with suppress_unless_signal(OSError):
                unlink(private, self._folder)
        failpoints.point("files.after-link")
        return self._check_overtaken(base.number) if result is WriteResult.DONE else result

    def _link(self, private: str, public: str) -> WriteResult:
        try:
            link(private, public, self._folder)
        except OSError as error:
            raise_if_of_signal(error)
            if error.errno == errno.EEXIST:
                # A network filesystem that resends after a lost reply reports this error too: check whose version it
                # is.
                return WriteResult.DONE if self._same(private, public) else WriteResult.LOST
            # If the folder is gone, there is no link. If the server did not answer, it may have made the link or not.
            return WriteResult.LOST if error.errno == errno.ENOENT else WriteResult.UNSURE
        return WriteResult.DONE

    def _same(self, one: str, other: str) -> bool:
        try:
            first, second = (_status(name, self._folder) for name in (one, other))
        except OSError as error:
            raise_if_of_signal(error)
            return False
        return os.path.samestat(first, second)

    def _check_overtaken(self, base: int) -> WriteResult:
        """Check whether this client slept after reading, and made a number that had existed and was removed.

        Clients remove versions from the lowest up. While the version that this client read exists, the next number was
        never used before; but a network filesystem may answer from an old cache that the version exists. If it is gone,
        this client slept, or others have continued from its version. Both cases look alike, and in both a version below
        the highest is not the truth: this method removes it, and the caller applies the command again to the highest
        version, which shows whether the command was applied before.
        """
        if self._root.network or not self._exists(base):
            try:
                self._list()
                if self.numbers and self.numbers[-1] > base + 1:
                    unlink(_file(base + 1), self._folder)
                    return WriteResult.UNSURE
            except OSError as error:
                raise_if_of_signal(error)
                return WriteResult.UNSURE
        self._clear_below(base + 1)
        return WriteResult.DONE

    def _exists(self, number: int) -> bool:
        try:
            status = _status(_file(number), self._folder)
        except OSError as error:
            raise_if_of_signal(error)
            return False
        return stat.S_ISREG(status.st_mode)

    def _clear_below(self, number: int) -> None:
        """Remove old versions, lowest first.

        Stop at the first that cannot be removed: no higher one may go before it.
        """
        keep = _KEEP_NETWORK if self._root.network else _KEEP
        with suppress_unless_signal(OSError):
            for old in self.numbers:
                if old >= number - keep:
                    return
                with contextlib.suppress(FileNotFoundError, IsADirectoryError):  # holdfast makes no folder there
                    unlink(_file(old), self._folder)

    def _write_first(self, body: bytes) -> WriteResult:
        """Rename a folder with the first version into place; that fails unless the place is free or an empty folder."""
        leases, draft = self._root.leases_folder, f".{new_token()}"
        folder = leases.new_folder(draft)
        try:
            try:
                leases.write_new(_file(_FIRST), body, inside=folder)
            finally:
                os.close(folder)
            failpoints.point("files.before-first-version")
            leases.move(draft, self._name)
        except BaseException as error:
            drop_draft(self._root, draft)
            if isinstance(error, OSError) and error.errno in (*_TAKEN, *_GONE):
                if error.errno in _TAKEN:
                    self._refresh_folder()
                    if not self.numbers:
                        self.clear_drafts()  # they block the first version, and their writers try again
                    return WriteResult.LOST
                return WriteResult.UNSURE  # the draft is gone: a first copy of the request renamed it
            raise
        failpoints.point("files.after-link")
        return WriteResult.DONE

    def _refresh_folder(self) -> None:
        """Make this host see the folder, after a failed rename proved that it exists.

        Over NFS version 3 a host may cache for ever that the folder does not exist: each entry that it creates in the
        parent folder renews the cache. An attempt to create the same folder asks the server, and ends the cached
        answer.
        """
        if self._root.network:
            with suppress_unless_signal(OSError):
                os.close(self._root.leases_folder.new_folder(self._name))
                drop_folder(self._name, self._root.leases, ())  # another client removed the folder meanwhile

    def clear_drafts(self, condition: Callable[[os.stat_result], bool] = lambda _: True) -> None:
        """Remove the unfinished versions of all clients for which the condition is true."""
        with suppress_unless_signal(OSError):
            for draft in os.listdir(self._folder) if self._folder >= 0 else ():
                if draft.startswith(".") and condition(_status(draft, self._folder)):
                    unlink(draft, self._folder)

    def keep_unreadable(self, number: int) -> None:
        """Give a version that cannot be read a second name outside the log, where no client removes it."""
        aside = f"{_UNREADABLE}{_file(number)}.{self._name}"
        with suppress_unless_signal(FileExistsError, PermissionError):  # the system makes no link to a folder
            link(_file(number), aside, self._folder, self._root.leases)

    def forget(self) -> None:
        """Remove the versions, from the lowest up, and the folder. A version that is added meanwhile stays."""
        with suppress_unless_signal(OSError):
            for number in self.numbers:
                with contextlib.suppress(FileNotFoundError):
                    unlink(_file(number), self._folder)
            drop_folder(self._name, self._root.leases, ())

    def written_ns(self, number: int) -> int:
        """Return when a client wrote the version, by the clock of the file server."""
        return _status(_file(number), self._folder).st_mtime_ns

    def _list(self) -> None:
        if self._root.network:
            with suppress_unless_signal(OSError):
                os.utime(self._folder)  # otherwise the listing may be that of the last tick, over NFS version 3
        entries = os.listdir(self._folder)
        digits = (entry for entry in entries if len(entry) == _DIGITS and entry.isdecimal() and entry.isascii())
        self.numbers = sorted(map(int, digits))
        if self.numbers and self.numbers[-1] >= _NUMBER_MAX:
            path = f"{self._root.home}/leases/{self._name}/{_file(self.numbers[-1])}"
            what = "holdfast did not write this version, and its number is the highest possible one"
            detail = f"{path}: {what}. Remove the file to use the name again"
            raise UnreadableRecord(NAME, detail=detail)

    def _body(self, number: int) -> bytes:
        try:
            descriptor = open_file(_file(number), self._folder)
        except OSError as error:
            raise_if_of_signal(error)
            if error.errno in _NOT_A_FILE:
                return b""  # a link or a socket: holdfast did not make it
            raise
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size > _BODY_MAX:
                return b""  # holdfast did not write it
            return os.read(descriptor, status.st_size)  # a version is complete before it is visible, and never changes
        finally:
            os.close(descriptor)

    def close(self) -> None:
        folder, self._folder = self._folder, -1
        if folder >= 0:
            os.close(folder)


def drop_draft(root: Root, name: str) -> None:
    """Remove a folder that was to become the folder of a name: it contains nothing but the first version."""
    root.leases_folder.drop_folder(name, (_file(_FIRST),))


def _file(number: int) -> str:
    return f"{number:0{_DIGITS}d}"


def _status(name: str, folder: int) -> os.stat_result:
    return os.stat(name, dir_fd=folder, follow_symlinks=False)
