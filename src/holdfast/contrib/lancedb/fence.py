"""The newest fence that wrote to a table, in a file beside it: a writer compares and replaces it under a kernel lock.

The rule is that of all guards (`rules/guard.py`): an accepted fence is the newest from then on. The writer holds the
kernel lock from the comparison to the end of the commit, so that no other commit comes between. A process that is
suspended in between keeps the lock, and the others wait; a process that dies frees the lock, even if it has children.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.errors import HoldfastError, Unavailable, UnavailableReason
from holdfast.guards import file_locks
from holdfast.host import unavailable_error
from holdfast.rules.guard import Stamp, admitted
from holdfast.shared_files import Folder

ENGINE = "lancedb"
STANDSTILL_S = 10.0
# One write of this size is complete or absent; the record is padded with blanks.
_SIZE = 256
_PAUSE_S = 0.002


class FenceFile:
    """A file with one line: the newest fence, its token, and its holder, for people."""

    def __init__(self, path: Path, name: str, *, standstill_s: float = STANDSTILL_S) -> None:
        self.path = path
        self._name = name
        self._standstill_s = standstill_s

    def admit(self, fence: int, token: str, holder: str = "") -> None:
        """Record this fence as the newest. After this, no older fence can change what the caller reads."""
        with self.held(fence, token, holder):
            pass

    @contextmanager
    def held(self, fence: int, token: str, holder: str = "") -> Iterator[None]:
        """Hold the kernel lock during the block, so no other writer commits; `Fenced` if a newer fence was here."""
        descriptor = self._locked()
        try:
            newest, newest_token, _ = self._read(descriptor)
            admitted(self._name, Stamp(newest, newest_token), Stamp(fence, token))
            if fence != newest:
                self._write(descriptor, f"{fence} {token} {holder}")
            yield
        finally:
            # Unlock explicitly: a child that is being forked has the descriptor too, so closing ours is not enough.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            file_locks.close(descriptor)

    def newest(self) -> int:
        """Return the newest fence; 0 if there is none."""
        try:
            with Folder(self.path.parent) as folder:
                descriptor = folder.open(self.path.name)
        except FileNotFoundError:
            return 0
        try:
            return self._read(descriptor)[0]
        finally:
            os.close(descriptor)

    def _locked(self) -> int:
        """Return a locked descriptor. If the lock stays taken, raise `Unavailable` with the name of its holder."""
        try:
            with Folder(self.path.parent) as folder:
                return self._locked_in(folder)
        except OSError as error:
            if isinstance(error, HoldfastError):
                raise
            raise unavailable_error(ENGINE, error) from error

    def _locked_in(self, folder: Folder) -> int:
        until = time.monotonic() + self._standstill_s
        while True:
            descriptor = file_locks.opened(folder, self.path.name)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_there(folder, descriptor):
                    return descriptor
            except BlockingIOError:
                if time.monotonic() >= until:
                    inside = self._read(descriptor)[2] or "a process"
                    file_locks.close(descriptor)
                    detail = f"{inside} is suspended in the middle of a commit; resume it or end it"
                    raise Unavailable(ENGINE, UnavailableReason.STALLED, detail) from None
            except BaseException:
                file_locks.close(descriptor)
                raise
            file_locks.close(descriptor)
            time.sleep(_PAUSE_S)

    def _is_there(self, folder: Folder, descriptor: int) -> bool:
        """Return whether the locked file is still the one at the path."""
        mine = os.fstat(descriptor)
        try:
            found = folder.status(self.path.name)
        except FileNotFoundError:
            return False
        return (mine.st_dev, mine.st_ino) == (found.st_dev, found.st_ino)

    def _read(self, descriptor: int) -> tuple[int, str, str]:
        line = os.pread(descriptor, _SIZE, 0)
        if not line:
            return 0, "", ""
        fence, _, rest = line.decode("utf-8", "replace").strip().partition(" ")
        token, _, holder = rest.partition(" ")
        if not fence.isdecimal() or not token:
            rule = f"{self.path} does not contain a fence; stop all writers, then remove it"
            raise Unavailable(ENGINE, UnavailableReason.CORRUPT, rule)
        return int(fence), token, holder

    def _write(self, descriptor: int, line: str) -> None:
        record = line.encode()[: _SIZE - 1].decode("utf-8", "ignore").encode()
        try:
            os.pwrite(descriptor, record.ljust(_SIZE - 1) + b"\n", 0)
        except OSError as error:
            raise unavailable_error(ENGINE, error) from error
