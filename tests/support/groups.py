"""Servers that belong together: started, healed and ended as one, for tests.

The rule is that of `servers`: everything is on loopback, ends with the process that started it, and keeps nothing.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Self, TypeVar

from holdfast.testing.resp import ServerError
from holdfast.testing.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.testing.servers import Certificates, Server

SETTLED_S = 60.0

T = TypeVar("T")


class Group:
    """Several servers. `with` starts them and ends them."""

    servers: list[Server]
    tls: Certificates | None = None

    def __init__(self) -> None:
        self._open = ExitStack()

    def _add(self, server: Server) -> Server:
        self._open.callback(server.close)
        return server

    @property
    def url(self) -> str:
        """What `holdfast.connect` takes."""
        raise NotImplementedError

    @property
    def _scheme(self) -> str:
        return "redis" if self.tls is None else "rediss"

    @property
    def _options(self) -> str:
        return "" if self.tls is None else f"?{self.tls.options}"

    def start(self) -> Self:
        """Start them all, and return once they have settled."""
        raise NotImplementedError

    def owner_of(self, name: str) -> Server:
        """The server that answers for the lease of this name."""
        raise NotImplementedError

    def failover(self, server: Server) -> Server:
        """Have another take the place of a live server, gracefully; the new one."""
        raise NotImplementedError

    def wait_replaced(self, server: Server) -> Server:
        """Wait until another has taken the place of a dead or frozen server; the new one."""
        raise NotImplementedError

    def begin_failover(self, server: Server) -> None:
        """Ask for it, and wait for nothing."""
        raise NotImplementedError

    def heal(self) -> None:
        """Thaw what is frozen, start what is dead, and wait until all have settled."""
        self.revive()
        eventually(self.whole, SETTLED_S, f"{self!r} to settle")

    def revive(self) -> None:
        """Thaw what is frozen, start what is dead, and wait for nothing."""
        for server in self.everybody():
            if server.alive:
                server.thaw()
            else:
                server.start(wait=False)

    def whole(self) -> bool:
        """Whether all have found their places again; with what they need for it, once."""
        return bool(quietly(self._is_home)() and quietly(self._settled)())

    def wait_settled(self) -> None:
        """Wait until all that run know each other and agree."""
        eventually(quietly(self._settled), SETTLED_S, f"{self!r} to settle")

    def wait_replicated(self) -> None:
        """Wait until every replica has all that has been written so far."""
        for server in self.servers:
            if server.alive and server.command("ROLE")[0] == b"master":
                _wait_read(server)

    def close(self) -> None:
        """End them all, frozen or not."""
        self._open.close()

    def everybody(self) -> list[Server]:
        """All that run: servers, and whoever watches them."""
        return self.servers

    def _is_home(self) -> bool:
        """Give servers that were away what they need to find their place again; true if they need nothing."""
        return True

    def _settled(self) -> bool:
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

    eventually(read, SETTLED_S, f"the replicas of {primary!r}")


def quietly(ask: Callable[[], T]) -> Callable[[], T | None]:
    """While servers come and go, one that does not answer is no error."""

    def asked() -> T | None:
        with suppress(OSError, ServerError, RuntimeError, LookupError):
            return ask()
        return None

    return asked
