"""The parent: start the program under its lease, and keep the timetable until the program has ended.

The supervisor releases the lease only when no process of the program's group is left. It passes on how the program
ended, unless the lease was lost: then it reports the loss.
"""

from __future__ import annotations

import select
import signal
import time
from typing import TYPE_CHECKING, NamedTuple

from holdfast import failpoints
from holdfast.cli import codes, errors
from holdfast.cli.run.program import Exit
from holdfast.cli.run.terminal import STOPS, Terminal
from holdfast.cli.run.watcher import Timetable, now_ns
from holdfast.cli.run.watcher_process import NoWatcher, WatcherProcess
from holdfast.clock import NS, NS_PER_MS
from holdfast.errors import LeaseLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.blocking import Lease
    from holdfast.cli.run.program import Program
    from holdfast.cli.run.signals import Signals

# The watcher acts first, so that a program seldom gets a signal twice.
_LAG_NS = 20 * NS_PER_MS
# After a lease was broken or lost in another way, the program has less than a second.
_LOST_GRACE_NS = 700 * NS_PER_MS
_STRAGGLER_POLL_S = 0.02
_SUCCESS = Exit(0, None)


class Plan(NamedTuple):
    """How long each step may take, in nanoseconds; `max_hold_ns` is `None` without a bound.

    `orphan_ns` is the time that the program has left when its parent is killed.
    """

    grace_ns: int
    lead_ns: int
    orphan_ns: int
    max_hold_ns: int | None


class RunResult(NamedTuple):
    """How the run ended: the program's exit, and the outcome `ended`, `lost` or `max-hold`.

    `started`: the program ran.
    """

    program: Exit
    outcome: str
    started: bool
    detail: str = ""

    @property
    def code(self) -> int:
        """The exit code."""
        return {"lost": codes.LOST, "max-hold": codes.MAX_HOLD}.get(self.outcome, self.program.shell)


