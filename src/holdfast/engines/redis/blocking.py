"""The blocking form over Redis: a few links, each taken for one exchange.

A free link is used again; one that has been idle for a while is looked at first, so that a restarted server is not
mistaken for a lost reply. The keeper has a form, and so a link, of its own.

A thread that waits blocks on the server for its first moments, with the acquire that confirms its offer already sent
behind the blocking command: the hand-over then costs it no round trip. After that it listens, as tasks do, because a
long wait must neither hold a connection nor ask again and again.
"""

from __future__ import annotations

from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any

import hiredis

from holdfast.clock import NS, NS_PER_MS, SYSTEM
from holdfast.commands import Acquire, Busy, Renew
from holdfast.engines.forms import ThreadForm
from holdfast.engines.redis.dial import refused
from holdfast.engines.redis.facts import GREETING, QUESTIONS
from holdfast.engines.redis.link import Link
from holdfast.engines.redis.scripts import answered, time_of
from holdfast.errors import ReplyLost, Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.commands import Answer, Command
    from holdfast.engines import News, Promise, Reply
    from holdfast.engines.redis.engine import RedisEngine

AT_ONCE = 100
_IDLE_S = 0.5
_FREE_MAX = 16
_POPPING_MAX = 16
_STEP_S = 0.1
# A server ends a blocking command on its own tick, ten times a second.
_TICK_S = 0.5


def unknown_script(reply: Any) -> bool:
    """The server has forgotten the script, or never knew it: send the text."""
    return isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOSCRIPT")


def answers(url: str, commands: Sequence[Command], replies: list[Any]) -> list[Reply]:
    """What the replies mean; an error reply means that its command was not applied."""
    return [
        refused(url, reply) if isinstance(reply, hiredis.ReplyError) else answered(type(command), reply)
        for command, reply in zip(commands, replies, strict=True)
    ]


def bounded(wire_s: float, until_ns: int) -> float:
    """How long an exchange may take; in coarse steps, so that the socket's own limit seldom has to be set anew."""
    left_s = (until_ns - SYSTEM.now_ns()) / NS
    return wire_s if left_s > wire_s - _STEP_S else max(0.01, left_s)


def _pop_ns(ttl_ms: int) -> int:
    """How long a waiter may block on the server.

    The lease that comes of it counts from the moment its acquire was sent, so most of its ttl must still be left.
    """
    return ttl_ms * NS_PER_MS // 3


