"""Leases of one process, in a dictionary.

The laws are those of all engines, for threads and tasks of one process. Every client of the same URL shares one
domain. A test may give a hand-moved clock, so that it need not sleep.
"""

from __future__ import annotations

import heapq
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

from holdfast.clock import NS_PER_US
from holdfast.commands import POOL, WAITABLE, Acquire, Busy, PoolHeartbeat, WaiterHeartbeat
from holdfast.commands.queue_admin import QUEUES
from holdfast.engines import Caveat, Promise
from holdfast.engines.admin import EngineReport, Fact, NamePage
from holdfast.engines.local import LocalEngine, Store
from holdfast.engines.memory import CAPABILITIES, SCOPE
from holdfast.engines.memory.registry import MemoryRegistryState
from holdfast.engines.wakeups import WaiterRegistry
from holdfast.errors import InvalidConfig, Unavailable, UnavailableReason
from holdfast.names import new_token
from holdfast.rules import Moment, Record, forget_at_us
from holdfast.rules.counters import MemoryCounters
from holdfast.rules.pool_state import MemoryPoolState
from holdfast.rules.queue.memory_state import MemoryQueueState
from holdfast.rules.registry import Parts
from holdfast.rules.table import RULES, RuleKind
from holdfast.rules.trust import HEARTBEAT_MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.clock import Clock
    from holdfast.commands import Answer, Command
    from holdfast.config import Settings
    from holdfast.engines import Reply
    from holdfast.rules.lease_record import HolderRecord
    from holdfast.rules.result import Wakeup
    from holdfast.rules.table import Rule

_PROMISE = Promise(
    engine="memory",
    scope="process",
    level="survives client faults",
    fifo=True,
    fences_grow=True,
    reasons=("the rules run under one lock in this process",),
    caveats=(
        Caveat(
            "other processes do not see these leases, and a forked child starts with none",
            "tests/faces/test_fork.py::test_a_forked_child_holds_nothing_and_harms_nothing",
        ),
    ),
)

# From this number of pools on, the engine looks for unused pools.
_POOLS_SPARE = 64
_FORGET_AT_ONCE = 4


class MemoryPool:
    """A pool, and when it was used last."""

    def __init__(self, kind: str) -> None:
        self.pool_state = MemoryPoolState(kind)
        self.touched_us = 0

    def can_be_forgotten(self, before_us: int) -> bool:
        """Return true if the pool has no items, leases or waiters of its own and was not used since `before_us`."""
        taken, cooling, free = self.pool_state.counts()
        used = taken or cooling or len(self.pool_state.waiting_line) or (free and self.pool_state.kind == POOL)
        return not used and self.touched_us < before_us


class Domain:
    """The state that all clients of one URL share."""

    def __init__(self, path: str, clock: Clock) -> None:
        self.path = path
        self.clock = clock
        self.lock = threading.RLock()  # an RLock knows which thread has it: see `answer_all`
        self.waiter_registry = WaiterRegistry()
        self.records: dict[str, Record] = {}
        self.pools: dict[tuple[str, str], MemoryPool] = {}
        self.queues: dict[str, MemoryQueueState] = {}
        self.alive_until_us: dict[str, int] = {}  # by client: until when its last heartbeat counts
        self.ends: list[tuple[int, str]] = []
        self.counters = MemoryCounters()
        self.registry = MemoryRegistryState()


