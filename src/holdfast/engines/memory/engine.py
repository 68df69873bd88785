"""Leases of one process, in a dictionary.

The same laws as everywhere else, for threads and tasks of one process. Every client of the same URL shares one domain.
A hand-moved clock may be given, so that tests need not sleep.
"""

from __future__ import annotations

import heapq
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

from holdfast.clock import NS_PER_US
from holdfast.commands import ASKING, POOL, Acquire, Busy, PoolHeartbeat, WaiterHeartbeat
from holdfast.commands.queue_admin import QUEUES
from holdfast.engines import Caveat, Promise
from holdfast.engines.admin import EngineReport, Fact, NamePage
from holdfast.engines.local import LocalEngine
from holdfast.engines.memory.registry import MemoryRegistryState
from holdfast.engines.wakeups import WaiterRegistry
from holdfast.errors import InvalidConfig, Unavailable
from holdfast.names import new_token
from holdfast.rules import RULES, Moment, Record, forget_at_us
from holdfast.rules.memory_counters import MemoryCounters
from holdfast.rules.once import compound
from holdfast.rules.pool import POOL_RULES
from holdfast.rules.pool_state import MemoryPoolState
from holdfast.rules.queue import QUEUE_RULES
from holdfast.rules.queue.memory_state import MemoryQueueState
from holdfast.rules.trust import MARK_MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.clock import Clock
    from holdfast.commands import Answer, Command
    from holdfast.config import Settings
    from holdfast.engines import Reply
    from holdfast.rules.lease import Rule
    from holdfast.rules.lease_record import HolderRecord
    from holdfast.rules.result import Wakeup

_PROMISE = Promise(
    engine="memory",
    scope="process",
    level="survives client faults",
    fifo=True,
    fences_grow=True,
    reasons=("the rules run under one lock in this process",),
    limits=(
        Caveat(
            "other processes do not see these leases, and a forked child starts with none",
            "tests/faces/test_fork.py::test_a_forked_child_holds_nothing_and_harms_nothing",
        ),
    ),
)


_POOLS_SPARE = 64


class MemoryPool:
    """A pool, and when it was used last."""

    def __init__(self, kind: str) -> None:
        self.pool_state = MemoryPoolState(kind)
        self.touched_us = 0

    def over(self, before_us: int) -> bool:
        """Nothing of it needs to be remembered: nobody has set it up, and nobody has used it for long."""
        taken, cooling, free = self.pool_state.counts()
        used = taken or cooling or len(self.pool_state.waiting_line) or (free and self.pool_state.kind == POOL)
        return not used and self.touched_us < before_us


class Domain:
    """What all clients of one URL share."""

    def __init__(self, path: str, clock: Clock) -> None:
        self.path = path
        self.clock = clock
        self.lock = threading.RLock()  # it knows its owner
        self.waiter_registry = WaiterRegistry()
        self.records: dict[str, Record] = {}
        self.pools: dict[tuple[str, str], MemoryPool] = {}
        self.queues: dict[str, MemoryQueueState] = {}
        self.marks: dict[str, int] = {}
        self.ends: list[tuple[int, str]] = []
        self.counters = MemoryCounters()
        self.registry = MemoryRegistryState()


