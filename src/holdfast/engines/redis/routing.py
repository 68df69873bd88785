"""How a command finds its server: written once, for both transports.

A transport has connections to each node. It follows a redirected command to the server that answers for its name, for
as long as one exchange may take. It resends only commands that were certainly not applied.
"""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import hiredis

from holdfast.clock import NS, SYSTEM
from holdfast.commands import Acquire, ReleaseLease, Renew
from holdfast.engines.interface import COMMANDS_PER_WRITE
from holdfast.engines.redis.connect import reply_error
from holdfast.engines.redis.keys import record_key
from holdfast.engines.redis.layout import writes
from holdfast.engines.redis.pool import extra_s
from holdfast.engines.redis.redirects import (
    ASK,
    CORRUPT,
    FAIL,
    MOVED,
    REFRESH,
    RETRY,
    Redirect,
    Redirected,
    detail_of,
    is_redirect,
    redirect_of,
)
from holdfast.engines.redis.replies import answered, time_of
from holdfast.engines.redis.resp import packed
from holdfast.engines.transport import BaseTransport
from holdfast.errors import MOVING, ReplyLost, Unavailable, UnavailableReason, UnreadableRecord
from holdfast.names import readable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.commands import Answer, Command
    from holdfast.engines import Reply
    from holdfast.engines.redis.engine import RedisEngine
    from holdfast.engines.redis.server_identity import ServerIdentity
    from holdfast.engines.redis.topology import Node

_STEP_S = 0.1
_LEAST_S = 0.01
# A server that had less time than this to answer does not count as failed.
_FAIR_S = 0.05
PAUSE_S, PAUSE_MAX_S = 0.02, 0.2
# Two servers that redirect a command to each other do not agree yet: after this many redirects the transport pauses.
_REDIRECTS = 5
# In a batch: one redirect to the server that has the slot, and one to the server that the slot moves to.
_REDIRECTS_IN_BATCH = 2
_ASKING = packed("ASKING")
# Commands that the record of a name can decide alone, unless the name has waiters.
_BY_RECORD = frozenset((Acquire, Renew, ReleaseLease))


class NodeConnections:
    """The connections of one transport to one node.

    `failing`: the last exchange there failed. `retired`: the node is not used any more.
    """

    def __init__(self, node: Node, identity: ServerIdentity, *, retired: bool = False) -> None:
        self.node = node
        self.identity = identity
        self.failing = False
        self.retired = retired

    def close_idle(self) -> None:
        """Close the connections that are not in use: they would fail, or lead to a server that is not used any more."""
        raise NotImplementedError


def retire(connections: NodeConnections) -> None:
    """Stop using a node; a connection that is in use is closed when it comes back."""
    connections.retired = True
    connections.close_idle()


C = TypeVar("C", bound=NodeConnections)
T = TypeVar("T")


def unknown_script(reply: Any) -> bool:
    """Return whether the server does not know the script, so that its text has to be sent."""
    return isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOSCRIPT")


def bounded(wire_s: float, until_ns: int) -> float:
    """Return how long an exchange may take, in coarse steps, so that the socket's timeout rarely has to be set."""
    left_s = (until_ns - SYSTEM.now_ns()) / NS
    return wire_s if left_s > wire_s - _STEP_S else max(_LEAST_S, left_s)


