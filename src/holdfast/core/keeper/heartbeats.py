"""Who waits here: the names whose waiters are to be marked as alive, and when.

The engine's answer to a mark tells when the present lease ends. The next mark comes just then, if not earlier: so the
end of a lease is seen in time by every client, whatever places its waiters have in the queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.clock import NS_PER_MS
from holdfast.commands import Command, HeartbeatReceived, PoolHeartbeat, Undo, UndoBorrow
from holdfast.commands.queue import Reclaimed
from holdfast.core.keeper.restart_guard import RestartGuard, many_rights
from holdfast.core.lease.lease import later
from holdfast.observer import Observer, emit
from holdfast.rules import trust
from holdfast.rules.lease import OFFER_MAX_US

if TYPE_CHECKING:
    import threading

    from holdfast.clock import Clock
    from holdfast.core.lease.lease import LeaseBase

_OFFER_MS = OFFER_MAX_US // 1000
_EVERY_NS = trust.HEARTBEAT_MS * NS_PER_MS // 3


class HeartbeatSchedule:
    """One name that this client's waiters wait for: how many they are, and when and how to say again that they live."""

    __slots__ = ("due_ns", "mark", "marked_ns", "since_ns", "waiters")

    def __init__(self, mark: Command, since_ns: int, due_ns: int) -> None:
        self.mark = mark
        self.since_ns = since_ns
        self.marked_ns = 0
        self.waiters: set[str] = set()  # tokens, so that the end of a wait may be said twice
        self.due_ns = due_ns


class WaiterHeartbeats:
    """Those of one client."""

    def __init__(self, clock: Clock, guard: threading.RLock, restart_guard: RestartGuard) -> None:
        self._clock = clock
        self._guard = guard
        self._restart_guard = restart_guard
        self._kept: dict[Command, HeartbeatSchedule] = {}  # by the command that marks it

    def begin(self, lease: LeaseBase, remaining_ms: int, holder: str) -> int:
        """A waiter stands in the queue of the name, whose present lease ends then; when its mark is due."""
        now_ns = self._clock.now_ns()
        due_ns = now_ns + min(_EVERY_NS, max(1, remaining_ms) * NS_PER_MS)
        if holder == lease._packed and remaining_ms <= _OFFER_MS:
            due_ns = now_ns  # it may be offered to one of us who is there no more: the answer to a mark tells
        self.keep(lease, due_ns)
        return due_ns

    def keep(self, lease: LeaseBase, due_ns: int) -> None:
        """The marking of this lease is to be said by then."""
        mark = lease._heartbeat_command()
        with self._guard:
            schedule = self._kept.setdefault(mark, HeartbeatSchedule(mark, self._clock.now_ns(), due_ns))
            schedule.waiters.add(lease.token)
            schedule.due_ns = min(schedule.due_ns, due_ns)

    def end(self, lease: LeaseBase) -> None:
        mark = lease._heartbeat_command()
        with self._guard:
            schedule = self._kept.get(mark)
            if schedule is not None:
                schedule.waiters.discard(lease.token)
                if not schedule.waiters:
                    del self._kept[mark]

    def hasten(self, now_ns: int, breath_ns: int) -> None:
        """Mark all of them soon, but none twice within a breath."""
        with self._guard:
            for schedule in self._kept.values():
                schedule.due_ns = min(schedule.due_ns, max(now_ns, schedule.marked_ns + breath_ns))

    def begun_ns(self) -> list[int]:
        """Since when they wait."""
        with self._guard:
            return [schedule.since_ns for schedule in self._kept.values()]

    def ends_ns(self) -> list[int]:
        """When their marks are due."""
        with self._guard:
            return [schedule.due_ns for schedule in self._kept.values()]

    def waits_for(self, name: str) -> bool:
        with self._guard:
            return any(mark.name == name for mark in self._kept)

    def due(self, now_ns: int) -> list[HeartbeatSchedule]:
        """Those whose mark is due; it is taken as said."""
        with self._guard:
            due = [schedule for schedule in self._kept.values() if schedule.due_ns <= now_ns]
        for schedule in due:
            schedule.due_ns, schedule.marked_ns = now_ns + _EVERY_NS, now_ns
        return due

    def marked(self, schedule: HeartbeatSchedule, answer: HeartbeatReceived, sent_ns: int) -> None:
        """Those who have what is waited for have it at least so long: kept in case the engine forgets them."""
        if not answer.remaining_ms:
            return
        now_ns, mark = self._clock.now_ns(), schedule.mark
        schedule.due_ns = min(schedule.due_ns, now_ns + answer.remaining_ms * NS_PER_MS)
        about = many_rights(mark.name, mark.kind) if isinstance(mark, PoolHeartbeat) else mark.name
        self._restart_guard.renewed(about, sent_ns, now_ns + (answer.all_ms or answer.remaining_ms) * NS_PER_MS)

    def reaped(self, schedule: HeartbeatSchedule, answer: Reclaimed, observer: Observer | None) -> None:
        """What a look for dead consumers has found, if it was anything; the next is when the engine says."""
        now_ns, name = self._clock.now_ns(), schedule.mark.name
        schedule.due_ns = now_ns + later(answer.next_ms * NS_PER_MS, now_ns)
        if answer.postponed:
            emit(
                observer,
                "reclaim_postponed",
                name,
                detail="nobody has looked for dead consumers for long: all get time",
            )
        if answer.consumers or answer.requeued or answer.dead_lettered:
            emit(observer, "reclaimed", name, detail=found_by_look(answer))


def found_by_look(answer: Reclaimed) -> str:
    """For people."""
    who = "1 consumer" if answer.consumers == 1 else f"{answer.consumers} consumers"
    what = "1 message" if answer.requeued == 1 else f"{answer.requeued} messages"
    return f"{who}, {what} ready again, {answer.dead_lettered} dead"


def undoing(mark: Command, token: str) -> Undo | UndoBorrow:
    """What takes a waiter out of the queue that is marked so."""
    return UndoBorrow(mark.name, token, mark.kind) if isinstance(mark, PoolHeartbeat) else Undo(mark.name, token)
