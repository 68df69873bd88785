"""One client of a SQLite file: its session, its wake-ups, and its answers.

A session is a byte of the live file that the process keeps locked. So the kernel knows whether another client lives:
the check takes a microsecond, sees a death right after a SIGKILL, and a reused pid cannot mislead it.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast import failpoints
from holdfast.clock import NEVER_NS, NS_PER_US, SYSTEM
from holdfast.commands import Acquire, Busy, Granted, PoolHeartbeat, Released, Renewed, Undo, WaiterHeartbeat
from holdfast.commands.queue_admin import CheckConsistency
from holdfast.engines.fifo_listener import FifoListener, LazyFifoListener, wake_session
from holdfast.engines.local import Store, keeps_waiting_line
from holdfast.engines.sqlite import (
    CAPABILITIES,
    SCOPE,
    admin,
    counters,
    dispatch,
    lease_rows,
    pool,
    queue_tables,
    schema,
)
from holdfast.engines.sqlite.database import in_transaction
from holdfast.engines.sqlite.location import filesystem
from holdfast.engines.sqlite.process_locks import PLACES, LivenessDescriptor, heartbeat_place, is_alive
from holdfast.engines.sqlite.promise import promised
from holdfast.engines.sqlite.registry import SqliteRegistryState, forget_registries
from holdfast.engines.wakeups import WaiterRegistry
from holdfast.errors import Closed, Unavailable, UnavailableReason
from holdfast.host import KNOWN_ERRORS, Exhaustion, unavailable_error
from holdfast.interrupts import raise_if_of_signal
from holdfast.rules import Moment
from holdfast.rules.lease_record import NO_TOMBSTONES, NO_WAITERS
from holdfast.rules.registry import Parts
from holdfast.rules.table import RULES, RuleKind
from holdfast.rules.trust import HEARTBEAT_MS
from holdfast.shared_files import is_movable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.clock import Clock
    from holdfast.commands import Answer, Command
    from holdfast.engines import Promise, Reply
    from holdfast.engines.admin import EngineReport, NamePage
    from holdfast.engines.sqlite.database import Database
    from holdfast.rules.lease_record import HolderRecord, Record
    from holdfast.rules.result import Wakeup
    from holdfast.rules.table import Rule

_AT_ONCE = 200
_FORGET_EVERY = 64
_PIDS_MAX = 10_000
_KNOWN_MAX = 1_000

# The clients of this process, by session: a wake-up for one of them needs no pipe.
_here: weakref.WeakValueDictionary[tuple[str, int], SqliteStore] = weakref.WeakValueDictionary()

# Answers that wake no other client.
_PLAIN = (Granted, Renewed, Released)


class SqliteStore(Store):
    """A session on the file."""

    name = "sqlite"
    clock: Clock = SYSTEM
    quick = False
    scope = SCOPE
    capabilities = CAPABILITIES

    def __init__(self, database: Database, memory_us: int) -> None:
        self.database = database.enter()
        self._entered = True
        self.waiter_registry = WaiterRegistry()
        self._memory_us = memory_us
        self._session = 0
        self._me = ""  # the session, as records name it
        self._outlives, self._held_until_us = False, 0  # whether leases outlive the process, and until when
        self._session_lock = threading.Lock()
        self._liveness: LivenessDescriptor | None = None
        self._count = 0
        self._closed = False
        self._held: set[str] = set()
        self._ahead: dict[str, set[int]] = {}
        self._known: dict[str, lease_rows.Row] = {}
        self._pids: dict[str, int] = {}  # of other sessions; the pid of a session never changes
        self._listener = LazyFifoListener()

    def answer_all(self, commands: Sequence[Command], until_ns: int | None) -> list[Reply]:
        if not self._me:
            self._begin_session(until_ns)
        if len(commands) > _AT_ONCE:
            parts = (commands[start : start + _AT_ONCE] for start in range(0, len(commands), _AT_ONCE))
            return [answer for part in parts for answer in self.answer_all(part, until_ns)]
        if len(commands) == 1 and isinstance(commands[0], CheckConsistency):
            return [self.database.behind_gate(self._check_consistency, until_ns, commands[0])]
        answers, woken = self.database.behind_gate(self._answer, until_ns, commands, heartbeat=self._heartbeat)
        for waiter in woken:
            self._wake(waiter)
        return answers

    def _answer(
        self, cursor: sqlite3.Cursor, commands: Sequence[Command]
    ) -> tuple[list[Reply], list[HolderRecord | Wakeup]]:
        if self._closed:
            raise Closed  # the client closed while this command waited for the gate: no keeper would renew its grant
        if len(commands) == 1:
            answer = self._answer_known(cursor, commands[0])
            if answer is not None:
                return [answer], []
        return in_transaction(cursor, self._answer_each, commands)

    def _answer_known(self, cursor: sqlite3.Cursor, command: Command) -> Answer | None:
        """Answer about a quiet name from memory, if its row is still as this client left it; else return `None`.

        The rule decides on the remembered record. The new record is stored only if the row still holds that record.
        """
        row, rule = self._known.get(command.name), RULES[type(command)]
        if row is None or rule.kind is not RuleKind.LEASE or self._count % _FORGET_EVERY == 0:
            return None
        moment = Moment(SYSTEM.now_ns() // NS_PER_US, SYSTEM.wall_us(), self._me)
        after, answer, _ = rule.apply(row.record, command, moment)
        if type(answer) not in _PLAIN or after.waiters is not NO_WAITERS or after.tombstones is not NO_TOMBSTONES:
            return None
        failpoints.point("sqlite.before-commit")
        stored = lease_rows.exchange(cursor, command.name, row, after, self._memory_us)
        if stored is None:
            return None
        failpoints.point("sqlite.after-commit")
        self._remember(command.name, stored)
        self._count += 1
        return answer  # type: ignore[no-any-return]

    def _answer_each(
        self, cursor: sqlite3.Cursor, commands: Sequence[Command]
    ) -> tuple[list[Reply], list[HolderRecord | Wakeup]]:
        woken: list[HolderRecord | Wakeup] = []
        now_us = SYSTEM.now_ns() // NS_PER_US
        answers = [self._answer_one(cursor, command, now_us, woken) for command in commands]
        # Also with the first command, so that a process that takes one lease and ends cleans up too.
        housekeeping = self._count % _FORGET_EVERY == 0
        self._count += 1
        if housekeeping:
            lease_rows.forget(cursor, now_us)
            pool.forget(cursor, now_us)
            counters.forget(cursor, SYSTEM.wall_us())
            forget_registries(cursor, SYSTEM.wall_us())
            queue_tables.forget(cursor, SYSTEM.wall_us())
        return answers, woken

    def _answer_one(
        self, cursor: sqlite3.Cursor, command: Command, now_us: int, woken: list[HolderRecord | Wakeup]
    ) -> Reply:
        rule = RULES[type(command)]
        return _BY_KIND[rule.kind](self, cursor, rule, command, now_us, woken)

    def _answer_lease(
        self, cursor: sqlite3.Cursor, rule: Rule, command: Command, now_us: int, woken: list[HolderRecord | Wakeup]
    ) -> Reply:
        name = command.name
        try:
            row = lease_rows.load(cursor, name)
            moment = self._moment(cursor, command, row.record, now_us)
        except (*lease_rows.DAMAGE, sqlite3.OperationalError) as error:
            return lease_rows.unreadable(name, error)
        try:
            after, answer, wake = rule.apply(row.record, command, moment)
        except lease_rows.DAMAGE as error:  # nothing was written yet
            return lease_rows.unreadable(name, error)
        if after is not row.record:
            row = lease_rows.store(cursor, name, row, after, self._memory_us)
        self._remember(name, row)
        if wake is not None:
            woken.append(wake)
        if type(answer) is Busy or type(command) is WaiterHeartbeat:
            self._heartbeat()
        if type(command) is Acquire and type(answer) is Busy and command.wait:
            self._ahead[command.token] = self._pids_ahead(cursor, after)
        elif self._ahead and isinstance(command, Acquire | Undo):
            self._ahead.pop(command.token, None)
        return answer  # type: ignore[no-any-return]

    def _answer_stored(
        self, cursor: sqlite3.Cursor, rule: Rule, command: Any, now_us: int, woken: list[HolderRecord | Wakeup]
    ) -> Reply:
        """Answer a command of a pool or a queue. If its state is damaged, only this command fails."""
        cursor.execute("SAVEPOINT part")
        try:
            moment = Moment(now_us, SYSTEM.wall_us(), self._me)
            look_at = partial(self._look_at, cursor)
            answer, wakeups = dispatch.apply(cursor, rule, command, moment, look_at, self._memory_us)
        except lease_rows.DAMAGE as error:
            cursor.execute("ROLLBACK TO part")
            return lease_rows.unreadable(command.name, error)
        finally:
            cursor.execute("RELEASE part")
        woken += wakeups
        if type(answer) is Busy or type(command) is PoolHeartbeat:
            self._heartbeat()
        return answer

    def _answer_counter(
        self,
        cursor: sqlite3.Cursor,
        rule: Rule,
        command: Any,
        now_us: int,
        woken: list[HolderRecord | Wakeup],  # noqa: ARG002 - as the others
    ) -> Reply:
        try:
            return counters.answer(cursor, rule.apply, command, Moment(now_us, SYSTEM.wall_us(), self._me))
        except lease_rows.DAMAGE as error:
            return counters.unreadable(command.name, error)

    def _answer_combined(
        self, cursor: sqlite3.Cursor, rule: Rule, command: Command, now_us: int, woken: list[HolderRecord | Wakeup]
    ) -> Reply:
        moment = Moment(now_us, SYSTEM.wall_us(), self._me)
        answer_part = partial(self._answer_one, cursor, now_us=now_us, woken=woken)
        parts = Parts(answer_part, answer_part, SqliteRegistryState(cursor, moment.wall_us))
        try:
            reply: Reply = rule.apply(parts, command, moment)
        except lease_rows.DAMAGE as error:
            return lease_rows.unreadable(command.name, error)
        return reply

    def _check_consistency(self, cursor: sqlite3.Cursor, command: CheckConsistency) -> Reply:
        if self._closed:
            raise Closed  # as in `_answer`
        return dispatch.check_consistency(cursor, command, self.database.gate.leave)

    def _remember(self, name: str, row: lease_rows.Row) -> None:
        """Remember which names this client holds, and which rows concern no other client."""
        holder = row.record.holder
        if holder is not None and holder.client == self._me:
            self._held.add(name)
            if self._outlives:
                # Before the commit: the next client to see this holder must also see that it outlives its process.
                self._held_until_us = max(self._held_until_us, holder.expires_us)
                self.database.live.write_heartbeat(self._session, -self._held_until_us)
        else:
            self._held.discard(name)
        if row.body and row.quiet(self._me):
            self._known[name] = row
        else:
            self._known.pop(name, None)
        if len(self._known) > _KNOWN_MAX:
            self._known.clear()

    def _moment(self, cursor: sqlite3.Cursor, command: Command, record: Record, now_us: int) -> Moment:
        """Return the moment, with the clients that died or whose heartbeats are overdue.

        Do not look at the waiters for a command that leaves the waiting line as it is.
        """
        holder, clients, me = record.holder, record.waiters.clients, self._me
        if not clients and (holder is None or holder.client == me):
            return Moment(now_us, SYSTEM.wall_us(), me)
        others = set() if holder is None or holder.client == me else {holder.client}
        seen = [self._look_at(cursor, client) for client in others]
        stays = holder is not None and holder.expires_us > now_us and not any(state.gone for state in seen)
        if not (stays and keeps_waiting_line(command, holder)):
            seen += [self._look_at(cursor, client) for client in clients.keys() - others - {me}]
        gone = frozenset(state.client for state in seen if state.gone)
        silent = frozenset(state.client for state in seen if state.heartbeat_us < now_us - HEARTBEAT_MS * 1000)
        return Moment(now_us, SYSTEM.wall_us(), me, gone, silent)

    def _look_at(self, cursor: sqlite3.Cursor, client: str) -> dispatch.SessionState:
        """Return the state of another client.

        The client is proven dead if its byte is free in the same live file that it locked when it began, and no child
        process has inherited its lock.
        """
        session, live = int(client), self.database.live
        row = cursor.execute("SELECT live, pid FROM session WHERE id = ?", (session,)).fetchone()
        if row is None:
            return dispatch.SessionState(client, NEVER_NS, gone=not is_alive(live, session, 0))
        inode, pid = row
        if inode != live.inode:  # the client uses a live file that was deleted: it is out of sight
            return dispatch.SessionState(client, 0, gone=False)
        return dispatch.SessionState(client, abs(live.heartbeat_us(session)), gone=not is_alive(live, session, pid))

    def _pids_ahead(self, cursor: sqlite3.Cursor, record: Record) -> set[int]:
        """Return the processes whose end should wake a waiter: the holder's, and those of all waiters ahead."""
        clients = {*record.waiters.clients, record.holder.client if record.holder else self._me}
        if len(self._pids) > _PIDS_MAX:
            self._pids.clear()
        for client in clients - self._pids.keys():
            row = cursor.execute("SELECT pid FROM session WHERE id = ?", (int(client),)).fetchone()
            self._pids[client] = 0 if row is None else row[0]
        return {self._pids[client] for client in clients} - {0, os.getpid()}

    def _heartbeat(self) -> None:
        """Write the heartbeat of this client's session, so that its waiters keep their places in line."""
        if self._session and not self._held_until_us:
            self.database.live.heartbeat(self._session)

    def _begin_session(self, until_ns: int | None) -> None:
        """Lock a byte of the live file for as long as this client lives, in the transaction that inserts its row."""
        with self._session_lock:
            if self._me:
                return
            if self._closed:
                raise Closed
            live, locked = self.database.live, 0

            def begin(cursor: sqlite3.Cursor) -> int:
                nonlocal locked
                self._clear_dead_sessions(cursor)
                schema.use_clock(cursor, self.database.path)
                session = _next_session(cursor)
                cursor.execute("INSERT INTO session VALUES (?, ?, ?)", (session, live.inode, os.getpid()))
                if not live.lock(session):
                    detail = f"byte {session} of {live.path} is locked by a process that is not holdfast"
                    raise Unavailable("sqlite", UnavailableReason.STALLED, detail)
                locked = session
                try:
                    live.write_heartbeat(session, SYSTEM.now_ns() // NS_PER_US)
                except OSError as error:
                    if error.errno not in KNOWN_ERRORS:  # a signal handler of the program may have raised it
                        raise
                    raise unavailable_error("sqlite", error) from error
                return session

            try:
                with Exhaustion(self.name):
                    self._session = self.database.transact(begin, until_ns)
            except BaseException:
                if locked:
                    live.unlock(locked)
                raise
            _here[str(self.database.path), self._session] = self
            self._me = str(self._session)  # last: from now on other threads may send commands

    def _clear_dead_sessions(self, cursor: sqlite3.Cursor) -> None:
        live = self.database.live
        for session, inode, pid in cursor.execute("SELECT id, live, pid FROM session").fetchall():
            if inode == live.inode and not is_alive(live, session, pid):
                cursor.execute("DELETE FROM session WHERE id = ?", (session,))
                self.database.remove_pipe(session)

    def _wake(self, waiter: HolderRecord | Wakeup) -> None:
        session = int(waiter.client)
        here = _here.get((str(self.database.path), session))
        if here is not None:
            here.waiter_registry.wake(waiter.token)
        else:
            wake_session(self.database.folder, self.database.pipe(session), waiter.token)

    def listen(self, token: str) -> bool:
        ahead = self._ahead.pop(token, ())
        database = self.database
        return self._listener.listen(
            ahead, lambda: FifoListener(database.folder, database.pipe(self._session), self.waiter_registry)
        )

    def promise(self) -> Promise:
        with Exhaustion(self.name):
            return promised(filesystem(self.database.path.parent), movable=is_movable(self.database.path.parent))

    def location(self) -> str:
        return str(self.database.path)

    def liveness_fd(self) -> int:
        if not self._session:
            self._begin_session(None)
        with self._session_lock:
            if self._liveness is None:
                self._liveness = LivenessDescriptor(self.database.live, self._session)
            return self._liveness.descriptor

    def outlive_process(self) -> None:
        if not self._session:
            self._begin_session(None)
        self._outlives = True

    def names(self, prefix: str, limit: int, kind: str = "") -> NamePage:
        return admin.names(self.database, prefix, limit, kind)

    def examine(self) -> EngineReport:
        return admin.examine(self.database)

    def forked(self) -> None:
        """Forget the parent's session; the child begins its own with its first command."""
        self.waiter_registry = WaiterRegistry()
        self._session = 0
        self._outlives, self._held_until_us = False, 0
        self._me = ""
        self._held = set()
        self._ahead = {}
        self._known = {}
        self._pids = {}
        self._session_lock = threading.Lock()
        self._close_liveness()
        self._listener.forked()

    def close(self) -> None:
        """End the session if it holds nothing. A held lease keeps the session, so that the lease expires by its ttl."""
        self._listener.close()
        self._closed = True
        session = self._session
        if not session:
            self._leave()
            return

        def end(cursor: sqlite3.Cursor) -> bool:
            now_us = SYSTEM.now_ns() // NS_PER_US
            used = any(self._still_holds(cursor, name, now_us) for name in self._held)
            used = used or queue_tables.has_consumers(cursor, str(session), now_us)
            if not used:
                cursor.execute("DELETE FROM session WHERE id = ?", (session,))
            return not used

        try:
            ended = self.database.transact(end)
        except Unavailable:
            ended = False
        if ended:
            self.database.live.unlock(session)
        self._session = 0
        self._me = ""
        self._close_liveness()
        self._leave()

    def _close_liveness(self) -> None:
        liveness, self._liveness = self._liveness, None
        if liveness is not None:
            liveness.close()

    def _still_holds(self, cursor: sqlite3.Cursor, name: str, now_us: int) -> bool:
        try:
            holder = lease_rows.load(cursor, name).record.holder
        except lease_rows.DAMAGE as error:
            raise_if_of_signal(error)
            return False  # an unreadable record has no holder
        return holder is not None and holder.client == self._me and holder.expires_us > now_us

    def _leave(self) -> None:
        """Leave the database, once: an interrupted `close` may be called again."""
        entered, self._entered = self._entered, False
        if entered:
            self.database.leave()


def _next_session(cursor: sqlite3.Cursor) -> int:
    """Return the number of a new session: larger than all before, and with a heartbeat of its own in the live file."""
    last = cursor.execute("SELECT seq FROM sqlite_sequence WHERE name = 'session'").fetchone()
    first = 1 if last is None else last[0] + 1
    used = {heartbeat_place(session) for (session,) in cursor.execute("SELECT id FROM session")}
    for session in range(first, first + PLACES):
        if heartbeat_place(session) not in used:
            return session
    raise Unavailable("sqlite", UnavailableReason.FULL, f"{PLACES} clients use the file, and there can be no more")


_BY_KIND = {
    RuleKind.LEASE: SqliteStore._answer_lease,  # noqa: SLF001 - of this module
    RuleKind.POOL: SqliteStore._answer_stored,  # noqa: SLF001
    RuleKind.QUEUE: SqliteStore._answer_stored,  # noqa: SLF001
    RuleKind.COUNTER: SqliteStore._answer_counter,  # noqa: SLF001
    RuleKind.COMBINED: SqliteStore._answer_combined,  # noqa: SLF001
}

# A child's stores begin sessions of their own; the inherited sessions belong to the parent, and other processes wake
# them through the parent's pipe.
os.register_at_fork(after_in_child=_here.clear)
