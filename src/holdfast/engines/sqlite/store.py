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
from typing import TYPE_CHECKING

from holdfast.clock import NS_PER_US, SYSTEM
from holdfast.commands import Acquire, Busy, Mark, Undo
from holdfast.engines.board import Board
from holdfast.engines.sqlite import rows
from holdfast.engines.sqlite.ear import Ear, ring_session
from holdfast.engines.sqlite.place import filesystem
from holdfast.engines.sqlite.promised import promised
from holdfast.errors import Closed, Unavailable
from holdfast.observer import log
from holdfast.rules import RULES, Moment, Record
from holdfast.rules.trust import MARK_MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.clock import Clock
    from holdfast.commands import Command
    from holdfast.engines import Promise, Reply
    from holdfast.engines.sqlite.database import Database
    from holdfast.rules.lease import Holder

_AT_ONCE = 200
_FORGET_EVERY = 64
_MARK_EVERY_US = 1_000_000

# The clients of this process, by session: a ring for one of them needs no detour through the kernel.
_here: weakref.WeakValueDictionary[tuple[str, int], SqliteStore] = weakref.WeakValueDictionary()


class SqliteStore:
    """A session on the file."""

    name = "sqlite"
    clock: Clock = SYSTEM
    quick = False

    def __init__(self, database: Database, memory_us: int) -> None:
        self.database = database.enter()
        self._entered = True
        self.board = Board()
        self._memory_us = memory_us
        self._session = 0
        self._session_lock = threading.Lock()
        self._marked_us = 0
        self._count = 0
        self._closed = False
        self._held: set[str] = set()
        self._ahead: dict[str, set[int]] = {}
        self._ear: Ear | None = None
        self._ear_lock = threading.Lock()
        self._deaf = False

    def answer_all(self, commands: Sequence[Command], until_ns: int | None) -> list[Reply]:
        if not self._session:
            self._begin_session(until_ns)
        answers: list[Reply] = []
        for start in range(0, len(commands), _AT_ONCE):
            part = commands[start : start + _AT_ONCE]
            replies, rung = self.database.transact(partial(self._answer, commands=part), until_ns)
            answers += replies
            for holder in rung:
                self._ring(holder)
        return answers

    def _answer(self, link: sqlite3.Connection, commands: Sequence[Command]) -> tuple[list[Reply], list[Holder]]:
        if self._closed:
            raise Closed  # asked before the end, and only now at its turn: nobody would keep what it got
        rung: list[Holder] = []
        now_us = SYSTEM.now_ns() // NS_PER_US
        answers = [self._answer_one(link, command, now_us, rung) for command in commands]
        # With the first command too: a process that takes one lease and ends does its part.
        if self._count % _FORGET_EVERY == 0:
            rows.forget(link, now_us)
        self._count += 1
        return answers, rung

    def _answer_one(self, link: sqlite3.Connection, command: Command, now_us: int, rung: list[Holder]) -> Reply:
        try:
            row = rows.load(link, command.name)
        except (ValueError, TypeError) as error:
            return Unavailable("sqlite", "corrupt", f"the record of {command.name!r} cannot be read: {error}")
        step = RULES[type(command)](row.record, command, self._moment(link, row.record, now_us))
        if step.record is not row.record:
            rows.store(link, command.name, row, step.record, self._memory_us)
        holder = step.record.holder
        if holder is not None and holder.client == str(self._session):
            self._held.add(command.name)
        else:
            self._held.discard(command.name)
        if type(command) is Mark or (type(command) is Acquire and isinstance(step.answer, Busy)):
            self._mark(link, now_us)
        if step.wake is not None:
            rung.append(step.wake)
        if type(command) is Acquire and command.wait:
            self._note_those_ahead(link, command.token, step.record)
        elif type(command) is Undo:
            self._ahead.pop(command.token, None)
        return step.answer

    def _note_those_ahead(self, link: sqlite3.Connection, token: str, record: Record) -> None:
        """Whose end this waiter should be woken by: whoever holds, and everybody who will before its turn comes."""
        self._ahead.pop(token, None)
        place = record.position(token)
        if record.holder is None or place is None:
            return
        sessions = {record.holder.client, *(waiter.client for waiter in record.waiters[:place])}
        ask = "SELECT pid FROM session WHERE id = ?"
        found = (link.execute(ask, (int(session),)).fetchone() for session in sessions)
        self._ahead[token] = {row[0] for row in found if row is not None and row[0] != os.getpid()}

    def _moment(self, link: sqlite3.Connection, record: Record, now_us: int) -> Moment:
        me = str(self._session)
        gone: frozenset[str] = frozenset()
        silent: frozenset[str] = frozenset()
        holder, waiters = record.holder, record.waiters
        if (holder is not None and holder.client != me) or waiters:
            clients = {waiter.client for waiter in waiters}
            if holder is not None:
                clients.add(holder.client)
            clients.discard(me)
            gone = frozenset(client for client in clients if self._gone(link, int(client)))
            if waiters or (holder is not None and holder.offered):
                ask = "SELECT id FROM session WHERE marked_us < ?"
                quiet = {str(row[0]) for row in link.execute(ask, (now_us - MARK_MS * 1000,))}
                silent = frozenset(clients & quiet)
        return Moment(now_us, SYSTEM.wall_us(), me, gone, silent)

    def _gone(self, link: sqlite3.Connection, session: int) -> bool:
        """Proven dead: its byte is free, in the same live file that it locked when it began."""
        live = self.database.live
        if live.holder(session) is not None:
            return False
        row = link.execute("SELECT live FROM session WHERE id = ?", (session,)).fetchone()
        return row is None or bool(row[0] == live.inode)

    def _mark(self, link: sqlite3.Connection, now_us: int) -> None:
        if now_us - self._marked_us >= _MARK_EVERY_US:
            link.execute("UPDATE session SET marked_us = ? WHERE id = ?", (now_us, self._session))
            self._marked_us = now_us

    def _begin_session(self, until_ns: int | None) -> None:
        """Lock a byte of the live file for as long as this client lives, in the transaction that names it."""
        with self._session_lock:
            if self._session:
                return
            if self._closed:
                raise Closed
            live, locked = self.database.live, 0

            def begin(link: sqlite3.Connection) -> int:
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

    def _bury_the_dead(self, link: sqlite3.Connection) -> None:
        live = self.database.live
        for session, inode in link.execute("SELECT id, live FROM session").fetchall():
            if inode == live.inode and live.holder(session) is None:
                link.execute("DELETE FROM session WHERE id = ?", (session,))
                Ear.remove(self.database.path, session)

    def _ring(self, holder: Holder) -> None:
        session = int(holder.client)
        here = _here.get((str(self.database.path), session))
        if here is not None:
            here.board.ring(holder.token)
        else:
            ring_session(self.database.path, session, holder.token)

    def listen(self, token: str) -> bool:
        ahead = self._ahead.pop(token, ())
        with self._ear_lock:
            if self._ear is not None:
                ended = [self._ear.watch(pid) for pid in ahead]  # each is watched, whatever the others say
                return any(ended)
            if self._deaf:
                return False
            ear = Ear(self.database.path, self._session, self.board)
            try:
                ear.open()
                self._ear = ear
            except OSError as error:
                ear.close()
                self._deaf = True
                log.warning("no pipe for wake-ups beside %s, so waiting is slower here: %s", self.database.path, error)
            except BaseException:
                ear.close()
                raise
            return True

    def promise(self) -> Promise:
        return promised(filesystem(self.database.path.parent))

    def forked(self) -> None:
        """The session stayed with the parent; the child begins its own with its first command."""
        self.board = Board()
        self._session = 0
        self._marked_us = 0
        self._held = set()
        self._ahead = {}
        self._session_lock = threading.Lock()
        self._ear_lock = threading.Lock()
        if self._ear is not None:
            self._ear.forked()
            self._ear = None

    def close(self) -> None:
        """End the session if it holds nothing; a lease that stands keeps it, so that the lease lapses by its ttl."""
        with self._ear_lock:
            ear, self._ear = self._ear, None
        if ear is not None:
            ear.close()
        self._closed = True
        session = self._session
        if not session:
            self._leave()
            return

        def end(link: sqlite3.Connection) -> bool:
            now_us = SYSTEM.now_ns() // NS_PER_US
            stands = any(self._stands(link, name, now_us) for name in self._held)
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
        self._leave()

    def _stands(self, link: sqlite3.Connection, name: str, now_us: int) -> bool:
        try:
            holder = rows.load(link, name).record.holder
        except (ValueError, TypeError):
            return False  # whatever it was, nobody can hold it
        return holder is not None and holder.client == str(self._session) and holder.expires_us > now_us

    def _leave(self) -> None:
        """Once: an interrupted close is said again."""
        entered, self._entered = self._entered, False
        if entered:
            self.database.leave()


# A child's stores have sessions of their own; those it inherited are the parent's, to be rung through the pipe.
os.register_at_fork(after_in_child=_here.clear)
