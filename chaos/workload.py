"""The workloads: what one worker does again and again (acquire, hold, work, write, release), and records.

A worker records each fact when it learns it: `granted` after the answer, `released` before the release is sent, each
slice of work when it is done. An unexpected error ends its process.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from holdfast.errors import Fenced, LeaseLost, NotAcquired, NotFound, NotOwner, Unavailable
from tests.support.stale_work import UNCHECKED
from tests.support.waiting_order import HANDED_TO

if TYPE_CHECKING:
    import random

    from chaos.worker import WorkerContext
    from holdfast.observer import Event
    from holdfast.testing.history import Recorder

NAME = "campaign"
SLICE_S = 0.01
PATIENCE_S = 25.0
# How many leases one process can renew every two seconds while its machine also runs all the servers: the files engine
# syncs every file, and replicas and sentinels repeat each write to a group.
MASS = 10_000
SMALLER = {"file": 1_000, "redis+sentinel": 3_000, "redis+cluster": 3_000}


class WorkloadTask:
    """One worker: a thread or task with its own client, recorder and random numbers."""

    def __init__(self, context: WorkerContext, label: str, recorder: Recorder, rng: random.Random) -> None:
        self.context = context
        self.label = label
        self.recorder = recorder
        self.rng = rng
        self.client: Any = None
        self.held: dict[int, Any] = {}
        # The keeper reports renewals on its own thread: none may be recorded after the end of its lease.
        self._guard = threading.Lock()
        self._appended = 0
        self._cancelled = False

    async def live(self) -> None:
        """Repeat `turn` until the round is over."""
        face = self.context.face
        self.client = await face.connect(self.context.url(self.label), self.label, self.observe)
        try:
            while not self.context.over:
                await self.turn()
                await face.sleep(self.rng.uniform(0, self.rest_s))
        finally:
            await face.close(self.client)

    rest_s = 0.03

    async def turn(self) -> None:
        """Acquire the lease, run the section, and release it."""
        requested = self.recorder.record("requested", NAME)
        lease = None
        try:
            async with self.context.face.holding(self.lock()) as lease:
                self.granted(lease, requested.at_ns)
                try:
                    await self.section(lease)
                finally:
                    self.ended(lease)
        except LeaseLost as lost:
            if lease is not None:
                mine = {"fence": lease.fence, "token": lease.token}
                self.recorder.record("lost", NAME, until_ns=trusted_until_ns(lease), detail=lost.reason, **mine)
        except Fenced:
            return  # the write was refused, and has been recorded
        except (NotAcquired, Unavailable) as error:
            if lease is not None:
                raise  # a holder gets `LeaseLost` and no other error
            self.recorder.record("refused", NAME, detail=f"{type(error).__name__}: {error}")

    def lock(self) -> Any:
        policies = ("report", "cancel") if self.context.face.name == "asyncio" else ("report",)
        on_loss = self.rng.choice(policies)
        self._cancelled = on_loss == "cancel"
        return self.client.lock(NAME, ttl=self.context.ttl_s, timeout=PATIENCE_S, on_loss=on_loss)

    def granted(self, lease: Any, requested_ns: int) -> None:
        mine = {"fence": lease.fence, "token": lease.token}
        with self._guard:
            until_ns = trusted_until_ns(lease)
            self.recorder.record("granted", lease.name, since_ns=requested_ns, until_ns=until_ns, **mine)
            self.held[lease.fence] = lease

    def ended(self, lease: Any) -> None:
        """Record the end of the section, with or without an error: from here on the worker holds nothing."""
        kind: Any = "lost" if lease.lost else "released"
        detail = lease.lost.reason or self.ending()
        until_ns = trusted_until_ns(lease) if kind == "lost" else None
        mine = {"fence": lease.fence, "token": lease.token}
        with self._guard:
            self.held.pop(lease.fence, None)
            self.recorder.record(kind, lease.name, until_ns=until_ns, detail=detail, **mine)

    def ending(self) -> str | None:
        """Return the detail of a release."""
        return None

    async def section(self, lease: Any) -> None:
        raise NotImplementedError

    async def work(self, lease: Any, seconds: float, *, careless: bool) -> None:
        """Work in slices; unless it is `careless`, call `lease.check()` before each slice.

        A worker that is cancelled on a loss need not check, and counts as if it had.

        The amount of work is fixed: a worker that was frozen still has the rest of it to do.
        """
        for _ in range(max(1, round(seconds / SLICE_S))):
            if not careless:
                lease.check()
            if self.context.fork_wanted(self.label):
                self.context.fork(self, lease)
            since_ns = time.monotonic_ns()
            await self.context.face.sleep(SLICE_S)
            now_ns = time.monotonic_ns()
            # A slice that took longer was stopped in the middle: only its end ran after that.
            since_ns = max(since_ns, now_ns - int(SLICE_S * 2e9))
            detail = UNCHECKED if careless and not self._cancelled else None
            self.recorder.record(
                "worked", lease.name, fence=lease.fence, token=lease.token, since_ns=since_ns, detail=detail
            )

    def observe(self, event: Event) -> None:
        """Record the events of the library: the place in the waiting line, and each renewal."""
        if event.kind == "waiting":
            self.recorder.record("waiting", event.name)
        elif event.kind.startswith("renewed") and event.fence is not None:
            with self._guard:
                lease = self.held.get(event.fence)
                if lease is not None and (until_ns := trusted_until_ns(lease)) > time.monotonic_ns():
                    mine = {"fence": lease.fence, "token": lease.token}
                    self.recorder.record("renewed", event.name, until_ns=until_ns, **mine)


class CounterTask(WorkloadTask):
    """Read a number, work, and write the number plus one."""

    async def section(self, lease: Any) -> None:
        fence, token, resource = lease.fence, lease.token, self.context.counter
        guarded = self.context.guarded
        seen = resource.guarded_read(fence, token) if guarded else resource.read().value
        await self.work(lease, self.length_s(), careless=self.rng.random() < 0.5)
        self.write(lease, seen + 1, lambda _: seen + 1, resource)

    def length_s(self) -> float:
        """Return the length of a section: mostly short, sometimes longer than the ttl, so that it must be renewed."""
        if self.rng.random() < self.context.long:
            return self.rng.uniform(1.1, 1.8) * self.context.ttl_s
        return self.rng.uniform(0, 0.04)

    def write(self, lease: Any, value: int, change: Any, resource: Any) -> None:
        fence, token = lease.fence, lease.token
        sent_ns = time.monotonic_ns()
        accepted = True
        try:
            if self.context.guarded:
                resource.write(fence, token, change)
            else:
                resource.unguarded_write(change)
        except Fenced:
            accepted = False
            raise
        finally:
            self.recorder.record(
                "write", lease.name, fence=fence, token=token, value=value, accepted=accepted, since_ns=sent_ns
            )


class ListTask(CounterTask):
    """Read a whole list and write it back with one more element, as a program would."""

    async def section(self, lease: Any) -> None:
        fence, token, resource = lease.fence, lease.token, self.context.list
        guarded = self.context.guarded
        seen = resource.guarded_read(fence, token) if guarded else resource.read().value
        await self.work(lease, self.length_s(), careless=self.rng.random() < 0.5)
        self._appended += 1
        element = self.context.number_of(self.label, self._appended)
        self.write(lease, element, lambda _: [*seen, element], resource)


class WaitingLineTask(WorkloadTask):
    """A short section; the order of the grants is checked."""

    rest_s = 0.01

    async def section(self, lease: Any) -> None:
        await self.work(lease, self.rng.uniform(0.002, 0.02), careless=True)


class LeaderTask(CounterTask):
    """Lead for a while, then resign or hand over; the last worker only observes."""

    _leader: Any = None
    _heir = ""

    async def turn(self) -> None:
        if self.label == self.context.last:
            await self.watch()
        else:
            await super().turn()

    def lock(self) -> Any:
        self._leader = self.client.leader(NAME, ttl=self.context.ttl_s, timeout=PATIENCE_S, candidate=self.label)
        return self._leader

    async def section(self, lease: Any) -> None:
        """Lead for one term, which ends by itself, by `resign` or by `hand_over` to a waiter."""
        self._heir = ""
        await super().section(lease)
        way = self.rng.choice(("end", "resign", "hand over"))
        successor = self.rng.choice([label for label in self.context.urls if label != self.context.last])
        try:
            if way == "resign":
                self._leader.resign()
            elif way == "hand over":
                await self.context.face.resolved(self._leader.hand_over(successor))
                self._heir = successor
        except NotOwner:
            if not lease.lost:
                raise
        except (NotFound, Unavailable):
            return  # the successor does not wait now, or the engine is unreachable: the term ends as any other

    def ending(self) -> str | None:
        return f"{HANDED_TO}{self._heir}" if self._heir else None

    def length_s(self) -> float:
        return self.rng.uniform(0.02, 0.3)

    async def watch(self) -> None:
        leader = self.client.leader(NAME, ttl=self.context.ttl_s, candidate=self.label)
        sent_ns = time.monotonic_ns()
        try:
            leading = await self.context.face.resolved(leader.current())
        except Unavailable:
            return
        if leading is not None:
            self.recorder.record("observed", NAME, fence=leading.fence, since_ns=sent_ns, detail=leading.candidate)


class MassTask(WorkloadTask):
    """Thousands of leases at once, kept through every fault that is shorter than their ttl."""

    async def turn(self) -> None:
        leases = []
        scheme = next(iter(self.context.urls.values())).partition(":")[0]
        for number in range(SMALLER.get(scheme, MASS)):
            requested_ns = time.monotonic_ns()
            lease = await self.take(f"{NAME}/{number}")
            self.granted(lease, requested_ns)
            leases.append(lease)
        self.recorder.record("observed", NAME, value=len(leases), detail="held at once")
        while not self.context.over:
            await self.context.face.sleep(0.05)
        for lease in leases:
            if not lease.lost:
                self.ended(lease)
            with suppress(LeaseLost):  # recorded when it was lost
                await self.context.face.resolved(lease.release())

    async def take(self, name: str) -> Any:
        """Acquire a lease; try again while the server is unreachable."""
        while True:
            lock = self.client.lock(name, ttl=self.context.ttl_s, timeout=PATIENCE_S)
            try:
                return await self.context.face.resolved(lock.acquire())
            except Unavailable:
                await self.context.face.sleep(0.05)

    def observe(self, event: Event) -> None:
        """Record each loss. Renewals of so many leases would flood the history."""
        if event.kind == "lost":
            self.recorder.record("lost", event.name, fence=event.fence, detail=event.detail)


WORKLOAD_TASKS: dict[str, type[WorkloadTask]] = {
    "counter": CounterTask,
    "counter-unguarded": CounterTask,
    "list": ListTask,
    "list-unguarded": ListTask,
    "queue": WaitingLineTask,
    "leader": LeaderTask,
    "mass": MassTask,
}


def trusted_until_ns(lease: Any) -> int:
    """Return the trusted deadline of a lease, on the clock of the history; of a lost lease, its last one."""
    left_ns: int = lease.deadline_ns - lease.client.clock.now_ns()
    return time.monotonic_ns() + left_ns
