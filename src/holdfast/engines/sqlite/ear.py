"""Rings between processes: one named pipe per session, beside the database.

Whoever makes an offer writes the waiter's token into the pipe of its session; a thread of that session hears it and
rings the bell. A lost ring costs time, never correctness: the keeper's mark finds an offer that was not heard.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_MODE = 0o600


def pipe_path(database: Path, session: int) -> str:
    return f"{database}.wake.{session}"


def ring_session(database: Path, session: int, token: str) -> None:
    """Tell a session of another process that a token was offered the right."""
    try:
        pipe = os.open(pipe_path(database, session), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return  # nobody listens: it is dead, or it has not opened its ears yet and will ask again
    try:
        os.write(pipe, token.encode() + b"\n")
    except OSError:
        return  # the pipe is full of other rings
    finally:
        os.close(pipe)


class Ear:
    """The thread that hears the rings of one session."""

    def __init__(self, database: Path, session: int, ring: Callable[[str], None]) -> None:
        self._path = pipe_path(database, session)
        self._ring = ring
        with contextlib.suppress(FileExistsError):
            os.mkfifo(self._path, _MODE)
        # Read and write, so that the pipe never ends when its last writer goes.
        self._pipe = os.open(self._path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._stop, self._stopper = os.pipe()
        self._thread = threading.Thread(target=self._hear, name="holdfast-ear", daemon=True)
        self._thread.start()

    def _hear(self) -> None:
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN)
        poll.register(self._stop, select.POLLIN | select.POLLHUP)
        rest = b""
        while True:
            if any(descriptor == self._stop for descriptor, _ in poll.poll()):
                return
            *tokens, rest = (rest + os.read(self._pipe, 65536)).split(b"\n")
            for token in tokens:
                self._ring(token.decode("ascii", errors="replace"))

    def close(self) -> None:
        os.close(self._stopper)
        self._thread.join()
        for descriptor in (self._stop, self._pipe):
            os.close(descriptor)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)

    def forked(self) -> None:
        """In a child: the thread is not here, and the pipe belongs to the parent's session."""
        for descriptor in (self._stopper, self._stop, self._pipe):
            os.close(descriptor)

    @staticmethod
    def remove(database: Path, session: int) -> None:
        """Clear away the pipe of a dead session."""
        with contextlib.suppress(OSError):
            os.unlink(pipe_path(database, session))
