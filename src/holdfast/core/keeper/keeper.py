"""The keeper: one thread per client that renews every lease of the client and reports losses.

The thread starts with the first lease and ends after ten idle seconds. It renews in batches, sends the heartbeats of
the client's waiters, and delivers interrupted undos and releases. The keeper refers to leases weakly, so it does not
renew a lease that the program has dropped. It serves both faces, so that a blocked event loop loses no lease.

An exchange leaves every lease time for another one, except for leases that are nearly lost: these have exchanges of
their own, so that they do not limit the others. If a deadline passes during an exchange, a second thread reports the
loss. User code never runs on the keeper's threads: see `reporter`.
"""

from __future__ import annotations

import _thread
import threading
import weakref
from bisect import bisect_left
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from holdfast.clock import NEVER_NS, NS, NS_PER_MS
from holdfast.commands import Answer, Command, HeartbeatReceived, NotHeld, ReleaseCommand
from holdfast.commands.queue import Leave, LeaveUnfinished, Reclaimed
from holdfast.core.keeper.heartbeats import WaiterHeartbeats, undo_of_waiter
from holdfast.core.keeper.outbox import PendingCommand, consumers_with_outcomes, emit_end, is_undo
from holdfast.core.keeper.reporter import Reporter
from holdfast.core.keeper.restart_guard import RestartGuard
from holdfast.core.lease.lease import LeaseBase
from holdfast.core.lease.state import HELD, LOSING, LOST, PENDING, lose_all
from holdfast.core.promise import PromiseWatch
from holdfast.core.resend import KEEPER, WIRE_NS
from holdfast.core.step import run
from holdfast.engines.interface import COMMANDS_PER_WRITE
from holdfast.errors import GONE, PASSING, LossReason, Unavailable, UnavailableReason
from holdfast.host import start_thread
from holdfast.rules import trust

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.clock import Clock
    from holdfast.core.lease.state import LeaseCore
    from holdfast.engines import Reply, Transport
    from holdfast.observer import Observer, OutageLog

_RETRY_NS = KEEPER.shortest_ns
_CONFIRM_NS = 500 * NS_PER_MS
_RETRY_MIN_NS = 10 * NS_PER_MS
# The shortest time limit of an exchange: `_LIMIT_FACTOR` times the usual duration, within these bounds. A lease that
# has less than twice this time left is nearly lost.
_LIMIT_MIN_NS, _LIMIT_MAX_NS, _LIMIT_FACTOR = 300 * NS_PER_MS, WIRE_NS // 2, 4
_TOO_EARLY = "before its ttl was over: the engine has forgotten it, or its clock has jumped"
_JOIN_S = 1.0
_IDLE_MAX_NS = 10 * NS
# An idle keeper checks its leases once a second. So a short lease need not wake the keeper: the next check is in time.
_POLL_NS = NS
# Work that is due later than this after the beginning of a round need not wake the keeper during the round.
_SOON_NS = 3 * _POLL_NS
_EARLY_FROM_MS = 4 * trust.RENEW_MIN_MS


