"""Real servers in groups, for tests: a primary with sentinels, and a cluster.

The rule is that of `servers`: everything is on loopback, ends with the process that started it, and keeps nothing. All
timeouts are short, so that a failover takes a few seconds.

    with Cluster("valkey") as cluster:
        hf = holdfast.connect(cluster.url)
        cluster.owner_of("orders/42").kill()

A server in a group is a `Server`: it can be frozen, killed and started again.
"""

from __future__ import annotations

import secrets
import socket
from binascii import crc_hqx
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Self

from holdfast.testing.resp import ServerError
from holdfast.testing.servers import Server
from holdfast.testing.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

_HOST = "127.0.0.1"
_SLOTS = 16384
_BUS = 10000
_SERVICE = "main"
_SETTLED_S = 30.0


class _Group:
    """Several servers that start and end together."""

    def __init__(self) -> None:
        self._open = ExitStack()

    def _add(self, server: Server) -> Server:
        self._open.callback(server.close)
        return server

    def start(self) -> Self:
        raise NotImplementedError

    def close(self) -> None:
        """End them all, frozen or not."""
        self._open.close()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()


class Sentinel(Server):
    """One sentinel: the same program, which watches others."""

    def __init__(self, kind: str, watched: int, *, down_ms: int, failover_ms: int) -> None:
        super().__init__(kind)
        lines = [
            f"port {self.port}",
            f"bind {_HOST}",
            f"dir {self.directory}",
            f"logfile {self.directory}/log",
            f"sentinel monitor {_SERVICE} {_HOST} {watched} 2",
            f"sentinel down-after-milliseconds {_SERVICE} {down_ms}",
            f"sentinel failover-timeout {_SERVICE} {failover_ms}",
        ]
        self._file = self.directory / "sentinel.conf"
        self._file.write_text("\n".join(lines) + "\n")

    def _settings(self) -> list[str]:
        return [str(self._file), "--sentinel"]


