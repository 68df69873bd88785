"""One client of a shared directory: it reads the newest version of a record, applies the rule, and adds the next one.

A client that loses the race for the next version reads again, and the rule decides again. There is no lock: a suspended
process delays no other.
"""

from __future__ import annotations

import os
import random
import threading
import time
import weakref
from functools import partial
from typing import TYPE_CHECKING

from holdfast.clock import NS_PER_US, SYSTEM
from holdfast.commands import Acquire, Break, Busy, NotHeld, Released, ReleaseLease, Undo, WaiterHeartbeat
from holdfast.engines.admin import NamePage
from holdfast.engines.fifo_listener import FifoListener, LazyFifoListener, wake_session
from holdfast.engines.files import CAPABILITIES, SCOPE, admin, codec
from holdfast.engines.files.clocks import Clocks, Timestamp
from holdfast.engines.files.escaping import folder_of
from holdfast.engines.files.log import VersionLog, WriteResult
from holdfast.engines.files.promise import promised
from holdfast.engines.files.root import NAME
from holdfast.engines.files.sessions import ClientState, FileSession, look
from holdfast.engines.interface import Capability
from holdfast.engines.local import Store, keeps_waiting_line
from holdfast.engines.wakeups import PollSchedule, WaiterRegistry
from holdfast.errors import Closed, ReplyLost, Unavailable, UnavailableReason, UnreadableRecord
from holdfast.host import Exhaustion, boot_id
from holdfast.interrupts import raise_if_of_signal, suppress_unless_signal
from holdfast.rules import Moment
from holdfast.rules.table import RULES
from holdfast.rules.trust import HEARTBEAT_MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.clock import Clock
    from holdfast.commands import Answer, Command
    from holdfast.engines import Promise, Reply
    from holdfast.engines.admin import EngineReport
    from holdfast.engines.files.log import Version
    from holdfast.engines.files.root import Root
    from holdfast.rules import Record
    from holdfast.rules.lease_record import HolderRecord

_STALL_NS = 5_000_000_000
# A client that took longer than this from reading to writing may have slept while others removed and recreated the
# name.
_STEP_MAX_NS = 10_000_000_000
# After this many lost writes a client pauses, so that many contenders do not only keep each other busy.
_BACK_OFF_AFTER = 4
_BACK_OFF_S = 0.002
_SWEEP_EVERY = 64
# An unreadable version may be a lease: it counts as held for this time, or for the longest ttl in the older versions.
_UNREADABLE_US = 60_000_000

# The clients of this process, by client id: a wake-up for one of them needs no pipe.
_here: weakref.WeakValueDictionary[str, FileStore] = weakref.WeakValueDictionary()


