"""A guard of a file: it replaces the whole file, and only if no newer fence was there.

The newest stamp is in a record beside the file, so that the file keeps the format that its readers know. Under one
kernel lock the guard writes the record first and replaces the file after it. A crash in between leaves the old content
under the new fence: no write was acknowledged, and no older holder can write any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from holdfast import failpoints
from holdfast.clock import NEVER_NS, SYSTEM, Seconds, timeout_ns
from holdfast.errors import InvalidConfig, Unavailable, UnavailableReason
from holdfast.guards import file_locks
from holdfast.host import unavailable_error
from holdfast.interrupts import raise_if_of_signal
from holdfast.rules.guard import UNSEEN, Bearer, Stamp, admitted, stamp_of
from holdfast.shared_files import Folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_P = ParamSpec("_P")
_T = TypeVar("_T")
_LAYOUT = 1
_PAUSE_S, _LONGEST_PAUSE_S = 0.0005, 0.02
_NAME_MAX = 255
_RECORD_MAX = 65536


def _reported(method: Callable[_P, _T]) -> Callable[_P, _T]:
    """Raise `Unavailable` for an error of the operating system, such as a full or a read-only disk."""

    @wraps(method)
    def reported(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return method(*args, **kwargs)
        except OSError as error:
            raise unavailable_error("file guard", error) from error

    return reported


class FileGuard:
    """Guards the file at `path`, which need not exist yet.

    `timeout`: seconds to wait for other writers, `None` waits for ever; then `Unavailable`, and nothing was written.
    """

    def __init__(self, path: str | os.PathLike[str], *, timeout: Seconds | None = 10.0) -> None:
        given = os.fspath(path)
        if not isinstance(given, str) or "\x00" in given or os.path.basename(given) in {"", ".", ".."}:
            raise InvalidConfig("path", path, "it must be the path of a file")
        if os.path.isdir(given):
            raise InvalidConfig("path", path, "it is a directory; give the path of a file")
        # Every symbolic link to the file uses the same record.
        self.path = Path(os.path.realpath(given))
        self._name = self.path.name
        self._record = f".{self._name}.guard"
        if len(os.fsencode(f"{self._record}.lock")) > _NAME_MAX:
            raise InvalidConfig("path", path, "its name is too long: the guard adds 12 bytes for its own files")
        self._timeout = timeout
        self._timeout_ns = timeout_ns(timeout)

    @_reported
    def write(self, lease: Bearer, content: bytes | str) -> None:
        """Replace the file by `content`, or raise `Fenced` if a newer holder than `lease` was here before."""
        stamp = stamp_of(lease, SYSTEM.wall_us())
        if not isinstance(content, bytes | str):
            raise InvalidConfig("content", content, "it must be bytes, or text (stored as UTF-8)")
        data = content if isinstance(content, bytes) else content.encode()
        with self._admitting(stamp) as folder:
            self._replace(folder, self._name, data)

    @_reported
    def delete(self, lease: Bearer) -> None:
        """Remove the file, if it exists, or raise `Fenced` if `lease` is outdated; the record stays."""
        with self._admitting(stamp_of(lease, SYSTEM.wall_us())) as folder:
            folder.remove(self._name)
            folder.sync()

    @_reported
    def admit(self, lease: Bearer) -> None:
        """Record the fence of `lease` before its holder reads: from now on no older holder can change the file."""
        with self._admitting(stamp_of(lease, SYSTEM.wall_us())):
            pass

    @_reported
    def newest(self) -> Stamp:
        """Return the newest stamp; fence 0 if there is none."""
        with Folder(self.path.parent) as folder:
            return self._newest(folder)

    def _newest(self, folder: Folder) -> Stamp:
        try:
            text = folder.read(self._record, _RECORD_MAX)
        except FileNotFoundError:
            return UNSEEN
        try:
            record = json.loads(text)
            if record["v"] == _LAYOUT:
                return stamp_of(Stamp(record["fence"], record["token"]), SYSTEM.wall_us())
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise_if_of_signal(error)
        record_path = self.path.with_name(self._record)
        raise Unavailable(str(self.path), UnavailableReason.CORRUPT, f"{record_path} is not a record of this version")

    @contextmanager
    def _admitting(self, stamp: Stamp) -> Iterator[Folder]:
        with Folder(self.path.parent) as folder, self._locked(folder):
            newest = self._newest(folder)
            if admitted(str(self.path), newest, stamp) != newest:
                record = {"v": _LAYOUT, "fence": stamp.fence, "token": stamp.token}
                self._replace(folder, self._record, json.dumps(record).encode())
            failpoints.point("guard.admitted")
            yield folder

    @contextmanager
    def _locked(self, folder: Folder) -> Iterator[None]:
        # The lock file is never removed: a lock on a removed file would exclude no other process.
        descriptor = file_locks.opened(folder, f"{self._record}.lock")
        try:
            self._wait_for(descriptor)
            try:
                yield
            finally:
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # explicitly: a child that is being forked shares the lock
        finally:
            file_locks.close(descriptor)

    def _wait_for(self, descriptor: int) -> None:
        until_ns = NEVER_NS if self._timeout_ns is None else SYSTEM.now_ns() + self._timeout_ns
        pause_s = _PAUSE_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if SYSTEM.now_ns() >= until_ns:
                    detail = f"another writer has held the lock for {self._timeout} s; it may be suspended"
                    raise Unavailable(str(self.path), UnavailableReason.BUSY, detail) from None
            else:
                return
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _replace(self, folder: Folder, name: str, data: bytes) -> None:
        """Replace the file atomically; the new content is on the disk when this returns."""
        # One draft is enough under the lock. The next writer removes the draft of a killed writer.
        draft = f"{self._record}.new"
        with contextlib.suppress(FileNotFoundError):
            folder.check(draft, folder.status(draft))
            folder.remove(draft)
        descriptor = folder.create(draft) if name == self._record else self._create_like(folder, draft, name)
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        failpoints.point("guard.before-replace")
        folder.move(draft, name)
        folder.sync()

    def _create_like(self, folder: Folder, draft: str, name: str) -> int:
        """Create the draft with the group and the mode of the file that it will replace."""
        try:
            status = folder.status(name)
        except FileNotFoundError:
            return folder.create_like(draft, None)
        folder.check(name, status, any_mode=True)
        return folder.create_like(draft, status)

    def __repr__(self) -> str:
        return f"<guard of {self.path}>"
