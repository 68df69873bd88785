"""Engines whose rules run here, inside a transaction on a server: the base for databases such as PostgreSQL.

An engine author subclasses `RemoteEngine` and writes one kind of connection for threads and one for asyncio, with the
same methods. The methods are coroutines: those of a blocking connection block and never suspend, those of an asyncio
connection suspend. So this module contains the transaction once, for both, and the asyncio transport needs no worker
thread.

This module also handles the failures of a connection:

- A connection that breaks before the commit was sent has changed nothing: the answer is `Unavailable`, or a second try
  on a new connection if the broken one had been idle.
- A connection that breaks during the commit may have changed everything: the answer is `ReplyLost`, and the core
  resends the same command with the same token.
- A server whose `server_id` differs from the last one seen has restarted, or another server took its place. It may have
  forgotten everything: the client counts the restart and reports `engine_restarted`.

The base keeps leases. An engine that keeps more derives its transports from `RemoteBlocking` and `RemoteAsyncio`,
returns them from `keeper`, `blocking` and `asyncio`, and overrides `apply_rule` for the other kinds of rules.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from holdfast.clock import SYSTEM, Clock
from holdfast.commands import Acquire, Busy, WaiterHeartbeat
from holdfast.engines.interface import EngineEvent
from holdfast.engines.transport import BaseEngine, BaseTransport, BlockingTransport
from holdfast.engines.wakeups import PollSchedule, WaiterRegistry
from holdfast.errors import Closed, ReplyLost, Unavailable, UnavailableReason, UnreadableRecord
from holdfast.names import new_token
from holdfast.observer import log
from holdfast.rules import Moment, Record, forget_at_us
from holdfast.rules.lease_record import HolderRecord, MemoryTombstones, Tombstone, Waiter, Waiters, checked_fence
from holdfast.rules.table import RULES, RuleKind
from holdfast.rules.trust import HEARTBEAT_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.commands import Command
    from holdfast.engines.admin import EngineReport, NamePage
    from holdfast.engines.interface import Capability, Reply, Scope, Transport
    from holdfast.rules.promise import Promise
    from holdfast.rules.table import Rule

# A server that does not answer for this time counts as unreachable.
STALL_NS = 5_000_000_000
# The errors that a connection may raise when the server or the network fails.
NETWORK_ERRORS = (OSError, EOFError)


class ServerTime(NamedTuple):
    """The server's clocks at the beginning of a transaction: one that never goes back, and its calendar."""

    now_us: int
    wall_us: int


class RemoteConnection(Protocol):
    """One connection to the server, for one transaction at a time. Its errors are `OSError` or `EOFError`.

    A connection that is dropped without `close`, as after a fork, must send nothing.
    """

    server_id: str  # of this run of the server: another text after a restart that may have forgotten something

    async def begin(self, names: Sequence[str], until_ns: int) -> ServerTime:
        """Begin a transaction that locks these names, in this order. All of it ends by `until_ns` or raises."""

    async def load(self, name: str) -> str | None:
        """Return the text that is stored under a name."""

    async def store(self, name: str, body: str, forget_us: int) -> None:
        """Store a text under a name. The server may delete it after `forget_us`, on its clock that never goes back."""

    async def heartbeats(self, clients: Sequence[str]) -> Mapping[str, int]:
        """Return when each of these clients sent its last heartbeat, on the server's clock that never goes back."""

    async def heartbeat(self, client: str) -> None:
        """Store the time of the transaction as the client's last heartbeat."""

    async def notify(self, client: str, token: str) -> None:
        """Send a wake-up to the client when the transaction commits."""

    async def commit(self) -> None:
        """Commit, and return once the server has confirmed it."""

    async def close(self) -> None:
        """Close the connection; the server rolls an open transaction back."""


C = TypeVar("C", bound=RemoteConnection)


