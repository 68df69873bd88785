"""Ports of loopback for the servers of tests.

The rule: a port has one owner, from when it is chosen until it is given back, also while no server listens there. It is
below the range from which the kernel serves whoever connects: else a client may sit on it when its server starts again.
"""

from __future__ import annotations

import secrets
import socket
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

LOOPBACK = "127.0.0.1"
_LEAST = 10_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_BELOW = 32_768  # Linux, unless told otherwise; others begin higher


class Port:
    """One port, and with `beside` the one that far above it. `with` gives it back."""

    def __init__(self, *, beside: int = 0) -> None:
        self._held = ExitStack()
        while not (number := self._take(beside)):
            self._held.close()
        self.number = number

    def close(self) -> None:
        """Let others have it."""
        self._held.close()

    def _take(self, beside: int) -> int | None:
        number = _LEAST + secrets.randbelow(max(1, _kernels_first() - _LEAST - beside))
        try:
            for each in {number, number + beside}:
                self._hold(each)
        except OSError:
            return None
        return number

    def _hold(self, number: int) -> None:
        held = self._held.enter_context(socket.socket())
        held.bind((LOOPBACK, number))
        if sys.platform == "linux":
            # From now on a server may listen there, if it says the same; who looks for a port does not say it.
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        else:  # elsewhere nobody could listen there
            held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _kernels_first() -> int:
    with suppress(OSError, ValueError):
        # Whoever has set it very low has left nothing below it: then any port is as good.
        return max(int(_RANGE.read_text().split()[0]), 2 * _LEAST + 5000)
    return _BELOW
