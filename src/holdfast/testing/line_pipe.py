"""Whole lines of text over a pair of pipes.

The rule: a reader has a deadline, and gets a whole line or none. Both ends of a worker's conversation
use this class, each with its own two descriptors.
"""

from __future__ import annotations

import os
import select
import time

_CHUNK_BYTES = 65536


class LinePipe:
    """One end of a conversation: reads lines from one descriptor, writes lines to another."""

    def __init__(self, reads: int, writes: int) -> None:
        self._reads = reads
        self._writes = writes
        self._received = bytearray()

    def send(self, line: str) -> None:
        """Send one line; `BrokenPipeError` if nobody is left to read it."""
        if "\n" in line:
            raise ValueError(f"a line cannot contain a line break: {line!r}")
        data = memoryview(f"{line}\n".encode())
        while data:
            data = data[os.write(self._writes, data) :]

    def receive(self, timeout: float | None) -> str:
        """The next line; `TimeoutError` if it does not come in time, `EOFError` if it never can."""
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
        patience_ms = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        if not readable.poll(patience_ms):
            raise TimeoutError("no line came in time")

        chunk = os.read(self._reads, _CHUNK_BYTES)
        if not chunk:
            raise EOFError("the other end is gone")
        self._received += chunk
