"""How a command finds its server: written once, for both forms.

A form keeps a lane for each node: its connections there. A command that went astray is followed to whoever answers for
its name, for as long as one exchange may take. Only commands that were certainly not applied are sent again here.
"""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import hiredis

from holdfast.clock import NS, SYSTEM
from holdfast.commands import Acquire, Release, Renew
from holdfast.engines.redis.connect import refused
from holdfast.engines.redis.keys import layout_key, old_keys_pattern
from holdfast.engines.redis.pool import extra_s
from holdfast.engines.redis.redirects import ASK, GO, LOOK, STOP, WAIT, Redirect, Redirected, astray, told, turn
from holdfast.engines.redis.replies import answered, time_of
from holdfast.engines.redis.resp import packed
from holdfast.engines.transport import BaseTransport
from holdfast.errors import MOVING, ReplyLost, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.commands import Answer, Command
    from holdfast.engines import Reply
    from holdfast.engines.redis.engine import RedisEngine
    from holdfast.engines.redis.server_identity import ServerIdentity
    from holdfast.engines.redis.topology import Node

AT_ONCE = 100
_STEP_S = 0.1
_LEAST_S, _FAIR_S = 0.01, 0.05
PAUSE_S, PAUSE_MAX_S = 0.02, 0.2
# Two servers that send a command to each other do not agree yet.
_HOPS = 5
# To where the slot is, and to where it is going.
_HOPS_IN_COMPANY = 2
_ASKING = packed("ASKING")
# How many keys the first contact looks at for data of the old layout.
_SCANNED = "1000"
# What the record of a name decides by itself, unless somebody waits.
_ALONE = frozenset((Acquire, Renew, Release))


class NodeConnections:
    """The connections of one form to one node. `failing`: the last exchange there failed. `left`: nobody comes back."""

    def __init__(self, node: Node, sight: ServerIdentity, *, left: bool = False) -> None:
        self.node = node
        self.sight = sight
        self.failing = False
        self.left = left

    def drop(self) -> None:
        """Close what is open and not in use: it would fail, or leads where nobody should go any more."""
        raise NotImplementedError


def leave(lane: NodeConnections) -> None:
    """Nobody goes there any more; what is in use is closed by whoever uses it."""
    lane.left = True
    lane.drop()


L = TypeVar("L", bound=NodeConnections)
T = TypeVar("T")


def unknown_script(reply: Any) -> bool:
    """The server has forgotten the script, or never knew it: send the text."""
    return isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOSCRIPT")


def bounded(wire_s: float, until_ns: int) -> float:
    """How long an exchange may take; in coarse steps, so that the socket's own limit seldom has to be set anew."""
    left_s = (until_ns - SYSTEM.now_ns()) / NS
    return wire_s if left_s > wire_s - _STEP_S else max(_LEAST_S, left_s)


