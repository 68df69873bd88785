"""One client of a Redis or Valkey server: its identity, its wake-ups, its forms."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

from holdfast.clock import SYSTEM, Clock
from holdfast.engines import EVERYTHING
from holdfast.engines.redis.dial import refused
from holdfast.engines.redis.listener import Ear
from holdfast.engines.redis.redirects import astray
from holdfast.engines.redis.scripts import LAYOUT, Packer, prefix_of
from holdfast.engines.redis.server_identity import Witness
from holdfast.engines.redis.server_info import Info, read
from holdfast.engines.redis.transport_blocking import RedisBlocking
from holdfast.engines.wakeups import Board
from holdfast.errors import SETTLING, Closed, Unavailable
from holdfast.names import new_token
from holdfast.observer import log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.engines import Form
    from holdfast.engines.admin import Examination, Names
    from holdfast.engines.redis.keyspace_events import Expiries
    from holdfast.engines.redis.routing import Routed
    from holdfast.engines.redis.server_identity import Sight
    from holdfast.engines.redis.server_info import Facts
    from holdfast.engines.redis.topology import Node, Topology


class RedisEngine:
    """What the forms of one client share."""

    name = "redis"
    clock: Clock = SYSTEM
    replicates = True
    carries = EVERYTHING

    def __init__(self, topology: Topology, memory_us: int, namespace: str = "", place: str = "") -> None:
        self.topology = topology
        self._place = f"{place} {namespace}".rstrip()
        self.wire_s = topology.wire_s
        self._memory_ms = memory_us // 1000
        self._prefix = prefix_of(namespace)
        self._forms: weakref.WeakSet[Routed[Any]] = weakref.WeakSet()
        self._ear: Ear | None = None
        self._watch: Ear | None = None
        self._expiries: weakref.WeakSet[Expiries] = weakref.WeakSet()
        topology.on_change = self._moved
        self._begin()

    def _begin(self) -> None:
        self.board = Board()
        self.witness = Witness(follows=self.topology.follows)
        self.packer = Packer(self._prefix, new_token(), self._memory_ms, slots=self.topology.only is None)
        self._ear_lock = threading.Lock()
        self._roll = threading.Lock()  # of forms and of who listens for ends; whoever has it calls nobody
        self._closed = False
        self.met = False  # whether the place is known to be kept as we keep it

    @property
    def dialler(self) -> Node:
        """The server; one of them, where there are several."""
        return self.topology.any_node()

    def meet(self, layout: Any) -> None:
        """What stands under the layout's key: nothing, unless a later version has taken the place over."""
        if isinstance(layout, Exception):  # what could not be read may be anything
            error = refused(self.topology.url, layout, self._prefix)
            if self.topology.follows and astray(str(layout)):
                raise Unavailable("redis", SETTLING, error.detail)
            if error.reason != "other topology":  # one server of a cluster: each name is told where it belongs
                raise error
        if isinstance(layout, str) and layout != str(LAYOUT):
            detail = f"{self.topology.url} is kept in layout {layout!r}, this version knows {LAYOUT}"
            raise Unavailable("redis", "other layout", detail)
        self.witness.moved(self.topology.servers())
        self.met = True

    @property
    def epoch(self) -> int:
        return self.witness.epoch

    @property
    def epoch_ns(self) -> int:
        return self.witness.epoch_ns

    def _moved(self) -> None:
        """Other servers answer now, or answer for other names."""
        with self._roll:
            forms, listeners = tuple(self._forms), tuple(self._expiries)
        for form in forms:
            form.moved()
        ear = self._ear
        if ear is not None:
            ear.again()
        for listener in listeners:
            listener.again()
        only = self.topology.only
        if only is not None:
            self.witness.of(only).another()
        self.witness.moved(self.topology.servers())

    def facts(self, sight: Sight, replies: list[Any], asked_ns: int, came_ns: int) -> Facts:
        """What the answers to `facts.QUESTIONS` say, with all that this client has seen of that node."""
        run_id = sight.greeted(replies[0], asked_ns, came_ns)
        sight.listed(run_id, Info(replies[0]).replicas())
        topology, (forward_s, back_s) = self.topology, sight.jumped_s()
        return read(
            replies,
            known=len(sight.known(run_id)),
            sentinels=topology.follows and topology.only is not None,
            grouped=topology.only is None,
            jumped_s=forward_s,
            jumped_back_s=back_s,
            fence_memory_s=self._memory_ms / 1000,
        )

    def keeper(self) -> Form:
        return self.form(owns=False)

    def blocking(self) -> Form:
        return self.form(owns=True)

    def form(self, *, owns: bool) -> RedisBlocking:
        """A form for threads; one that `owns` the engine closes it with itself."""
        form = RedisBlocking(self, owns=owns)
        with self._roll:
            self._forms.add(form)
        return form

    def asyncio(self) -> Form:
        from holdfast.engines.redis.transport_asyncio import RedisAsyncio  # noqa: PLC0415 - only for those who use it

        form = RedisAsyncio(self)
        with self._roll:
            self._forms.add(form)
        return form

    @property
    def listening(self) -> bool:
        """Whether rings arrive already; a closed engine has no more to come."""
        return self._ear is not None or self._closed

    def listen(self, token: str) -> bool:
        with self._ear_lock:
            if self._ear is not None or self._closed:
                return False
            board = self.board
            try:
                self._ear = Ear(self.topology.any_node, self.packer.channel, heard=board.ring, missed=board.ring_all)
            except OSError as error:  # there is no descriptor left: whoever waits next tries again
                log.warning("holdfast: wake-ups are late: %s", error)
                return False
        # Whoever queued while nobody listened yet may have missed a ring: it asks once more, as this one will.
        self.board.ring_all(but=token)
        return True

    def doubt(self) -> None:
        """A connection of this client had no answer: the one that hears may be as dead."""
        ear = self._ear
        if ear is not None:
            ear.doubt()

    def expiries(
        self,
        names: Iterable[str],
        *,
        configure: bool,
        on_end: Callable[[str, str], object],
        tell: Callable[[str, str], object],
    ) -> Expiries:
        """Have the servers tell of consumers of these queues whose time has ended. It blocks until it is open."""
        from holdfast.engines.redis.keyspace_events import Expiries  # noqa: PLC0415 - only for those who use it

        if self._closed:
            raise Closed
        self.watch()
        opened = Expiries(self.topology, self._prefix, names, configure=configure, on_end=on_end, tell=tell)
        with self._ear_lock:
            if not self._closed:
                with self._roll:
                    self._expiries.add(opened)
                return opened
        opened.close()
        raise Closed

    def place(self) -> str:
        """The address as it was given: two spellings of one server are two places, and that is told."""
        return self._place

    def lifeline(self) -> None:
        return None  # only the ttl ends a lease here

    def names(self, prefix: str, limit: int, roof: str = "") -> Names:
        from holdfast.engines.redis import admin as survey  # noqa: PLC0415 - only for people

        return survey.names(self._all_nodes(), self._prefix, prefix, limit, roof)

    def examine(self) -> Examination:
        from holdfast.engines.redis import admin as survey  # noqa: PLC0415 - only for people

        return survey.examine(self._all_nodes(), self._prefix)

    def _all_nodes(self) -> tuple[Node, ...]:
        """Every server that keeps names: where there are several, they are looked for now."""
        if self.topology.follows:
            self.topology.refresh(self.wire_s)
        return self.topology.nodes() or (self.topology.any_node(),)

    def watch(self) -> None:
        """Have the servers tell of their changes, where they do."""
        with self._ear_lock:
            if self._watch is None and not self._closed:
                try:
                    self._watch = self.topology.watch()
                except OSError as error:
                    log.warning("holdfast: changes of the servers are noticed late: %s", error)

    def forked(self) -> None:
        ears, self._ear, self._watch = (self._ear, self._watch), None, None
        for ear in ears:
            if ear is not None:
                ear.forked()
        for expiries in tuple(self._expiries):
            expiries.forked()
        self._expiries.clear()
        for form in tuple(self._forms):
            form.forked()
        self.topology.forked()
        self._begin()

    def close(self) -> None:
        with self._ear_lock:
            ears, self._ear, self._watch = (self._ear, self._watch), None, None
            self._closed = True
        with self._roll:
            listeners = tuple(self._expiries)
        for ear in ears:
            if ear is not None:
                ear.close()
        for listener in listeners:
            listener.close()
