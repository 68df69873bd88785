"""One client of a Redis or Valkey server: its identity, its wake-ups, its forms."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

from holdfast.clock import SYSTEM, Clock
from holdfast.engines.board import Board
from holdfast.engines.redis.blocking import RedisBlocking
from holdfast.engines.redis.ear import Ear
from holdfast.engines.redis.facts import Info, read
from holdfast.engines.redis.promised import promised
from holdfast.engines.redis.scripts import PREFIX, Packer
from holdfast.engines.redis.witness import Witness
from holdfast.names import new_token

if TYPE_CHECKING:
    from holdfast.engines import Form, Promise
    from holdfast.engines.redis.dial import Dialler


class RedisEngine:
    """What the forms of one client share."""

    name = "redis"
    clock: Clock = SYSTEM
    replicates = True

    def __init__(self, dialler: Dialler, memory_us: int) -> None:
        self.dialler = dialler
        self._memory_ms = memory_us // 1000
        self._forms: weakref.WeakSet[RedisBlocking] = weakref.WeakSet()
        self._ear: Ear | None = None
        self._begin()

    def _begin(self) -> None:
        self.board = Board()
        self.witness = Witness()
        self.packer = Packer(PREFIX, new_token(), self._memory_ms)
        self._ear_lock = threading.Lock()
        self._closed = False

    @property
    def epoch(self) -> int:
        return self.witness.epoch

    def promise(self, replies: list[Any], asked_ns: int, came_ns: int) -> Promise:
        """What the answers to `facts.QUESTIONS` promise, with all that this client has seen."""
        witness = self.witness
        witness.greeted(replies[0], asked_ns, came_ns)
        witness.listed(Info(replies[0]).replicas())
        seen = {"known": len(witness.known), "jumped_s": witness.jumped_s, "fence_memory_s": self._memory_ms / 1000}
        return promised(read(replies, **seen))

    def keeper(self) -> Form:
        return self.form(owns=False)

    def blocking(self) -> Form:
        return self.form(owns=True)

    def form(self, *, owns: bool) -> RedisBlocking:
        """A form for threads; one that `owns` the engine closes it with itself."""
        form = RedisBlocking(self, owns=owns)
        self._forms.add(form)
        return form

    def asyncio(self) -> Form:
        from holdfast.engines.redis.loop import RedisAsyncio  # noqa: PLC0415 - only for those who use it

        return RedisAsyncio(self)

    @property
    def listening(self) -> bool:
        """Whether rings arrive already; a closed engine has no more to come."""
        return self._ear is not None or self._closed

    def listen(self, token: str) -> bool:  # noqa: ARG002 - one ear hears for all
        with self._ear_lock:
            if self._ear is not None or self._closed:
                return False
            self._ear = Ear(self.dialler, self.packer.channel, self.board)
            return True

    def forked(self) -> None:
        ear, self._ear = self._ear, None
        if ear is not None:
            ear.forked()
        for form in tuple(self._forms):
            form.forked()
        self._begin()

    def close(self) -> None:
        with self._ear_lock:
            ear, self._ear = self._ear, None
            self._closed = True
        if ear is not None:
            ear.close()
