"""One client of a SQLite file: its session, its rings, and the answers.

A session is a byte of the live file that the process keeps locked. Whether another client lives is therefore a
question to the kernel: it is answered in a microsecond, at once after a SIGKILL, and no reused pid can fool it.
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
from holdfast.engines.sqlite import admin as survey
from holdfast.engines.sqlite import counters as tallies
from holdfast.engines.sqlite import dispatch as dealing
from holdfast.engines.sqlite import lease_rows as rows
from holdfast.engines.sqlite import lifeline, pool, queue_tables
from holdfast.engines.sqlite import registry as shelves
from holdfast.engines.sqlite.database import in_transaction
from holdfast.engines.sqlite.location import filesystem
from holdfast.engines.sqlite.promise import promised
from holdfast.engines.sqlite.waiting_line import Damaged
from holdfast.engines.wakeups import WaiterRegistry
from holdfast.errors import Closed, Unavailable
from holdfast.rules import RULES, Moment
from holdfast.rules.lease_record import NO_TOMBSTONES, NO_WAITERS
from holdfast.rules.once import compound
from holdfast.rules.trust import MARK_MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.clock import Clock
    from holdfast.commands import Answer, Command
    from holdfast.engines import Promise, Reply
    from holdfast.engines.admin import EngineReport, NamePage
    from holdfast.engines.sqlite.database import Database
    from holdfast.rules.lease_record import HolderRecord, Record
    from holdfast.rules.result import Wakeup

_AT_ONCE = 200
_FORGET_EVERY = 64
_PIDS_MAX = 10_000
_KNOWN_MAX = 1_000
_MARK_EVERY_US = 1_000_000

# The clients of this process, by session: a ring for one of them needs no detour through the kernel.
_here: weakref.WeakValueDictionary[tuple[str, int], SqliteStore] = weakref.WeakValueDictionary()


# Answers that nobody else has to hear of.
_PLAIN = (Granted, Renewed, Released)


class SqliteStore:
    """A session on the file."""

    name = "sqlite"
    clock: Clock = SYSTEM
    quick = False

    def __init__(self, database: Database, memory_us: int) -> None:
        self.database = database.enter()
        self._entered = True
        self.waiter_registry = WaiterRegistry()
        self._memory_us = memory_us
        self._session = 0
        self._me = ""  # the session, as records name it
        self._session_lock = threading.Lock()
        self._marked_us = 0
        self._count = 0
        self._closed = False
        self._held: set[str] = set()
        self._ahead: dict[str, set[int]] = {}
        self._known: dict[str, rows.Row] = {}
        self._pids: dict[str, int] = {}  # of other sessions, each of which has one for good
        self._listener = LazyFifoListener()

    def answer_all(self, commands: Sequence[Command], until_ns: int | None) -> list[Reply]:
        if not self._me:
            self._begin_session(until_ns)
        if len(commands) > _AT_ONCE:
            parts = (commands[start : start + _AT_ONCE] for start in range(0, len(commands), _AT_ONCE))
            return [answer for part in parts for answer in self.answer_all(part, until_ns)]
        if len(commands) == 1 and isinstance(commands[0], CheckConsistency):
            return [self.database.behind_gate(self._audit, until_ns, commands[0])]
        answers, rung = self.database.behind_gate(self._answer, until_ns, commands)
        for holder in rung:
            self._wake(holder)
        return answers

    def _answer(
        self, link: sqlite3.Cursor, commands: Sequence[Command]
    ) -> tuple[list[Reply], list[HolderRecord | Wakeup]]:
        if self._closed:
            raise Closed  # asked before the end, and only now at its turn: nobody would keep what it got
        if len(commands) == 1:
            answer = self._answer_known(link, commands[0])
            if answer is not None:
                return [answer], []
        return in_transaction(link, self._answer_each, commands)

    def _answer_known(self, link: sqlite3.Cursor, command: Command) -> Answer | None:
        """The answer about a quiet name, if it is still as this client left it; `None` if that has to be looked up.

        The rule decides on what is remembered, and its step is stored only in place of just that.
        """
        row, rule = self._known.get(command.name), RULES.get(type(command))
        if row is None or rule is None or self._count % _FORGET_EVERY == 0:
            return None
        moment = Moment(SYSTEM.now_ns() // NS_PER_US, SYSTEM.wall_us(), self._me)
        after, answer, _ = rule(row.record, command, moment)
        if type(answer) not in _PLAIN or after.waiters is not NO_WAITERS or after.tombstones is not NO_TOMBSTONES:
            return None
        failpoints.point("sqlite.before-commit")
        now = rows.exchange(link, command.name, row, after, self._memory_us)
        if now is None:
            return None
        failpoints.point("sqlite.after-commit")
        self._remember(command.name, now)
        self._count += 1
        return answer

    def _answer_each(
        self, link: sqlite3.Cursor, commands: Sequence[Command]
    ) -> tuple[list[Reply], list[HolderRecord | Wakeup]]:
        rung: list[HolderRecord | Wakeup] = []
        now_us = SYSTEM.now_ns() // NS_PER_US
        answers = [self._answer_one(link, command, now_us, rung) for command in commands]
        # With the first command too: a process that takes one lease and ends does its part.
        housekeeping = self._count % _FORGET_EVERY == 0
        self._count += 1
        if housekeeping:
            rows.forget(link, now_us)
            pool.forget(link, now_us)
            tallies.forget(link, SYSTEM.wall_us())
            shelves.forget(link, SYSTEM.wall_us())
            queue_tables.forget(link, SYSTEM.wall_us())
        return answers, rung

    def _answer_one(
        self, link: sqlite3.Cursor, command: Command, now_us: int, rung: list[HolderRecord | Wakeup]
    ) -> Reply:
        if type(command) in dealing.PARTS:
            return self._deal(link, command, now_us, rung)
        name, rule = command.name, RULES.get(type(command))
        if rule is None:
            moment = Moment(now_us, SYSTEM.wall_us(), self._me)
            apply_lease = partial(self._answer_one, link, now_us=now_us, rung=rung)
            apply_counter = partial(tallies.answer, link, moment=moment)
            reply: Reply = compound(
                command, apply_lease, apply_counter, shelves.SqliteRegistryState(link, moment.wall_us)
            )
            return reply
        try:
            row = rows.load(link, name)
            moment = self._moment(link, command, row.record, now_us)
        except (ValueError, TypeError, LookupError, OverflowError, sqlite3.OperationalError) as error:
            return rows.unreadable(name, error)
        try:
            after, answer, wake = rule(row.record, command, moment)
        except Damaged as error:
            return rows.unreadable(name, error)
        if after is not row.record:
            row = rows.store(link, name, row, after, self._memory_us)
        self._remember(name, row)
        if wake is not None:
            rung.append(wake)
        if type(answer) is Busy or type(command) is WaiterHeartbeat:
            self._mark(link, now_us)
        if type(command) is Acquire and type(answer) is Busy and command.wait:
            self._ahead[command.token] = self._pids_of(link, after)
        elif self._ahead and isinstance(command, Acquire | Undo):
            self._ahead.pop(command.token, None)
        return answer

    def _deal(self, link: sqlite3.Cursor, command: Any, now_us: int, rung: list[HolderRecord | Wakeup]) -> Reply:
        """The answer of a pool or a queue. A damaged one is nobody's business but its own."""
        link.execute("SAVEPOINT part")
        try:
            moment = Moment(now_us, SYSTEM.wall_us(), self._me)
            answer, wakes = dealing.deal(link, command, moment, partial(self._look_at, link), self._memory_us)
        except (ValueError, TypeError, LookupError, OverflowError) as error:
            link.execute("ROLLBACK TO part")
            return rows.unreadable(command.name, error)
        finally:
            link.execute("RELEASE part")
        rung += wakes
        if type(answer) is Busy or type(command) is PoolHeartbeat:
            self._mark(link, now_us)
        return answer

    def _audit(self, link: sqlite3.Cursor, command: CheckConsistency) -> Reply:
        if self._closed:
            raise Closed  # as above
        return dealing.audited(link, command, self.database.gate.leave)

    def _remember(self, name: str, row: rows.Row) -> None:
        """What is held here, and what nobody else has anything to do with."""
        holder = row.record.holder
        if holder is not None and holder.client == self._me:
            self._held.add(name)
        else:
            self._held.discard(name)
        if row.body and row.quiet(self._me):
            self._known[name] = row
        else:
            self._known.pop(name, None)
        if len(self._known) > _KNOWN_MAX:
            self._known.clear()

    def _moment(self, link: sqlite3.Cursor, command: Command, record: Record, now_us: int) -> Moment:
        """Who has died or fallen silent. A holder that speaks of its own right, or a mark, need not know of waiters."""
        holder, clients, me = record.holder, record.waiters.clients, self._me
        if not clients and (holder is None or holder.client == me):
            return Moment(now_us, SYSTEM.wall_us(), me)
        others = set() if holder is None or holder.client == me else {holder.client}
        seen = [self._look_at(link, client) for client in others]
        stays = holder is not None and holder.expires_us > now_us and not any(state.gone for state in seen)
        if not (stays and rows.leaves_all_as_it_is(command, holder)):
            seen += [self._look_at(link, client) for client in clients.keys() - others - {me}]
        gone = frozenset(state.client for state in seen if state.gone)
        silent = frozenset(state.client for state in seen if state.marked_us < now_us - MARK_MS * 1000)
        return Moment(now_us, SYSTEM.wall_us(), me, gone, silent)

    def _look_at(self, link: sqlite3.Cursor, client: str) -> dealing.Seen:
        """Proven dead: its byte is free, in the same live file that it locked when it began; and its lifeline is."""
        session, live = int(client), self.database.live
        row = link.execute("SELECT live, marked_us FROM session WHERE id = ?", (session,)).fetchone()
        locked = live.holder(session) is not None or lifeline.is_held(live, session)
        if row is None:
            return dealing.Seen(client, NEVER_NS, gone=not locked)
        return dealing.Seen(client, row[1], gone=not locked and row[0] == live.inode)

    def _pids_of(self, link: sqlite3.Cursor, record: Record) -> set[int]:
        """Whose end a waiter should be woken by: whoever holds, and everybody who may before its turn comes."""
        clients = {*record.waiters.clients, record.holder.client if record.holder else self._me}
        if len(self._pids) > _PIDS_MAX:
            self._pids.clear()
        for client in clients - self._pids.keys():
            row = link.execute("SELECT pid FROM session WHERE id = ?", (int(client),)).fetchone()
            self._pids[client] = 0 if row is None else row[0]
        return {self._pids[client] for client in clients} - {0, os.getpid()}

    def _mark(self, link: sqlite3.Cursor, now_us: int) -> None:
        if now_us - self._marked_us >= _MARK_EVERY_US:
            link.execute("UPDATE session SET marked_us = ? WHERE id = ?", (now_us, self._session))
            self._marked_us = now_us

    def _begin_session(self, until_ns: int | None) -> None:
        """Lock a byte of the live file for as long as this client lives, in the transaction that names it."""
        with self._session_lock:
            if self._me:
                return
            if self._closed:
                raise Closed
            live, locked = self.database.live, 0

            def begin(link: sqlite3.Cursor) -> int:
                nonlocal locked
                self._bury_the_dead(link)
                ask = "INSERT INTO session (live, pid, marked_us) VALUES (?, ?, ?)"
                fields = (live.inode, os.getpid(), SYSTEM.now_ns() // NS_PER_US)
                session = link.execute(ask, fields).lastrowid or 0
                if not live.lock(session):
                    raise Unavailable("sqlite", "stalled", f"byte {session} of {live.path} is locked by a stranger")
                locked = session
                return session

            try:
                self._session = self.database.transact(begin, until_ns)
            except BaseException:
                if locked:
                    live.unlock(locked)
                raise
            _here[str(self.database.path), self._session] = self
            self._me = str(self._session)  # last: from now on others may ask

    def _bury_the_dead(self, link: sqlite3.Cursor) -> None:
        live = self.database.live
        for session, inode in link.execute("SELECT id, live FROM session").fetchall():
            if inode == live.inode and live.holder(session) is None and not lifeline.is_held(live, session):
                link.execute("DELETE FROM session WHERE id = ?", (session,))
                FifoListener.remove(self._pipe(session))

    def _wake(self, holder: HolderRecord | Wakeup) -> None:
        session = int(holder.client)
        here = _here.get((str(self.database.path), session))
        if here is not None:
            here.waiter_registry.wake(holder.token)
        else:
            wake_session(self._pipe(session), holder.token)

    def _pipe(self, session: int) -> str:
        return f"{self.database.path}.wake.{session}"

    def listen(self, token: str) -> bool:
        ahead = self._ahead.pop(token, ())
        return self._listener.listen(ahead, lambda: FifoListener(self._pipe(self._session), self.waiter_registry))

    def promise(self) -> Promise:
        return promised(filesystem(self.database.path.parent))

    def location(self) -> str:
        return str(self.database.path)

    def liveness_fd(self) -> int:
        if not self._session:
            self._begin_session(None)
        return lifeline.open_lifeline(self.database.live, self._session)

    def names(self, prefix: str, limit: int, kind: str = "") -> NamePage:
        return survey.names(self.database, prefix, limit, kind)

    def examine(self) -> EngineReport:
        return survey.examine(self.database)

    def forked(self) -> None:
        """The session stayed with the parent; the child begins its own with its first command."""
        self.waiter_registry = WaiterRegistry()
        self._session = 0
        self._me = ""
        self._marked_us = 0
        self._held = set()
        self._ahead = {}
        self._known = {}
        self._pids = {}
        self._session_lock = threading.Lock()
        self._listener.forked()

    def close(self) -> None:
        """End the session if it holds nothing; a lease that stands keeps it, so that the lease lapses by its ttl."""
        self._listener.close()
        self._closed = True
        session = self._session
        if not session:
            self._leave()
            return

        def end(link: sqlite3.Cursor) -> bool:
            now_us = SYSTEM.now_ns() // NS_PER_US
            stands = any(self._stands(link, name, now_us) for name in self._held)
            stands = stands or queue_tables.has_consumers(link, str(session), now_us)
            if not stands:
                link.execute("DELETE FROM session WHERE id = ?", (session,))
            return not stands

        try:
            ended = self.database.transact(end)
        except Unavailable:
            ended = False
        if ended:
            self.database.live.unlock(session)
        self._session = 0
        self._me = ""
        self._leave()

    def _stands(self, link: sqlite3.Cursor, name: str, now_us: int) -> bool:
        try:
            holder = rows.load(link, name).record.holder
        except (ValueError, TypeError):
            return False  # whatever it was, nobody can hold it
        return holder is not None and holder.client == self._me and holder.expires_us > now_us

    def _leave(self) -> None:
        """Once: an interrupted close is said again."""
        entered, self._entered = self._entered, False
        if entered:
            self.database.leave()


# A child's stores have sessions of their own; those it inherited are the parent's, to be rung through the pipe.
os.register_at_fork(after_in_child=_here.clear)