class RoutingTransport(BaseTransport, Generic[L]):
    """The half of a Redis form that knows of several servers."""

    def __init__(self, engine: RedisEngine) -> None:
        super().__init__(engine)
        self._engine = engine
        self._connections: dict[Node, L] = {}
        self._only: L | None = None  # where all names live, once it has been met

    # What threads and tasks do differently.

    def _new_connections(self, node: Node) -> L:
        raise NotImplementedError

    async def _send_all(self, lane: L, commands: bytes, count: int, limit_s: float) -> list[Any]:
        """Send the commands in one write; that many replies."""
        raise NotImplementedError

    async def _run_in_thread(self, call: Callable[[], T]) -> T:
        """Do something that blocks for a moment."""
        raise NotImplementedError

    # The way of a command.

    def _limit_s(self, until_ns: int | None) -> float:
        wire_s = self._engine.wire_s
        return wire_s if until_ns is None else bounded(wire_s, until_ns)

    def _connections_of(self, name: str) -> L:
        node = self._engine.topology.node_of(name)
        if node is None or not self._engine.layout_checked:
            raise Unavailable("redis", MOVING, f"nobody is known to answer for {name!r} at {self._engine.topology.url}")
        return self._connections_to(node)

    def _connections_to(self, node: Node) -> L:
        lane = self.connections_at(node)
        if node is self._engine.topology.only:
            self._only = lane
            if lane.left:  # just now, by another thread
                self._only = None
        return lane

    def connections_at(self, node: Node) -> L:
        """The lane to a node that may not have been met yet."""
        return self._connections.get(node) or self._connections.setdefault(node, self._new_connections(node))

    def _refused(self, url: str, reply: hiredis.ReplyError) -> Unavailable:
        """What an error reply means; where there are several servers, it may only have come to the wrong one."""
        error = refused(url, reply, self._engine.packer.prefix)
        if not self._engine.topology.follows or not astray(str(reply)):
            return error
        lost = Redirected(error.engine, error.reason, f"{url}: {reply}")
        lost.reply = str(reply)
        return lost

    async def _exchange(
        self,
        lane: L,
        commands: Sequence[Command],
        limit_s: float,
        *,
        pops: bool = False,
        asking: bool = False,
        alone: bool = False,
    ) -> list[Reply]:
        """Ask one server; an error reply means that its command was not applied."""
        pack, each = partial(self._engine.packer.pack, pops=pops, alone=alone), 2 if asking else 1
        begin = _ASKING if asking else b""
        texts = [begin + pack(command) for command in commands]
        sent_ns = SYSTEM.now_ns()
        replies = (await self._send_all(lane, b"".join(texts), each * len(texts), limit_s))[each - 1 :: each]
        if type(commands[-1]) is Renew and (clock_us := time_of(replies[-1])) is not None:
            lane.sight.timed(clock_us, sent_ns, SYSTEM.now_ns())
        unknown = [at for at, reply in enumerate(replies) if unknown_script(reply)]
        if unknown:
            # The first of each kind goes with the text of its script, which the server then knows for the others.
            first = {type(commands[at]): at for at in reversed(unknown)}.values()
            texts = [begin + pack(commands[at], whole=at in first) for at in unknown]
            again = (await self._send_all(lane, b"".join(texts), each * len(texts), limit_s))[each - 1 :: each]
            for at, reply in zip(unknown, again, strict=True):
                replies[at] = reply
        return self._answers(lane.node.url, commands, replies)

    def _answers(self, url: str, commands: Sequence[Command], replies: list[Any]) -> list[Reply]:
        """What the replies of a server mean; an error reply means that its command was not applied."""
        return [
            self._refused(url, reply) if isinstance(reply, hiredis.ReplyError) else answered(type(command), reply)
            for command, reply in zip(commands, replies, strict=True)
        ]

    async def apply_all(self, commands: Sequence[Command], until_ns: int | None = None) -> list[Reply]:
        replies: list[Reply] = [UNASKED] * len(commands)
        await self._round(commands, range(len(commands)), replies, until_ns)
        return await self._follow(commands, replies, until_ns)

    async def _round(
        self,
        commands: Sequence[Command],
        which: Sequence[int],
        replies: list[Reply],
        until_ns: int | None,
        *,
        pops: bool = False,
    ) -> None:
        """Ask each server once for all that it answers for."""
        for lane, part, share in self._by_node(commands, which, replies):
            await self._ask_node(lane, commands, part, replies, until_ns, share, pops=pops)

    def _by_node(
        self, commands: Sequence[Command], which: Sequence[int], replies: list[Reply]
    ) -> list[tuple[L, list[int], int]]:
        """Which commands go where; the server that failed last is asked last.

        The time is shared, by so many as are still to be asked: a silent server must not cost the leases on the others.
        What those have answered has to be told in time as well, so of several none has all that is left.
        """
        groups: dict[L, list[int]] = {}
        for at in which:
            try:
                groups.setdefault(self._only or self._connections_of(commands[at].name), []).append(at)
            except Unavailable as error:
                replies[at] = error
        lanes = sorted(groups, key=_is_failing)
        shares = len(lanes) + (len(lanes) > 1)
        return [(lane, groups[lane], shares - before) for before, lane in enumerate(lanes)]

    async def _ask_node(
        self,
        lane: L,
        commands: Sequence[Command],
        which: list[int],
        replies: list[Reply],
        until_ns: int | None,
        share: int,
        *,
        pops: bool,
    ) -> None:
        for start in range(0, len(which), AT_ONCE):
            part = which[start : start + AT_ONCE]
            asked = [commands[at] for at in part]
            limit_s = max(_LEAST_S, self._limit_s(until_ns) / share) + sum(map(extra_s, asked))
            try:
                told = await self._exchange(lane, asked, limit_s, pops=pops)
            except Unavailable as error:
                # What was answered stays answered; the rest has not been, and is not sent into the same trouble.
                # Whoever had hardly any time to answer is not suspected for it.
                if limit_s >= _FAIR_S:
                    self._fails(lane)
                    self._engine.doubt()
                for at in which[start:]:
                    replies[at] = error
                return
            for at, reply in zip(part, told, strict=True):
                replies[at] = reply
        lane.failing = False

    def _fails(self, lane: L) -> None:
        if self._engine.topology.follows:
            lane.failing = True
            lane.drop()  # what is idle there would fail as well, one after the other
            self._engine.topology.doubt(lane.node)

    async def _follow_one(
        self, command: Command, trouble: Unavailable, until_ns: int | None, *, pops: bool = False
    ) -> Answer:
        """The common case of `_follow`: one command, which met trouble on the short way."""
        topology = self._engine.topology
        if isinstance(trouble, ReplyLost):
            self._engine.doubt()
        if topology.follows and (isinstance(trouble, ReplyLost) or trouble.reason == MOVING):
            lane = self._only or self._connections.get(topology.node_of(command.name))  # type: ignore[arg-type]
            if lane is not None:
                self._fails(lane)
        reply = (await self._follow((command,), [trouble], until_ns, pops=pops))[0]
        if isinstance(reply, Unavailable):
            raise reply
        return reply

    async def _follow(
        self, commands: Sequence[Command], replies: list[Reply], until_ns: int | None, *, pops: bool = False
    ) -> list[Reply]:
        """Ask again what went astray, until it is answered or the time of one exchange has passed.

        In company it is not waited for: a lease that was renewed must be told so before its deadline.
        """
        topology = self._engine.topology
        until_s, pause_s, hops = monotonic() + self._limit_s(until_ns), PAUSE_S, 0
        while turns := redirects_of(replies):
            version, steps = topology.version, {turn.step for turn in turns.values()}
            company = until_ns is not None and len(turns) < len(replies)
            if monotonic() >= until_s or (company and (LOOK in steps or hops >= _HOPS_IN_COMPANY)):
                return [as_unavailable(reply) if at in turns else reply for at, reply in enumerate(replies)]
            hops += 1
            if LOOK in steps:
                try:
                    await self._look(until_s - monotonic())
                except Unavailable as error:
                    return [error if at in turns else reply for at, reply in enumerate(replies)]
            first = self._only is None and topology.only is not None
            stuck = LOOK in steps or WAIT in steps or hops > _HOPS
            if stuck and topology.version == version and not first and not company:
                await self.waker().wait(SYSTEM.now_ns() + int(pause_s * NS))
                pause_s = min(2 * pause_s, PAUSE_MAX_S)
            await self._again(commands, turns, replies, until_ns, pops=pops)
        return replies

    async def _again(
        self,
        commands: Sequence[Command],
        turns: dict[int, Redirect],
        replies: list[Reply],
        until_ns: int | None,
        *,
        pops: bool,
    ) -> None:
        """Each astray command once more, where it was sent to."""
        topology = self._engine.topology
        rest = []
        for at, way in turns.items():
            if way.step not in (GO, ASK):
                rest.append(at)
                continue
            asked = topology.node_of(commands[at].name) or topology.any_node()
            node = topology.node_at(way.host, way.port, asked)
            if way.step == GO:
                topology.learn(way.slot, node)
                rest.append(at)
            else:
                replies[at] = await self._ask_node_once(node, commands[at], until_ns, pops=pops)
        await self._round(commands, rest, replies, until_ns, pops=pops)
        for at, way in redirects_of(replies).items():
            if way.step == WAIT and type(commands[at]) in _ALONE:
                replies[at] = await self._ask_record_only(commands[at], replies[at], until_ns)

    async def _ask_record_only(self, command: Command, before: Reply, until_ns: int | None) -> Reply:
        """The slot is on its way, and may stay so for long: ask whoever has the record what it alone can decide."""
        topology = self._engine.topology
        node = topology.node_of(command.name)
        if node is None:
            return before
        reply = await self._ask_node_once(node, command, until_ns, alone=True, asking=False)
        way = turn(reply) if isinstance(reply, Unavailable) else None
        if way is not None and way.step == ASK:  # the record has gone ahead
            reply = await self._ask_node_once(topology.node_at(way.host, way.port, node), command, until_ns, alone=True)
        return reply

    async def _ask_node_once(
        self,
        node: Node,
        command: Command,
        until_ns: int | None,
        *,
        pops: bool = False,
        alone: bool = False,
        asking: bool = True,
    ) -> Reply:
        """A server that is about to get the slot answers for it if it is asked in the right words."""
        lane, limit_s = self._connections_to(node), self._limit_s(until_ns)
        try:
            return (await self._exchange(lane, (command,), limit_s, pops=pops, asking=asking, alone=alone))[0]
        except Unavailable as error:
            self._fails(lane)
            return error

    async def _look(self, limit_s: float) -> None:
        """Look around: who is there, and is the place kept as we keep it?"""
        engine, topology = self._engine, self._engine.topology
        await self._run_in_thread(lambda: topology.refresh(limit_s))
        if topology.only is not None and self._only is not None:
            self._only.drop()
        if not engine.layout_checked:
            key = layout_key(engine.packer.prefix)
            node = topology.node_of_key(key)
            if node is None:
                return
            # One write and one step of SCAN, so that the check costs one round trip and a bounded part of the server's
            # time; it finds old data for certain only on a server with few keys (decision 0081).
            scan = packed("SCAN", "0", "MATCH", old_keys_pattern(engine.packer.prefix), "COUNT", _SCANNED)
            connections = self.connections_at(node)
            marker, old_keys = await self._send_all(connections, packed("GET", key) + scan, 2, limit_s)
            engine.check_layout(marker, old_keys)
            await self._run_in_thread(engine.watch)

    def tidy(self) -> None:
        """The topology has changed: what leads to servers that are no longer in it is closed, when nobody uses it."""
        topology = self._engine.topology
        nodes = () if topology.only is not None else topology.nodes()  # the same node is another server now
        self._only = None
        for node in tuple(self._connections):
            if node not in nodes and (lane := self._connections.pop(node, None)) is not None:  # two may tidy at once
                leave(lane)

    def moved(self) -> None:
        """The same, said by any thread."""
        self.tidy()

    def on_unknown_wakeup(self, call: Callable[[], None]) -> None:
        self._listener.waiter_registry.on_unknown = call

    def forked(self) -> None:
        """In a child. A loop does not live on there, so that what was open in it is left alone."""

    async def refresh(self) -> None:
        await self._run_in_thread(self._engine.topology.settle)


UNASKED = Unavailable("redis", "failed", "it was not asked")


def _is_failing(lane: NodeConnections) -> bool:
    return lane.failing


def redirects_of(replies: list[Reply]) -> dict[int, Redirect]:
    """What is to be done with those that were not answered, where anything can be."""
    found = {at: turn(reply) for at, reply in enumerate(replies) if isinstance(reply, Unavailable)}
    return {at: way for at, way in found.items() if way.step != STOP}


def as_unavailable(reply: Reply) -> Reply:
    """Nobody answered for the name in time; the last thing that was heard says why."""
    return Unavailable("redis", MOVING, told(reply)) if isinstance(reply, Unavailable) else reply
