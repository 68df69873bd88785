"""The parent: gets the lease, lets the program go, and keeps the timetable until it has ended.

The lease is given back only when nothing of the program's group is left. What the program says of itself is passed on,
unless the lease was lost: then that is what has to be told.
"""

from __future__ import annotations

import select
import signal
import time
from typing import TYPE_CHECKING, NamedTuple

from holdfast import failpoints
from holdfast.cli import codes, failing
from holdfast.cli.run.guard import Guard, NoWatcher
from holdfast.cli.run.program import Exit
from holdfast.cli.run.terminal import STOPS, Terminal
from holdfast.cli.run.watcher import Timetable, now_ns
from holdfast.clock import NS, NS_PER_MS
from holdfast.errors import LeaseLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.blocking import Lease
    from holdfast.cli.run.program import Program
    from holdfast.cli.run.signals import Signals

# The watcher acts first, so that a program is seldom told twice.
_LAG_NS = 20 * NS_PER_MS
# After a lease was broken, or is otherwise gone, the program has less than a second.
_LOST_GRACE_NS = 700 * NS_PER_MS
_CLEARING_S = 0.02
_SUCCESS = Exit(0, None)


class Plan(NamedTuple):
    """How long things may take, in nanoseconds; `max_hold_ns` may be without bound.

    `orphan_ns` is what the program has left when its parent is killed.
    """

    grace_ns: int
    lead_ns: int
    orphan_ns: int
    max_hold_ns: int | None


class Ended(NamedTuple):
    """How it ended: the program, and the outcome in a word: ended, lost, max-hold. Not every program began."""

    program: Exit
    outcome: str
    started: bool
    detail: str = ""

    @property
    def code(self) -> int:
        return {"lost": codes.LOST, "max-hold": codes.MAX_HOLD}.get(self.outcome, self.program.shell)


class Supervisor:
    """One program under one lease."""

    def __init__(
        self, lease: Lease, program: Program, signals: Signals, plan: Plan, succeeded: Callable[[], object]
    ) -> None:
        self._lease = lease
        self._succeeded = succeeded
        self._program = program
        self._signals = signals
        self._plan = plan
        self._terminal = Terminal()
        self._timetable = Timetable(max(0, plan.grace_ns - _LAG_NS), max(0, plan.lead_ns - _LAG_NS))
        self._began_ns = now_ns()
        self._why = ""
        self._started = False
        self._again_ns: int | None = None

    def deadline_ns(self) -> int:
        """Until when the lease is trusted, as seen now; never later than it is."""
        at_ns = now_ns()
        return at_ns + int(self._lease.remaining() * NS)

    def run(self, variables: dict[str, str], liveness_fd: int | None) -> Ended:
        """Let the program go and see it through; returns when nothing of it is left and the lease is given back."""
        failpoints.point("run.granted")
        plan = self._plan
        guard = Guard(self._program.pid, plan.grace_ns, plan.lead_ns, plan.orphan_ns, liveness_fd)
        try:
            guard.start(self.deadline_ns())
            self._timetable.deadline_ns = self.deadline_ns()
            self._signals.forward()
            self._terminal.lend(self._program.pid)
            self._started = self._program.begin(variables, liveness_fd, self._timetable.term_ns())
            program = self._until_ended(guard)
            self._clear()
        except BaseException:
            self._program.send(signal.SIGKILL)  # whatever it was, nobody would see the program through
            raise
        finally:
            # The watcher goes first: it must not find the program's number at work for somebody else.
            guard.end()
            self._program.reap()
            self._terminal.close()
        return self._give_back(program, acted=guard.acted())

    def _until_ended(self, guard: Guard) -> Exit:
        waiting = select.poll()
        waiting.register(self._signals, select.POLLIN)
        waiting.register(guard, select.POLLIN)
        while (program := self._program.ended()) is None:
            self._keep_timetable()
            guard.tell(self._timetable.deadline_ns)
            waiting.poll(self._timetable.wait_ms(now_ns()))
            for number in self._signals.come():
                self._program.send(number)
            if guard.watches and not guard.hear():
                waiting.unregister(guard)
                self._watch_again(guard)
            if self._again_ns is not None and now_ns() >= self._again_ns:
                self._watch_again(guard)
                if guard.watches:
                    waiting.register(guard, select.POLLIN)
            if guard.acted():
                self._timetable.begin(now_ns())
            self._pass_on_a_stop()
        return program

    def _keep_timetable(self) -> None:
        at_ns = now_ns()
        if self._lease.lost:
            if self._timetable.begin(at_ns, _LOST_GRACE_NS):
                self._program.send(signal.SIGTERM)
        else:
            deadline_ns = self.deadline_ns()
            if deadline_ns > self._timetable.deadline_ns + NS_PER_MS:  # renewed: less is the error of looking
                self._timetable.deadline_ns = deadline_ns
        limit_ns = self._plan.max_hold_ns
        if limit_ns is not None and at_ns >= self._began_ns + limit_ns and self._timetable.begin(at_ns):
            self._why = "max-hold"
            self._program.send(signal.SIGTERM)
        number = self._timetable.due(at_ns)
        if number is not None:
            self._why = self._why or "late"
            self._program.send(number)

    def _watch_again(self, guard: Guard) -> None:
        """Bury the watcher that died, or start the next one if it is time."""
        try:
            if self._again_ns is None:
                self._again_ns = guard.buried()
            else:
                guard.restart()
                self._again_ns = None if guard.watches else guard.buried()
        except NoWatcher as trouble:
            self._again_ns = None
            # We alone would have to be trusted, and we may be frozen: that is not what was promised.
            failing.remark(f"{trouble}; the program is ended")
            self._why = "late"
            if self._timetable.begin(now_ns()):
                self._program.send(signal.SIGTERM)

    def _pass_on_a_stop(self) -> None:
        """Ctrl-Z: give the terminal back and stop as well, as the shell expects; the lease then runs out.

        Woken before that, both go on.
        """
        if self._program.stopped_by() in STOPS and self._terminal:
            self._terminal.take_back()
            self._signals.stop()
            self._terminal.lend(self._program.pid)
            self._program.send(signal.SIGCONT)

    def _clear(self) -> None:
        """The leader has ended; what it left in its group is ended too, for the lease is about to be given back."""
        if not self._program.stragglers():
            return
        at_ns = now_ns()
        self._program.send(signal.SIGTERM)
        self._timetable.begin(at_ns)
        while self._program.stragglers():
            if self._timetable.due(now_ns()) == signal.SIGKILL:
                self._program.send(signal.SIGKILL)
            time.sleep(_CLEARING_S)

    def _give_back(self, program: Exit, *, acted: bool) -> Ended:
        ended = self._outcome(program, acted=acted)
        if ended.outcome == "ended" and program == _SUCCESS:
            self._succeeded()
        try:
            self._lease.release()
        except LeaseLost as lost:
            return Ended(program, "lost", self._started, str(lost))
        return ended

    def _outcome(self, program: Exit, *, acted: bool) -> Ended:
        """How it went, as long as the lease is there to be given back."""
        started = self._started
        if self._why == "max-hold":
            return Ended(program, "max-hold", started)
        # Who died at the gate by a signal was ended by whoever sent it; else the gate was opened too late.
        if acted or self._why == "late" or not (started or program.signal):
            return Ended(program, "lost", started, f"lease {self._lease.name!r} could not be vouched for to the end")
        return Ended(program, "ended", started)
