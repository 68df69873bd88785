"""One client of a Redis or Valkey server: its identity, its wake-ups, its transports."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

from holdfast.clock import SYSTEM, Clock
from holdfast.engines import ALL_FEATURES, Capability, Scope
from holdfast.engines.redis.keys import prefix_of
from holdfast.engines.redis.layout import LayoutCheck
from holdfast.engines.redis.listener import SubscriptionListener
from holdfast.engines.redis.scripts import Packer
from holdfast.engines.redis.server_identity import KnownServers
from holdfast.engines.redis.server_info import Info, facts_from
from holdfast.engines.redis.transport_blocking import RedisBlockingTransport
from holdfast.engines.wakeups import WaiterRegistry
from holdfast.errors import Closed
from holdfast.host import Exhaustion
from holdfast.interrupts import raise_if_of_signal
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
    """The state that the transports of one client share."""

    name = "redis"
    clock: Clock = SYSTEM
    scope = Scope.HOSTS
    capabilities = ALL_FEATURES | {Capability.FIFO, Capability.REPLICAS, Capability.EXPIRY_EVENTS}

    def __init__(self, topology: Topology, memory_us: int, namespace: str = "", location: str = "") -> None:
        self.topology = topology
        self._location = f"{location} {namespace}".rstrip()
        self.wire_s = topology.wire_s
        self._memory_ms = memory_us // 1000
        self._prefix = prefix_of(namespace)
        self._transports: weakref.WeakSet[RoutingTransport[Any]] = weakref.WeakSet()
        self._wakeups: SubscriptionListener | None = None
        self._changes: SubscriptionListener | None = None
        self._expiries: weakref.WeakSet[ExpiryListener] = weakref.WeakSet()
        topology.on_change = self._topology_changed
        self._begin()

    def _begin(self) -> None:
        self.waiter_registry = WaiterRegistry()
        self.known_servers = KnownServers(follows=self.topology.follows)
        self.packer = Packer(self._prefix, new_token(), self._memory_ms, slots=self.topology.only is None)
        self._listener_lock = threading.Lock()
        self._members_lock = threading.Lock()  # of the transports and expiry listeners; no other call runs under it
        self._closed = False
        self.layout = LayoutCheck(self.topology, self._prefix)

    @property
    def connector(self) -> Node:
        """The connector to the server; to one of them, if there are several."""
        return self.topology.any_node()

    @property
    def restarts(self) -> int:
        return self.known_servers.restarts

    @property
    def restarted_ns(self) -> int:
        return self.known_servers.restarted_ns

    def _topology_changed(self) -> None:
        """Move every connection to the servers that answer now."""
        with self._members_lock:
            transports, listeners = tuple(self._transports), tuple(self._expiries)
        for transport in transports:
            transport.topology_changed()
        wakeups = self._wakeups
        if wakeups is not None:
            wakeups.reconnect()
        for listener in listeners:
            listener.reconnect()
        only = self.topology.only
        if only is not None:
            self.known_servers.identity_of(only).forget_run()
        self.known_servers.record_servers(self.topology.servers())

    def facts(self, identity: ServerIdentity, replies: list[Any], sent_ns: int, came_ns: int) -> ServerFacts:
        """Return the facts in the replies to `FACT_COMMANDS`, with all that this client knows of that node."""
        run_id = identity.record_greeting(replies[0], sent_ns, came_ns)
        identity.add_replicas(run_id, Info(replies[0]).replicas())
        topology, (forward_s, back_s) = self.topology, identity.largest_jumps_s()
        return facts_from(
            replies,
            known=len(identity.known_replicas(run_id)),
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
        """Return a transport for threads; one that `owns` the engine closes it when it is closed."""
        transport = RedisBlockingTransport(self, owns=owns)
        with self._members_lock:
            self._transports.add(transport)
        return transport

    def asyncio(self) -> Transport:
        from holdfast.engines.redis.transport_asyncio import RedisAsyncioTransport  # noqa: PLC0415 - only for tasks

        transport = RedisAsyncioTransport(self)
        with self._members_lock:
            self._transports.add(transport)
        return transport

    @property
    def listening(self) -> bool:
        """Whether there is nothing to open: wake-ups arrive already, or the engine is closed."""
        return self._wakeups is not None or self._closed

    def listen(self, token: str) -> bool:
        trouble: OSError | RuntimeError | None = None
        with self._listener_lock:
            if self._wakeups is not None or self._closed:
                return False
            waiter_registry = self.waiter_registry
            try:
                self._wakeups = SubscriptionListener(
                    self.topology.any_node,
                    self.packer.channel,
                    on_message=waiter_registry.wake,
                    on_gap=waiter_registry.wake_all,
                )
            except (OSError, RuntimeError) as error:  # no descriptor or thread is left: the next waiter tries again
                raise_if_of_signal(error)
                trouble = error
        if trouble is not None:  # outside of the lock: a logging handler is user code
            log.warning("holdfast: wake-ups are late: %s", trouble)
            return False
        # Other waiters may have missed a wake-up before the subscription, so they resend their commands, as this one
        # does.
        self.waiter_registry.wake_all(but=token)
        return True

    def next_poll_ns(self, token: str, until_ns: int) -> int:  # noqa: ARG002 - wake-ups arrive, or the keeper asks
        return until_ns

    def probe_listener(self) -> None:
        """Check the subscription, because another connection of this client got no answer."""
        wakeups = self._wakeups
        if wakeups is not None:
            wakeups.probe()

    def watch_expiries(
        self,
        names: Iterable[str],
        *,
        configure: bool,
        on_end: Callable[[str, str], object],
        emit: Callable[[str, str], object],
    ) -> ExpiryListener:
        """Listen for expired consumer sessions of these queues. Block until the subscriptions are open."""
        from holdfast.engines.redis.keyspace_events import ExpiryListener  # noqa: PLC0415 - only for owners

        if self._closed:
            raise Closed
        self.watch_topology()
        opened = ExpiryListener(self.topology, self._prefix, names, configure=configure, on_end=on_end, emit=emit)
        with self._listener_lock:
            if not self._closed:
                with self._members_lock:
                    self._expiries.add(opened)
                return opened
        opened.close()
        raise Closed

    def location(self) -> str:
        """Return the address as the user gave it: two spellings of one server are two locations."""
        return self._location

    def liveness_fd(self) -> None:
        return None  # only the ttl ends a lease here

    def outlive_process(self) -> None:
        return None

    def names(self, prefix: str, limit: int, kind: str = "") -> NamePage:
        with Exhaustion(self.name):
            from holdfast.engines.redis import admin  # noqa: PLC0415 - only for people

        return admin.names(self._all_nodes(), self._prefix, prefix, limit, kind)

    def examine(self) -> EngineReport:
        from holdfast.engines.redis import admin  # noqa: PLC0415 - only for people

        return admin.examine(self._all_nodes(), self._prefix)

    def _all_nodes(self) -> tuple[Node, ...]:
        """Return every server that stores names; if there are several, ask for them now."""
        if self.topology.follows:
            self.topology.refresh(self.wire_s)
        return self.topology.nodes() or (self.topology.any_node(),)

    def watch_topology(self) -> None:
        """Subscribe to changes of the servers, if they publish them."""
        trouble: OSError | RuntimeError | None = None
        with self._listener_lock:
            if self._changes is None and not self._closed:
                try:
                    self._changes = self.topology.watch()
                except (OSError, RuntimeError) as error:
                    raise_if_of_signal(error)
                    trouble = error
        if trouble is not None:  # outside of the lock: a logging handler is user code
            text = "holdfast: cannot subscribe to failover messages, so this client notices a failover later: %s"
            log.warning(text, trouble)

    def forked(self) -> None:
        listeners, self._wakeups, self._changes = (self._wakeups, self._changes), None, None
        for listener in listeners:
            if listener is not None:
                listener.forked()
        for expiries in tuple(self._expiries):
            expiries.forked()
        self._expiries.clear()
        for transport in tuple(self._transports):
            transport.forked()
        self.topology.forked()
        self._begin()

    def close(self) -> None:
        with self._listener_lock:
            listeners, self._wakeups, self._changes = (self._wakeups, self._changes), None, None
            self._closed = True
        with self._members_lock:
            expiries = tuple(self._expiries)
        for listener in listeners:
            if listener is not None:
                listener.close()
        for expiry_listener in expiries:
            expiry_listener.close()
