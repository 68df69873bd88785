"""Wake-ups between processes of one host: one named pipe per session of a client.

A client that makes an offer writes the waiter's token into the pipe of its session; a thread of that session reads the
token and wakes the waiter. A lost wake-up costs time, never correctness: the keeper's heartbeat finds the offer.
"""

from __future__ import annotations

import os
import selectors
import threading
from typing import TYPE_CHECKING

from holdfast.host import EXHAUSTED
from holdfast.interrupts import raise_if_of_signal, suppress_unless_signal
from holdfast.observer import log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.engines.wakeups import WaiterRegistry
    from holdfast.shared_files import Folder


def wake_session(folder: Folder, name: str, token: str) -> None:
    """Wake the waiter with this token in a session of another process, which has the pipe with this name."""
    try:
        pipe = folder.open_wakeups(name)
    except OSError as error:
        raise_if_of_signal(error)
        return  # no listener: the client is dead, or has not opened its pipe yet and will send its command again
    try:
        os.write(pipe, token.encode() + b"\n")
    except OSError as error:
        raise_if_of_signal(error)
        return  # the pipe is full of other wake-ups
    finally:
        os.close(pipe)


class FifoListener:
    """The thread that reads the wake-ups of one session, and notices the end of processes that its waiters wait for."""

    def __init__(self, folder: Folder, name: str, waiter_registry: WaiterRegistry) -> None:
        self.path = f"{folder.path}/{name}"
        self._folder, self._name = folder, name
        self._waiter_registry = waiter_registry
        self._guard = threading.Lock()
        self._watched: dict[int, int] = {}  # by pid: its descriptor
        self._absent: set[int] = set()
        self._pipe = self._stop = self._stopper = -1
        self._selector = selectors.DefaultSelector()
        self._thread = threading.Thread(target=self._read, name="holdfast-wakeups", daemon=True)

    def open(self) -> None:
        """Create the pipe and start the thread; after an error, `close` cleans up."""
        self._pipe = self._folder.open_fifo(self._name)
        self._stop, self._stopper = os.pipe()
        self._selector.register(self._pipe, selectors.EVENT_READ)
        self._selector.register(self._stop, selectors.EVENT_READ)
        self._thread.start()

    def watch(self, pid: int) -> bool:
        """Wake every waiter of the session when the process ends; return true if it seems to have ended already.

        This is a hint, like every wake-up: the pid may belong to another container. So the listener reports an absent
        process only once.
        """
        if not hasattr(os, "pidfd_open"):
            return False
        with self._guard:
            if pid in self._watched:
                return False
            try:
                descriptor = os.pidfd_open(pid)
            except OSError as error:
                raise_if_of_signal(error)
                reported = pid in self._absent
                self._absent.add(pid)
                return not reported
            self._watched[pid] = descriptor
            self._selector.register(descriptor, selectors.EVENT_READ, pid)
        return False

    def _read(self) -> None:
        rest = b""
        while True:
            for key, _ in self._selector.select():
                if key.fd == self._stop:
                    return
                if key.fd != self._pipe:
                    self._ended(key.data)
                    continue
                *tokens, rest = (rest + os.read(self._pipe, 65536)).split(b"\n")
                for token in tokens:
                    self._waiter_registry.wake(token.decode("ascii", errors="replace"))

    def _ended(self, pid: int) -> None:
        with self._guard:
            descriptor = self._watched.pop(pid)
            self._selector.unregister(descriptor)
            os.close(descriptor)
        self._waiter_registry.wake_all()

    def close(self) -> None:
        _close(self._stopper)
        if self._thread.is_alive():
            self._thread.join()
        is_open = self._pipe >= 0
        self._close_all()
        with suppress_unless_signal(OSError):
            if is_open:  # otherwise the name may be a file of another user
                self._folder.remove(self._name)

    def forked(self) -> None:
        """In a forked child: close the descriptors; the thread and the pipe belong to the parent."""
        _close(self._stopper)
        self._close_all()

    def _close_all(self) -> None:
        self._selector.close()
        for descriptor in (self._stop, self._pipe, *self._watched.values()):
            _close(descriptor)


class LazyFifoListener:
    """A client's `FifoListener`, opened for its first waiter.

    If opening fails, the client does not try again, except after a lack of descriptors or threads: then the next waiter
    tries again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listener: FifoListener | None = None
        self._closed = False
        self._failed = self._exhausted = False

    @property
    def failed(self) -> bool:
        """Whether no wake-ups arrive, so that waiters have to poll."""
        return self._failed or self._exhausted

    def listen(self, ahead: Iterable[int], new: Callable[[], FifoListener]) -> bool:
        """Listen for a waiter behind these processes; return true if it must send its command again."""
        trouble: OSError | RuntimeError | None = None
        with self._lock:
            if self._closed:
                return True  # the next command raises `Closed`
            if self._listener is not None:
                ended = [self._listener.watch(pid) for pid in ahead]  # watch every process, also after an ended one
                return any(ended)
            if self._failed:
                return False
            listener = None
            try:
                listener = new()
                listener.open()
                self._listener, self._exhausted = listener, False
            except (OSError, RuntimeError) as error:  # RuntimeError: the system refuses a thread
                raise_if_of_signal(error)
                self._exhausted = isinstance(error, RuntimeError) or error.errno in EXHAUSTED
                self._failed, trouble = not self._exhausted, error
            finally:
                if listener is not None and self._listener is None:
                    listener.close()
        if trouble is not None:  # outside of the lock: a logging handler is user code
            where = "" if listener is None else f" at {listener.path}"
            log.warning("no pipe for wake-ups%s, so waiting is slower here: %s", where, trouble)
        return True

    def forked(self) -> None:
        """In a forked child: start without a listener."""
        self._lock = threading.Lock()
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.forked()

    def close(self) -> None:
        """Stop listening, also for a waiter that is about to begin."""
        with self._lock:
            self._closed = True
            listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()


def _close(descriptor: int) -> None:
    if descriptor >= 0:
        os.close(descriptor)
