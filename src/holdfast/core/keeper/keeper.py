"""The keeper: one thread per client that renews every lease of the process and tells losses.

It starts with the first lease and ends when it has long had nothing to do. It renews in batches, marks the client's
waiters as alive, and finishes undos and releases that were interrupted. It holds leases weakly: one that everybody
dropped is no longer renewed. It serves both faces, so that a blocked event loop loses no lease.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING

from holdfast.clock import NEVER_NS, NS, NS_PER_MS
from holdfast.commands import Command, HeartbeatReceived, NotHeld, ReleaseCommand, Undo, UndoBorrow
from holdfast.commands.queue import Leave, LeaveUnfinished, Reclaimed
from holdfast.core.keeper.heartbeats import WaiterHeartbeats, undoing
from holdfast.core.keeper.outbox import PendingCommand, Sparing, concluding, is_undo, tell_end
from holdfast.core.keeper.restart_guard import RestartGuard
from holdfast.core.lease.lease import ASKING, HELD, LOST, LeaseBase
from holdfast.core.promise import PromiseWatch
from holdfast.core.step import run
from holdfast.errors import GONE, PASSING, Unavailable
from holdfast.observer import Observer, emit, log
from holdfast.rules import trust

if TYPE_CHECKING:
    from holdfast.clock import Clock
    from holdfast.engines import Reply, Transport

WIRE_NS = 2 * NS
_RETRY_NS = 100 * NS_PER_MS
_CONFIRM_NS = 500 * NS_PER_MS
# Every exchange has at least so long, however late it is for another lease.
_TURN_NS = 50 * NS_PER_MS
_AT_ONCE = 1000
_TOO_SOON = "before its time: the engine has forgotten it, or its clock has jumped"
_JOIN_S = 1.0
_LINGER_NS = 10 * NS
# While it lingers it looks once a second, so that a short lease need not wake it: it comes by before anything is due.
_LOOK_NS = NS
# What is due later than this after the beginning of a round need not be heard of before its end.
_SOON_NS = 3 * _LOOK_NS
_EARLY_FROM_MS = 4 * trust.RENEW_MIN_MS


class Keeper:
    """Renews, marks, undoes, and tells."""

    def __init__(
        self, transport: Transport, clock: Clock, observer: Observer | None, restart_guard: RestartGuard
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._observer = observer
        self._restart_guard = restart_guard
        self._on_idle = _nobody
        self.forked()

    def forked(self) -> None:
        """Begin anew: without a thread, without a lease."""
        self.guard = threading.RLock()
        self.leases: dict[str, weakref.ref[LeaseBase]] = {}  # by token, from before its first byte is sent
        self._heartbeats = WaiterHeartbeats(self._clock, self.guard, self._restart_guard)
        self._inbox: deque[PendingCommand] = deque()  # anybody may add to it, at any time
        self._outbox: list[PendingCommand] = []  # the thread's own
        self._waker = self._transport.waker()
        self._thread: threading.Thread | None = None
        self._ending: threading.Thread | None = None
        self._stopping = self._last = False  # nothing is tried again in the last round
        self.wake_ns = NEVER_NS  # when it wakes by itself; never while it is at work
        self.wakes_before_ns = NEVER_NS  # whatever is due before this has to ring
        self._sparing = Sparing()
        self._renew_all_now = False  # something has happened to the engine: every lease is to be renewed now
        self.promise_watch = PromiseWatch(self._transport, self._observer)

    # What leases and operations say.

    def due(self, at_ns: int) -> None:
        """Something will be due then; wake up for it."""
        if at_ns < self.wakes_before_ns:
            self.wake()

    def forget(self, lease: LeaseBase) -> None:
        """The lease has ended; nothing more is to be done for it."""
        self.leases.pop(lease.token, None)
        self._on_idle()

    def undo(self, lease: LeaseBase) -> None:
        """Nobody owns what this token may have got: take it back."""
        self._chore(lease._taking_back(), lease)  # the keeper knows leases from within
        self.forget(lease)

    def finish_release(self, lease: LeaseBase, command: ReleaseCommand) -> None:
        """The engine could not be told: go on telling it until the ttl has passed."""
        self._chore(command, lease)
        self.forget(lease)

    def deliver_later(self, command: Command, lasts_ns: int) -> None:
        """Go on telling the engine, for so long."""
        self._owe(PendingCommand(command, self._clock.now_ns() + lasts_ns, command.name))

    def has_pending_outcomes(self, token: str) -> bool:
        """Whether the engine has still to be told what became of messages of this consumer."""
        return token in concluding([*self._inbox, *self._outbox])

    def _owe(self, pending: PendingCommand) -> None:
        self._inbox.append(pending)
        self.wake()

    def drop(self, lease: LeaseBase) -> None:
        """The last reference is gone. What nobody ever owned is undone; what was owned lapses."""
        owned = lease._owned
        if lease._sent_ns and not owned:
            self._chore(lease._taking_back(), lease)
        self.forget(lease)
        if owned:
            emit(self._observer, "abandoned", lease._known_as, lease._fence)

    def start_heartbeat(self, lease: LeaseBase, remaining_ms: int, holder: str) -> None:
        """A waiter of this client stands in the queue of the name, whose present lease ends then."""
        self.due(self._heartbeats.begin(lease, remaining_ms, holder))

    def schedule_heartbeat(self, lease: LeaseBase, due_ns: int) -> None:
        """Say the marking of this lease then, and again whenever its answer asks for it."""
        self._heartbeats.keep(lease, due_ns)
        self.due(due_ns)

    def hasten_heartbeats(self) -> None:
        """A ring has come for nobody: the next marks tell for which name that was. Any thread may say so."""
        now_ns = self._clock.now_ns()
        self._heartbeats.hasten(now_ns, _RETRY_NS)
        self.due(now_ns)

    def stop_heartbeat(self, lease: LeaseBase) -> None:
        self._heartbeats.end(lease)

    def live_leases(self) -> list[LeaseBase]:
        """Every lease that is asked for or held."""
        # A copy first: a lease that is dropped while this looks changes the dictionary.
        leases = [ref() for ref in self.leases.copy().values()]
        return [lease for lease in leases if lease is not None]

    def idle(self, *, but_undos: bool = False) -> bool:
        """Nothing is asked for, held or owed; or nothing but undos, which the ttl does as well."""
        owed = [each for each in (*self._inbox, *self._outbox) if not but_undos or not is_undo(each.command)]
        return not owed and not self.live_leases()

    def on_idle(self, call: object) -> None:
        self._on_idle = call  # type: ignore[assignment]

    def stop(self) -> None:
        """Do what is still owed, once, and end the thread."""
        self._stopping = True
        self._waker.wake()

    def stopped(self) -> bool:
        if self._thread is not None:
            return False
        if self._ending is not None:
            self._ending.join(_JOIN_S)  # it is on its last lines
        return self._ending is None or not self._ending.is_alive()

    # The thread.

    def wake(self) -> None:
        with self.guard:
            if (self._thread is None or not self._thread.is_alive()) and not self._stopping:
                self._transport.on_unknown_wakeup(self.hasten_heartbeats)
                self._thread = threading.Thread(target=self._work, name="holdfast-keeper", daemon=True)
                self._thread.start()
        self._waker.wake()

    def _work(self) -> None:
        idle_since_ns = self._clock.now_ns()
        while True:
            # It looks again a second after this round. Were everybody to ring who comes meanwhile, thousands of leases
            # that are taken one after the other would have it go round and round.
            self.wake_ns, self.wakes_before_ns = NEVER_NS, self._clock.now_ns() + _SOON_NS
            try:
                self._round()
                self.wakes_before_ns = NEVER_NS  # whoever comes after the next look rings
                now_ns = self._clock.now_ns()
                wake_ns = self._next_ns(now_ns)
                if wake_ns < NEVER_NS:
                    idle_since_ns = now_ns
                over = not self._outbox if self._stopping else now_ns - idle_since_ns >= _LINGER_NS
                if over and self._retire(now_ns):
                    break
            except Exception:
                log.exception("the keeper met an error of its own; it goes on")
                wake_ns = now_ns = self._clock.now_ns() + _LOOK_NS
            self.wake_ns = self.wakes_before_ns = min(wake_ns, now_ns + _LOOK_NS)
            run(self._waker.wait(self.wake_ns))
        self._on_idle()

    def _round(self) -> None:
        """Whatever is due, once. A loss is told before and after every exchange, none of which outlasts a deadline."""
        for duty in (self._watch, self._renew, self._do_chores, self._mark):
            self._tell_expired()
            duty(self._clock.now_ns())
            self._renew_all_now = self.promise_watch.tell_news() or self._renew_all_now
        self._tell_expired()

    def _tell_expired(self) -> None:
        now_ns = self._clock.now_ns()
        for lease in self.live_leases():
            if lease._state is HELD and lease._deadline_ns <= now_ns:
                lease._lose("expired", lease._trouble)

    def _watch(self, now_ns: int) -> None:
        """Is the engine still the same? Asked for who holds or waits for a while: a short lease costs none of it."""
        begun = self._heartbeats.begun_ns()
        begun += [lease._since_ns for lease in self.live_leases() if lease._state is HELD]
        if begun and min(begun) <= now_ns - _LOOK_NS:
            self.promise_watch.watch(now_ns, self._bound_ns([]))

    def _ask_all(self, commands: list[Command], *, confirm: bool = False) -> list[Reply]:
        """An answer or an error for each command, whatever happens."""
        try:
            bound_ns = self._bound_ns(commands)
            if confirm:
                return run(self._transport.confirm(commands, min(bound_ns, self._clock.now_ns() + _CONFIRM_NS)))
            return run(self._transport.apply_all(commands, bound_ns))
        except Unavailable as error:
            return [error] * len(commands)
        except Exception as error:
            log.exception("the engine met an error of its own")
            return [Unavailable("engine", "failed", repr(error))] * len(commands)

    def _retire(self, now_ns: int) -> bool:
        """End the thread and its connections, unless something has come in the meantime."""
        run(self._transport.close())  # it opens again if it is needed again
        with self.guard:
            self.wakes_before_ns = NEVER_NS  # from now on everybody rings
            # Under the guard: a lease that comes now is seen here, or finds no thread and starts another.
            if not self._stopping and self._next_ns(now_ns) < NEVER_NS:
                return False
            self._ending, self._thread = self._thread, None
            return True

    def _next_ns(self, now_ns: int) -> int:
        ends = [min(lease._due_ns, lease._deadline_ns) for lease in self.live_leases() if lease._state is HELD]
        ends += [pending.due_ns for pending in self._outbox]
        ends += self._heartbeats.ends_ns()
        if self._inbox:
            ends.append(now_ns)
        # Between two rounds there is a breath, whatever is due: an engine in trouble is not to be hammered.
        return max(min(ends), now_ns + NS_PER_MS) if ends else NEVER_NS

    def _do_chores(self, now_ns: int) -> None:
        """Undos and releases that are owed, in one exchange."""
        self._last = self._stopping
        while self._inbox:
            self._outbox.append(self._inbox[0])  # at every moment it is in one of the two
            self._inbox.popleft()
        due: list[PendingCommand] = []
        later: list[PendingCommand] = []
        # What a consumer has done must not be given back as if it were not: its end waits for its words.
        busy = concluding(self._outbox)
        for pending in self._outbox:
            if isinstance(pending.command, Leave) and pending.command.token in busy:
                pending.due_ns = now_ns + _RETRY_NS
                later.append(pending)
            else:
                (due if pending.due_ns <= now_ns or self._last else later).append(pending)
        if due:
            self._outbox = later + self._failed(due, self._ask_all([pending.command for pending in due]))
        if not self._outbox:
            self._on_idle()

    def _failed(self, chores: list[PendingCommand], answers: list[Reply]) -> list[PendingCommand]:
        """Those that are still owed. The same trouble is told once, however many it holds up."""
        owed: list[PendingCommand] = []
        told: Unavailable | None = None
        for pending, answer in zip(chores, answers, strict=True):
            if isinstance(answer, LeaveUnfinished):  # in the next round it goes on: leases are renewed in between
                owed.append(pending)
                continue
            if not isinstance(answer, Unavailable):
                tell_end(self._observer, pending, answer, self._clock.now_ns())
                continue
            if answer is not told:
                told = answer
                self._tell_trouble("unavailable", pending.name, str(answer))
            pending.due_ns = self._clock.now_ns() + _RETRY_NS
            if self._still_owed(pending, answer):
                owed.append(pending)
            else:
                emit(self._observer, "delivery_abandoned", pending.name, pending.fence, detail=str(answer))
        return owed

    def _tell_trouble(self, kind: str, name: str, why: str, fence: int | None = None) -> None:
        lines = self._sparing.lines(kind, self._clock.now_ns())
        emit(self._observer, kind, name, fence, detail=why, lines=lines)

    def _still_owed(self, pending: PendingCommand, error: Unavailable) -> bool:
        """The ttl undoes a lease; a place in a queue stands for as long as the client's mark does."""
        if self._last or error.reason in GONE:
            return False
        if is_undo(pending.command) and self._heartbeats.waits_for(pending.command.name):
            pending.until_ns = max(pending.until_ns, pending.due_ns + trust.HEARTBEAT_MS * NS_PER_MS)
        return pending.due_ns < pending.until_ns

    def _renew(self, now_ns: int) -> None:
        """Renew what is due, and what will soon be, in one exchange."""
        suspect, self._renew_all_now = self._renew_all_now, False
        due = [lease for lease in self.live_leases() if lease._state is HELD and (suspect or _due(lease, now_ns))]
        for confirm in (False, True):
            leases = sorted((lease for lease in due if lease._confirm is confirm), key=lambda lease: lease._deadline_ns)
            # The most urgent first, and not too many at a time: what is late for one must not cost all.
            for start in range(0, len(leases), _AT_ONCE):
                self._renew_all(leases[start : start + _AT_ONCE], confirm=confirm)
                self._tell_expired()

    def _renew_all(self, leases: list[LeaseBase], *, confirm: bool) -> None:
        sent_ns = self._clock.now_ns()
        # Trusted for as long as was asked for, whatever the ttl has become meanwhile.
        asked = [(lease, lease._ttl_ms) for lease in leases]
        answers = self._ask_all([lease._renewal(ttl_ms) for lease, ttl_ms in asked], confirm=confirm)
        for (lease, ttl_ms), answer in zip(asked, answers, strict=True):
            if isinstance(answer, NotHeld):
                if answer.reason == "expired":
                    self._restart_guard.forgotten(lease._about, lease._fence, lease._deadline_ns + lease._rest_ns)
                too_soon = answer.reason == "expired" and sent_ns < lease._deadline_ns
                lease._lose(answer.reason, answer.detail or (_TOO_SOON if too_soon else ""))
            elif isinstance(answer, Unavailable):
                self._not_renewed(lease, answer)
            elif lease._state is HELD:
                left_s = (lease._deadline_ns - self._clock.now_ns()) / NS
                kind = "renewed_late" if left_s * 3 < lease.ttl else "renewed"
                lease._trust_from(sent_ns, ttl_ms)
                lease._trouble = ""
                emit(self._observer, kind, lease._known_as, lease._fence, left_s)

    def _not_renewed(self, lease: LeaseBase, error: Unavailable) -> None:
        lease._trouble = str(error)
        if error.reason in GONE:
            lease._lose(error.reason, str(error))
            return
        self._tell_trouble("renewal_failed", lease._known_as, str(error), lease._fence)
        lease._due_ns = self._clock.now_ns() + self._pause_ns(lease, error)

    def _pause_ns(self, lease: LeaseBase, error: Unavailable) -> int:
        """How long until the next try: longer where only somebody's action can help, but never past the deadline."""
        if error.reason in PASSING:
            return _RETRY_NS
        left_ns = lease._deadline_ns - self._clock.now_ns()
        return max(_RETRY_NS, min(10 * _RETRY_NS, left_ns // 4))

    def _mark(self, now_ns: int) -> None:
        due = self._heartbeats.due(now_ns)
        answers = self._ask_all([schedule.mark for schedule in due]) if due else []
        for schedule, answer in zip(due, answers, strict=True):
            name = schedule.mark.name
            if isinstance(answer, Unavailable):
                self._tell_trouble("unavailable", name, str(answer))
            elif isinstance(answer, Reclaimed):
                self._heartbeats.reaped(schedule, answer, self._observer)
            elif isinstance(answer, HeartbeatReceived):
                self._heartbeats.marked(schedule, answer, now_ns)
                if answer.offered in self.leases:
                    self._transport.wake(answer.offered)  # the engine's own ring may have got lost
                elif answer.offered:
                    # It has ended, and a server that did not hear of it has taken the place of one that did.
                    self._inbox.append(PendingCommand(undoing(schedule.mark, answer.offered), now_ns + NS, name))

    def _bound_ns(self, commands: list[Command]) -> int:
        """No exchange may last beyond the first deadline that has to be told.

        Nor so long that a lease which is not part of it, and may live on another server, would be renewed too late.
        """
        now_ns, names = self._clock.now_ns(), {command.name for command in commands}
        ends = [now_ns + WIRE_NS]
        for lease in self.live_leases():
            end_ns = lease._deadline_ns
            if lease._state is HELD and end_ns > now_ns:
                turn_ns = max(now_ns + _TURN_NS, (lease._due_ns + end_ns) // 2)
                ends.append(end_ns if lease._place in names else min(end_ns, turn_ns))
        return min(ends)

    def _chore(self, command: Undo | UndoBorrow | ReleaseCommand, lease: LeaseBase) -> None:
        if lease._sent_ns or lease._state is not ASKING:
            # The engine holds it until a ttl after it applied the last question or renewal. That was by now at the
            # latest: the answer to a renewal may be lost, or still on its way.
            until_ns = self._clock.now_ns() + max(NS, lease._ttl_ms * NS_PER_MS)
            since_ns = 0 if lease._state is LOST else lease._since_ns  # a loss has been told
            self._owe(PendingCommand(command, until_ns, lease._known_as, lease._fence, since_ns))


def _due(lease: LeaseBase, now_ns: int) -> bool:
    """Due now, or so soon that it may as well travel with the others."""
    after_ms = trust.renew_after_ms(lease._ttl_ms)
    early_ns = after_ms * NS_PER_MS // 4 if after_ms >= _EARLY_FROM_MS else 0
    return lease._due_ns - early_ns <= now_ns


def _nobody() -> None:
    return None
