"""What a form asks beside the commands of leases: what its servers promise, and whether their replicas have heard.

Each server is asked for itself. One that is silent has its part of the time and no more.
"""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from holdfast.clock import NS, SYSTEM
from holdfast.commands import Granted, Renewed
from holdfast.commands.queue import Published
from holdfast.engines.redis.promise import promised_by_all
from holdfast.engines.redis.redirects import Redirected
from holdfast.engines.redis.routing import (
    AT_ONCE,
    PAUSE_MAX_S,
    PAUSE_S,
    UNASKED,
    L,
    RoutingTransport,
    as_unavailable,
    redirects_of,
)
from holdfast.engines.redis.server_info import QUESTIONS
from holdfast.errors import MOVING, ReplyLost, Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.commands import Command
    from holdfast.engines import EngineEvent, Promise, Reply
    from holdfast.engines.redis.transport_blocking import ConnectionPool


# What counts only once every known replica has it.
_COUNTS = (Granted, Renewed, Published)


class RedisTransport(RoutingTransport[L]):
    """The half of a Redis form that looks at its servers."""

    def _links_of(self, lane: L) -> ConnectionPool:
        """Connections to the same node on which a command may block."""
        raise NotImplementedError

    async def confirm(self, commands: Sequence[Command], until_ns: int) -> list[Reply]:
        replies = await self._confirm_round(commands, until_ns)
        lost = list(redirects_of(replies))
        if lost:
            # Sent as any others, they find whoever answers for them now; those that do are confirmed there.
            told = await self.apply_all([commands[at] for at in lost], until_ns)
            for at, reply in zip(lost, told, strict=True):
                replies[at] = reply
            found = [at for at in lost if not isinstance(replies[at], Unavailable)]
            again = await self._confirm_round([commands[at] for at in found], until_ns)
            for at, reply in zip(found, again, strict=True):
                replies[at] = as_unavailable(reply) if isinstance(reply, Redirected) else reply
        return replies

    async def _confirm_round(self, commands: Sequence[Command], until_ns: int) -> list[Reply]:
        """Ask each server once, and have its replicas hear of it."""
        replies: list[Reply] = [UNASKED] * len(commands)
        for lane, which, share in self._by_node(commands, range(len(commands)), replies):
            now_ns = SYSTEM.now_ns()
            lane_until_ns = now_ns + max(0, until_ns - now_ns) // share
            for start in range(0, len(which), AT_ONCE):
                part = which[start : start + AT_ONCE]
                try:
                    told = await self._confirmed(lane, [commands[at] for at in part], lane_until_ns)
                except Unavailable as error:
                    self._fails(lane)
                    for at in which[start:]:
                        replies[at] = error
                    break
                for at, reply in zip(part, told, strict=True):
                    replies[at] = reply
        return replies

    async def _confirmed(self, lane: L, commands: Sequence[Command], until_ns: int) -> list[Reply]:
        from holdfast.engines.redis.replicas import confirmed  # noqa: PLC0415 - only for those who use it

        packer, links = self._engine.packer, self._links_of(lane)
        replies, short = await self._run_in_thread(partial(confirmed, packer, links, commands, until_ns))
        told = self._answers(lane.node.url, commands, replies)
        return told if short is None else [short if isinstance(each, _COUNTS) else each for each in told]

    async def promise(self, until_ns: int | None = None) -> Promise:
        """Asked again while servers are being replaced, for as long as one exchange may take: it is only a question."""
        follows = self._engine.topology.follows
        until_s, pause_s = monotonic() + self._limit_s(until_ns), PAUSE_S
        while True:
            try:
                return await self._seen(until_s)
            except Unavailable as error:
                passing = isinstance(error, ReplyLost) or error.reason == MOVING
                if not follows or not passing or monotonic() + pause_s >= until_s:
                    raise
            await self.waker().wait(SYSTEM.now_ns() + int(pause_s * NS))
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def _seen(self, until_s: float) -> Promise:
        """What the servers are like now; each has its share of the time."""
        engine, topology = self._engine, self._engine.topology
        if topology.follows:
            await self._run_in_thread(lambda: topology.refresh(max(0.01, until_s - monotonic())))
            if not topology.whole:
                raise Unavailable("redis", MOVING, f"some of the slots of {topology.url} have no server")
        lanes = [self.connections_at(node) for node in topology.nodes()]
        seen = []
        for before, lane in enumerate(lanes):
            asked_ns, share_s = SYSTEM.now_ns(), max(0.01, (until_s - monotonic()) / (len(lanes) - before))
            try:
                replies = await self._send_all(lane, b"".join(QUESTIONS), len(QUESTIONS), share_s)
            except Unavailable:
                self._fails(lane)
                raise
            seen.append((lane.node.url, engine.facts(lane.sight, replies, asked_ns, SYSTEM.now_ns())))
        return promised_by_all(seen)

    def events(self) -> Sequence[EngineEvent]:
        return self._engine.known_servers.events()
