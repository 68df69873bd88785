"""The child's side of a worker process: lines to and from its parent over a pair of pipes.

A child starts with the signal handlers of a program in a terminal, even if its parent ignored some signals. It talks to
its parent only through `ready`, `send_line` and `read_line`.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

READY = "ready"
_CHUNK_BYTES = 65536

_parent: LinePipe | None = None


class LinePipe:
    """One end of a conversation in whole lines: it reads from one descriptor and writes to another."""

    def __init__(self, reads: int, writes: int) -> None:
        self._reads = reads
        self._writes = writes
        self._received = bytearray()

    def send(self, line: str) -> None:
        """Send one line; raise `BrokenPipeError` if the other end is closed."""
        if "\n" in line:
            raise ValueError(f"a line cannot contain a line break: {line!r}")
        data = memoryview(f"{line}\n".encode())
        while data:
            data = data[os.write(self._writes, data) :]

    def receive(self, timeout: float | None) -> str:
        """Return the next whole line; raise `TimeoutError` after `timeout`, `EOFError` if the other end is closed."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (end := self._received.find(b"\n")) < 0:
            self._fill(deadline)
        line = self._received[:end].decode()
        del self._received[: end + 1]
        return line

    def close(self) -> None:
        os.close(self._reads)
        os.close(self._writes)

    def _fill(self, deadline: float | None) -> None:
        # poll, not select: a test with many workers may own descriptors above 1023.
        readable = select.poll()
        readable.register(self._reads, select.POLLIN)
        timeout_ms = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        if not readable.poll(timeout_ms):
            raise TimeoutError("no line came in time")

        chunk = os.read(self._reads, _CHUNK_BYTES)
        if not chunk:
            raise EOFError("the other end is closed")
        self._received += chunk


def ready() -> None:
    """Report to the parent that this worker has reached the point that its test waits for."""
    send_line(READY)


def send_line(line: str) -> None:
    """Send one line to the parent."""
    _connection().send(line)


def read_line(timeout: float | None = None) -> str:
    """Return the next line from the parent; raise `EOFError` once the parent is gone.

    `timeout`: how many seconds to wait; `None` waits for ever.
    """
    return _connection().receive(timeout)


def main(job: Mapping[str, Any]) -> None:
    """Run the `target` of a job with its `arguments`; lines go over the descriptors `reads` and `writes`."""
    global _parent  # noqa: PLW0603 - one process has one parent
    for descriptor in (job["reads"], job["writes"]):
        os.set_inheritable(descriptor, False)
    _parent = LinePipe(job["reads"], job["writes"])
    # A shell starts its background jobs with SIGINT ignored, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

    _find(job["target"])(**job["arguments"])


def _connection() -> LinePipe:
    if _parent is None:
        raise RuntimeError("this process is not a worker: it has no parent to talk to")
    return _parent


def _find(target: str) -> Callable[..., object]:
    place, _, function = target.rpartition(":")
    module = _load(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    found: Callable[..., object] = getattr(module, function)
    return found


def _load(path: Path) -> ModuleType:
    """Import a file by its path, with its neighbours importable, as if it ran as a script."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot import {path}")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
