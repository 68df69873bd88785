"""The part of a Redis transport that both faces share besides routing: promises, and confirmation by replicas.

Each server gets its own commands and its own share of the time, so that a silent server does not use up the time of the
others.
"""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from holdfast.clock import NS, SYSTEM
from holdfast.commands import Granted, Renewed
from holdfast.commands.queue import Published
from holdfast.engines.interface import COMMANDS_PER_WRITE
from holdfast.engines.redis.promise import promised_by_all, without_layout_check
from holdfast.engines.redis.redirects import Redirected
from holdfast.engines.redis.routing import (
    NOT_SENT,
    PAUSE_MAX_S,
    PAUSE_S,
    C,
    RoutingTransport,
    as_unavailable,
    redirects_of,
)
from holdfast.engines.redis.server_info import FACT_COMMANDS
from holdfast.errors import MOVING, ReplyLost, Unavailable, UnavailableReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.commands import Command
    from holdfast.engines import EngineEvent, Promise, Reply
    from holdfast.engines.redis.transport_blocking import ConnectionPool


# The answers that count only once every known replica has the write.
_CONFIRMED = (Granted, Renewed, Published)


class RedisTransport(RoutingTransport[C]):
    """A transport that can confirm writes by replicas and read what its servers promise."""

    def _pool_of(self, connections: C) -> ConnectionPool:
        """Return a pool to the same node, for commands that block."""
        raise NotImplementedError

    async def confirm(self, commands: Sequence[Command], until_ns: int) -> list[Reply]:
        replies = await self._confirm_round(commands, until_ns)
        redirected = list(redirects_of(replies))
        if redirected:
            # Send the redirected commands as usual, so that they find their servers; then confirm the answered ones.
            answers = await self.apply_all([commands[at] for at in redirected], until_ns)
            for at, reply in zip(redirected, answers, strict=True):
                replies[at] = reply
            found = [at for at in redirected if not isinstance(replies[at], Unavailable)]
            again = await self._confirm_round([commands[at] for at in found], until_ns)
            for at, reply in zip(found, again, strict=True):
                replies[at] = as_unavailable(reply) if isinstance(reply, Redirected) else reply
        return replies

    async def _confirm_round(self, commands: Sequence[Command], until_ns: int) -> list[Reply]:
        """Send each server its commands once, and wait for its replicas."""
        replies: list[Reply] = [NOT_SENT] * len(commands)
        for connections, which, share in self._by_node(commands, range(len(commands)), replies):
            now_ns = SYSTEM.now_ns()
            node_until_ns = now_ns + max(0, until_ns - now_ns) // share
            for start in range(0, len(which), COMMANDS_PER_WRITE):
                part = which[start : start + COMMANDS_PER_WRITE]
                try:
                    answers = await self._confirmed(connections, [commands[at] for at in part], node_until_ns)
                except Unavailable as error:
                    self._mark_failing(connections)
                    for at in which[start:]:
                        replies[at] = error
                    break
                for at, reply in zip(part, answers, strict=True):
                    replies[at] = reply
        return replies

    async def _confirmed(self, connections: C, commands: Sequence[Command], until_ns: int) -> list[Reply]:
        from holdfast.engines.redis.replicas import confirmed  # noqa: PLC0415 - only for clients that confirm

        packer, pool = self._engine.packer, self._pool_of(connections)
        replies, unconfirmed = await self._run_in_thread(partial(confirmed, packer, pool, commands, until_ns))
        answers = self._answers(connections.node.url, commands, replies)
        if unconfirmed is None:
            return answers
        return [unconfirmed if isinstance(answer, _CONFIRMED) else answer for answer in answers]

    async def promise(self, until_ns: int | None = None) -> Promise:
        """Return what the servers promise.

        While servers are being replaced, repeat the reads as long as one exchange.
        """
        follows = self._engine.topology.follows
        until_s, pause_s = monotonic() + self._limit_s(until_ns), PAUSE_S
        while True:
            try:
                return await self._read_promise(until_s)
            except Unavailable as error:
                passing = isinstance(error, ReplyLost) or error.reason == MOVING
                if not follows or not passing or monotonic() + pause_s >= until_s:
                    raise
            await self.waker().wait(SYSTEM.now_ns() + int(pause_s * NS))
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def _read_promise(self, until_s: float) -> Promise:
        """Read the facts of every server once; each has its share of the time."""
        engine, topology = self._engine, self._engine.topology
        if topology.follows:
            await self._run_in_thread(lambda: topology.refresh(max(0.01, until_s - monotonic())))
            if not topology.complete:
                raise Unavailable("redis", MOVING, f"some of the slots of {topology.url} have no server")
        unchecked = await self._unchecked_layout(until_s)
        nodes = [self.connections_at(node) for node in topology.nodes()]
        facts = []
        for before, connections in enumerate(nodes):
            sent_ns, share_s = SYSTEM.now_ns(), max(0.01, (until_s - monotonic()) / (len(nodes) - before))
            try:
                replies = await self._send_all(connections, b"".join(FACT_COMMANDS), len(FACT_COMMANDS), share_s)
            except Unavailable:
                self._mark_failing(connections)
                raise
            facts.append((connections.node.url, engine.facts(connections.identity, replies, sent_ns, SYSTEM.now_ns())))
        return without_layout_check(promised_by_all(facts), unchecked) if unchecked else promised_by_all(facts)

    async def _unchecked_layout(self, until_s: float) -> str:
        """Return why it is unknown whether the servers have data of another layout; nothing if there are none.

        Raise `Unavailable` if there are some.
        """
        try:
            await self.check_layout(until_s)
        except Unavailable as error:
            if error.reason == UnavailableReason.OTHER_LAYOUT:
                raise
            return error.detail
        return self._engine.layout.unseen

    def events(self) -> Sequence[EngineEvent]:
        return self._engine.known_servers.events()