class Sentinels(_Group):
    """One primary, two replicas and three sentinels. `arguments` go to the servers.

    A dead or frozen primary is replaced in about two seconds.
    """

    def __init__(self, kind: str = "valkey", *, arguments: tuple[str, ...] = ()) -> None:
        super().__init__()
        settings = ("--repl-diskless-sync-delay", "0", *arguments)
        self.servers = [self._add(Server(kind, arguments=settings))]
        replica = (*settings, "--replicaof", _HOST, str(self.servers[0].port))
        self.servers += [self._add(Server(kind, arguments=replica)) for _ in range(2)]
        watched = self.servers[0].port
        self.sentinels = [self._add(Sentinel(kind, watched, down_ms=500, failover_ms=2000)) for _ in range(3)]

    @property
    def url(self) -> str:
        """What `holdfast.connect` takes."""
        hosts = ",".join(f"{_HOST}:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{_SERVICE}"

    @property
    def service(self) -> str:
        return _SERVICE

    def start(self) -> Self:
        for server in self.servers:
            server.start()
        eventually(lambda: self._replicas_of(self.servers[0]) == 2, _SETTLED_S, "two replicas")
        for sentinel in self.sentinels:
            sentinel.start()
        self.wait_settled()
        return self

    def primary(self) -> Server:
        """Whom the sentinels name, if they agree."""
        ports = {self._named_by(sentinel) for sentinel in self.sentinels if sentinel.alive}
        found = [server for server in self.servers if server.port in ports]
        if len(ports) != 1 or len(found) != 1:
            raise RuntimeError(f"the sentinels name {ports}")
        return found[0]

    def replicas(self) -> list[Server]:
        """The others that run."""
        primary = self.primary()
        return [server for server in self.servers if server is not primary and server.alive]

    def failover(self) -> None:
        """Have the sentinels move the primary, gracefully, and wait until they have."""
        before = self.primary()
        eventually(self._asked_for_failover, _SETTLED_S, "a sentinel that begins a failover")
        self.wait_replaced(before)

    def wait_replaced(self, before: Server) -> Server:
        """Wait until another one is the primary, in the eyes of all sentinels and in its own."""

        def replaced() -> Server | None:
            with suppress(OSError, ServerError, RuntimeError):
                now = self.primary()
                if now is not before and now.command("ROLE")[0] == b"master":
                    return now
            return None

        found = eventually(replaced, _SETTLED_S, f"another primary than {before!r}")
        assert found is not None
        return found

    def wait_settled(self) -> None:
        """Wait until every sentinel knows all servers and all sentinels, and the primary has all replicas."""
        eventually(_quietly(self._settled), _SETTLED_S, f"{self!r} to settle")

    def _settled(self) -> bool:
        wanted = {b"num-slaves": 2, b"num-other-sentinels": 2}
        for sentinel in self.sentinels:
            told = sentinel.command("SENTINEL", "MASTER", _SERVICE)
            facts = dict(zip(told[::2], told[1::2], strict=True))
            if facts[b"flags"] != b"master" or any(int(facts[name]) < count for name, count in wanted.items()):
                return False
        primary = self.primary()
        return bool(primary.command("ROLE")[0] == b"master") and self._replicas_of(primary) == 2

    def _asked_for_failover(self) -> bool:
        with suppress(ServerError, OSError):
            return bool(self.sentinels[0].command("SENTINEL", "FAILOVER", _SERVICE) == b"OK")
        return False

    def _named_by(self, sentinel: Server) -> int:
        return int(sentinel.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", _SERVICE)[1])

    def _replicas_of(self, server: Server) -> int:
        return server.command("INFO", "replication").count(b"state=online")

    def __repr__(self) -> str:
        return f"Sentinels({self.url})"


class Cluster(_Group):
    """Three masters with a replica each, which begin as a whole cluster. `arguments` go to the servers.

    A dead or frozen master is replaced in two to three seconds.
    """

    def __init__(
        self,
        kind: str = "valkey",
        *,
        masters: int = 3,
        replicas: int = 1,
        node_timeout_ms: int = 1000,
        arguments: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        settings = (
            *("--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf"),
            *("--cluster-node-timeout", str(node_timeout_ms), "--cluster-slave-validity-factor", "0"),
            *("--repl-diskless-sync-delay", "0"),
            *arguments,
        )
        count = masters * (1 + replicas)
        self.nodes = [self._add(Server(kind, arguments=settings, port=_port_with_bus())) for _ in range(count)]
        self._masters = masters

    @property
    def url(self) -> str:
        """What `holdfast.connect` takes: the first three nodes."""
        return "redis+cluster://" + ",".join(f"{_HOST}:{node.port}" for node in self.nodes[:3])

    def start(self) -> Self:
        self._write_maps()
        for node in self.nodes:
            node.start(wait=False)
        for node in self.nodes:
            node.wait_ready()
        self.wait_settled()
        return self

    def owner_of(self, name: str) -> Server:
        """The master that answers for the lease of this name."""
        return self.owner_of_slot(slot_of(name))

    def owner_of_slot(self, slot: int) -> Server:
        for first, last, place, *_ in self._view():
            if first <= slot <= last:
                return self._at(place[1])
        raise LookupError(f"nobody owns slot {slot}")

    def masters(self) -> list[Server]:
        """The owners of slots, as the others see them."""
        return list(dict.fromkeys(self._at(place[1]) for _, _, place, *_ in self._view()))

    def replicas_of(self, master: Server) -> list[Server]:
        for _, _, place, *others in self._view():
            if place[1] == master.port:
                return [self._at(other[1]) for other in others]
        return []

    def failover(self, master: Server) -> Server:
        """Have a replica take the place of a live master, gracefully; the new master."""
        replica = self.replicas_of(master)[0]
        eventually(_quietly(lambda: replica.command("CLUSTER", "FAILOVER") == b"OK"), _SETTLED_S, "a failover")
        eventually(_quietly(lambda: replica in self.masters()), _SETTLED_S, f"{replica!r} to be a master")
        return replica

    def wait_replaced(self, master: Server) -> Server:
        """Wait until somebody else owns what this master owned."""
        slot = self._slots_at_start[self.nodes.index(master) % self._masters][0]
        return eventually(
            _quietly(lambda: (now := self.owner_of_slot(slot)) is not master and self._well() and now),
            _SETTLED_S,
            f"another master in the place of {master!r}",
        )

    def begin_move(self, slot: int, to: Server) -> Server:
        """First half of moving a slot: it is on its way, and no key has been moved; gives its owner."""
        owner = self.owner_of_slot(slot)
        to.command("CLUSTER", "SETSLOT", slot, "IMPORTING", self._id(owner))
        owner.command("CLUSTER", "SETSLOT", slot, "MIGRATING", self._id(to))
        return owner

    def move_keys(self, slot: int, owner: Server, to: Server) -> int:
        """Move what is in the slot now, key by key, as people's tools do; how many."""
        moved = 0
        while keys := owner.command("CLUSTER", "GETKEYSINSLOT", slot, 10):
            for key in keys:
                owner.command("MIGRATE", _HOST, to.port, key, 0, 5000)
                moved += 1
        return moved

    def end_move(self, slot: int, owner: Server, to: Server) -> None:
        """Second half: the slot has arrived, and everybody is told."""
        new = self._id(to)
        for node in (to, owner, *(node for node in self.masters() if node not in (to, owner))):
            node.command("CLUSTER", "SETSLOT", slot, "NODE", new)

    def move_slot(self, slot: int, to: Server) -> int:
        """All of it; how many keys were moved."""
        owner = self.begin_move(slot, to)
        moved = self.move_keys(slot, owner, to)
        self.end_move(slot, owner, to)
        return moved

    def wait_settled(self) -> None:
        """Wait until every node that runs finds the cluster well, and all agree on who owns what."""
        eventually(_quietly(self._settled), _SETTLED_S, f"{self!r} to settle")

    def _settled(self) -> bool:
        running = [node for node in self.nodes if node.alive]
        views = []
        for node in running:
            if b"cluster_state:ok" not in node.command("CLUSTER", "INFO"):
                return False
            views.append(sorted((first, last, place[1]) for first, last, place, *_ in node.command("CLUSTER", "SLOTS")))
            role = node.command("ROLE")
            if role[0] == b"slave" and role[3] != b"connected":
                return False
        return all(view == views[0] for view in views)

    def _well(self) -> bool:
        return all(b"cluster_state:ok" in node.command("CLUSTER", "INFO", timeout=0.5) for node in self.masters())

    def _view(self) -> list[Any]:
        """What a node that answers and finds the cluster well says; else any that answers."""
        told: list[Any] = []
        for node in self.nodes:
            if node.alive:
                with suppress(OSError, ServerError):
                    told = node.command("CLUSTER", "SLOTS", timeout=0.5)
                    if b"cluster_state:ok" in node.command("CLUSTER", "INFO", timeout=0.5):
                        break
        return told

    def _at(self, port: int) -> Server:
        return next(node for node in self.nodes if node.port == port)

    def _id(self, node: Server) -> str:
        return str(node.command("CLUSTER", "MYID").decode())

    def _write_maps(self) -> None:
        """Give every node the whole map before it starts: nobody has to be introduced to anybody."""
        ids = [secrets.token_hex(20) for _ in self.nodes]
        share = -(-_SLOTS // self._masters)
        self._slots_at_start = [(at * share, min(_SLOTS, (at + 1) * share) - 1) for at in range(self._masters)]
        for me, node in enumerate(self.nodes):
            lines = []
            for at, other in enumerate(self.nodes):
                mine = "myself," if at == me else ""
                place = f"{ids[at]} {_HOST}:{other.port}@{other.port + _BUS}"
                epoch = at % self._masters + 1
                if at < self._masters:
                    first, last = self._slots_at_start[at]
                    lines.append(f"{place} {mine}master - 0 0 {epoch} connected {first}-{last}")
                else:
                    lines.append(f"{place} {mine}slave {ids[at % self._masters]} 0 0 {epoch} connected")
            lines.append(f"vars currentEpoch {self._masters} lastVoteEpoch 0")
            (node.directory / "nodes.conf").write_text("\n".join(lines) + "\n")

    def __repr__(self) -> str:
        return f"Cluster({self.url})"


def slot_of(name: str) -> int:
    """The slot of a lease's name."""
    tag = name.replace("%", "%25").replace("}", "%7D")
    return crc_hqx(tag.encode(), 0) % _SLOTS


def _quietly(ask: Callable[[], Any]) -> Callable[[], Any]:
    """While servers come and go, one that does not answer is no error."""

    def asked() -> Any:
        with suppress(OSError, ServerError, RuntimeError, LookupError, StopIteration, IndexError):
            return ask()
        return None

    return asked


def _port_with_bus() -> int:
    """A free port whose cluster bus, ten thousand above, is free as well."""
    while True:
        port = 20000 + secrets.randbelow(30000)
        try:
            with socket.create_server((_HOST, port)), socket.create_server((_HOST, port + _BUS)):
                return port
        except OSError:
            continue