class RedisBlocking(ThreadForm):
    """What threads use."""

    def __init__(self, engine: RedisEngine, *, owns: bool) -> None:
        super().__init__(engine)
        self._engine = engine
        self._owns = owns
        self._closed = False
        self._free: deque[Link] = deque()
        self._popping: set[Link] = set()
        self._listening: set[str] = set()  # waiters that have blocked, and now listen

    async def answer(self, command: Command, until_ns: int | None) -> Answer:
        return self._ask(command, until_ns)

    async def _acquire(self, command: Acquire, until_ns: int | None) -> Answer:
        """A waiter that will pop its bell need not be rung, so nothing is kept for it."""
        if command.wait and self._may_pop(command, until_ns):
            return self._ask(command, until_ns, pops=True)
        return await super()._acquire(command, until_ns)

    def _ask(self, command: Command, until_ns: int | None, *, pops: bool = False) -> Answer:
        engine = self._engine
        limit_s = engine.dialler.wire_s if until_ns is None else bounded(engine.dialler.wire_s, until_ns)
        link = self._take(limit_s)
        reply = link.ask(engine.packer.pack(command, pops=pops), limit_s)
        if type(reply) is hiredis.ReplyError and unknown_script(reply):
            reply = link.ask(engine.packer.pack(command, whole=True, pops=pops), limit_s)
        self._give_back(link)
        if type(reply) is hiredis.ReplyError:
            raise refused(engine.dialler.url, reply)
        return answered(type(command), reply)

    async def apply_all(self, commands: Sequence[Command], until_ns: int | None = None) -> list[Reply]:
        if len(commands) <= AT_ONCE:
            return self._exchange(commands, until_ns)
        told: list[Reply] = []
        for start in range(0, len(commands), AT_ONCE):
            try:
                told += self._exchange(commands[start : start + AT_ONCE], until_ns)
            except Unavailable as error:
                # What was answered stays answered; the rest has not been, and is not sent into the same trouble.
                return told + [error] * (len(commands) - len(told))
        return told

    def _exchange(self, commands: Sequence[Command], until_ns: int | None) -> list[Reply]:
        engine = self._engine
        pack, limit_s = engine.packer.pack, engine.dialler.wire_s
        if until_ns is not None:
            limit_s = bounded(limit_s, until_ns)
        link = self._take(limit_s)
        sent_ns = SYSTEM.now_ns()
        replies = link.exchange(b"".join([pack(command) for command in commands]), len(commands), limit_s)
        if type(commands[-1]) is Renew and (clock_us := time_of(replies[-1])) is not None:
            engine.witness.timed(clock_us, sent_ns, SYSTEM.now_ns())
        for at, reply in enumerate(replies):
            if unknown_script(reply):
                replies[at] = link.exchange(pack(commands[at], whole=True), 1, limit_s)[0]
        self._give_back(link)
        return answers(engine.dialler.url, commands, replies)

    async def confirm(self, commands: Sequence[Command], until_ns: int) -> list[Reply]:
        return self.confirmed(commands, until_ns)

    def confirmed(self, commands: Sequence[Command], until_ns: int) -> list[Reply]:
        """The same, for whoever is on a thread already. The link is the caller's alone while WAIT blocks it."""
        from holdfast.engines.redis.replicas import confirm  # noqa: PLC0415 - only for those who use it

        link = self._take(self._engine.dialler.wire_s)
        told: list[Reply] = []
        for start in range(0, len(commands), AT_ONCE):
            told += confirm(self._engine, link, commands[start : start + AT_ONCE], until_ns)
        self._give_back(link)
        return told

    async def promise(self, until_ns: int | None = None) -> Promise:
        limit_s = self._engine.dialler.wire_s
        if until_ns is not None:
            limit_s = bounded(limit_s, until_ns)
        link, asked_ns = self._take(limit_s), SYSTEM.now_ns()
        replies = link.exchange(b"".join(QUESTIONS), len(QUESTIONS), limit_s)
        self._give_back(link)
        return self._engine.promise(replies, asked_ns, SYSTEM.now_ns())

    async def attend(self, until_ns: int) -> None:
        self._give_back(self._take(bounded(self._engine.dialler.wire_s, until_ns)))

    def news(self) -> Sequence[News]:
        return self._engine.witness.news()

    def _may_pop(self, ask: Acquire, until_ns: int | None) -> bool:
        """Whether this waiter will block on the server first: once, for short, and while there are links for it."""
        if ask.token in self._listening or len(self._popping) >= _POPPING_MAX:
            return False
        return until_ns is None or until_ns - SYSTEM.now_ns() >= _pop_ns(ask.ttl_ms)

    async def wait(self, ask: Acquire, until_ns: int) -> Answer | None:
        if ask.token in self._listening:
            return await super().wait(ask, until_ns)
        may_pop = self._may_pop(ask, until_ns)
        self._listening.add(ask.token)
        if not may_pop:
            return None  # asked again, it says that it listens
        return self._pop(ask, _pop_ns(ask.ttl_ms) / NS)

    def _pop(self, ask: Acquire, seconds: float) -> Answer | None:
        """Block until the lease is offered, and confirm it in the same breath."""
        packer = self._engine.packer
        link = self._take(seconds)
        self._popping.add(link)
        try:
            commands = packer.pack_pop(ask, seconds) + packer.pack(ask)
            reply = link.exchange(commands, 2, seconds + _TICK_S)[1]
        finally:
            self._popping.discard(link)
        self._give_back(link)
        if isinstance(reply, hiredis.ReplyError):
            return None  # asked again, it is told in full
        answer = answered(Acquire, reply)
        if not isinstance(answer, Busy):
            self.forget(ask.token)
        return answer

    def forget(self, token: str) -> None:
        super().forget(token)
        self._listening.discard(token)

    def stir(self) -> None:
        for link in tuple(self._popping):
            link.cut()
        super().stir()

    def _take(self, limit_s: float) -> Link:
        while True:
            try:
                link = self._free.pop()
            except IndexError:
                return self._greeted(Link(self._engine.dialler, limit_s), limit_s)
            if monotonic() - link.used_s < _IDLE_S or link.alive():
                return link

    def _greeted(self, link: Link, limit_s: float) -> Link:
        """Learn which run of the server this is, before it is asked for anything."""
        asked_ns = SYSTEM.now_ns()
        try:
            reply = link.exchange(GREETING, 1, limit_s)[0]
        except ReplyLost as error:
            raise Unavailable("redis", "unreachable", error.detail) from error
        self._engine.witness.greeted(reply, asked_ns, SYSTEM.now_ns())
        return link

    def _give_back(self, link: Link) -> None:
        """Keep a few for the next ones; whoever comes back after the end finds nobody to keep it for."""
        if self._closed or len(self._free) >= _FREE_MAX:
            link.close()
        else:
            self._free.append(link)

    async def close(self) -> None:
        self._closed = self._owns
        while self._free:
            self._free.pop().close()
        if self._owns:
            self._engine.close()

    def forked(self) -> None:
        """In a child: the links are the parent's, and nothing is said on them."""
        while self._free:
            self._free.pop().close()
        while self._popping:
            self._popping.pop().close()
        self._listening.clear()
