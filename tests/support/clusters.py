"""A real cluster for tests: three masters with a replica each.

The nodes start with the whole cluster map, and timeouts are short: a dead or frozen master is replaced in two to three
seconds.

    with Cluster("valkey") as cluster:
        hf = holdfast.connect(cluster.url)
        cluster.owner_of("orders/42").kill()

Each node is a `Server`: a test can freeze, kill and restart it. `heal()` restores all of them.
"""

from __future__ import annotations

import secrets
from binascii import crc_hqx
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

from holdfast.testing.ports import Port
from holdfast.testing.resp import ServerError
from holdfast.testing.servers import LOOPBACK, Certificates, Home, Server
from holdfast.testing.waiting import eventually
from tests.support.groups import STABLE_S, Group, quietly
from tests.support.tls_front import server_of, speaks_tls

if TYPE_CHECKING:
    from collections.abc import Sequence

_SLOTS = 16384
_BUS = 10000
_FAILOVER_S = 6.0


class Cluster(Group):
    """Three masters with a replica each.

    `arguments`: further arguments of the servers.
    `tls`: use TLS, also between the nodes.
    `homes`: the addresses of the nodes, masters first.
    """

    def __init__(
        self,
        kind: str = "valkey",
        *,
        masters: int = 3,
        replicas: int = 1,
        node_timeout_ms: int = 1000,
        arguments: tuple[str, ...] = (),
        tls: Certificates | None = None,
        homes: Sequence[Home] = (),
    ) -> None:
        super().__init__()
        self.tls = tls
        settings = (
            *("--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf"),
            *("--cluster-node-timeout", str(node_timeout_ms), "--cluster-slave-validity-factor", "0"),
            *("--repl-diskless-sync-delay", "0"),
            *(("--tls-cluster", "yes", "--tls-replication", "yes") if tls and speaks_tls(kind) else ()),
            *arguments,
        )
        homes = homes or (LOOPBACK,) * (masters * (1 + replicas))
        self.servers = [
            self._add(server_of(kind, arguments=settings, port=Port(beside=_BUS), tls=tls, home=home)) for home in homes
        ]
        self._masters = masters
        # A master and its replicas may swap roles, but stay one shard.
        shards = [self.servers[at::masters] for at in range(masters)]
        self._shards = {server: shard for shard in shards for server in shard}

    @property
    def url(self) -> str:
        """The URL for `holdfast.connect`, with the first three nodes."""
        hosts = ",".join(f"{node.host}:{node.port}" for node in self.servers[:3])
        return f"{self._scheme}+cluster://{hosts}{self._options}"

    def start(self) -> Self:
        self._write_maps()
        for node in self.servers:
            node.start(wait=False)
        for node in self.servers:
            node.wait_ready()
        self.wait_stable()
        return self

    def server_of(self, name: str) -> Server:
        return self.server_of_slot(slot_of(name))

    def server_of_slot(self, slot: int) -> Server:
        for first, last, place, *_ in self._view():
            if first <= slot <= last:
                return self._at(place[1])
        raise LookupError(f"nobody owns slot {slot}")

    def masters(self) -> list[Server]:
        """Return the nodes that serve slots, as the cluster sees them."""
        return list(dict.fromkeys(self._at(place[1]) for _, _, place, *_ in self._view()))

    def replicas_of(self, master: Server) -> list[Server]:
        for _, _, place, *others in self._view():
            if place[1] == master.port:
                return [self._at(other[1]) for other in others]
        return []

    def failover(self, server: Server) -> Server:
        self.wait_stable()
        replica = self.replicas_of(server)[0]
        asked_s = -_FAILOVER_S

        def taken_over() -> bool:
            nonlocal asked_s
            # A replica that has just voted or stood for election lets a wish go by: it is asked again.
            if monotonic() - asked_s >= _FAILOVER_S:
                replica.command("CLUSTER", "FAILOVER")
                asked_s = monotonic()
            return replica in self.masters()

        eventually(quietly(taken_over), STABLE_S, f"{replica!r} to be a master")
        self.wait_stable()
        return replica

    def begin_failover(self, server: Server) -> None:
        self.replicas_of(server)[0].command("CLUSTER", "FAILOVER")

    def wait_replaced(self, server: Server) -> Server:
        shard = self._shards[server]

        def replaced() -> Server | None:
            masters = self.masters()
            successors = [node for node in masters if node in shard]
            return successors[0] if successors and server not in masters and self._well() else None

        found = eventually(quietly(replaced), STABLE_S, f"another master in the place of {server!r}")
        assert found is not None
        return found

    def begin_move(self, slot: int, to: Server) -> Server:
        """Begin to move a slot: mark it as migrating without moving a key; return its present node."""
        owner = self.server_of_slot(slot)
        # The new node must know the current epoch of every master. Otherwise it would believe an old claim to the slot,
        # and then both nodes would name the other as its owner for ever.
        eventually(quietly(lambda: self._epochs(to) == self._own_epochs()), STABLE_S, "the epochs of the last move")
        to.command("CLUSTER", "SETSLOT", slot, "IMPORTING", self._id(owner))
        owner.command("CLUSTER", "SETSLOT", slot, "MIGRATING", self._id(to))
        return owner

    def move_keys(self, slot: int, owner: Server, to: Server) -> int:
        """Move the keys of a slot one by one, as redis-cli does; return how many."""
        moved = 0
        while keys := owner.command("CLUSTER", "GETKEYSINSLOT", slot, 10):
            for key in keys:
                owner.command("MIGRATE", to.host, to.port, key, 0, 5000)
                moved += 1
        return moved

    def end_move(self, slot: int, owner: Server, to: Server) -> None:
        """Finish the move: every master learns the new node of the slot."""
        new = self._id(to)
        for node in (to, owner, *(node for node in self.masters() if node not in (to, owner))):
            node.command("CLUSTER", "SETSLOT", slot, "NODE", new)

    def move_slot(self, slot: int, to: Server) -> int:
        """Move a slot with all its keys; return how many keys were moved."""
        owner = self.begin_move(slot, to)
        moved = self.move_keys(slot, owner, to)
        self.end_move(slot, owner, to)
        return moved

    def _stable(self) -> bool:
        running = [node for node in self.servers if node.alive]
        views = []
        for node in running:
            if b"cluster_state:ok" not in node.command("CLUSTER", "INFO"):
                return False
            view = node.command("CLUSTER", "SLOTS")
            if len({place[1] for _, _, *places in view for place in places}) != len(running):
                return False
            views.append(sorted((first, last, place[1]) for first, last, place, *_ in view))
            role = node.command("ROLE")
            if role[0] == b"slave" and role[3] != b"connected":
                return False
        return all(view == views[0] for view in views)

    def _well(self) -> bool:
        return all(b"cluster_state:ok" in node.command("CLUSTER", "INFO", timeout=0.5) for node in self.masters())

    def _view(self) -> list[Any]:
        """Return the slots as a node of a healthy cluster reports them, or else as any node does that answers."""
        slots: list[Any] = []
        for node in self.servers:
            if node.alive:
                with suppress(OSError, ServerError):
                    slots = node.command("CLUSTER", "SLOTS", timeout=0.5)
                    if b"cluster_state:ok" in node.command("CLUSTER", "INFO", timeout=0.5):
                        break
        return slots

    def _at(self, port: int) -> Server:
        return next(node for node in self.servers if node.port == port)

    def _epochs(self, node: Server) -> dict[str, str]:
        """Return the configuration epoch of each master, as one node knows it."""
        lines = [line.split() for line in node.command("CLUSTER", "NODES").decode().splitlines()]
        return {fields[0]: fields[6] for fields in lines if "master" in fields[2] and "fail" not in fields[2]}

    def _own_epochs(self) -> dict[str, str]:
        """Return the configuration epoch of each master, as the master itself knows it."""
        return {(own := self._id(node)): self._epochs(node)[own] for node in self.masters()}

    def _id(self, node: Server) -> str:
        return str(node.command("CLUSTER", "MYID").decode())

    def _write_maps(self) -> None:
        """Write the whole cluster map for every node before it starts, so that the nodes need not meet."""
        ids = [secrets.token_hex(20) for _ in self.servers]
        share = -(-_SLOTS // self._masters)
        ranges = [(at * share, min(_SLOTS, (at + 1) * share) - 1) for at in range(self._masters)]
        for me, node in enumerate(self.servers):
            lines = []
            for at, other in enumerate(self.servers):
                mine = "myself," if at == me else ""
                place = f"{ids[at]} {other.host}:{other.port}@{other.port + _BUS}"
                epoch = at % self._masters + 1
                if at < self._masters:
                    first, last = ranges[at]
                    lines.append(f"{place} {mine}master - 0 0 {epoch} connected {first}-{last}")
                else:
                    lines.append(f"{place} {mine}slave {ids[at % self._masters]} 0 0 {epoch} connected")
            lines.append(f"vars currentEpoch {self._masters} lastVoteEpoch 0")
            (node.directory / "nodes.conf").write_text("\n".join(lines) + "\n")

    def __repr__(self) -> str:
        return f"Cluster({self.url})"


def slot_of(name: str) -> int:
    """Return the slot of a lease's name."""
    tag = name.replace("%", "%25").replace("}", "%7D")
    return crc_hqx(tag.encode(), 0) % _SLOTS