class RemoteEngine(BaseEngine):
    """One client of a server. Subclasses define how to connect and subscribe, and what the server promises."""

    name: str
    scope: Scope
    capabilities: frozenset[Capability] = frozenset()
    clock: Clock = SYSTEM

    def __init__(self, memory_us: int) -> None:
        self.memory_us = memory_us
        self._begin()

    def _begin(self) -> None:
        self.client = new_token()
        self.waiter_registry = WaiterRegistry()
        self.restarts = self.restarted_ns = 0
        self._server_id = ""
        self._events: deque[EngineEvent] = deque()
        self._pauses = PollSchedule()
        self._guard = threading.Lock()
        self._listen_lock = threading.Lock()  # of its own: a slow subscription must not delay the keeper's connections
        self._subscription: Callable[[], None] | None = None
        self._subscribed = self._closed = False

    # Methods that a subclass implements.

    def connect_blocking(self, until_ns: int) -> RemoteConnection:
        """Return a new connection whose coroutines never suspend."""
        raise NotImplementedError

    async def connect_asyncio(self, until_ns: int) -> RemoteConnection:
        """Return a new connection for the running event loop."""
        raise NotImplementedError

    def subscribe(self, wake: Callable[[str], None], missed: Callable[[], None]) -> Callable[[], None] | None:  # noqa: ARG002 - for subclasses
        """Receive the notifications for `self.client` on a thread; return a function that ends that.

        Call `wake(token)` for each notification, and `missed()` after a reconnect, when some may be lost. Return `None`
        if the server has no notifications: then waiters poll.
        """
        return None

    def promised(self) -> Promise:
        """Return what the server promises."""
        raise NotImplementedError

    def location(self) -> str:
        raise NotImplementedError

    def names(self, prefix: str, limit: int, kind: str = "") -> NamePage:
        raise NotImplementedError

    def examine(self) -> EngineReport:
        raise NotImplementedError

    # Methods of the base.

    def keeper(self) -> Transport:
        return RemoteBlocking(self, owns=False)

    def blocking(self) -> Transport:
        return RemoteBlocking(self, owns=True)

    def asyncio(self) -> Transport:
        # Imported here, because a program without asyncio should not pay for importing it.
        from holdfast.engines.remote_asyncio import RemoteAsyncio  # noqa: PLC0415

        return RemoteAsyncio(self, owns=True)

    def record_server(self, server_id: str) -> None:
        """Record which run of the server a new connection leads to; another run than before counts as a restart."""
        with self._guard:
            before, self._server_id = self._server_id, server_id
            if before in ("", server_id):
                return
            self.restarted_ns = self.clock.now_ns()  # set first: a reader of the new count must find the new time
            self.restarts += 1
        self._events.append(EngineEvent("engine_restarted", None, f"{before} answered before, {server_id} now"))

    def take_events(self) -> list[EngineEvent]:
        """Return the events since the last call."""
        return [self._events.popleft() for _ in range(len(self._events))]

    def listen(self, token: str) -> bool:
        if self._subscribed or self._closed:
            return self._closed
        trouble: BaseException | None = None
        with self._listen_lock:
            if self._subscribed or self._closed:
                return True
            try:
                self._subscription = self.subscribe(self.waiter_registry.wake, self.waiter_registry.wake_all)
            except NETWORK_ERRORS as error:  # until the next waiter tries again, this one polls
                trouble = error
            self._subscribed = trouble is None
        if trouble is not None:  # outside of the lock: a logging handler is user code
            log.warning("holdfast: wake-ups from %s are late: %s", self.name, trouble)
            return False
        self.waiter_registry.wake_all(but=token)
        return True  # a wake-up may have been missed before the subscription

    def next_poll_ns(self, token: str, until_ns: int) -> int:
        if self._subscription is not None:
            return until_ns
        return self._pauses.next_ns(token, until_ns)

    def end_wait(self, token: str) -> None:
        """Forget the poll schedule of this waiter."""
        self._pauses.forget(token)

    def refuse_closed(self) -> None:
        """Raise `Closed` after `close`."""
        if self._closed:
            raise Closed

    def forked(self) -> None:
        self._begin()

    def close(self) -> None:
        """End the subscription; transports close their own connections."""
        with self._listen_lock:
            self._closed = True
            subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription()


