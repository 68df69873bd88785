"""One client of a Redis or Valkey server: its identity, its wake-ups, its forms."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

from holdfast.clock import SYSTEM, Clock
from holdfast.engines import ALL_FEATURES, Capability, Scope
from holdfast.engines.redis.connect import refused
from holdfast.engines.redis.keys import LAYOUT, OLD_LAYOUT, old_keys_pattern, prefix_of
from holdfast.engines.redis.listener import SubscriptionListener
from holdfast.engines.redis.redirects import astray
from holdfast.engines.redis.scripts import Packer
from holdfast.engines.redis.server_identity import KnownServers
from holdfast.engines.redis.server_info import Info, read
from holdfast.engines.redis.transport_blocking import RedisBlockingTransport
from holdfast.engines.wakeups import WaiterRegistry
from holdfast.errors import MOVING, Closed, Unavailable
from holdfast.names import new_token
from holdfast.observer import log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.engines import Transport
    from holdfast.engines.admin import EngineReport, NamePage
    from holdfast.engines.redis.keyspace_events import ExpiryListener
    from holdfast.engines.redis.routing import RoutingTransport
    from holdfast.engines.redis.server_identity import ServerIdentity
    from holdfast.engines.redis.server_info import ServerFacts
    from holdfast.engines.redis.topology import Node, Topology


class RedisEngine:
    """What the forms of one client share."""

    name = "redis"
    clock: Clock = SYSTEM
    scope = Scope.HOSTS
    capabilities = ALL_FEATURES | {Capability.FIFO, Capability.REPLICAS, Capability.EXPIRY_EVENTS}

    def __init__(self, topology: Topology, memory_us: int, namespace: str = "", place: str = "") -> None:
        self.topology = topology
        self._place = f"{place} {namespace}".rstrip()
        self.wire_s = topology.wire_s
        self._memory_ms = memory_us // 1000
        self._prefix = prefix_of(namespace)
        self._transports: weakref.WeakSet[RoutingTransport[Any]] = weakref.WeakSet()
        self._wakeups: SubscriptionListener | None = None
        self._watch: SubscriptionListener | None = None
        self._expiries: weakref.WeakSet[ExpiryListener] = weakref.WeakSet()
        topology.on_change = self._moved
        self._begin()

    def _begin(self) -> None:
        self.waiter_registry = WaiterRegistry()
        self.known_servers = KnownServers(follows=self.topology.follows)
        self.packer = Packer(self._prefix, new_token(), self._memory_ms, slots=self.topology.only is None)
        self._listener_lock = threading.Lock()
        self._roll = threading.Lock()  # of forms and of who listens for ends; whoever has it calls nobody
        self._closed = False
        self.layout_checked = False

    @property
    def connector(self) -> Node:
        """The server; one of them, where there are several."""
        return self.topology.any_node()

    def check_layout(self, marker: Any, old_keys: Any) -> None:
        """Refuse a server whose data have another layout: two layouts would not exclude each other.

        `marker` is the reply to GET of the layout's key, where a later version writes its number. `old_keys` is the
        reply to one step of SCAN for keys of the layout before this one; a user without the right to SCAN is not
        checked for them.
        """
        if isinstance(marker, Exception):  # a marker that could not be read may be any
            error = refused(self.topology.url, marker, self._prefix)
            if self.topology.follows and is_redirect(str(marker)):
                raise Unavailable("redis", MOVING, error.detail)
            if error.reason != "other topology":  # one server of a cluster: it redirects each name
                raise error
        url = self.topology.url
        if isinstance(marker, str) and marker != str(LAYOUT):
            detail = (
                f"{url} has data of layout {marker}; this version of holdfast uses layout {LAYOUT}. Install the version"
                " of holdfast that the other clients use, or connect to another server or database"
            )
            raise Unavailable("redis", "other layout", detail)
        if isinstance(old_keys, list) and old_keys[1]:
            pattern = old_keys_pattern(self._prefix)
            detail = (
                f"{url} has data of layout {OLD_LAYOUT}, for example the key {old_keys[1][0]!r}; this version of holdfast"
                f" uses layout {LAYOUT}. Stop the clients of the older version and delete the keys {pattern!r}, or"
                " connect to another server or database. Nothing was changed"
            )
            raise Unavailable("redis", "other layout", detail)
        self.known_servers.moved(self.topology.servers())
        self.layout_checked = True

    @property
    def restarts(self) -> int:
        return self.known_servers.restarts

    @property
    def restarted_ns(self) -> int:
        return self.known_servers.restarted_ns

    def _moved(self) -> None:
        """Other servers answer now, or answer for other names."""
        with self._roll:
            forms, listeners = tuple(self._transports), tuple(self._expiries)
        for transport in forms:
            transport.moved()
        wakeups = self._wakeups
        if wakeups is not None:
            wakeups.again()
        for listener in listeners:
            listener.again()
        only = self.topology.only
        if only is not None:
            self.known_servers.of(only).another()
        self.known_servers.moved(self.topology.servers())

    def facts(self, sight: ServerIdentity, replies: list[Any], asked_ns: int, came_ns: int) -> ServerFacts:
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

    def keeper(self) -> Transport:
        return self.transport(owns=False)

    def blocking(self) -> Transport:
        return self.transport(owns=True)

    def transport(self, *, owns: bool) -> RedisBlockingTransport:
        """A form for threads; one that `owns` the engine closes it with itself."""
        transport = RedisBlockingTransport(self, owns=owns)
        with self._roll:
            self._transports.add(transport)
        return transport

    def asyncio(self) -> Transport:
        from holdfast.engines.redis.transport_asyncio import RedisAsyncioTransport  # noqa: PLC0415 - only for those who use it

        transport = RedisAsyncioTransport(self)
        with self._roll:
            self._transports.add(transport)
        return transport

    @property
    def listening(self) -> bool:
        """Whether rings arrive already; a closed engine has no more to come."""
        return self._wakeups is not None or self._closed

    def listen(self, token: str) -> bool:
        with self._listener_lock:
            if self._wakeups is not None or self._closed:
                return False
            waiter_registry = self.waiter_registry
            try:
                self._wakeups = SubscriptionListener(
                    self.topology.any_node,
                    self.packer.channel,
                    heard=waiter_registry.wake,
                    missed=waiter_registry.wake_all,
                )
            except OSError as error:  # there is no descriptor left: whoever waits next tries again
                log.warning("holdfast: wake-ups are late: %s", error)
                return False
        # Whoever queued while nobody listened yet may have missed a ring: it asks once more, as this one will.
        self.waiter_registry.wake_all(but=token)
        return True

    def ask_again_ns(self, token: str, until_ns: int) -> int:  # noqa: ARG002 - wake-ups arrive, or the keeper asks
        return until_ns

    def doubt(self) -> None:
        """A connection of this client had no answer: the one that hears may be as dead."""
        wakeups = self._wakeups
        if wakeups is not None:
            wakeups.doubt()

    def watch_expiries(
        self,
        names: Iterable[str],
        *,
        configure: bool,
        on_end: Callable[[str, str], object],
        emit: Callable[[str, str], object],
    ) -> ExpiryListener:
        """Have the servers tell of consumers of these queues whose time has ended. It blocks until it is open."""
        from holdfast.engines.redis.keyspace_events import ExpiryListener  # noqa: PLC0415 - only for those who use it

        if self._closed:
            raise Closed
        self.watch()
        opened = ExpiryListener(self.topology, self._prefix, names, configure=configure, on_end=on_end, tell=emit)
        with self._listener_lock:
            if not self._closed:
                with self._roll:
                    self._expiries.add(opened)
                return opened
        opened.close()
        raise Closed

    def location(self) -> str:
        """The address as it was given: two spellings of one server are two places, and that is told."""
        return self._place

    def liveness_fd(self) -> None:
        return None  # only the ttl ends a lease here

    def names(self, prefix: str, limit: int, kind: str = "") -> NamePage:
        from holdfast.engines.redis import admin as survey  # noqa: PLC0415 - only for people

        return survey.names(self._all_nodes(), self._prefix, prefix, limit, kind)

    def examine(self) -> EngineReport:
        from holdfast.engines.redis import admin as survey  # noqa: PLC0415 - only for people

        return survey.examine(self._all_nodes(), self._prefix)

    def _all_nodes(self) -> tuple[Node, ...]:
        """Every server that keeps names: where there are several, they are looked for now."""
        if self.topology.follows:
            self.topology.refresh(self.wire_s)
        return self.topology.nodes() or (self.topology.any_node(),)

    def watch(self) -> None:
        """Have the servers tell of their changes, where they do."""
        with self._listener_lock:
            if self._watch is None and not self._closed:
                try:
                    self._watch = self.topology.watch()
                except OSError as error:
                    log.warning("holdfast: changes of the servers are noticed late: %s", error)

    def forked(self) -> None:
        closing, self._wakeups, self._watch = (self._wakeups, self._watch), None, None
        for wakeups in closing:
            if wakeups is not None:
                wakeups.forked()
        for expiries in tuple(self._expiries):
            expiries.forked()
        self._expiries.clear()
        for transport in tuple(self._transports):
            transport.forked()
        self.topology.forked()
        self._begin()

    def close(self) -> None:
        with self._listener_lock:
            closing, self._wakeups, self._watch = (self._wakeups, self._watch), None, None
            self._closed = True
        with self._roll:
            listeners = tuple(self._expiries)
        for wakeups in closing:
            if wakeups is not None:
                wakeups.close()
        for listener in listeners:
            listener.close()
