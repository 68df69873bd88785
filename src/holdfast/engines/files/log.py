"""One name's numbered sheets: a register that only one can turn to the next sheet.

A sheet is a file whose name is its number, whole before anybody can see it. The highest number is the truth. The next
sheet is made by one `link`, which fails where the number is taken: so of all who read the same sheet one wins, and the
others read again. Nobody ever removes or renames the highest sheet, and whoever takes over deletes nothing.

The first sheet comes with its folder, renamed into place, which succeeds only where no folder with a sheet is. What
is left of a folder is removed from the lowest number up when nothing in it needs to be remembered.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from holdfast import failpoints
from holdfast.engines.files.root import DIRECTORY
from holdfast.names import new_token

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.engines.files.root import Ground

_DIGITS = 16
_FIRST = 1
_BODY_MAX = 16 * 1024 * 1024
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# How many sheets stay behind the newest. On a network a listing may be old; it cannot be so old that it hides as many.
_KEEP, _KEEP_NETWORK = 4, 64
_LOOKS = 50
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST)
_AWAY = (errno.ENOENT, errno.ESTALE)


class Sheet(NamedTuple):
    """What a register says: the number of its highest sheet (0: there is none), and what is written there."""

    number: int
    body: bytes


BLANK = Sheet(0, b"")


class Turn(Enum):
    """How it went: done; lost to somebody else; or overtaken, so that the highest sheet has to be asked."""

    DONE = "done"
    LOST = "lost"
    UNSURE = "unsure"


class Register:
    """The sheets of one name. It holds a descriptor of their folder for as long as one question takes."""

    def __init__(self, ground: Ground, folder: str) -> None:
        self._ground = ground
        self._name = folder
        self._folder = -1
        self.numbers: list[int] = []

    def read(self) -> Sheet:
        """The highest sheet."""
        for left in reversed(range(_LOOKS)):
            self.close()
            try:
                self._folder = os.open(self._name, DIRECTORY, dir_fd=self._ground.leases)
                self._list()
                if not self.numbers:
                    return BLANK
                return Sheet(self.numbers[-1], self._body(self.numbers[-1]))
            except OSError as error:
                if error.errno not in _AWAY or not left:
                    raise
                if self._folder < 0:
                    return BLANK  # there is no folder; else it or its highest sheet went while we looked: look again
        raise AssertionError("the last look tells or raises")

    def write(self, base: Sheet, body: bytes, visible: Callable[[], None] = lambda: None) -> Turn:
        """Turn to the next sheet. `visible` is called as soon as others may see it, before anything is tidied up."""
        if base.number == 0:
            return self._born(body)
        private, public = f".{new_token()}", _file(base.number + 1)
        try:
            self._ground.write_new(private, body, self._folder)
        except OSError as error:
            if error.errno in _AWAY:
                return Turn.LOST  # the folder itself was forgotten meanwhile
            raise
        try:
            failpoints.point("files.before-link")
            turn = self._link(private, public)
            if turn is not Turn.LOST:
                visible()
        finally:
            with contextlib.suppress(OSError):
                os.unlink(private, dir_fd=self._folder)
        failpoints.point("files.after-link")
        return self._seen(base.number) if turn is Turn.DONE else turn

    def _link(self, private: str, public: str) -> Turn:
        try:
            os.link(private, public, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except OSError as error:
            if error.errno == errno.EEXIST:
                # A reply that was lost on a network and asked for again looks like this too: whose sheet is it?
                return Turn.DONE if self._same(private, public) else Turn.LOST
            # Where the folder is gone nothing was made. Of a server that does not answer nobody knows what it did.
            return Turn.LOST if error.errno == errno.ENOENT else Turn.UNSURE
        return Turn.DONE

    def _same(self, one: str, other: str) -> bool:
        try:
            first, second = (os.stat(name, dir_fd=self._folder, follow_symlinks=False) for name in (one, other))
        except OSError:
            return False
        return os.path.samestat(first, second)

    def _seen(self, base: int) -> Turn:
        """Look once more: whoever slept after reading may have made a number that was there before and is cleared away.

        Sheets go from the lowest up. While the one that we read stands, the next was never there before ours; a
        network filesystem may only remember that it stands. Else we have slept, or others have gone on from ours.
        Both look alike, and in both a sheet below the highest is nobody's truth: it goes, and the question is asked
        again of the highest one, which knows whether it was answered.
        """
        if self._ground.network or not self._stands(base):
            try:
                self._list()
                if self.numbers and self.numbers[-1] > base + 1:
                    os.unlink(_file(base + 1), dir_fd=self._folder)
                    return Turn.UNSURE
            except OSError:
                return Turn.UNSURE
        self._clear_below(base + 1)
        return Turn.DONE

    def _stands(self, number: int) -> bool:
        try:
            status = os.stat(_file(number), dir_fd=self._folder, follow_symlinks=False)
        except OSError:
            return False
        return stat.S_ISREG(status.st_mode)

    def _clear_below(self, number: int) -> None:
        """One that cannot be removed ends it: nothing above it may go before it."""
        keep = _KEEP_NETWORK if self._ground.network else _KEEP
        with contextlib.suppress(OSError):
            for old in self.numbers:
                if old >= number - keep:
                    return
                with contextlib.suppress(FileNotFoundError, IsADirectoryError):  # a folder is not of our making
                    os.unlink(_file(old), dir_fd=self._folder)

    def _born(self, body: bytes) -> Turn:
        """A folder with its first sheet in it: renamed into place, which only an absent or empty one allows."""
        ground, draft = self._ground, f".{new_token()}"
        os.mkdir(draft, ground.folder_mode & 0o777, dir_fd=ground.leases)
        try:
            folder = os.open(draft, DIRECTORY, dir_fd=ground.leases)
            try:
                if ground.folder_mode & 0o070:
                    os.fchmod(folder, ground.folder_mode)
                ground.write_new(_file(_FIRST), body, folder)
            finally:
                os.close(folder)
            failpoints.point("files.before-birth")
            os.rename(draft, self._name, src_dir_fd=ground.leases, dst_dir_fd=ground.leases)
        except BaseException as error:
            _remove(ground.leases, draft)
            if isinstance(error, OSError) and error.errno in (*_TAKEN, *_AWAY):
                if error.errno in _TAKEN:
                    self._believe_in_it()
                    self._clear_drafts()
                    return Turn.LOST
                return Turn.UNSURE  # gone is a draft that was renamed by a first copy of the question
            raise
        failpoints.point("files.after-link")
        return Turn.DONE

    def _believe_in_it(self) -> None:
        """Have the folder be seen, now that it is known to be there.

        Over NFS version 3 a host may remember for good that it is not: what it makes in the folder above keeps that
        memory fresh. Whoever tries to make the very folder asks the server, and remembers no more.
        """
        if self._ground.network:
            with contextlib.suppress(OSError):
                os.mkdir(self._name, self._ground.folder_mode & 0o777, dir_fd=self._ground.leases)
                os.rmdir(self._name, dir_fd=self._ground.leases)  # it was forgotten meanwhile

    def _clear_drafts(self) -> None:
        """What is left in a folder without a sheet is in the way of the first. Whoever is still at it asks again."""
        with contextlib.suppress(OSError):
            for draft in [] if self.numbers else self.drafts():
                os.unlink(draft, dir_fd=self._folder)

    def forget(self) -> None:
        """Clear the sheets away, from the lowest up, and the folder. Whoever comes meanwhile keeps what he makes."""
        with contextlib.suppress(OSError):
            for number in self.numbers:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(_file(number), dir_fd=self._folder)
            os.rmdir(self._name, dir_fd=self._ground.leases)

    def drafts(self) -> list[str]:
        """Sheets that somebody was about to put into place."""
        entries = os.listdir(self._folder) if self._folder >= 0 else []
        return [entry for entry in entries if entry.startswith(".")]

    def written_ns(self, number: int) -> int:
        """When the sheet was made, by the clock of whoever keeps the files."""
        return os.stat(_file(number), dir_fd=self._folder, follow_symlinks=False).st_mtime_ns

    def _list(self) -> None:
        if self._ground.network:
            with contextlib.suppress(OSError):
                os.utime(self._folder)  # over NFS version 3 the listing may else be of the last tick
        entries = os.listdir(self._folder)
        self.numbers = sorted(int(entry) for entry in entries if len(entry) == _DIGITS and entry.isdecimal())

    def _body(self, number: int) -> bytes:
        descriptor = os.open(_file(number), _READ, dir_fd=self._folder)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size > _BODY_MAX:
                return b""  # not of our making
            return os.read(descriptor, status.st_size)  # it was whole before it had its name, and never changes
        finally:
            os.close(descriptor)

    def close(self) -> None:
        folder, self._folder = self._folder, -1
        if folder >= 0:
            os.close(folder)


def _file(number: int) -> str:
    return f"{number:0{_DIGITS}d}"


def _remove(parent: int, folder: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(f"{folder}/{_file(_FIRST)}", dir_fd=parent)
    with contextlib.suppress(OSError):
        os.rmdir(folder, dir_fd=parent)