class _Domains:
    """The domains of this process, by URL. The references are weak, so that a domain ends with its last client.

    A forked child starts with none: the inherited domains belong to threads that the child does not have. The pid shows
    that a fork happened, because clients learn of a fork before this module could.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._known: weakref.WeakValueDictionary[str, Domain] = weakref.WeakValueDictionary()

    def get(self, path: str, clock: Clock) -> Domain:
        if self._pid != os.getpid():
            self._begin()
        with self._lock:
            domain = self._known.get(path)
            if domain is None:
                domain = self._known[path] = Domain(path, clock)
            return domain


_domains = _Domains()


class MemoryStore(Store):
    """One client of a domain."""

    name = "memory"
    quick = True
    scope = SCOPE
    capabilities = CAPABILITIES

    def __init__(self, domain: Domain, memory_us: int) -> None:
        self.domain = domain
        self.clock = domain.clock
        self.waiter_registry = domain.waiter_registry
        self.client = new_token()
        self._journal = domain.registry.journal
        self._memory_us = memory_us

    def answer_all(self, commands: Sequence[Command], until_ns: int | None) -> list[Reply]:  # noqa: ARG002
        if self.domain.lock._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001 - as threading.Condition does
            detail = "this thread is inside a command already: a signal handler sent another one"
            raise Unavailable("memory", UnavailableReason.STALLED, detail)
        answers: list[Reply] = []
        woken: list[HolderRecord | Wakeup] = []
        with self.domain.lock:
            if self._journal:  # it has leases, too, so no command may come before the rollback
                self.domain.registry.roll_back()
            for command in commands:
                rule = RULES[type(command)]
                answers.append(_BY_KIND[rule.kind](self, rule, command, woken))
            self._forget()
        for waiter in woken:
            self.waiter_registry.wake(waiter.token)
        return answers

    def _answer_lease(self, rule: Rule, command: Command, woken: list[HolderRecord | Wakeup]) -> Answer:
        records = self.domain.records
        before = records.get(command.name)
        if before is None:
            before = Record()
        now_us = self.clock.now_ns() // NS_PER_US
        after, answer, wake = rule.apply(before, command, self._moment(before, now_us))
        if after is not before:
            if command.name not in records:
                heapq.heappush(self.domain.ends, (forget_at_us(after, self._memory_us), command.name))
            records[command.name] = after
        if type(command) is WaiterHeartbeat or (type(command) is Acquire and command.wait and isinstance(answer, Busy)):
            self.domain.alive_until_us[self.client] = now_us + HEARTBEAT_MS * 1000
        if wake is not None:
            woken.append(wake)
        return answer  # type: ignore[no-any-return]

    def _answer_pool(self, rule: Rule, command: Any, woken: list[HolderRecord | Wakeup]) -> Answer:
        pools, key, now_us = self.domain.pools, (command.kind, command.name), self.clock.now_ns() // NS_PER_US
        pool = pools.get(key)
        if pool is None:
            self._forget_pools(now_us)
            pool = pools[key] = MemoryPool(command.kind)
        state = pool.pool_state
        if state.journal:
            state.roll_back()
        silent = frozenset(client for client in state.watched() if self._is_silent(client, now_us))
        moment = Moment(now_us, self.clock.wall_us(), self.client, silent=silent)
        answer, wakeups = rule.apply(state, command, moment)
        pool.touched_us = now_us
        state.journal.clear()
        woken += wakeups
        if type(command) is PoolHeartbeat or (type(command) in WAITABLE and isinstance(answer, Busy)):
            self.domain.alive_until_us[self.client] = now_us + HEARTBEAT_MS * 1000
        return answer  # type: ignore[no-any-return]

    def _answer_queue(self, rule: Rule, command: Any, woken: list[HolderRecord | Wakeup]) -> Answer:
        queues = self.domain.queues
        state = queues.get(command.name)
        if state is None:
            state = queues[command.name] = MemoryQueueState()
        if state.journal:
            state.roll_back()
        answer, wakeups = rule.apply(state, command, self._plain_moment())
        state.journal.clear()
        woken += wakeups
        if state.is_empty():
            del queues[command.name]
        return answer  # type: ignore[no-any-return]

    def _answer_counter(self, rule: Rule, command: Any, woken: list[HolderRecord | Wakeup]) -> Answer:  # noqa: ARG002
        return self.domain.counters.answer(rule.apply, command, self._plain_moment())

    def _answer_combined(self, rule: Rule, command: Command, woken: list[HolderRecord | Wakeup]) -> Answer:
        moment, domain = self._plain_moment(), self.domain
        registry, counters = domain.registry, domain.counters
        registry.now_us = moment.wall_us

        def answer_lease(part: Command) -> Answer:
            registry.journal.note(domain.records, part.name)
            return self._answer_lease(RULES[type(part)], part, woken)

        def answer_counter(part: Any) -> Answer:
            registry.journal.note(counters.known, (part.kind, part.name))
            return counters.answer(RULES[type(part)].apply, part, moment)

        answer: Answer = rule.apply(Parts(answer_lease, answer_counter, registry), command, moment)
        registry.journal.clear()
        return answer

    def _plain_moment(self) -> Moment:
        return Moment(self.clock.now_ns() // NS_PER_US, self.clock.wall_us(), self.client)

    def _moment(self, record: Record, now_us: int) -> Moment:
        """Return the moment, with the waiters whose heartbeats are overdue."""
        clients = record.waiters.clients
        if record.holder is not None and record.holder.offered:
            clients = {**clients, record.holder.client: 1}
        if not clients:
            return Moment(now_us, self.clock.wall_us(), self.client)
        silent = frozenset(client for client in clients if self._is_silent(client, now_us))
        return Moment(now_us, self.clock.wall_us(), self.client, silent=silent)

    def _is_silent(self, client: str, now_us: int) -> bool:
        return client != self.client and self.domain.alive_until_us.get(client, 0) <= now_us

    def _forget_pools(self, now_us: int) -> None:
        """Delete unused pools.

        Only the creation of a pool looks for them, and only at every doubling of their number.
        """
        pools = self.domain.pools
        if len(pools) < _POOLS_SPARE or len(pools) & (len(pools) - 1):
            return
        for key in [key for key, pool in pools.items() if pool.can_be_forgotten(now_us - self._memory_us)]:
            del pools[key]

    def _forget(self) -> None:
        """Delete names that need not be remembered any more, a few at a time, so that no command pays for many."""
        ends, now_us = self.domain.ends, self.clock.now_ns() // NS_PER_US
        for _ in range(_FORGET_AT_ONCE):
            if not ends or ends[0][0] > now_us:
                return
            name = ends[0][1]
            record = self.domain.records.get(name)
            at_us = 0 if record is None else forget_at_us(record, self._memory_us)
            if at_us > now_us:
                heapq.heapreplace(ends, (at_us, name))
            else:
                # The record goes before its end does: an interrupt in between leaves nothing behind.
                self.domain.records.pop(name, None)
                heapq.heappop(ends)

    def listen(self, token: str) -> bool:  # noqa: ARG002 - wake-ups always arrive
        return False

    def promise(self) -> Promise:
        return _PROMISE

    def forked(self) -> None:
        self.domain = _domains.get(self.domain.path, self.clock)
        self.waiter_registry = self.domain.waiter_registry
        self._journal = self.domain.registry.journal
        self.client = new_token()

    def close(self) -> None:
        with self.domain.lock:
            self.domain.alive_until_us.pop(self.client, None)

    def location(self) -> str:
        return self.domain.path

    def names(self, prefix: str, limit: int, kind: str = "") -> NamePage:
        with self.domain.lock:
            kept = [*(self.domain.queues if kind == QUEUES else () if kind else self.domain.records)]
            kept += [name for pool_kind, name in self.domain.pools if pool_kind == kind]
            found = sorted(name for name in kept if name.startswith(prefix) and "\0" not in name)
        return NamePage(tuple(found[:limit]), more=len(found) > limit)

    def examine(self) -> EngineReport:
        count = len(self.domain.records)
        return EngineReport((Fact("names remembered", str(count), {"names": count}),))


_BY_KIND = {
    RuleKind.LEASE: MemoryStore._answer_lease,  # noqa: SLF001 - of this module
    RuleKind.POOL: MemoryStore._answer_pool,  # noqa: SLF001
    RuleKind.QUEUE: MemoryStore._answer_queue,  # noqa: SLF001
    RuleKind.COUNTER: MemoryStore._answer_counter,  # noqa: SLF001
    RuleKind.COMBINED: MemoryStore._answer_combined,  # noqa: SLF001
}


def open_store(settings: Settings) -> LocalEngine:
    """Open the domain that the URL names; `InvalidConfig` if it is open with another clock."""
    settings.refuse_options()
    domain = _domains.get(settings.path, settings.clock)
    if domain.clock is not settings.clock:
        raise InvalidConfig("clock", settings.clock, f"{settings.url} is already open with another clock")
    return LocalEngine(MemoryStore(domain, settings.fence_memory_us))