class RemoteTransport(BaseTransport, Generic[C]):
    """Transactions on the server, for threads and tasks alike."""

    def __init__(self, engine: RemoteEngine, *, owns: bool) -> None:
        super().__init__(engine)
        self.engine = engine
        self._owns = owns
        self._client = engine.client
        self._free: list[C] = []

    async def connect(self, until_ns: int) -> C:
        """Return a new connection of this transport's kind."""
        raise NotImplementedError

    async def apply_all(self, commands: Sequence[Command], until_ns: int | None = None) -> list[Reply]:
        self.engine.refuse_closed()
        stall_ns = self.engine.clock.now_ns() + STALL_NS
        try:
            return await self._transact(commands, stall_ns if until_ns is None else min(stall_ns, until_ns))
        except Unavailable as error:
            return [error] * len(commands)

    async def _transact(self, commands: Sequence[Command], until_ns: int) -> list[Reply]:
        while True:
            connection, idle = await self._take(until_ns)
            try:
                answers, tokens = await self._apply_each(connection, commands, until_ns)
            except NETWORK_ERRORS as error:
                await self._drop(connection)
                if idle:
                    continue  # the connection broke while it was idle, and nothing was committed: try another one
                raise self._unreachable(error) from error
            except BaseException:  # cancelled or interrupted: the server rolls back when the connection closes
                await self._drop(connection)
                raise
            try:
                await connection.commit()
            except NETWORK_ERRORS as error:
                await self._drop(connection)
                raise ReplyLost(self.engine.name, UnavailableReason.REPLY_LOST, _text(error)) from error
            except BaseException:
                await self._drop(connection)
                raise
            self._free.append(connection)
            for token in tokens:
                self.engine.waiter_registry.wake(token)
            return answers

    async def _take(self, until_ns: int) -> tuple[C, bool]:
        """Return a connection, and whether it was idle before."""
        if self._client != self.engine.client:  # after a fork: the free connections are the parent's
            self._client, self._free = self.engine.client, []
        with suppress(IndexError):  # another thread may take the last one
            return self._free.pop(), True
        try:
            connection = await self.connect(until_ns)
        except NETWORK_ERRORS as error:
            raise self._unreachable(error) from error
        self.engine.record_server(connection.server_id)
        return connection, False

    async def _drop(self, connection: C) -> None:
        try:
            await connection.close()
        except NETWORK_ERRORS:
            return  # it was broken already

    def _unreachable(self, error: Exception) -> Unavailable:
        return Unavailable(self.engine.name, UnavailableReason.UNREACHABLE, _text(error))

    async def _apply_each(
        self, connection: C, commands: Sequence[Command], until_ns: int
    ) -> tuple[list[Reply], list[str]]:
        """Apply the commands in one open transaction; return the answers, and the waiters of this client to wake."""
        # Lock names in the same order everywhere, so that two transactions cannot wait for each other.
        server_time = await connection.begin(sorted({command.name for command in commands}), until_ns)
        answers: list[Reply] = []
        woken: list[str] = []
        for command in commands:
            rule = RULES[type(command)]
            answer, wake = await self.apply_rule(connection, rule, command, server_time)
            answers.append(answer)
            if wake is not None and wake.client == self.engine.client:
                woken.append(wake.token)
            elif wake is not None:
                await connection.notify(wake.client, wake.token)
        return answers, woken

    async def apply_rule(
        self, connection: C, rule: Rule, command: Command, server_time: ServerTime
    ) -> tuple[Reply, HolderRecord | None]:
        """Load the state, apply the rule, store the state; return the answer and the waiter to wake.

        An engine that keeps more than leases overrides this for the other kinds of rules.
        """
        if rule.kind is not RuleKind.LEASE:
            raise NotImplementedError(f"{self.engine.name} does not store the state of {rule.kind} commands")
        body = await connection.load(command.name)
        try:
            before = Record() if body is None else unpacked(body)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            detail = f"the record of {command.name!r} cannot be read: {error}"
            return UnreadableRecord(self.engine.name, detail=detail), None
        moment = await self._moment(connection, before, server_time)
        after, answer, wake = rule.apply(before, command, moment)
        if after is not before:
            await connection.store(command.name, packed(after), forget_at_us(after, self.engine.memory_us))
        if type(command) is WaiterHeartbeat or (type(command) is Acquire and command.wait and type(answer) is Busy):
            await connection.heartbeat(self.engine.client)
        elif type(command) is Acquire:
            self.engine.end_wait(command.token)
        return answer, wake

    async def _moment(self, connection: C, record: Record, server_time: ServerTime) -> Moment:
        """Return the moment, with the waiters whose heartbeats are overdue."""
        clients = set(record.waiters.clients)
        if record.holder is not None and record.holder.offered:
            clients.add(record.holder.client)
        clients.discard(self.engine.client)
        moment = Moment(*server_time, self.engine.client)
        if not clients:
            return moment
        heartbeats = await connection.heartbeats(sorted(clients))
        overdue_us = server_time.now_us - HEARTBEAT_MS * 1000
        return moment._replace(silent=frozenset(each for each in clients if heartbeats.get(each, 0) <= overdue_us))

    async def ensure_connected(self, until_ns: int) -> None:
        """Run an empty transaction, so that the client notices a restart of the server."""
        await self._transact((), until_ns)

    def events(self) -> Sequence[EngineEvent]:
        return self.engine.take_events()

    async def promise(self, until_ns: int | None = None) -> Promise:  # noqa: ARG002 - the server is not asked
        return self.engine.promised()

    async def close(self) -> None:
        if self._owns:
            self.engine.close()
        with suppress(IndexError):
            while True:
                await self._drop(self._free.pop())


class RemoteBlocking(RemoteTransport[RemoteConnection], BlockingTransport):
    """A remote engine for threads: each transaction has a connection of its own."""

    async def connect(self, until_ns: int) -> RemoteConnection:
        return self.engine.connect_blocking(until_ns)


def packed(record: Record) -> str:
    """Return a record as JSON."""
    assert isinstance(record.tombstones, MemoryTombstones)
    values = (record.fence, record.holder, [*record.waiters], [*record.tombstones], record.last, record.touched_us)
    return json.dumps(values, separators=(",", ":"))


def unpacked(body: str) -> Record:
    """Return the record that `packed` made into text."""
    fence, holder, waiters, tombstones, last, touched_us = json.loads(body)
    return Record(
        checked_fence(fence),
        None if holder is None else HolderRecord(*holder),
        Waiters.of(Waiter(*each) for each in waiters),
        MemoryTombstones.of(Tombstone(*each) for each in tombstones),
        last,
        touched_us,
    )


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
