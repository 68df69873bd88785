"""The newest fence that came to a table, kept beside it: compared and replaced under a kernel lock.

The rule is that of all guards (`rules/guard.py`); whoever is not refused is from then on the newest. The kernel lock is
held from the comparison to the end of the commit, so nothing fits between the two. A process that stands still inside
keeps it, and everybody waits; one that dies gives it back, whether or not it has children.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.host import open_up, trouble
from holdfast.errors import Unavailable
from holdfast.guards import lockfiles
from holdfast.rules.guard import Stamp, admitted

ENGINE = "lancedb"
STANDSTILL_S = 10.0
# One write of this size is whole or not there; the rest of it is blanks.
_SIZE = 256
_PAUSE_S = 0.002


class FenceFile:
    """A file with one line: a fence, the token that came with it, and who that is, for people."""

    def __init__(self, path: Path, name: str, *, standstill_s: float = STANDSTILL_S) -> None:
        self.path = path
        self._name = name
        self._standstill_s = standstill_s

    def admit(self, fence: int, token: str, holder: str = "") -> None:
        """Be the newest from now on, before anything is read: nobody older can change what is read after this."""
        with self.held(fence, token, holder):
            pass

    @contextmanager
    def held(self, fence: int, token: str, holder: str = "") -> Iterator[None]:
        """Nobody else commits inside of this block; `Fenced` if somebody newer has been here."""
        descriptor = self._locked()
        try:
            newest, whose, _ = self._read(descriptor)
            admitted(self._name, Stamp(newest, whose), Stamp(fence, token))
            if fence != newest:
                self._write(descriptor, f"{fence} {token} {holder}")
            yield
        finally:
            # Said aloud: a child that is just being forked has it too, and closing ours is not enough.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            lockfiles.close(descriptor)

    def newest(self) -> int:
        """The fence of whoever came last; 0 where nobody has."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return 0
        try:
            return self._read(descriptor)[0]
        finally:
            os.close(descriptor)

    def _locked(self) -> int:
        """A descriptor with the lock on it. Who stands still inside is told after a while, by name."""
        until = time.monotonic() + self._standstill_s
        while True:
            try:
                descriptor = lockfiles.opened(self.path, 0o600)
            except OSError as error:
                raise trouble(ENGINE, error) from error
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_there(descriptor):
                    return descriptor
            except BlockingIOError:
                if time.monotonic() >= until:
                    inside = self._read(descriptor)[2] or "a process"
                    lockfiles.close(descriptor)
                    detail = f"{inside} stands still in the middle of a commit: wake it, or end it"
                    raise Unavailable(ENGINE, "stalled", detail) from None
            except BaseException:
                lockfiles.close(descriptor)
                raise
            lockfiles.close(descriptor)
            time.sleep(_PAUSE_S)

    def _is_there(self, descriptor: int) -> bool:
        """Whether the file that is locked is the one that others will find."""
        mine = os.fstat(descriptor)
        if not mine.st_size:
            open_up(descriptor, self.path.parent)
        try:
            found = os.stat(self.path)
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
            rule = f"{self.path} is no record of a fence: remove it when nobody writes"
            raise Unavailable(ENGINE, "corrupt", rule)
        return int(fence), token, holder

    def _write(self, descriptor: int, line: str) -> None:
        record = line.encode()[: _SIZE - 1].decode("utf-8", "ignore").encode()
        try:
            os.pwrite(descriptor, record.ljust(_SIZE - 1) + b"\n", 0)
        except OSError as error:
            raise trouble(ENGINE, error) from error