class RoutingTransport(BaseTransport, Generic[C]):
    """The part of a Redis transport that routes commands to one of several servers."""

    def __init__(self, engine: RedisEngine) -> None:
        super().__init__(engine)
        self._engine = engine
        self._connections: dict[Node, C] = {}
        self._only: C | None = (
            None  # the connections to the node of all names, if there is one, after the first contact
        )

    # The parts that differ between threads and tasks.

    def _new_connections(self, node: Node) -> C:
        raise NotImplementedError

    async def _send_all(self, connections: C, commands: bytes, count: int, limit_s: float) -> list[Any]:
        """Send the commands in one write, and return that many replies."""
        raise NotImplementedError

    async def _run_in_thread(self, call: Callable[[], T]) -> T:
        """Run a call that blocks for a moment."""
        raise NotImplementedError

    # Routing.

    def _limit_s(self, until_ns: int | None) -> float:
        wire_s = self._engine.wire_s
        return wire_s if until_ns is None else bounded(wire_s, until_ns)

    def _connections_of(self, command: Command) -> C:
        topology, layout = self._engine.topology, self._engine.layout
        node = topology.node_of(command.name)
        if node is None or not (layout.marked or layout.allows((command,))):
            raise Unavailable("redis", MOVING, f"no server is known that serves {command.name!r} at {topology.url}")
        return self._connections_to(node)

    def _connections_to(self, node: Node) -> C:
        connections = self.connections_at(node)
        if node is self._engine.topology.only and self._engine.layout.marked:
            self._only = connections
            if connections.retired:  # just now, by another thread
                self._only = None
        return connections

    def connections_at(self, node: Node) -> C:
        """Return the connections to a node, also before the first contact with it."""
        return self._connections.get(node) or self._connections.setdefault(node, self._new_connections(node))

    def _refused(self, url: str, command: Command, reply: hiredis.ReplyError) -> Unavailable:
        """Return the error for an error reply: `Redirected` if another of several servers may answer."""
        prefix = self._engine.packer.prefix
        error = reply_error(url, reply, prefix)
        if error.reason is UnavailableReason.CORRUPT:
            return unreadable_error(url, prefix, command, reply)
        if not self._engine.topology.follows or not is_redirect(str(reply)):
            return error
        redirected = Redirected(error.engine, error.reason, f"{url}: {reply}")
        redirected.reply = str(reply)
        return redirected

    async def _exchange(
        self,
        connections: C,
        commands: Sequence[Command],
        limit_s: float,
        *,
        pops: bool = False,
        asking: bool = False,
        record_only: bool = False,
    ) -> list[Reply]:
        """Send the commands to one server, and return its answers; an error means that its command was not applied."""
        pack = partial(self._engine.packer.pack, pops=pops, record_only=record_only)
        prefix, each = (_ASKING, 2) if asking else (b"", 1)
        texts = [prefix + pack(command) for command in commands]
        sent_ns = SYSTEM.now_ns()
        replies = (await self._send_all(connections, b"".join(texts), each * len(texts), limit_s))[each - 1 :: each]
        if type(commands[-1]) is Renew and (clock_us := time_of(replies[-1])) is not None:
            connections.identity.read_clock(clock_us, sent_ns, SYSTEM.now_ns())
        unknown = [at for at, reply in enumerate(replies) if unknown_script(reply)]
        if unknown:
            # The first of each kind carries the text of its script, which the server then knows for the others.
            first = {type(commands[at]): at for at in reversed(unknown)}.values()
            texts = [prefix + pack(commands[at], with_text=at in first) for at in unknown]
            again = (await self._send_all(connections, b"".join(texts), each * len(texts), limit_s))[each - 1 :: each]
            for at, reply in zip(unknown, again, strict=True):
                replies[at] = reply
        return self._answers(connections.node.url, commands, replies)

    def _answers(self, url: str, commands: Sequence[Command], replies: list[Any]) -> list[Reply]:
        """Return the answers for a server's replies; an error means that its command was not applied."""
        return [self._answer_or_error(url, *each) for each in zip(commands, replies, strict=True)]

    def _answer_or_error(self, url: str, command: Command, reply: Any) -> Reply:
        if isinstance(reply, hiredis.ReplyError):
            return self._refused(url, command, reply)
        try:
            return answered(type(command), reply)
        except Unavailable as error:
            return error

    async def apply_all(self, commands: Sequence[Command], until_ns: int | None = None) -> list[Reply]:
        replies: list[Reply] = [NOT_SENT] * len(commands)
        await self._send_round(commands, range(len(commands)), replies, until_ns)
        return await self._follow(commands, replies, until_ns)

    async def _send_round(
        self,
        commands: Sequence[Command],
        which: Sequence[int],
        replies: list[Reply],
        until_ns: int | None,
        *,
        pops: bool = False,
    ) -> None:
        """Send each server all of its commands once, and fill in the replies."""
        for connections, part, share in self._by_node(commands, which, replies):
            await self._send_to_node(connections, commands, part, replies, until_ns, share, pops=pops)

    def _by_node(
        self, commands: Sequence[Command], which: Sequence[int], replies: list[Reply]
    ) -> list[tuple[C, list[int], int]]:
        """Return for each node its connections, its commands, and the divisor of the time that is left.

        Failing servers come last. The servers that are still to be asked share the time equally, so that a silent
        server does not cost the leases on the others. With several servers, none gets all the time that is left,
        because the answers of the others have to arrive in time as well.
        """
        groups: dict[C, list[int]] = {}
        for at in which:
            try:
                groups.setdefault(self._only or self._connections_of(commands[at]), []).append(at)
            except Unavailable as error:
                replies[at] = error
        nodes = sorted(groups, key=_is_failing)
        shares = len(nodes) + (len(nodes) > 1)
        return [(connections, groups[connections], shares - before) for before, connections in enumerate(nodes)]

    async def _send_to_node(
        self,
        connections: C,
        commands: Sequence[Command],
        which: list[int],
        replies: list[Reply],
        until_ns: int | None,
        share: int,
        *,
        pops: bool,
    ) -> None:
        for start in range(0, len(which), COMMANDS_PER_WRITE):
            part = which[start : start + COMMANDS_PER_WRITE]
            sent = [commands[at] for at in part]
            limit_s = max(_LEAST_S, self._limit_s(until_ns) / share) + sum(map(extra_s, sent))
            try:
                answers = await self._exchange(connections, sent, limit_s, pops=pops)
            except Unavailable as error:
                # Earlier answers stay. The rest is not sent, because it would fail in the same way.
                if limit_s >= _FAIR_S:
                    self._mark_failing(connections)
                    self._engine.probe_listener()
                for at in which[start:]:
                    replies[at] = error
                return
            for at, reply in zip(part, answers, strict=True):
                replies[at] = reply
        connections.failing = False

    def _mark_failing(self, connections: C) -> None:
        if self._engine.topology.follows:
            connections.failing = True
            connections.close_idle()  # they would fail as well, one after the other
            self._engine.topology.mark_failed(connections.node)

    async def _follow_one(
        self, command: Command, error: Unavailable, until_ns: int | None, *, pops: bool = False
    ) -> Answer:
        """Follow one command that failed in the direct exchange: the common case of `_follow`."""
        topology = self._engine.topology
        if isinstance(error, ReplyLost):
            self._engine.probe_listener()
        sent = self._engine.layout.allows((command,))
        if topology.follows and sent and (isinstance(error, ReplyLost) or error.reason == MOVING):
            connections = self._only or self._connections.get(topology.node_of(command.name))  # type: ignore[arg-type]
            if connections is not None:
                self._mark_failing(connections)
        reply = (await self._follow((command,), [error], until_ns, pops=pops))[0]
        if isinstance(reply, Unavailable):
            raise reply
        return reply

    async def _follow(
        self, commands: Sequence[Command], replies: list[Reply], until_ns: int | None, *, pops: bool = False
    ) -> list[Reply]:
        """Send redirected commands again, until they are answered or the time of one exchange has passed.

        A batch does not wait for a few redirected commands: the holders of the other leases must learn of their
        renewals before their deadlines.
        """
        topology = self._engine.topology
        until_s, pause_s, count = monotonic() + self._limit_s(until_ns), PAUSE_S, 0
        while redirects := redirects_of(replies):
            version, steps = topology.version, {redirect.step for redirect in redirects.values()}
            batch = until_ns is not None and len(redirects) < len(replies)
            if monotonic() >= until_s or (batch and (REFRESH in steps or count >= _REDIRECTS_IN_BATCH)):
                return [as_unavailable(reply) if at in redirects else reply for at, reply in enumerate(replies)]
            count += 1
            was_allowed = self._engine.layout.allows(commands)
            if REFRESH in steps:
                try:
                    await self._refresh(commands, until_s - monotonic())
                except Unavailable as error:
                    return [error if at in redirects else reply for at, reply in enumerate(replies)]
            first = self._first_contact(was_allowed, commands)
            stuck = REFRESH in steps or RETRY in steps or count > _REDIRECTS
            if stuck and topology.version == version and not first and not batch:
                await self.waker().wait(SYSTEM.now_ns() + int(pause_s * NS))
                pause_s = min(2 * pause_s, PAUSE_MAX_S)
            await self._send_redirected(commands, redirects, replies, until_ns, pops=pops)
        return replies

    async def _send_redirected(
        self,
        commands: Sequence[Command],
        redirects: dict[int, Redirect],
        replies: list[Reply],
        until_ns: int | None,
        *,
        pops: bool,
    ) -> None:
        """Send each redirected command once more, to the server that its redirect names."""
        topology = self._engine.topology
        rest = []
        for at, redirect in redirects.items():
            if redirect.step not in (MOVED, ASK):
                rest.append(at)
                continue
            sender = topology.node_of(commands[at].name) or topology.any_node()
            node = topology.node_at(redirect.host, redirect.port, sender)
            if redirect.step == MOVED:
                topology.learn(redirect.slot, node)
                rest.append(at)
            else:
                replies[at] = await self._send_one(node, commands[at], until_ns, pops=pops)
        await self._send_round(commands, rest, replies, until_ns, pops=pops)
        for at, redirect in redirects_of(replies).items():
            if redirect.step == RETRY and type(commands[at]) in _BY_RECORD:
                replies[at] = await self._send_by_record(commands[at], replies[at], until_ns)

    async def _send_by_record(self, command: Command, before: Reply, until_ns: int | None) -> Reply:
        """Send a command that the record alone may decide to the server that has the record.

        The slot is moving to another server, which may take a long time.
        """
        topology = self._engine.topology
        node = topology.node_of(command.name)
        if node is None:
            return before
        reply = await self._send_one(node, command, until_ns, record_only=True, asking=False)
        redirect = redirect_of(reply) if isinstance(reply, Unavailable) else None
        if redirect is not None and redirect.step == ASK:  # the record has moved already
            target = topology.node_at(redirect.host, redirect.port, node)
            reply = await self._send_one(target, command, until_ns, record_only=True)
        return reply

    async def _send_one(
        self,
        node: Node,
        command: Command,
        until_ns: int | None,
        *,
        pops: bool = False,
        record_only: bool = False,
        asking: bool = True,
    ) -> Reply:
        """Send one command to a node. With `asking`, a server that is about to get the slot answers for it."""
        connections, limit_s = self._connections_to(node), self._limit_s(until_ns)
        try:
            replies = await self._exchange(
                connections, (command,), limit_s, pops=pops, asking=asking, record_only=record_only
            )
        except Unavailable as error:
            self._mark_failing(connections)
            return error
        return replies[0]

    def _first_contact(self, was_allowed: bool, commands: Sequence[Command]) -> bool:
        """Return whether the commands can be sent now for the first time, or for the first time to another server."""
        if not self._engine.layout.marked or not was_allowed:
            return not was_allowed and self._engine.layout.allows(commands)
        return self._only is None and self._engine.topology.only is not None

    async def _refresh(self, commands: Sequence[Command], limit_s: float) -> None:
        """Find out which servers there are; at the first contact, check the layout of their data."""
        engine, topology = self._engine, self._engine.topology
        until_s = monotonic() + limit_s
        await self._run_in_thread(lambda: topology.refresh(limit_s))
        if topology.only is not None and self._only is not None:
            self._only.close_idle()
        if not engine.layout.allows(commands):
            await self.check_layout(until_s)
            if engine.layout.passed:
                if writes(commands):
                    await self._mark_layout(until_s)
                engine.known_servers.record_servers(topology.servers())
                await self._run_in_thread(engine.watch_topology)

    async def check_layout(self, until_s: float) -> None:
        """Raise `Unavailable` if a server has data of another layout. Pass no check while a server is unknown."""
        topology, layout = self._engine.topology, self._engine.layout
        nodes = [node for key in layout.marker_keys if (node := topology.node_of_key(key)) is not None]
        if layout.passed or len(nodes) < len(layout.marker_keys):
            return
        reads = [packed("GET", key) for key in layout.marker_keys]
        if nodes[0] is nodes[1]:  # in one write, so that the usual check costs one round trip
            nodes, reads = nodes[:1], [b"".join(reads)]
        markers = []
        for node, read in zip(nodes, reads, strict=True):
            limit_s = max(_LEAST_S, until_s - monotonic())
            markers += await self._send_all(self.connections_at(node), read, 2 // len(nodes), limit_s)
        if layout.read_markers(*markers):
            if not topology.complete:
                raise Unavailable("redis", MOVING, f"some of the slots of {topology.url} have no server")
            for node in topology.nodes():
                await self._search_old_keys(node, until_s)
            layout.passed = True

    async def _search_old_keys(self, node: Node, until_s: float) -> None:
        """Read all keys of a server. Raise `Unavailable` if one is of the older layout, or if the time is over."""
        layout, connections = self._engine.layout, self.connections_at(node)
        identity = connections.identity
        while (step := layout.next_step(node, run_id := identity.run_id)) is not None:
            if monotonic() >= until_s:
                raise layout.unfinished()
            try:
                (reply,) = await self._send_all(connections, step, 1, self._engine.wire_s)
            except Unavailable:
                if not run_id:  # a restart of the server would not be noticed
                    layout.restart()
                self._mark_failing(connections)
                raise
            layout.record_step(node, run_id, identity.run_id, reply)

    async def _mark_layout(self, until_s: float) -> None:
        """Write the marker, if all keys were read. If the server refuses it, the next client reads the keys again."""
        topology, layout = self._engine.topology, self._engine.layout
        node = topology.node_of_key(layout.marker_keys[1])
        if not layout.marked and not layout.unseen and node is not None:
            connections = self.connections_at(node)
            if topology.only is None or connections.identity.alone:  # one server of a cluster has not all keys
                await self._send_all(connections, layout.marker(), 1, max(_LEAST_S, until_s - monotonic()))
        layout.marked = True

    def retire_unused(self) -> None:
        """Retire the connections to servers that the topology no longer has."""
        topology = self._engine.topology
        nodes = () if topology.only is not None else topology.nodes()  # the only node is another server now
        self._only = None
        for node in tuple(self._connections):
            # Two threads may do this at once.
            if node not in nodes and (connections := self._connections.pop(node, None)) is not None:
                retire(connections)

    def topology_changed(self) -> None:
        """Retire unused connections; any thread may call it."""
        self.retire_unused()

    def on_unknown_wakeup(self, call: Callable[[], None]) -> None:
        self._listener.waiter_registry.on_unknown = call

    def forked(self) -> None:
        """Do nothing in a child process: an event loop does not survive a fork, so its connections stay unused."""

    async def refresh(self) -> None:
        await self._run_in_thread(self._engine.topology.agreed_nodes)


_ONE_ITEM = f"{CORRUPT} the field "
NOT_SENT = Unavailable("redis", UnavailableReason.FAILED, "the command was not sent")


def _is_failing(connections: NodeConnections) -> bool:
    return connections.failing


def unreadable_error(url: str, prefix: str, command: Command, reply: hiredis.ReplyError) -> Unavailable:
    """Return the error for data that the scripts cannot use. It names the keys; its cause is the server's own text."""
    keys = f"{record_key(prefix, command.name)}*"
    place, remedy = f"one of the keys {keys!r}", "Move or delete that key to start again"
    if str(reply).startswith(_ONE_ITEM):
        place, remedy = (
            f"the field {str(reply).removeprefix(_ONE_ITEM)}",
            "Remove that item from the pool, and add it again",
        )
    detail = f"{url}: the data of {readable(command.name)!r} cannot be read: another program wrote to {place}. {remedy}"
    error = UnreadableRecord("redis", detail=detail)
    error.__cause__ = reply
    return error


def redirects_of(replies: list[Reply]) -> dict[int, Redirect]:
    """Return the next step of each command that was not answered and may be answered elsewhere or later."""
    found = {at: redirect_of(reply) for at, reply in enumerate(replies) if isinstance(reply, Unavailable)}
    return {at: redirect for at, redirect in found.items() if redirect.step != FAIL}


def as_unavailable(reply: Reply) -> Reply:
    """Return the error of a command that no server answered in time; the last reply gives its detail."""
    return Unavailable("redis", MOVING, detail_of(reply)) if isinstance(reply, Unavailable) else reply
