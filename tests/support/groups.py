"""Groups of servers for tests: started, healed and ended together.

As with `holdfast.testing.servers`, all servers are on loopback, end with the process that started them, and keep no
data.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Self, TypeVar

from holdfast.testing.resp import ServerError
from holdfast.testing.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.testing.servers import Certificates, Server

STABLE_S = 60.0

T = TypeVar("T")


class Group:
    """Several servers; the `with` block starts and ends them."""

    servers: list[Server]
    tls: Certificates | None = None

    def __init__(self) -> None:
        self._open = ExitStack()

    def _add(self, server: Server) -> Server:
        self._open.callback(server.close)
        return server

    @property
    def url(self) -> str:
        """The URL for `holdfast.connect`."""
        raise NotImplementedError

    @property
    def _scheme(self) -> str:
        return "redis" if self.tls is None else "rediss"

    @property
    def _options(self) -> str:
        return "" if self.tls is None else f"?{self.tls.options}"

    def start(self) -> Self:
        """Start all servers; return once they agree on their roles."""
        raise NotImplementedError

    def server_of(self, name: str) -> Server:
        """Return the server that stores the lease of this name."""
        raise NotImplementedError

    def failover(self, server: Server) -> Server:
        """Replace a live server gracefully; return its successor."""
        raise NotImplementedError

    def wait_replaced(self, server: Server) -> Server:
        """Wait until another server has replaced a dead or frozen one; return the successor."""
        raise NotImplementedError

    def begin_failover(self, server: Server) -> None:
        """Begin a graceful failover, and do not wait for its end."""
        raise NotImplementedError

    def heal(self) -> None:
        """Thaw frozen servers, start dead ones, and wait until all agree on their roles."""
        self.revive()
        eventually(self.whole, STABLE_S, f"{self!r} to be stable")

    def revive(self) -> None:
        """Thaw frozen servers and start dead ones, without waiting."""
        for server in self.all_servers():
            if server.alive:
                server.thaw()
            else:
                server.start(wait=False)

    def whole(self) -> bool:
        """Return whether all servers have their roles again; give them the commands that they need for it."""
        return bool(quietly(self._is_home)() and quietly(self._stable)())

    def wait_stable(self) -> None:
        """Wait until the running servers know each other and agree on their roles."""
        eventually(quietly(self._stable), STABLE_S, f"{self!r} to be stable")

    def wait_replicated(self) -> None:
        """Wait until every replica has all writes so far."""
        for server in self.servers:
            if server.alive and server.command("ROLE")[0] == b"master":
                _wait_read(server)

    def close(self) -> None:
        """End all servers, frozen or not."""
        self._open.close()

    def all_servers(self) -> list[Server]:
        """Return all processes of the group: the servers and the sentinels."""
        return self.servers

    def _is_home(self) -> bool:
        """Give returning servers the commands that restore their roles; return True if none needs a command."""
        return True

    def _stable(self) -> bool:
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()


def _wait_read(primary: Server) -> None:
    written: int = primary.command("ROLE")[1]

    def read() -> bool:
        return all(int(offset) >= written for _, _, offset in primary.command("ROLE")[2])

    eventually(read, STABLE_S, f"the replicas of {primary!r}")


def quietly(ask: Callable[[], T]) -> Callable[[], T | None]:
    """Return a function that returns None instead of raising while servers restart."""

    def requested() -> T | None:
        with suppress(OSError, ServerError, RuntimeError, LookupError):
            return ask()
        return None

    return requested