class _Domains:
    """The domains of this process, by URL. Weak, so that a domain is forgotten with its last client.

    A child starts with none: what it inherited belongs to threads that it does not have. It notices by its pid, because
    clients are told of a fork before this module could be.
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


class MemoryStore:
    """One client of a domain."""

    name = "memory"
    quick = True

    def __init__(self, domain: Domain, memory_us: int) -> None:
        self.domain = domain
        self.clock = domain.clock
        self.waiter_registry = domain.waiter_registry
        self.client = new_token()
        self._memory_us = memory_us

    def answer_all(self, commands: Sequence[Command], until_ns: int | None) -> list[Reply]:  # noqa: ARG002
        if self.domain.lock._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001 - as threading.Condition asks
            raise Unavailable("memory", "stalled", "this thread is inside a command already: a signal handler asked")
        answers: list[Reply] = []
        rung: list[HolderRecord | Wakeup] = []
        with self.domain.lock:
            for command in commands:
                rule = RULES.get(type(command))
                if rule is None and type(command) in POOL_RULES:
                    answers.append(self._deal(command, rung))
                    continue
                if rule is None and type(command) in QUEUE_RULES:
                    answers.append(self._pass_on(command, rung))
                    continue
                answer, wake = self._compound(command) if rule is None else self._answer(command, rule)
                answers.append(answer)
                if wake is not None:
                    rung.append(wake)
            self._forget()
        for holder in rung:
            self.waiter_registry.wake(holder.token)
        return answers

    def _answer(self, command: Command, rule: Rule) -> tuple[Answer, HolderRecord | None]:
        records = self.domain.records
        before = records.get(command.name)
        if before is None:
            before = Record()
        now_us = self.clock.now_ns() // NS_PER_US
        step = rule(before, command, self._moment(before, now_us))
        if step.record is not before:
            if command.name not in records:
                heapq.heappush(self.domain.ends, (forget_at_us(step.record, self._memory_us), command.name))
            records[command.name] = step.record
        if type(command) is WaiterHeartbeat or (
            type(command) is Acquire and command.wait and isinstance(step.answer, Busy)
        ):
            self.domain.marks[self.client] = now_us + MARK_MS * 1000
        return step.answer, step.wake

    def _deal(self, command: Any, rung: list[HolderRecord | Wakeup]) -> Answer:
        """The answer of a pool."""
        pools, key, now_us = self.domain.pools, (command.kind, command.name), self.clock.now_ns() // NS_PER_US
        pool = pools.get(key)
        if pool is None:
            self._forget_pools(now_us)
            pool = pools[key] = MemoryPool(command.kind)
        silent = frozenset(client for client in pool.pool_state.watched() if self._is_silent(client, now_us))
        moment = Moment(now_us, self.clock.wall_us(), self.client, silent=silent)
        answer, wakes = POOL_RULES[type(command)](pool.pool_state, command, moment)
        pool.touched_us = now_us
        rung += wakes
        if type(command) is PoolHeartbeat or (type(command) in ASKING and isinstance(answer, Busy)):
            self.domain.marks[self.client] = now_us + MARK_MS * 1000
        return answer

    def _pass_on(self, command: Any, rung: list[HolderRecord | Wakeup]) -> Answer:
        """The answer of a queue."""
        queues, moment = self.domain.queues, Moment(self.clock.now_ns() // NS_PER_US, self.clock.wall_us(), self.client)
        state = queues.get(command.name)
        if state is None:
            state = queues[command.name] = MemoryQueueState()
        answer, wakes = QUEUE_RULES[type(command)](state, command, moment)
        rung += wakes
        if state.is_empty():
            del queues[command.name]
        return answer

    def _is_silent(self, client: str, now_us: int) -> bool:
        return client != self.client and self.domain.marks.get(client, 0) <= now_us

    def _forget_pools(self, now_us: int) -> None:
        """Looked for when a new one comes, and only when there are many: so that it costs next to nothing."""
        pools = self.domain.pools
        if len(pools) < _POOLS_SPARE or len(pools) & (len(pools) - 1):
            return
        for key in [key for key, pool in pools.items() if pool.over(now_us - self._memory_us)]:
            del pools[key]

    def _compound(self, command: Command) -> tuple[Answer, HolderRecord | None]:
        """The answer to what is no command of a lease alone."""
        moment = Moment(self.clock.now_ns() // NS_PER_US, self.clock.wall_us(), self.client)
        woken: list[HolderRecord | None] = [None]
        self.domain.registry.now_us = moment.wall_us

        def apply_lease(part: Command) -> Answer:
            answer, woken[0] = self._answer(part, RULES[type(part)])
            return answer

        answer = compound(
            command, apply_lease, lambda part: self.domain.counters.answer(part, moment), self.domain.registry
        )
        return answer, woken[0]

    def _moment(self, record: Record, now_us: int) -> Moment:
        marks = self.domain.marks
        clients = record.waiters.clients
        if record.holder is not None and record.holder.offered:
            clients = {**clients, record.holder.client: 1}
        if not clients:
            return Moment(now_us, self.clock.wall_us(), self.client)
        silent = frozenset(client for client in clients if marks.get(client, 0) <= now_us and client != self.client)
        return Moment(now_us, self.clock.wall_us(), self.client, silent=silent)

    def _forget(self) -> None:
        """Drop names whose memory ended, a few at a time, so that no command pays for many."""
        ends, now_us = self.domain.ends, self.clock.now_ns() // NS_PER_US
        for _ in range(4):
            if not ends or ends[0][0] > now_us:
                return
            name = heapq.heappop(ends)[1]
            at_us = forget_at_us(self.domain.records[name], self._memory_us)
            if at_us <= now_us:
                del self.domain.records[name]
            else:
                heapq.heappush(ends, (at_us, name))

    def listen(self, token: str) -> bool:  # noqa: ARG002 - rings always arrive
        return False

    def promise(self) -> Promise:
        return _PROMISE

    def forked(self) -> None:
        self.domain = _domains.get(self.domain.path, self.clock)
        self.waiter_registry = self.domain.waiter_registry
        self.client = new_token()

    def close(self) -> None:
        with self.domain.lock:
            self.domain.marks.pop(self.client, None)

    def location(self) -> str:
        return self.domain.path

    def liveness_fd(self) -> None:
        return None  # a child process does not share these leases

    def names(self, prefix: str, limit: int, kind: str = "") -> NamePage:
        with self.domain.lock:
            kept = [*(self.domain.queues if kind == QUEUES else () if kind else self.domain.records)]
            kept += [name for under, name in self.domain.pools if under == kind]
            found = sorted(name for name in kept if name.startswith(prefix) and "\0" not in name)
        return NamePage(tuple(found[:limit]), more=len(found) > limit)

    def examine(self) -> EngineReport:
        count = len(self.domain.records)
        return EngineReport((Fact("names remembered", str(count), {"names": count}),))


def open_engine(settings: Settings) -> LocalEngine:
    """`memory://` or `memory://name`: clients of the same URL share their leases."""
    settings.refuse_options()
    domain = _domains.get(settings.path, settings.clock)
    if domain.clock is not settings.clock:
        raise InvalidConfig("clock", settings.clock, f"{settings.url} is already open with another clock")
    return LocalEngine(MemoryStore(domain, settings.fence_memory_us))
