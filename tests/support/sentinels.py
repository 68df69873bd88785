"""A real primary with replicas and sentinels, for tests.

Timeouts are short: a dead or frozen primary is replaced in about two seconds.

    with Sentinels("valkey") as sentinels:
        hf = holdfast.connect(sentinels.url)
        sentinels.primary().kill()

Each server is a `Server`: a test can freeze, kill and restart it. `heal()` restores all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from holdfast.testing.servers import LOOPBACK, Certificates, Home, Server
from holdfast.testing.waiting import eventually
from tests.support.groups import STABLE_S, Group, quietly
from tests.support.tls_front import FrontedServer, server_of, speaks_tls

if TYPE_CHECKING:
    from collections.abc import Sequence

_SERVICE = "main"
_AMONG_THEMSELVES = ("--tls-replication", "yes")


class Sentinel(Server):
    """One sentinel: the server program in sentinel mode."""

    def __init__(
        self,
        kind: str,
        watched: Server,
        *,
        down_ms: int,
        failover_ms: int,
        tls: Certificates | None = None,
        home: Home = LOOPBACK,
    ) -> None:
        super().__init__(kind, tls=tls, home=home)
        inner = self.inner.number if isinstance(self, FrontedServer) else 0
        words = () if tls is None or inner else (*tls.settings(self.port), *_AMONG_THEMSELVES)
        lines = [
            f"port {inner if tls else self.port}",
            *([f"sentinel announce-ip {self.host}", f"sentinel announce-port {self.port}"] if inner else []),
            *(f"{name.removeprefix('--')} {value}" for name, value in zip(words[::2], words[1::2], strict=True)),
            f"bind {self.host}",
            "protected-mode no",
            f"dir {self.directory}",
            f"logfile {self.directory}/log",
            f"sentinel monitor {_SERVICE} {watched.host} {watched.port} 2",
            f"sentinel down-after-milliseconds {_SERVICE} {down_ms}",
            f"sentinel failover-timeout {_SERVICE} {failover_ms}",
        ]
        self._file = self.directory / "sentinel.conf"
        self._file.write_text("\n".join(lines) + "\n")

    def _settings(self) -> list[str]:
        return [str(self._file), "--sentinel"]


class FrontedSentinel(Sentinel, FrontedServer):
    """A sentinel with TLS in front of it."""


class Sentinels(Group):
    """One primary, two replicas and three sentinels.

    `arguments`: further arguments of the servers.
    `tls`: use TLS, also between the servers.
    `homes`: the addresses of the servers, then those of the sentinels.
    `down_ms`: how long a primary may be silent before the sentinels replace it; with the default that takes about two
    seconds. On a machine so busy that a live primary is silent for that long, use more.
    """

    def __init__(
        self,
        kind: str = "valkey",
        *,
        arguments: tuple[str, ...] = (),
        tls: Certificates | None = None,
        homes: Sequence[Home] = (LOOPBACK,) * 6,
        down_ms: int = 500,
    ) -> None:
        super().__init__()
        self.tls = tls
        settings = (
            "--repl-diskless-sync-delay",
            "0",
            *(_AMONG_THEMSELVES if tls and speaks_tls(kind) else ()),
            *arguments,
        )
        first = server_of(kind, arguments=settings, tls=tls, home=homes[0])
        self.servers = [self._add(first)]
        replica = (*settings, "--replicaof", first.host, str(first.port))
        self.servers += [self._add(server_of(kind, arguments=replica, tls=tls, home=home)) for home in homes[1:3]]
        sentinel = FrontedSentinel if isinstance(first, FrontedServer) else Sentinel
        self.sentinels = [
            self._add(sentinel(kind, first, down_ms=down_ms, failover_ms=2000, tls=tls, home=home))
            for home in homes[3:]
        ]

    @property
    def url(self) -> str:
        """The URL for `holdfast.connect`."""
        hosts = ",".join(f"{sentinel.host}:{sentinel.port}" for sentinel in self.sentinels)
        return f"{self._scheme}+sentinel://{hosts}/{_SERVICE}{self._options}"

    @property
    def service(self) -> str:
        return _SERVICE

    def start(self) -> Self:
        for server in self.servers:
            server.start()
        eventually(lambda: self._replicas_of(self.servers[0]) == 2, STABLE_S, "two replicas")
        for sentinel in self.sentinels:
            sentinel.start()
        self.wait_stable()
        return self

    def primary(self) -> Server:
        """Return the primary that the sentinels name; raise `RuntimeError` if they do not agree."""
        ports = {self._named_by(sentinel) for sentinel in self.sentinels if sentinel.alive}
        found = [server for server in self.servers if server.port in ports]
        if len(ports) != 1 or len(found) != 1:
            raise RuntimeError(f"the sentinels name {ports}")
        return found[0]

    def replicas(self) -> list[Server]:
        """Return the running replicas."""
        primary = self.primary()
        return [server for server in self.servers if server is not primary and server.alive]

    def server_of(self, name: str) -> Server:
        return self.primary()

    def failover(self, server: Server) -> Server:
        eventually(quietly(self._asked_for_failover), STABLE_S, "a sentinel that begins a failover")
        return self.wait_replaced(server)

    def wait_replaced(self, server: Server) -> Server:
        def replaced() -> Server | None:
            now = self.primary()
            return now if now is not server and now.command("ROLE")[0] == b"master" else None

        found = eventually(quietly(replaced), STABLE_S, f"another primary than {server!r}")
        assert found is not None
        return found

    def all_servers(self) -> list[Server]:
        return [*self.servers, *self.sentinels]

    def begin_failover(self, server: Server) -> None:
        self._asked_for_failover()

    def _is_home(self) -> bool:
        """Give every server the role that the sentinels know; they would do it themselves after ten seconds."""
        primary = self.primary()
        if primary.command("ROLE")[0] != b"master":
            primary.command("REPLICAOF", "NO", "ONE")
        for server in self.servers:
            if server is not primary and server.command("ROLE")[:3] != [b"slave", primary.host.encode(), primary.port]:
                server.command("REPLICAOF", primary.host, primary.port)
        return all(self._facts(sentinel)[b"flags"] == b"master" for sentinel in self.sentinels)

    def _stable(self) -> bool:
        wanted = {b"num-slaves": 2, b"num-other-sentinels": 2}
        for sentinel in self.sentinels:
            facts = self._facts(sentinel)
            if facts[b"flags"] != b"master" or any(int(facts[name]) < count for name, count in wanted.items()):
                return False
        primary = self.primary()
        return bool(primary.command("ROLE")[0] == b"master") and self._replicas_of(primary) == 2

    def _facts(self, sentinel: Server) -> dict[bytes, bytes]:
        told = sentinel.command("SENTINEL", "MASTER", _SERVICE)
        return dict(zip(told[::2], told[1::2], strict=True))

    def _asked_for_failover(self) -> bool:
        return bool(self.sentinels[0].command("SENTINEL", "FAILOVER", _SERVICE) == b"OK")

    def _named_by(self, sentinel: Server) -> int:
        return int(sentinel.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", _SERVICE)[1])

    def _replicas_of(self, server: Server) -> int:
        told: bytes = server.command("INFO", "replication")
        return told.count(b"state=online")

    def __repr__(self) -> str:
        return f"Sentinels({self.url})"