class Supervisor:
    """Runs one program under one lease, and calls `on_success` before the release if the program succeeded."""

    def __init__(
        self, lease: Lease, program: Program, signals: Signals, plan: Plan, on_success: Callable[[], object]
    ) -> None:
        self._lease = lease
        self._on_success = on_success
        self._program = program
        self._signals = signals
        self._plan = plan
        self._terminal = Terminal()
        self._timetable = Timetable(max(0, plan.grace_ns - _LAG_NS), max(0, plan.lead_ns - _LAG_NS))
        self._began_ns = now_ns()
        self._cause = ""
        self._started = False
        self._restart_ns: int | None = None

    def deadline_ns(self) -> int:
        """Return the trusted deadline of the lease on the boot clock; rounding never makes it later."""
        at_ns = now_ns()
        return at_ns + int(self._lease.remaining() * NS)

    def run(self, variables: dict[str, str], liveness_fd: int | None) -> RunResult:
        """Start the program and wait for its end; return when its whole group has ended and the lease is released."""
        failpoints.point("run.granted")
        plan = self._plan
        watcher = WatcherProcess(self._program.pid, plan.grace_ns, plan.lead_ns, plan.orphan_ns, liveness_fd)
        try:
            watcher.start(self.deadline_ns())
            self._timetable.deadline_ns = self.deadline_ns()
            self._signals.forward()
            self._terminal.lend(self._program.pid)
            self._started = self._program.begin(variables, liveness_fd, self._timetable.term_ns())
            program = self._wait(watcher)
            self._end_stragglers()
        except BaseException:
            self._program.send(signal.SIGKILL)  # after any error, no process would supervise the program
            raise
        finally:
            # The watcher ends first: it must not find the program's pid in use by another process.
            watcher.end()
            self._program.collect()
            self._terminal.close()
        return self._release(program, acted=watcher.acted())

    def _wait(self, watcher: WatcherProcess) -> Exit:
        waiting = select.poll()
        waiting.register(self._signals, select.POLLIN)
        waiting.register(watcher, select.POLLIN)
        while (program := self._program.ended()) is None:
            self._keep_timetable()
            watcher.send(self._timetable.deadline_ns)
            waiting.poll(self._timetable.wait_ms(now_ns()))
            for number in self._signals.read():
                self._program.send(number)
            if watcher.running and not watcher.receive():
                waiting.unregister(watcher)
                self._replace(watcher)
            if self._restart_ns is not None and now_ns() >= self._restart_ns:
                self._replace(watcher)
                if watcher.running:
                    waiting.register(watcher, select.POLLIN)
            if watcher.acted():
                self._timetable.begin(now_ns())
            self._pass_on_stop()
        return program

    def _keep_timetable(self) -> None:
        at_ns = now_ns()
        if self._lease.lost:
            if self._timetable.begin(at_ns, _LOST_GRACE_NS):
                self._program.send(signal.SIGTERM)
        else:
            deadline_ns = self.deadline_ns()
            if deadline_ns > self._timetable.deadline_ns + NS_PER_MS:  # renewed; a smaller difference is rounding
                self._timetable.deadline_ns = deadline_ns
        limit_ns = self._plan.max_hold_ns
        if limit_ns is not None and at_ns >= self._began_ns + limit_ns and self._timetable.begin(at_ns):
            self._cause = "max-hold"
            self._program.send(signal.SIGTERM)
        number = self._timetable.due(at_ns)
        if number is not None:
            self._cause = self._cause or "late"
            self._program.send(number)

    def _replace(self, watcher: WatcherProcess) -> None:
        """Clean up after the watcher that died, or start the next one if its pause is over."""
        try:
            if self._restart_ns is None:
                self._restart_ns = watcher.next_start_ns()
            else:
                watcher.restart()
                self._restart_ns = None if watcher.running else watcher.next_start_ns()
        except NoWatcher as error:
            self._restart_ns = None
            # Without a watcher only the parent can end the program, and the parent may be frozen: end it now.
            errors.remark(f"{error}; the program is ended")
            self._cause = "late"
            if self._timetable.begin(now_ns()):
                self._program.send(signal.SIGTERM)

    def _pass_on_stop(self) -> None:
        """After Ctrl-Z take the terminal back and stop this process too, as the shell expects; the lease then expires.

        If the shell continues the job before the lease expires, this process and the program continue.
        """
        if self._program.stopped_by() in STOPS and self._terminal:
            self._terminal.take_back()
            self._signals.stop()
            self._terminal.lend(self._program.pid)
            self._program.send(signal.SIGCONT)

    def _end_stragglers(self) -> None:
        """End the processes that the program left in its group, because the lease is about to be released."""
        if not self._program.has_stragglers():
            return
        at_ns = now_ns()
        self._program.send(signal.SIGTERM)
        self._timetable.begin(at_ns)
        while self._program.has_stragglers():
            if self._timetable.due(now_ns()) == signal.SIGKILL:
                self._program.send(signal.SIGKILL)
            time.sleep(_STRAGGLER_POLL_S)

    def _release(self, program: Exit, *, acted: bool) -> RunResult:
        result = self._result(program, acted=acted)
        if result.outcome == "ended" and program == _SUCCESS:
            self._on_success()
        try:
            self._lease.release()
        except LeaseLost as lost:
            return RunResult(program, "lost", self._started, str(lost))
        return result

    def _result(self, program: Exit, *, acted: bool) -> RunResult:
        """Return the outcome, provided that the lease can still be released."""
        started = self._started
        if self._cause == "max-hold":
            return RunResult(program, "max-hold", started)
        # If a signal ended the child at the gate, its sender is the cause; otherwise this process opened the gate too
        # late.
        if acted or self._cause == "late" or not (started or program.signal):
            detail = f"lease {self._lease.name!r} could not be trusted to the end of the program"
            return RunResult(program, "lost", started, detail)
        return RunResult(program, "ended", started)
