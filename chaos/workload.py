"""What one worker does, over and over: ask, hold, work, write, give back; and it writes down all of it.

The rule: an actor records what it knows when it knows it: `granted` after the answer, `released` before the release is
sent, each stretch of work when it is done. It never hides what went wrong: an error that it does not expect ends its
process.
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
# How many leases one process can renew every two seconds while its machine also runs all the servers: each file is
# written safely, and each write to a group is also its replicas' and sentinels' work.
MASS = 10_000
SMALLER = {"file": 1_000, "redis+sentinel": 3_000, "redis+cluster": 3_000}


class WorkloadTask:
    """One worker: a client of its own, a recorder, and dice."""

    def __init__(self, context: WorkerContext, label: str, recorder: Recorder, rng: random.Random) -> None:
        self.context = context
        self.label = label
        self.recorder = recorder
        self.rng = rng
        self.client: Any = None
        self.held: dict[int, Any] = {}
        # The keeper tells of renewals on a thread of its own: none may be recorded after the end of its lease.
        self._guard = threading.Lock()
        self._appended = 0
        self._cancelled = False

    async def live(self) -> None:
        """Until the round is over."""
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
        """Ask, hold, work, give back."""
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
                raise  # whoever has a lease is told of its loss, and of nothing else
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
        """The section is over, well or not: from here on nothing is claimed."""
        kind: Any = "lost" if lease.lost else "released"
        detail = lease.lost.reason or self.ending()
        until_ns = trusted_until_ns(lease) if kind == "lost" else None
        mine = {"fence": lease.fence, "token": lease.token}
        with self._guard:
            self.held.pop(lease.fence, None)
            self.recorder.record(kind, lease.name, until_ns=until_ns, detail=detail, **mine)

    def ending(self) -> str | None:
        """What there is to say about a release."""
        return None

    async def section(self, lease: Any) -> None:
        raise NotImplementedError

    async def work(self, lease: Any, seconds: float, *, careless: bool) -> None:
        """Work in slices. The careful ask before each slice whether the lease is still theirs; the careless do not.

        Whoever is to be cancelled on a loss need not ask, and is judged as if it had.

        It is so much work, however long it takes: a worker that was frozen still has the rest of it to do.
        """
        for _ in range(max(1, round(seconds / SLICE_S))):
            if not careless:
                lease.check()
            if self.context.fork_wanted(self.label):
                self.context.fork(self, lease)
            since_ns = time.monotonic_ns()
            await self.context.face.sleep(SLICE_S)
            now_ns = time.monotonic_ns()
            # A slice that took longer was stopped in the middle: of what came after, only its end has run.
            since_ns = max(since_ns, now_ns - int(SLICE_S * 2e9))
            detail = UNCHECKED if careless and not self._cancelled else None
            self.recorder.record(
                "worked", lease.name, fence=lease.fence, token=lease.token, since_ns=since_ns, detail=detail
            )

    def observe(self, event: Event) -> None:
        """What the library tells: the place in the queue, and each renewal."""
        if event.kind == "waiting":
            self.recorder.record("waiting", event.name)
        elif event.kind.startswith("renewed") and event.fence is not None:
            with self._guard:
                lease = self.held.get(event.fence)
                if lease is not None and (until_ns := trusted_until_ns(lease)) > time.monotonic_ns():
                    mine = {"fence": lease.fence, "token": lease.token}
                    self.recorder.record("renewed", event.name, until_ns=until_ns, **mine)


class CounterTask(WorkloadTask):
    """Read a number, take time, write one more."""

    async def section(self, lease: Any) -> None:
        fence, token, resource = lease.fence, lease.token, self.context.counter
        guarded = self.context.guarded
        seen = resource.guarded_read(fence, token) if guarded else resource.read().value
        await self.work(lease, self.length_s(), careless=self.rng.random() < 0.5)
        self.write(lease, seen + 1, lambda _: seen + 1, resource)

    def length_s(self) -> float:
        """Mostly short; sometimes longer than the ttl, which is nobody's fault: it is renewed."""
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
    """Append an element of one's own to a list, having read the whole list first, as a program would."""

    async def section(self, lease: Any) -> None:
        fence, token, resource = lease.fence, lease.token, self.context.list
        guarded = self.context.guarded
        seen = resource.guarded_read(fence, token) if guarded else resource.read().value
        await self.work(lease, self.length_s(), careless=self.rng.random() < 0.5)
        self._appended += 1
        element = self.context.number_of(self.label, self._appended)
        self.write(lease, element, lambda _: [*seen, element], resource)


class WaitingLineTask(WorkloadTask):
    """A short section; what matters is who comes next."""

    rest_s = 0.01

    async def section(self, lease: Any) -> None:
        await self.work(lease, self.rng.uniform(0.002, 0.02), careless=True)


class LeaderTask(CounterTask):
    """Lead for a while, then resign or hand over; the last of them only observes."""

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
        """A term may end of itself, by its own word, or in favour of one that waits."""
        self._heir = ""
        await super().section(lease)
        way = self.rng.choice(("end", "resign", "hand over"))
        successor = self.rng.choice([label for label in self.context.urls if label != self.context.last])
        try:
            if way == "resign":
                self._leader.resign()
            elif way == "hand over":
                await self.context.face.settled(self._leader.hand_over(successor))
                self._heir = successor
        except NotOwner:
            if not lease.lost:
                raise
        except (NotFound, Unavailable):
            return  # it does not wait just now, or nobody can tell: the term ends as any other

    def ending(self) -> str | None:
        return f"{HANDED_TO}{self._heir}" if self._heir else None

    def length_s(self) -> float:
        return self.rng.uniform(0.02, 0.3)

    async def watch(self) -> None:
        leader = self.client.leader(NAME, ttl=self.context.ttl_s, candidate=self.label)
        sent_ns = time.monotonic_ns()
        try:
            leading = await self.context.face.settled(leader.current())
        except Unavailable:
            return
        if leading is not None:
            self.recorder.record("observed", NAME, fence=leading.fence, since_ns=sent_ns, detail=leading.candidate)


class MassTask(WorkloadTask):
    """Thousands of leases at once, kept through everything that is shorter than their ttl."""

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
            with suppress(LeaseLost):  # told when it was lost
                await self.context.face.settled(lease.release())

    async def take(self, name: str) -> Any:
        """The server may just be away."""
        while True:
            lock = self.client.lock(name, ttl=self.context.ttl_s, timeout=PATIENCE_S)
            try:
                return await self.context.face.settled(lock.acquire())
            except Unavailable:
                await self.context.face.sleep(0.05)

    def observe(self, event: Event) -> None:
        """Each loss at its moment. Renewals of so many would drown the history."""
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
    """The trusted deadline, on the clock that a history uses; of a lost lease, the one that it had."""
    left_ns: int = lease.deadline_ns - lease.client.clock.now_ns()
    return time.monotonic_ns() + left_ns
