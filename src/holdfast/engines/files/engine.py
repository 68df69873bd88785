"""One client of a shared directory: it reads a sheet, has the rules decide, and turns to the next sheet.

Whoever loses the turn to another reads again, and the rules decide anew. There is no lock in it, and nobody to wait
for: a process that is frozen anywhere in here holds up nobody else.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
import weakref
from functools import partial
from typing import TYPE_CHECKING

from holdfast.clock import NS_PER_MS, NS_PER_US, SYSTEM
from holdfast.commands import Acquire, Break, Busy, NotHeld, Release, Released, Renew, Undo, WaiterHeartbeat
from holdfast.engines.admin import NamePage
from holdfast.engines.fifo_listener import FifoListener, LazyFifoListener, wake_session
from holdfast.engines.files import admin as survey
from holdfast.engines.files import codec as paper
from holdfast.engines.files.clocks import Date, Dates
from holdfast.engines.files.escaping import folder_of
from holdfast.engines.files.log import Register, Turn
from holdfast.engines.files.promise import promised
from holdfast.engines.files.root import NAME
from holdfast.engines.files.sessions import Seen, Session, look
from holdfast.host import boot_id
from holdfast.engines.wakeups import WaiterRegistry
from holdfast.errors import Closed, ReplyLost, Unavailable
from holdfast.rules import RULES, Moment
from holdfast.rules.trust import MARK_MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.clock import Clock
    from holdfast.commands import Answer, Command
    from holdfast.engines import Promise, Reply
    from holdfast.engines.admin import EngineReport
    from holdfast.engines.files.log import Sheet
    from holdfast.engines.files.root import Ground
    from holdfast.rules import Record
    from holdfast.rules.lease_record import HolderRecord

_STALL_NS = 5_000_000_000
# Whoever took longer than this from reading to writing may have slept through a whole life of the name.
_STEP_MAX_NS = 10_000_000_000
# After so many lost turns there is a breath, so that many contenders do not only keep each other busy.
_BREATH_AFTER = 4
_BREATH_S = 0.002
_SWEEP_EVERY = 64
# A sheet that cannot be read may be somebody's lease: it counts as one for so long.
_UNREADABLE_US = 60_000_000
_LOOK_FIRST_NS, _LOOK_LAST_NS = 50 * NS_PER_MS, 500 * NS_PER_MS

# The clients of this process: a ring for one of them needs no detour through the kernel.
_here: weakref.WeakValueDictionary[str, FileStore] = weakref.WeakValueDictionary()


class FileStore:
    """A session in the directory."""

    name = NAME
    clock: Clock = SYSTEM
    quick = False

    def __init__(self, ground: Ground, memory_us: int) -> None:
        self.ground = ground
        self.waiter_registry = WaiterRegistry()
        self._memory_us = memory_us
        self._dates = Dates(boot_id())
        self._session: Session | None = None
        self._session_lock = threading.RLock()
        self._closed = False
        self._count = 0
        self._ahead: dict[str, set[int]] = {}
        self._looks: dict[str, int] = {}
        self._listener = LazyFifoListener()

    def answer_all(self, commands: Sequence[Command], until_ns: int | None) -> list[Reply]:
        stall_ns = SYSTEM.now_ns() + _STALL_NS
        bound_ns = stall_ns if until_ns is None else min(stall_ns, until_ns)
        session = self._begin()
        answers = [self._answer(session, command, bound_ns) for command in commands]
        if self._count % _SWEEP_EVERY == 0:
            survey.sweep(self.ground, self._dates, session.wall_us())
        self._count += 1
        return answers

    def _answer(self, session: Session, command: Command, bound_ns: int) -> Reply:
        try:
            self.ground.refuse_stranger()
            return self._ask(session, command, bound_ns)
        except Unavailable as error:
            return error
        except OSError as error:
            return self.ground.unavailable(error)

    def _ask(self, session: Session, command: Command, bound_ns: int) -> Answer:
        """Read, decide, turn: until the turn is ours, or nothing has to be turned."""
        register = Register(self.ground, folder_of(command.name))
        unsure, turns = False, 0
        try:
            while True:
                began_ns = SYSTEM.now_ns()
                sheet = register.read()
                before = self._read(command.name, sheet)
                moment = self._moment(session, command, before.record)
                after, answer, wake = RULES[type(command)](before.record, command, moment)
                if paper.is_same(before.record, after):
                    break
                now = Date(self._dates.boot, moment.now_us, moment.wall_us)
                body = paper.written(command.name, before, after, now, self._memory_us)
                turn = register.write(sheet, body, partial(self._wake, wake))
                if turn is Turn.DONE:
                    self._refuse_sleeper(session, command, began_ns, bound_ns)
                    break
                unsure, turns = unsure or turn is Turn.UNSURE, turns + 1
                _breathe(turns, bound_ns)
        except OSError as error:
            if unsure:
                raise ReplyLost(NAME, "reply lost", str(error)) from error
            raise
        finally:
            register.close()
        self._note(session, command, answer, after)
        return _first_answer(command, answer) if unsure else answer

    def _read(self, name: str, sheet: Sheet) -> paper.Paper:
        if sheet.number == 0:
            return paper.EMPTY
        try:
            return paper.read(sheet.body, self._dates)
        except paper.Newer as error:
            raise Unavailable(NAME, "newer", f"the record of {name!r}: {error}") from error
        except (ValueError, LookupError, TypeError) as error:
            silent_us = SYSTEM.now_ns() // NS_PER_US - self._dates.first_seen_us((name, sheet.number))
            if silent_us >= _UNREADABLE_US:
                return paper.EMPTY
            left_s = (_UNREADABLE_US - silent_us) / 1e6
            detail = f"the record of {name!r} cannot be read; it counts as held for another {left_s:.0f} s"
            raise Unavailable(NAME, "corrupt", detail) from error

    def _moment(self, session: Session, command: Command, record: Record) -> Moment:
        """Who has died or fallen silent; asked only about those on whom the answer depends."""
        now_us, wall_us, me = SYSTEM.now_ns() // NS_PER_US, session.wall_us(), session.client
        holder, clients = record.holder, record.waiters.clients
        if not clients and (holder is None or holder.client == me):
            return Moment(now_us, wall_us, me)
        late_us = now_us - MARK_MS * 1000
        seen = {} if holder is None or holder.client == me else {holder.client: self._look_at(holder.client)}
        stays = holder is not None and holder.expires_us > now_us and not any(each.gone for each in seen.values())
        if not (stays and _leaves_all_as_it_is(command, holder)):
            for client in clients:  # in the order of the line
                if client != me and client not in seen:
                    seen[client] = self._look_at(client)
                alive = client == me or not (seen[client].gone or seen[client].marked_us < late_us)
                if alive and _asks_who_is_first(command):
                    break
        gone = frozenset(each.client for each in seen.values() if each.gone)
        silent = frozenset(each.client for each in seen.values() if each.marked_us < late_us)
        return Moment(now_us, wall_us, me, gone, silent)

    def _look_at(self, client: str) -> Seen:
        return look(self.ground, self._dates, client)

    def _refuse_sleeper(self, session: Session, command: Command, began_ns: int, bound_ns: int) -> None:
        """Whoever slept between reading and writing does not take what it got: its fence may be an old one."""
        if SYSTEM.now_ns() - began_ns < _STEP_MAX_NS or type(command) is not Acquire:
            return
        self._ask(session, Undo(command.name, command.token), max(bound_ns, SYSTEM.now_ns() + _STALL_NS))
        raise Unavailable(NAME, "stalled", f"this process slept while it asked for {command.name!r}")

    def _note(self, session: Session, command: Command, answer: Answer, record: Record) -> None:
        """What this client remembers of its waiters."""
        if type(answer) is Busy or type(command) is WaiterHeartbeat:
            with contextlib.suppress(OSError):  # a full disk: the answer stands all the same
                session.mark()
        if type(command) is Acquire and type(answer) is Busy and command.wait:
            holder = record.holder
            clients = {*record.waiters.clients, *([] if holder is None else [holder.client])} - {session.client}
            self._ahead[command.token] = {self._look_at(client).pid for client in clients} - {0, os.getpid()}
        elif isinstance(command, Acquire | Undo):
            self._ahead.pop(command.token, None)
            self._looks.pop(command.token, None)

    def look_again_ns(self, token: str, until_ns: int) -> int:
        """When a waiter looks by itself, where nobody of another machine could ring: soon at first, then less often."""
        if not (self.ground.network or self._listener.failed):
            return until_ns
        nap_ns = self._looks.get(token, _LOOK_FIRST_NS)
        self._looks[token] = min(_LOOK_LAST_NS, nap_ns * 3 // 2)
        return min(until_ns, SYSTEM.now_ns() + int(nap_ns * random.uniform(0.7, 1.3)))  # noqa: S311 - spreads, no secret

    def _begin(self) -> Session:
        session = self._session
        if session is not None:
            return session
        with self._session_lock:
            if self._closed:
                raise Closed
            if self._session is None:
                self.ground.open()
                try:
                    session = Session(self.ground, self._dates)
                except OSError as error:
                    raise self.ground.unavailable(error) from error
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
            wake_session(self._pipe(holder.client), holder.token)

    def _pipe(self, client: str) -> str:
        return f"{self.ground.home}/clients/{client}.wake"

    def listen(self, token: str) -> bool:
        session, ahead = self._session, self._ahead.pop(token, ())
        if session is None:
            return False
        return self._listener.listen(
            ahead, lambda: FifoListener(self._pipe(session.client), self.waiter_registry, self.ground.file_mode)
        )

    def promise(self) -> Promise:
        return promised(self.ground.kind, network=self.ground.network)

    def location(self) -> str:
        return self.ground.location()

    def liveness_fd(self) -> int:
        return self._begin().lock

    def names(self, prefix: str, limit: int, kind: str = "") -> NamePage:
        if kind:
            return NamePage((), more=False)  # leases are all that is kept here
        self._begin()
        return survey.names(self.ground, self._dates, prefix, limit)

    def examine(self) -> EngineReport:
        self._begin()
        return survey.examine(self.ground, self._dates)

    def forked(self) -> None:
        """The session stayed with the parent; the child begins its own with its first command."""
        self.waiter_registry = WaiterRegistry()
        self._session_lock = threading.RLock()
        self._ahead, self._looks = {}, {}
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
            self.ground.close()


def _breathe(turns: int, bound_ns: int) -> None:
    if SYSTEM.now_ns() >= bound_ns:
        raise ReplyLost(NAME, "stalled", f"{turns} turns in a row were lost to others")
    if turns >= _BREATH_AFTER:
        time.sleep(random.uniform(0, _BREATH_S * min(turns, 10)))  # noqa: S311 - spreads, no secret


def _first_answer(command: Command, answer: Answer) -> Answer:
    """A command that may have been answered once, and asks again: what it ended is not there any more."""
    ended = isinstance(answer, NotHeld) and answer.reason in ("expired", "released", "no such lease")
    return Released() if ended and isinstance(command, Release | Break) else answer


def _leaves_all_as_it_is(command: Command, holder: HolderRecord | None) -> bool:
    """Whether the line is the same after this command, as long as the holder stays what it is."""
    if type(command) is Acquire:
        return holder is not None and command.token == holder.token
    return type(command) in (Renew, WaiterHeartbeat)


def _asks_who_is_first(command: Command) -> bool:
    """Whether it is all the same to this command who stands behind the first waiter that lives."""
    return type(command) is Release and not command.to


# A child's stores have sessions of their own; those it inherited are the parent's, to be rung through the pipe.
os.register_at_fork(after_in_child=_here.clear)