class FileStore(Store):
    """A session in the directory."""

    name = NAME
    clock: Clock = SYSTEM
    quick = False
    scope = SCOPE

    def __init__(self, root: Root, memory_us: int) -> None:
        self.root = root
        # On a network, waiters poll: the fastest comes first.
        self.capabilities = CAPABILITIES - {Capability.FIFO} if root.network else CAPABILITIES
        self.waiter_registry = WaiterRegistry()
        self._memory_us = memory_us
        self._clocks = Clocks(boot_id())
        self._session: FileSession | None = None
        self._session_lock = threading.RLock()
        self._closed = False
        self._count = 0
        self._ahead: dict[str, set[int]] = {}
        self._pauses = PollSchedule()
        self._listener = LazyFifoListener()

    def answer_all(self, commands: Sequence[Command], until_ns: int | None) -> list[Reply]:
        stall_ns = SYSTEM.now_ns() + _STALL_NS
        bound_ns = stall_ns if until_ns is None else min(stall_ns, until_ns)
        session = self._begin()
        answers = [self._answer(session, command, bound_ns) for command in commands]
        if self._count % _SWEEP_EVERY == 0:
            admin.sweep(self.root, self._clocks, session.wall_us())
        self._count += 1
        return answers

    def _answer(self, session: FileSession, command: Command, bound_ns: int) -> Reply:
        try:
            self.root.refuse_replaced()
            return self._apply(session, command, bound_ns)
        except Unavailable as error:
            return error
        except OSError as error:
            return self.root.unavailable(error)

    def _apply(self, session: FileSession, command: Command, bound_ns: int) -> Answer:
        """Read, decide and write, until the write succeeds or nothing has to be written; return the answer."""
        log = VersionLog(self.root, folder_of(command.name))
        unsure, visible, lost_writes = False, False, 0
        try:
            while True:
                began_ns = SYSTEM.now_ns()
                version = log.read()
                before = self._read(session, command.name, version, log)
                moment = self._moment(session, command, before.record)
                after, answer, wake = RULES[type(command)].apply(before.record, command, moment)
                if after.holder is not None and after.holder.client == session.client:
                    # Before the version is visible: the next client to see this holder must also see that it outlives
                    # its process.
                    session.hold_until(after.holder.expires_us)
                if codec.is_same(before.record, after):
                    break
                now = Timestamp(self._clocks.boot, moment.now_us, moment.wall_us)
                body = codec.written(command.name, before, after, now, self._memory_us)
                result = log.write(version, body, partial(self._wake, wake))
                if result is WriteResult.DONE:
                    visible = True
                    self._refuse_slept(session, command, began_ns, bound_ns)
                    break
                unsure, lost_writes = unsure or result is WriteResult.UNSURE, lost_writes + 1
                _back_off(lost_writes, bound_ns)
            log.close()
            self._remember_waiter(session, command, answer, after)
        except OSError as error:
            raise_if_of_signal(error)
            if unsure or visible:
                raise ReplyLost(NAME, UnavailableReason.REPLY_LOST, str(error)) from error
            raise
        finally:
            log.close()
        return _first_answer(command, answer) if unsure else answer

    def _read(self, session: FileSession, name: str, version: Version, log: VersionLog) -> codec.StoredRecord:
        if version.number == 0:
            return codec.EMPTY
        try:
            return codec.read(version.body, self._clocks)
        except codec.OtherLayout as error:
            raise Unavailable(NAME, UnavailableReason.OTHER_LAYOUT, f"the record of {name!r}: {error}") from error
        except ValueError as error:
            raise_if_of_signal(error)
            longest_ttl_us = self._longest_ttl_us(log)
            held_us = max(_UNREADABLE_US, longest_ttl_us)
            silent_us = SYSTEM.now_ns() // NS_PER_US - self._clocks.first_seen_us((name, version.number))
            if longest_ttl_us:
                # A short-lived process never sees the version for that long, so the age of the file counts too, on the
                # file server's clock.
                silent_us = max(silent_us, session.wall_us() - log.written_ns(version.number) // NS_PER_US)
            if silent_us >= held_us:
                log.keep_unreadable(version.number)
                return codec.EMPTY
            left_s = (held_us - silent_us) / 1e6
            detail = f"the record of {name!r} cannot be read ({error}); it counts as held for another {left_s:.0f} s"
            raise UnreadableRecord(NAME, detail=detail) from error

    def _longest_ttl_us(self, log: VersionLog) -> int:
        """Return the longest ttl of a holder or waiter in the older versions; 0 if none of them can be read."""
        found = [0]
        for body in log.read_older():
            with suppress_unless_signal(ValueError):
                record = codec.read(body, self._clocks).record
                leases = (*record.waiters, *([] if record.holder is None else [record.holder]))
                found += [lease.ttl_ms * 1000 for lease in leases]
        return max(found)

    def _moment(self, session: FileSession, command: Command, record: Record) -> Moment:
        """Return the moment, with the dead and silent clients. Look only at clients on which the answer depends."""
        now_us, wall_us, me = SYSTEM.now_ns() // NS_PER_US, session.wall_us(), session.client
        holder, clients = record.holder, record.waiters.clients
        if not clients and (holder is None or holder.client == me):
            return Moment(now_us, wall_us, me)
        late_us = now_us - HEARTBEAT_MS * 1000
        seen = {} if holder is None or holder.client == me else {holder.client: self._look_at(holder.client)}
        stays = holder is not None and holder.expires_us > now_us and not any(each.gone for each in seen.values())
        if not (stays and keeps_waiting_line(command, holder)):
            for client in clients:  # in the order of the waiting line
                if client != me and client not in seen:
                    seen[client] = self._look_at(client)
                alive = client == me or not (seen[client].gone or seen[client].heartbeat_us < late_us)
                if alive and _needs_first_waiter_only(command):
                    break
        gone = frozenset(each.client for each in seen.values() if each.gone)
        silent = frozenset(each.client for each in seen.values() if each.heartbeat_us < late_us)
        return Moment(now_us, wall_us, me, gone, silent)

    def _look_at(self, client: str) -> ClientState:
        return look(self.root, self._clocks, client)

    def _refuse_slept(self, session: FileSession, command: Command, began_ns: int, bound_ns: int) -> None:
        """Undo the grant of a process that slept between reading and writing: its fence may be too small."""
        if SYSTEM.now_ns() - began_ns < _STEP_MAX_NS or type(command) is not Acquire:
            return
        self._apply(session, Undo(command.name, command.token), max(bound_ns, SYSTEM.now_ns() + _STALL_NS))
        raise Unavailable(
            NAME, UnavailableReason.STALLED, f"this process was suspended while it acquired {command.name!r}"
        )

    def _remember_waiter(self, session: FileSession, command: Command, answer: Answer, record: Record) -> None:
        """Record a heartbeat, and the processes ahead of a waiter; forget a waiter that waits no longer."""
        if type(answer) is Busy or type(command) is WaiterHeartbeat:
            with suppress_unless_signal(OSError):  # the disk may be full; the answer is valid without the heartbeat
                session.heartbeat()
        if type(command) is Acquire and type(answer) is Busy and command.wait:
            holder = record.holder
            clients = {*record.waiters.clients, *([] if holder is None else [holder.client])} - {session.client}
            self._ahead[command.token] = {self._look_at(client).pid for client in clients} - {0, os.getpid()}
        elif isinstance(command, Acquire | Undo):
            self._ahead.pop(command.token, None)
            self._pauses.forget(command.token)

    def next_poll_ns(self, token: str, until_ns: int) -> int:
        """Return when a waiter polls: wake-ups do not arrive from other hosts, nor where pipes are missing."""
        if not (self.root.network or self._listener.failed):
            return until_ns
        return self._pauses.next_ns(token, until_ns)

    def _begin(self) -> FileSession:
        session = self._session
        if session is not None:
            return session
        with self._session_lock:
            if self._closed:
                raise Closed
            if self._session is None:
                self.root.open()
                try:
                    session = FileSession(self.root, self._clocks)
                except OSError as error:
                    raise self.root.unavailable(error) from error
                _here[session.client] = self
                self._session = session
            return self._session

    def _wake(self, holder: HolderRecord | None) -> None:
        if holder is None:
            return
        here = _here.get(holder.client)
        if here is not None:
            here.waiter_registry.wake(holder.token)
        else:
            wake_session(self.root.clients_folder, _pipe(holder.client), holder.token)

    def listen(self, token: str) -> bool:
        session, ahead = self._session, self._ahead.pop(token, ())
        if session is None:
            return False
        return self._listener.listen(
            ahead, lambda: FifoListener(self.root.clients_folder, _pipe(session.client), self.waiter_registry)
        )

    def promise(self) -> Promise:
        return promised(self.root.kind, network=self.root.network, movable=self.root.movable)

    def location(self) -> str:
        return self.root.location()

    def liveness_fd(self) -> int:
        return self._begin().lock

    def outlive_process(self) -> None:
        self._begin().outlives = True

    def names(self, prefix: str, limit: int, kind: str = "") -> NamePage:
        if kind:
            return NamePage((), more=False)  # this engine keeps leases only
        self._begin()
        with Exhaustion(NAME):
            return admin.names(self.root, self._clocks, prefix, limit)

    def examine(self) -> EngineReport:
        self._begin()
        with Exhaustion(NAME):
            return admin.examine(self.root, self._clocks)

    def forked(self) -> None:
        """Forget the parent's session; the child begins its own with its first command."""
        self.waiter_registry = WaiterRegistry()
        self._session_lock = threading.RLock()
        self._ahead, self._pauses = {}, PollSchedule()
        session, self._session = self._session, None
        if session is not None:
            session.forked()
        self._listener.forked()

    def close(self) -> None:
        self._listener.close()
        with self._session_lock:
            self._closed = True
            if self._session is not None:
                self._session.close()
            self._session = None
            self.root.close()


def _pipe(client: str) -> str:
    return f"{client}.wake"


def _back_off(lost_writes: int, bound_ns: int) -> None:
    if SYSTEM.now_ns() >= bound_ns:
        raise ReplyLost(NAME, UnavailableReason.STALLED, f"{lost_writes} writes in a row were lost to other clients")
    if lost_writes >= _BACK_OFF_AFTER:
        time.sleep(random.uniform(0, _BACK_OFF_S * min(lost_writes, 10)))  # noqa: S311 - spreads, no secret


def _first_answer(command: Command, answer: Answer) -> Answer:
    """Return the answer to a command that an earlier write may have applied: if its lease is gone, it was released."""
    ended = isinstance(answer, NotHeld) and answer.reason in ("expired", "released", "no such lease")
    return Released() if ended and isinstance(command, ReleaseLease | Break) else answer


def _needs_first_waiter_only(command: Command) -> bool:
    """Return true if the command does not depend on the waiters behind the first live one."""
    return type(command) is ReleaseLease and not command.to


# A child's stores begin sessions of their own; the inherited sessions belong to the parent, and other processes wake
# them through the parent's pipe.
os.register_at_fork(after_in_child=_here.clear)