class Keeper:
    """Renews leases, sends heartbeats, delivers pending commands and reports losses."""

    def __init__(
        self,
        transport: Transport,
        clock: Clock,
        observer: Observer | None,
        restart_guard: RestartGuard,
        outages: OutageLog,
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._observer = observer
        self._outages = outages
        self._restart_guard = restart_guard
        self._on_idle: Callable[[], object] | None = None
        self.forked()

    def forked(self) -> None:
        """Start over without a thread and without a lease."""
        self.guard = threading.RLock()
        self.leases: dict[str, weakref.ref[Any]] = {}  # by token, from before its first byte is sent
        self._heartbeats = WaiterHeartbeats(self._clock, self.guard, self._restart_guard)
        self._inbox: deque[PendingCommand] = deque()  # any thread may append, at any time
        self._outbox: list[PendingCommand] = []  # only the keeper's thread uses this list
        self._waker = self._transport.waker()
        self.thread: threading.Thread | None = None
        self._ending: threading.Thread | None = None
        self._stopping = self._last_round = False  # after the last round the keeper does not resend
        self.wake_ns = NEVER_NS  # when the sleep of the thread ends without a wake-up; never while it works
        self.wakes_before_ns = NEVER_NS  # work that is due before this moment has to wake the thread
        self._usual_ns = 0  # how long an exchange usually takes
        self._in_exchange = False
        self._loss_waker = self._transport.waker()
        self._loss_thread: threading.Thread | None = None  # reports losses during an exchange
        self._watches_losses = False
        self._loss_guard = threading.Lock()
        self._dropped: deque[tuple[PendingCommand | None, str, int | None]] = deque()
        self.reporter = Reporter(self._observer, self._clock, self._transport.waker(), self._report_idle)
        self._renew_all_now = False  # the engine reported an event: renew every lease now
        self.promise_watch = PromiseWatch(self._transport, self.reporter)

    # Called by leases and operations, on any thread.

    def wake_by(self, at_ns: int) -> None:
        """Make sure that the thread is awake at `at_ns`."""
        if at_ns < self.wakes_before_ns:
            self.wake()

    def forget(self, lease: LeaseCore) -> None:
        """Stop keeping a lease that has ended."""
        self.leases.pop(lease.token, None)
        if self._on_idle is not None:
            self._on_idle()

    def undo(self, lease: LeaseCore) -> None:
        """Take back a lease that no caller has."""
        self._deliver_for(lease, lease.undo_command())
        self.forget(lease)

    def finish_release(self, lease: LeaseCore, command: ReleaseCommand) -> None:
        """Keep sending a release that was not answered, until the ttl has passed."""
        self._deliver_for(lease, command)
        self.forget(lease)

    def deliver_later(
        self, command: Command, lasts_ns: int, on_answer: Callable[[Answer], object] | None = None
    ) -> None:
        """Keep sending a command until the engine answers, for `lasts_ns` at most; then call `on_answer`."""
        until_ns = self._clock.now_ns() + lasts_ns
        self._deliver(PendingCommand(command, until_ns, command.name, on_answer=on_answer))

    def undelivered(self, kind: type[Command], name: str) -> list[Command]:
        """Return the commands of this kind and name that have not reached the engine yet."""
        if not self._inbox and not self._outbox:
            return []
        commands = [pending.command for pending in (*self._inbox, *self._outbox)]
        return [command for command in commands if isinstance(command, kind) and command.name == name]

    def has_pending_outcomes(self, token: str) -> bool:
        """Return whether outcomes of this consumer's messages have not reached the engine yet."""
        return token in consumers_with_outcomes([*self._inbox, *self._outbox])

    def drop(self, lease: LeaseCore) -> None:
        """Handle a lease whose last reference is gone: undo it if no caller ever had it; otherwise let it expire.

        The garbage collector may run this method between any two steps of any thread, under any lock of the program.
        So it takes no lock and runs no user code; the thread does the rest.
        """
        undo = None
        if lease.was_sent and not lease.delivered:
            undo = self._pending_for(lease, lease.undo_command())
        self.leases.pop(lease.token, None)
        self._dropped.append((undo, lease.identity.shown, lease.fence_or_none))
        if self.thread is None:
            with suppress(RuntimeError):  # no room for a thread: the next lease starts one
                _thread.start_new_thread(self._wake_if_possible, ())
        self._waker.wake()

    def _handle_dropped(self) -> None:
        while self._dropped:
            undo, name, fence = self._dropped[0]
            if undo is not None:
                self._inbox.append(undo)
            else:
                self.reporter.emit("abandoned", name, fence)
            self._dropped.popleft()
            self._report_idle()

    def start_heartbeat(self, lease: LeaseCore, remaining_ms: int, holder: str) -> None:
        """Send heartbeats for a waiter; the present lease ends in `remaining_ms`."""
        self.wake_by(self._heartbeats.begin(lease, remaining_ms, holder))

    def schedule_heartbeat(self, lease: LeaseCore, due_ns: int) -> None:
        """Send the heartbeat of this lease at `due_ns`, and again whenever its answer asks for it."""
        self._heartbeats.schedule(lease, due_ns)
        self.wake_by(due_ns)

    def send_heartbeats_soon(self) -> None:
        """React to a wake-up for an unknown token: the next heartbeats show which name it was for."""
        now_ns = self._clock.now_ns()
        self._heartbeats.send_soon(now_ns, _RETRY_NS)
        self.wake_by(now_ns)

    def stop_heartbeat(self, lease: LeaseCore) -> None:
        """Send no more heartbeats for this lease."""
        self._heartbeats.end(lease)

    def live_leases(self) -> list[LeaseBase]:
        """Return every lease that is pending or held."""
        # Copy first: a lease that the program drops during the loop changes the dictionary.
        leases: list[LeaseBase | None] = [ref() for ref in self.leases.copy().values()]
        return [lease for lease in leases if lease is not None]

    def idle(self, *, ignore_undos: bool = False) -> bool:
        """Return whether no lease and no command is left. `ignore_undos`: the ttl has the same effect as an undo."""
        dropped = [undo for undo, _, _ in self._dropped.copy() if undo is not None]
        pending = (*dropped, *self._inbox, *self._outbox)
        commands = [each for each in pending if not ignore_undos or not is_undo(each.command)]
        return not commands and not self.live_leases()

    def on_idle(self, call: Callable[[], object]) -> None:
        """Call `call` whenever a lease or the last command has ended."""
        self._on_idle = call

    def stop(self) -> None:
        """Send every pending command once more, and end the thread."""
        self._stopping = True
        self._waker.wake()
        self._loss_waker.wake()

    def stopped(self) -> bool:
        """Return whether the threads have ended, after the observer has heard of every event."""
        if self.thread is not None:
            return False
        ending = self._ending
        if ending is not None:
            ending.join(_JOIN_S)  # it is about to return
            if ending.is_alive():
                return False
        if self._loss_thread is not None:
            self._loss_thread.join(_JOIN_S)
        self.reporter.stop()
        return self.reporter.stopped()

    def runs_here(self) -> bool:
        """Return whether this thread is the keeper's."""
        return threading.current_thread() is self.thread

    def wake(self) -> None:
        """Wake the thread; start it if there is none, or raise `Unavailable` if the system refuses a thread."""
        with self.guard:
            if (self.thread is None or not self.thread.is_alive()) and not self._stopping:
                self._transport.on_unknown_wakeup(self.send_heartbeats_soon)
                self.thread = threading.Thread(target=self._work, name="holdfast-keeper", daemon=True)
                try:
                    start_thread(self.thread, "keeper")
                except Unavailable:
                    self.thread = None
                    raise
        self._waker.wake()

    # The thread.

    def _work(self) -> None:
        """Run rounds until the keeper is stopped, or has been idle for `_IDLE_MAX_NS`."""
        idle_since_ns = self._clock.now_ns()
        while True:
            # The keeper checks again a second after this round. If every new lease woke the keeper during a round,
            # thousands of leases that are acquired one after the other would cause rounds without end.
            self.wake_ns, self.wakes_before_ns = NEVER_NS, self._clock.now_ns() + _SOON_NS
            try:
                self._round()
                self.wakes_before_ns = NEVER_NS  # from here on, new work wakes the thread
                now_ns = self._clock.now_ns()
                wake_ns = self._next_ns(now_ns)
                if wake_ns < NEVER_NS:
                    idle_since_ns = now_ns
                over = not self._outbox if self._stopping else now_ns - idle_since_ns >= _IDLE_MAX_NS
                if over and self._retire(now_ns):
                    break
            except BaseException as error:  # no error may end the thread
                self.reporter.log_error("holdfast: unexpected error in the keeper thread; the thread continues", error)
                wake_ns = now_ns = self._clock.now_ns() + _POLL_NS
            self.wake_ns = self.wakes_before_ns = min(wake_ns, now_ns + _POLL_NS)
            run(self._waker.wait(self.wake_ns))
        self._report_idle()

    def _round(self) -> None:
        """Do all work that is due, once.

        The keeper reports losses before and after every exchange.
        """
        self._handle_dropped()
        for step in (self._watch_engine, self._renew, self._deliver_outbox, self._send_heartbeats):
            self._report_expired()
            step(self._clock.now_ns())
            self._renew_all_now = self.promise_watch.report_events() or self._renew_all_now
        self._report_expired()

    def _report_expired(self) -> None:
        now_ns = self._clock.now_ns()
        expired = [lease for lease in self.live_leases() if lease.state is HELD and lease.deadline_ns <= now_ns]
        if expired:
            lose_all(expired[0].client, [(lease, LossReason.EXPIRED, lease.trouble) for lease in expired])

    def _watch_engine(self, now_ns: int) -> None:
        """Check that the same engine answers, if a lease was held or waited for longer than a second."""
        begun = self._heartbeats.begun_ns()
        begun += [lease.since_ns for lease in self.live_leases() if lease.state is HELD]
        if begun and min(begun) <= now_ns - _POLL_NS:
            with self._exchange() as bound_ns:
                self.promise_watch.watch(now_ns, bound_ns)

    def _send_all(
        self,
        commands: list[Command],
        *,
        confirm: bool = False,
        renews: bool = False,
        nearly_lost_ns: int | None = None,
    ) -> list[Reply]:
        """Send the commands; return an answer or an error for each. Never raises.

        `renews`: the commands are renewals. `nearly_lost_ns`: the latest deadline among the leases, if they are nearly
        lost; otherwise `None`.
        """
        began_ns = self._clock.now_ns()
        try:
            with self._exchange(renews=renews, nearly_lost_ns=nearly_lost_ns) as bound_ns:
                if confirm:
                    answers = run(self._transport.confirm(commands, min(bound_ns, began_ns + _CONFIRM_NS)))
                else:
                    answers = run(self._transport.apply_all(commands, bound_ns))
        except Unavailable as error:
            return [error] * len(commands)
        except Exception as error:
            self.reporter.log_error("holdfast: unexpected error in the engine", error)
            return [Unavailable("engine", UnavailableReason.FAILED, repr(error))] * len(commands)
        now_ns = self._clock.now_ns()
        if not any(isinstance(answer, Unavailable) for answer in answers):
            self._usual_ns += (now_ns - began_ns - self._usual_ns) // 4
            if self._outages.open:
                for line in self._outages.over(now_ns):
                    self.reporter.log_line(line)
        return answers

    @contextmanager
    def _exchange(self, *, renews: bool = False, nearly_lost_ns: int | None = None) -> Iterator[int]:
        """Enter an exchange, and yield the time at which it must end.

        If a lease may expire earlier, start the thread that reports losses during the exchange.
        """
        bound_ns, first_ns = self._bound_ns(renews=renews)
        if nearly_lost_ns is not None:
            now_ns, shortest_ns = self._clock.now_ns(), self._shortest_limit_ns()
            bound_ns = now_ns + max(shortest_ns // 2, min(shortest_ns, (nearly_lost_ns - now_ns) // 2))
        self._in_exchange = True
        try:
            # Connecting may take as long again as the exchange.
            if first_ns < 2 * bound_ns - self._clock.now_ns():
                self._report_losses_meanwhile()
            yield bound_ns
        finally:
            self._in_exchange = False

    def _report_losses_meanwhile(self) -> None:
        with self._loss_guard:
            if not self._watches_losses:
                self._watches_losses = True
                self._loss_thread = threading.Thread(target=self._report_losses, name="holdfast-losses", daemon=True)
                try:
                    self._loss_thread.start()
                except RuntimeError:  # no room for a thread: the keeper reports the losses after the exchange
                    self._loss_thread, self._watches_losses = None, False
        self._loss_waker.wake()

    def _report_losses(self) -> None:
        """Report the losses of an exchange that lasts beyond a deadline, until it has ended."""
        while True:
            while self._in_exchange and not self._stopping:
                wake_ns = self._clock.now_ns() + _POLL_NS
                try:
                    self._report_expired()
                    held = [lease.deadline_ns for lease in self.live_leases() if lease.state is HELD]
                    wake_ns = min([*held, wake_ns])
                except BaseException as error:  # no error may end the thread
                    self.reporter.log_error("holdfast: unexpected error in a report of losses", error)
                run(self._loss_waker.wait(wake_ns))
            with self._loss_guard:  # either this thread sees the next exchange, or that exchange starts another thread
                if self._stopping or not self._in_exchange:
                    self._watches_losses = False
                    return

    def _shortest_limit_ns(self) -> int:
        """Return the shortest time limit of an exchange, so that a slow network is no reason for it to fail."""
        return min(_LIMIT_MAX_NS, max(_LIMIT_MIN_NS, _LIMIT_FACTOR * self._usual_ns))

    def _retire(self, now_ns: int) -> bool:
        """End the thread and its connections, unless new work has arrived."""
        run(self._transport.close())  # the transport opens again at its next use
        with self.guard:
            self.wakes_before_ns = NEVER_NS  # from now on, all work wakes the thread
            # Under the guard: either this check sees a new lease, or the new lease sees no thread and starts another.
            if not self._stopping and self._next_ns(now_ns) < NEVER_NS:
                return False
            self._ending, self.thread = self.thread, None
            return True

    def _next_ns(self, now_ns: int) -> int:
        ends = [min(lease.due_ns, lease.deadline_ns) for lease in self.live_leases() if lease.state is HELD]
        ends += [pending.due_ns for pending in self._outbox]
        ends += self._heartbeats.due_times_ns()
        if self._inbox or self._dropped:
            ends.append(now_ns)
        # There is always a pause between two rounds, so that the keeper does not flood an engine in trouble.
        return max(min(ends), now_ns + NS_PER_MS) if ends else NEVER_NS

    def _deliver_outbox(self, now_ns: int) -> None:
        """Send the pending undos, releases and outcomes that are due, in one exchange."""
        self._last_round = self._stopping
        while self._inbox:
            self._outbox.append(self._inbox[0])  # append first: at every moment the command is in one of the two
            self._inbox.popleft()
        due: list[PendingCommand] = []
        later: list[PendingCommand] = []
        # A consumer's Leave waits for its outcomes: Leave would make a message that was already processed ready again.
        busy = consumers_with_outcomes(self._outbox)
        for pending in self._outbox:
            if isinstance(pending.command, Leave) and pending.command.token in busy:
                pending.due_ns = now_ns + _RETRY_NS
                later.append(pending)
            else:
                (due if pending.due_ns <= now_ns or self._last_round else later).append(pending)
        if due:
            self._outbox = later + self._undelivered(due, self._send_all([pending.command for pending in due]))
        if not self._outbox:
            self._report_idle()

    def _undelivered(self, sent: list[PendingCommand], answers: list[Reply]) -> list[PendingCommand]:
        """Return the commands that must be sent again. Report an error once, even if it affects several commands."""
        left: list[PendingCommand] = []
        reported: Unavailable | None = None
        for pending, answer in zip(sent, answers, strict=True):
            if isinstance(answer, LeaveUnfinished):  # the next round continues: the keeper renews leases in between
                left.append(pending)
                continue
            if not isinstance(answer, Unavailable):
                emit_end(self.reporter, pending, answer, self._clock.now_ns())
                if pending.on_answer is not None:
                    pending.on_answer(answer)
                continue
            if answer is not reported:
                reported = answer
                self._report_trouble("unavailable", pending.name, str(answer))
            pending.due_ns = self._clock.now_ns() + _RETRY_NS
            if self._try_again(pending, answer):
                left.append(pending)
            else:
                self.reporter.emit("delivery_abandoned", pending.name, pending.fence, detail=str(answer))
        return left

    def _report_trouble(self, kind: str, name: str, why: str, fence: int | None = None) -> None:
        self.reporter.emit(kind, name, fence, detail=why, count=self._outages.count(kind, self._clock.now_ns()))

    def _try_again(self, pending: PendingCommand, error: Unavailable) -> bool:
        """Return whether to send the command again.

        A lease that was not undone expires by its ttl, so the keeper stops then. A place in a waiting line lasts as
        long as the client sends heartbeats for the name, so its undo must be sent for as long.
        """
        if self._last_round or error.reason in GONE:
            return False
        if is_undo(pending.command) and self._heartbeats.waits_for(pending.command.name):
            pending.until_ns = max(pending.until_ns, pending.due_ns + trust.HEARTBEAT_MS * NS_PER_MS)
        return pending.due_ns < pending.until_ns

    def _renew(self, now_ns: int) -> None:
        """Renew the leases that are due now or soon, in as few exchanges as possible."""
        every, self._renew_all_now = self._renew_all_now, False
        due = [lease for lease in self.live_leases() if lease.state is HELD and (every or _due(lease, now_ns))]
        failed = False
        for confirm in (False, True):
            leases = sorted((lease for lease in due if lease.confirm is confirm), key=_end_ns)
            at = bisect_left(leases, now_ns + 2 * self._shortest_limit_ns(), key=_end_ns)
            # The most urgent leases come first, in batches: a nearly lost lease must not delay or limit the others.
            for group, nearly_lost in ((leases[:at], True), (leases[at:], False)):
                for start in range(0, len(group), COMMANDS_PER_WRITE):
                    batch = group[start : start + COMMANDS_PER_WRITE]
                    answered = self._renew_batch(batch, confirm=confirm, nearly_lost=nearly_lost)
                    self._report_expired()
                    if answered and failed:  # the server is back: the next round begins with the most urgent leases
                        self._renew_all_now = every
                        return
                    failed = failed or not answered

    def _renew_batch(self, leases: list[LeaseBase], *, confirm: bool, nearly_lost: bool) -> bool:
        """Renew these leases in one exchange, and apply each answer to its lease; return false if there was none.

        `nearly_lost`: they are nearly lost.
        """
        sent_ns = self._clock.now_ns()
        # The holder trusts the lease for the ttl in the command, even if another thread changes the ttl of the lease.
        sent = [(lease, lease.ttl_ms) for lease in leases]
        commands = [lease.renew_command(ttl_ms) for lease, ttl_ms in sent]
        nearly_lost_ns = _end_ns(leases[-1]) if nearly_lost else None
        answers = self._send_all(commands, confirm=confirm, renews=True, nearly_lost_ns=nearly_lost_ns)
        losses: list[tuple[LeaseCore, str, str]] = []
        for (lease, ttl_ms), answer in zip(sent, answers, strict=True):
            if isinstance(answer, NotHeld):
                losses.append(self._not_held(lease, answer, sent_ns))
            elif isinstance(answer, Unavailable) and answer.reason in GONE:
                losses.append((lease, answer.reason, str(answer)))
            elif isinstance(answer, Unavailable):
                self._not_renewed(lease, answer)
            elif lease.state is HELD:
                left_s = (lease.deadline_ns - self._clock.now_ns()) / NS
                kind = "renewed_late" if left_s * 3 < lease.ttl else "renewed"
                lease.renewed(sent_ns, ttl_ms)
                self.reporter.emit(kind, lease.identity.shown, lease.fence_or_none, left_s)
        if losses:  # together, and after the renewals: the keeper waits for the observer once, and not for each loss
            lose_all(losses[0][0].client, losses)
        return not all(isinstance(answer, Unavailable) for answer in answers)

    def _not_held(self, lease: LeaseBase, answer: NotHeld, sent_ns: int) -> tuple[LeaseCore, str, str]:
        """Return the loss of a lease that the engine no longer has: the lease, the reason and the detail."""
        detail = answer.detail
        if answer.reason == LossReason.EXPIRED:
            until_ns = lease.deadline_ns + lease.cooldown_ns
            self._restart_guard.forgotten(lease.identity.resource, lease.fence_or_none, until_ns)
            if sent_ns < lease.deadline_ns:
                detail = detail or _TOO_EARLY
        return lease, answer.reason, detail

    def _not_renewed(self, lease: LeaseBase, error: Unavailable) -> None:
        self._report_trouble("renewal_failed", lease.identity.shown, str(error), lease.fence_or_none)
        lease.not_renewed(str(error), self._clock.now_ns() + self._pause_ns(lease, error))

    def _pause_ns(self, lease: LeaseBase, error: Unavailable) -> int:
        """Return how long to wait before the next renewal: longer if only an operator can help."""
        left_ns = lease.deadline_ns - self._clock.now_ns()
        if error.reason in PASSING:
            return max(_RETRY_MIN_NS, min(_RETRY_NS, left_ns // 4))
        return max(_RETRY_NS, min(KEEPER.longest_ns, left_ns // 4))

    def _send_heartbeats(self, now_ns: int) -> None:
        """Send the heartbeats that are due in one exchange, and apply each answer."""
        due = self._heartbeats.due(now_ns)
        answers = self._send_all([schedule.command for schedule in due]) if due else []
        for schedule, answer in zip(due, answers, strict=True):
            name = schedule.command.name
            if isinstance(answer, Unavailable):
                self._report_trouble("unavailable", name, str(answer))
            elif isinstance(answer, Reclaimed):
                self._heartbeats.reclaimed(schedule, answer, self.reporter)
            elif isinstance(answer, HeartbeatReceived):
                self._heartbeats.received(schedule, answer, now_ns)
                if answer.offered in self.leases:
                    self._transport.wake(answer.offered)  # the engine's own wake-up may have been lost
                elif answer.offered:
                    # That waiter has ended, but the server does not know: a failover lost the undo.
                    undo = undo_of_waiter(schedule.command, answer.offered)
                    self._inbox.append(PendingCommand(undo, now_ns + NS, name))

    def _bound_ns(self, *, renews: bool) -> tuple[int, int]:
        """Return the time limit of an exchange, and the earliest deadline of a held lease.

        The limit leaves every lease time for a second exchange, on a fresh connection or with another server. A nearly
        lost lease has no time for two: it reduces the limit to `_shortest_limit_ns`, and does not reduce the limit of
        other leases' renewals.
        """
        now_ns = self._clock.now_ns()
        bound_ns, shortest_ns, first_ns = now_ns + WIRE_NS, now_ns + self._shortest_limit_ns(), NEVER_NS
        for lease in self.live_leases():
            end_ns = _end_ns(lease)
            if lease.state is HELD and end_ns > now_ns:
                first_ns = min(first_ns, end_ns)
                latest_ns = (max(now_ns, lease.due_ns) + end_ns) // 2
                if latest_ns < bound_ns:
                    if latest_ns >= shortest_ns:
                        bound_ns = latest_ns
                    elif not renews:
                        bound_ns = shortest_ns
        return bound_ns, first_ns

    def _deliver_for(self, lease: LeaseCore, command: Command) -> None:
        if lease.was_sent or lease.state is not PENDING:
            self._deliver(self._pending_for(lease, command))

    def _pending_for(self, lease: LeaseCore, command: Command) -> PendingCommand:
        # The lease ends on the engine one ttl after the engine applied the last acquire or renewal. Assume that this
        # happened just now: the answer to a renewal may be lost or late.
        until_ns = self._clock.now_ns() + max(NS, lease.ttl_ms * NS_PER_MS)
        # The keeper has already reported a loss.
        since_ns = 0 if lease.state is LOST or lease.state is LOSING else lease.since_ns
        return PendingCommand(command, until_ns, lease.identity.shown, lease.fence_or_none, since_ns)

    def _report_idle(self) -> None:
        if self._on_idle is not None:
            self._on_idle()

    def _deliver(self, pending: PendingCommand) -> None:
        self._inbox.append(pending)
        self._wake_if_possible()

    def _wake_if_possible(self) -> None:
        with suppress(Unavailable):  # no thread can start now: the next lease starts one
            self.wake()


def _end_ns(lease: LeaseBase) -> int:
    """Return until when the lease can be trusted without a renewal."""
    return min(lease.deadline_ns, lease.doubt_ns)


def _due(lease: LeaseBase, now_ns: int) -> bool:
    """Return whether a renewal is due now, or so soon that it may share an exchange with the others."""
    after_ms = trust.renew_after_ms(lease.ttl_ms)
    early_ns = after_ms * NS_PER_MS // 4 if after_ms >= _EARLY_FROM_MS else 0
    return lease.due_ns - early_ns <= now_ns
