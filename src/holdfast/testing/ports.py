"""Ports of the loopback interface for the servers of tests.

A `Port` reserves its number until it is closed, also while no server listens on it. The number is below the range from
which the kernel takes the local ports of clients: otherwise a client may occupy the port while its server restarts.
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
_BELOW = 32_768  # the default of Linux; other systems begin higher


class Port:
    """One reserved port, and with `beside` the port that far above it; the end of the `with` block frees it."""

    def __init__(self, *, beside: int = 0) -> None:
        self._held = ExitStack()
        while not (number := self._take(beside)):
            self._held.close()
        self.number = number

    def close(self) -> None:
        """Free the port."""
        self._held.close()

    def _take(self, beside: int) -> int | None:
        number = _LEAST + secrets.randbelow(max(1, _first_client_port() - _LEAST - beside))
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
            # A server that sets the same option may listen there now; a program that looks for a free port does not.
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        else:  # on other systems a server could not listen on a bound port
            held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _first_client_port() -> int:
    with suppress(OSError, ValueError):
        # If the range begins very low, no ports are left below it: then use ports inside the range.
        return max(int(_RANGE.read_text().split()[0]), 2 * _LEAST + 5000)
    return _BELOW
