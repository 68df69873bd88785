"""The heartbeats of waiters and consumers: for which names this client sends them, and when.

The engine's answer to a heartbeat says when the present lease ends. The client sends the next heartbeat at that moment,
or earlier. So every client sees the end of a lease in time, whatever places its waiters have in the waiting line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.clock import NS_PER_MS, jittered_up
from holdfast.commands import Command, HeartbeatReceived, PoolHeartbeat, Undo, UndoBorrow
from holdfast.commands.queue import Reclaimed
from holdfast.core.keeper.restart_guard import RestartGuard, pool_resource
from holdfast.rules import trust
from holdfast.rules.lease import OFFER_MAX_US

if TYPE_CHECKING:
    import threading

    from holdfast.clock import Clock
    from holdfast.core.keeper.reporter import Reporter
    from holdfast.core.lease.state import LeaseCore

_OFFER_MS = OFFER_MAX_US // 1000
_EVERY_NS = trust.HEARTBEAT_EVERY_MS * NS_PER_MS
_NEAR_EVERY_NS = trust.NEAR_HEARTBEAT_EVERY_MS * NS_PER_MS


class HeartbeatSchedule:
    """One heartbeat command: the waiters that it keeps alive, and when it is due."""

    __slots__ = ("command", "due_ns", "sent_ns", "since_ns", "waiters")

    def __init__(self, command: Command, since_ns: int, due_ns: int) -> None:
        self.command = command
        self.since_ns = since_ns
        self.sent_ns = 0
        self.waiters: set[str] = set()  # tokens, so that a wait may end twice
        self.due_ns = due_ns


class WaiterHeartbeats:
    """The heartbeats of one client."""

    def __init__(self, clock: Clock, guard: threading.RLock, restart_guard: RestartGuard) -> None:
        self._clock = clock
        self._guard = guard
        self._restart_guard = restart_guard
        # By the command. The keeper's thread copies it in one step and does not take the guard: a signal handler of the
        # program may block in a thread that has it.
        self._schedules: dict[Command, HeartbeatSchedule] = {}

    def begin(self, lease: LeaseCore, remaining_ms: int, holder: str) -> int:
        """Send heartbeats for a waiter; return when the first is due. The present lease ends in `remaining_ms`."""
        now_ns = self._clock.now_ns()
        # The answer to the first heartbeat says whether the next ones must be frequent.
        due_ns = now_ns + min(_NEAR_EVERY_NS, max(1, remaining_ms) * NS_PER_MS)
        if holder == lease.packed_holder and remaining_ms <= _OFFER_MS:
            due_ns = now_ns  # maybe an offer to an ended waiter of this client: the answer to a heartbeat shows it
        self.schedule(lease, due_ns)
        return due_ns

    def schedule(self, lease: LeaseCore, due_ns: int) -> None:
        """Send the heartbeat of this lease at `due_ns` or earlier."""
        command = lease.heartbeat_command()
        with self._guard:
            new = HeartbeatSchedule(command, self._clock.now_ns(), due_ns)
            schedule = self._schedules.setdefault(command, new)
            schedule.waiters.add(lease.token)
            schedule.due_ns = min(schedule.due_ns, due_ns)

    def end(self, lease: LeaseCore) -> None:
        """Send no more heartbeats for this lease."""
        command = lease.heartbeat_command()
        with self._guard:
            schedule = self._schedules.get(command)
            if schedule is not None:
                schedule.waiters.discard(lease.token)
                if not schedule.waiters:
                    del self._schedules[command]

    def send_soon(self, now_ns: int, pause_ns: int) -> None:
        """Send all heartbeats soon, but none twice within `pause_ns`."""
        with self._guard:
            for schedule in self._schedules.values():
                schedule.due_ns = min(schedule.due_ns, max(now_ns, schedule.sent_ns + pause_ns))

    def begun_ns(self) -> list[int]:
        """Return for each name since when this client has waiters."""
        return [schedule.since_ns for schedule in self._schedules.copy().values()]

    def due_times_ns(self) -> list[int]:
        """Return when the heartbeats are due."""
        return [schedule.due_ns for schedule in self._schedules.copy().values()]

    def waits_for(self, name: str) -> bool:
        """Return whether this client has a waiter for the name."""
        return any(command.name == name for command in self._schedules.copy())

    def due(self, now_ns: int) -> list[HeartbeatSchedule]:
        """Return the schedules whose heartbeat is due, and schedule their next one."""
        due = [schedule for schedule in self._schedules.copy().values() if schedule.due_ns <= now_ns]
        for schedule in due:
            schedule.due_ns, schedule.sent_ns = now_ns + _EVERY_NS, now_ns
        return due

    def received(self, schedule: HeartbeatSchedule, answer: HeartbeatReceived, sent_ns: int) -> None:
        """Schedule the next heartbeat by the answer, and tell the restart guard until when the present holders hold."""
        now_ns, command = self._clock.now_ns(), schedule.command
        if answer.near:
            schedule.due_ns = min(schedule.due_ns, sent_ns + _NEAR_EVERY_NS)
        if not answer.remaining_ms:
            return
        schedule.due_ns = min(schedule.due_ns, now_ns + answer.remaining_ms * NS_PER_MS)
        resource = pool_resource(command.name, command.kind) if isinstance(command, PoolHeartbeat) else command.name
        self._restart_guard.renewed(resource, sent_ns, now_ns + (answer.all_ms or answer.remaining_ms) * NS_PER_MS)

    def reclaimed(self, schedule: HeartbeatSchedule, answer: Reclaimed, reporter: Reporter) -> None:
        """Report what a search for dead consumers found, and schedule the next search by the answer."""
        now_ns, name = self._clock.now_ns(), schedule.command.name
        schedule.due_ns = now_ns + jittered_up(answer.next_ms * NS_PER_MS, now_ns)
        if answer.postponed:
            detail = "no client has looked for dead consumers for a long time, so all consumers get more time"
            reporter.emit("reclaim_postponed", name, detail=detail)
        if answer.consumers or answer.requeued or answer.dead_lettered:
            reporter.emit("reclaimed", name, detail=reclaim_shown(answer))


def reclaim_shown(answer: Reclaimed) -> str:
    """Return what was reclaimed, for people to read."""
    consumers = "1 consumer" if answer.consumers == 1 else f"{answer.consumers} consumers"
    messages = "1 message" if answer.requeued == 1 else f"{answer.requeued} messages"
    return f"{consumers}, {messages} ready again, {answer.dead_lettered} dead"


def undo_of_waiter(heartbeat: Command, token: str) -> Undo | UndoBorrow:
    """Return the command that removes a waiter from the waiting line that this heartbeat is for."""
    if isinstance(heartbeat, PoolHeartbeat):
        return UndoBorrow(heartbeat.name, token, heartbeat.kind)
    return Undo(heartbeat.name, token)
