"""One client: an engine, a transport, a keeper, and the rules of opening and closing.

`close()` first refuses new calls, withdraws every waiting acquire, and asks leaders, workers, owners and the hooks of
`on_closing` to stop. Then it waits for the holders. After its timeout, `close()` never releases a lease while its
holder works: such leases expire, their holders learn of the loss, and `close()` returns their names.
"""

from __future__ import annotations

import os
import sys
import weakref
from _thread import get_ident
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast import config
from holdfast.clock import NEVER_NS, NS, NS_PER_MS, Seconds, timeout_ns
from holdfast.core.keeper.keeper import Keeper
from holdfast.core.keeper.restart_guard import RestartGuard
from holdfast.core.lease.state import HELD, PENDING, lose_all
from holdfast.core.limit.local import LocalLimits
from holdfast.core.resend import WIRE_NS, raise_public
from holdfast.core.step import Ready
from holdfast.engines import ALTERNATIVES, Capability, open_engine
from holdfast.errors import Closed, InvalidConfig, LossReason, Unavailable, UnreadableRecord
from holdfast.interrupts import raise_if_of_signal
from holdfast.names import readable, this_process
from holdfast.observer import REPEATED, Observer, OutageLog, checked_observer, emit, log

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, MutableMapping, Sequence

    from holdfast.clock import Clock
    from holdfast.commands import Answer, Command
    from holdfast.core.lease.lease import LeaseBase
    from holdfast.core.lease.state import LeaseCore
    from holdfast.engines import Engine, Transport, Waker

CLOSE_S = 30.0
# After an error in the block of a client, `close` waits only briefly: the code that failed may itself hold the leases
# that `close` would wait for.
CLOSE_AFTER_ERROR_S = 1.0
_POLL_NS = 50 * NS_PER_MS
# A client needs the real waiting functions of these modules.
_MUST_BE_UNPATCHED = ("threading", "select", "selectors", "socket", "time", "os", "subprocess")

_clients: weakref.WeakSet[Client] = weakref.WeakSet()


class ClientPhase(StrEnum):
    """The phases of a client, from open to closed."""

    OPEN = "open"
    CLOSING = "closing"  # no new calls, and no grants: waiters end with `Closed`; holders may finish
    ABORTING = "aborting"  # the leases that are still held are lost
    CLOSED = "closed"


OPEN, CLOSING, ABORTING, CLOSED = ClientPhase.OPEN, ClientPhase.CLOSING, ClientPhase.ABORTING, ClientPhase.CLOSED


class Client:
    """The engine and the leases of one `connect()`; both faces build on it."""

    def __init__(
        self,
        url: str | config.RedisClient | config.RedisClusterClient | None,
        *,
        face: str,
        label: str,
        info: dict[str, Any] | None,
        observer: Observer | Sequence[Observer] | None,
        fence_memory: Seconds,
        clock: Clock | None,
        namespace: str | None,
    ) -> None:
        _refuse_patched_process()
        settings = config.settings(url, fence_memory=fence_memory, clock=clock, namespace=namespace)
        observer = checked_observer(observer)
        self._label, self._info = label, info
        self.holder = this_process(label, info)
        self.packed = self.holder.packed()
        self.url = settings.url
        self.observer = observer
        self._url_setting = config.url_setting(url)
        with config.naming_the_variable(url):
            self.engine: Engine = open_engine(settings)
        if settings.source is not None:
            self.url = self.engine.location().partition(" ")[0]  # a redis-py client has no URL; show where it leads
        self.clock = self.engine.clock
        self.transport: Transport = self.engine.blocking() if face == "blocking" else self.engine.asyncio()
        self.restart_guard = RestartGuard(self.engine)
        self.outages = OutageLog()
        self.keeper = Keeper(self.engine.keeper(), self.clock, observer, self.restart_guard, self.outages)
        self.local_limits = LocalLimits()
        # The lock objects of each read-write lock: through any of them, all know which threads or tasks are inside.
        self.rwlock_modes: MutableMapping[str, weakref.WeakSet[Any]] = weakref.WeakValueDictionary()
        self.state = OPEN
        self.is_open = True  # the same as `state is OPEN`, for the hot path
        # Warns about blocking calls in an event loop; the blocking face sets it.
        self.check_caller: Callable[[], object] | None = None
        self._wakers: list[Waker] = []
        self._closing_hooks: list[Callable[[], object]] = []
        self._hooks_thread = 0  # the thread that calls the hooks, while a `close()` lasts
        self._left: tuple[str, ...] = ()
        self._own_lease_warned_ns = -NEVER_NS
        self._being_closed = False
        _clients.add(self)

    def __reduce__(self) -> NoReturn:
        """Refuse. Locks, queues and leases refer to their client, so pickling them fails with this message too."""
        raise TypeError("a holdfast client cannot be pickled or copied: connect in the process that uses it")

    @property
    def guard(self) -> threading.RLock:
        """The lock that protects the states of the client and of its leases."""
        return self.keeper.guard

    @property
    def closed(self) -> bool:
        """Whether `close()` has finished."""
        return self.state is CLOSED

    def emit(
        self, kind: str, name: str, fence: int | None = None, seconds: float | None = None, detail: str = ""
    ) -> None:
        """Log an event, and pass it to the observer: on this thread, unless it is the keeper's."""
        count = self.outages.count(kind, self.clock.now_ns()) if kind in REPEATED else 1
        if self.keeper.runs_here():
            self.keeper.reporter.emit(kind, name, fence, seconds, detail, count)
        else:
            emit(self.observer, kind, name, fence, seconds, detail, count)

    def answered(self) -> None:
        """Log the end of an outage, if there was one: the engine has answered."""
        if self.outages.open:
            for line in self.outages.over(self.clock.now_ns()):
                log.warning(line)

    def begin(self, lease: LeaseCore) -> None:
        """Register a token before its first byte is sent; raise `Closed` if the client is closing.

        No lease is requested without a keeper: `Unavailable` if its thread cannot start.
        """
        if self.keeper.thread is None:
            self.keeper.wake()
        # Register first, then look at the state: `close` sets the state first, and then looks for registered leases.
        self.keeper.leases[lease.token] = weakref.ref(lease)
        if self.check_caller is not None:
            self.check_caller()
        if not self.is_open:
            self.keeper.forget(lease)
            raise Closed

    def refuse_if_closed(self) -> None:
        """Raise `Closed` if the client is closed."""
        if self.state is CLOSED:
            raise Closed

    def refuse_if_closing(self) -> None:
        """Raise `Closed` if waiters must end, because the client is closed or about to be."""
        if not self.is_open:
            raise Closed

    def on_closing(self, call: Callable[[], object]) -> None:
        """Call `call` at the beginning of `close()`."""
        if not callable(call):
            raise InvalidConfig("on_closing", call, "it must be callable without arguments")
        self._closing_hooks.append(call)

    def _call_hooks(self) -> None:
        """Call the hooks of `on_closing`; an error of one of them is logged, and stops nothing else."""
        self._hooks_thread = get_ident()
        try:
            while self._closing_hooks:
                call = self._closing_hooks.pop(0)
                try:
                    call()
                except BaseException as error:  # also SystemExit: the client must not stay half closed
                    raise_if_of_signal(error)
                    log.exception("a function of on_closing() failed: %r", call)
        finally:
            self._hooks_thread = 0

    def refuse_without(self, capability: Capability, feature: str = "") -> None:
        """Raise `InvalidConfig` if the engine does not declare the capability.

        `feature`: the plural of what the caller wants, if the capability has another name.
        """
        if capability not in self.engine.capabilities:
            rule = f"{self.engine.name} keeps leases and no {feature or capability}: {ALTERNATIVES}"
            raise InvalidConfig(self._url_setting, self.url, rule)

    async def send(self, command: Command) -> Answer:
        """Send one command that belongs to no lease, once, and return its answer."""
        self.refuse_if_closed()
        if self.check_caller is not None:
            self.check_caller()
        try:
            answer = self.transport.apply(command)
            return answer if isinstance(answer, Ready) else await answer
        except Unavailable as error:
            raise_public(error)

    async def send_all(self, commands: Sequence[Command]) -> list[Any]:
        """Send several commands in as few exchanges as possible, and return their answers.

        The answer about a name whose record cannot be read is `None`, with a warning in the log: one damaged name must
        not hide the others. Raise `Unavailable` if one of the commands was not answered for another reason.
        """
        self.refuse_if_closed()
        answers: list[Any] = list(await self.transport.apply_all(commands))
        for at, answer in enumerate(answers):
            if isinstance(answer, Unavailable):
                if not isinstance(answer, UnreadableRecord):
                    raise Unavailable(answer.engine, answer.reason, answer.detail, answer.outcome) from answer
                log.warning("holdfast: %s", answer)
                answers[at] = None
        return answers

    async def refresh_topology(self) -> None:
        """Make the engine look up its servers again."""
        self.refuse_if_closed()
        await self.transport.refresh()

    def forked(self) -> None:
        """Start over in a child process: the leases and the open connections belong to the parent."""
        leases = self.keeper.live_leases()
        self.keeper.forked()
        self.engine.forked()
        self.restart_guard.forked()
        self.local_limits = LocalLimits()
        self.holder = this_process(self._label, self._info)
        self.packed = self.holder.packed()
        self._wakers = []
        for lease in leases:
            lease.forked()

    async def close(self, timeout: Seconds | None) -> tuple[str, ...]:
        """Refuse new calls, wait for held leases, and close; return the names of leases that are left to expire.

        A caller may call `close` again after an interruption.
        """
        wait_ns = timeout_ns(timeout)
        if self.state is not CLOSED:
            self.transport.check_loop()
        until_ns = NEVER_NS if wait_ns is None else self.clock.now_ns() + wait_ns
        first = False
        try:
            with self.guard:
                first = not self._being_closed
                self._being_closed = True
                self.is_open = False  # in any case: an interrupt may have come between the two
                if self.state is OPEN:
                    self.state = CLOSING
            for lease in self.keeper.live_leases():
                lease.client_closing()
            self.transport.wake_all()
            self._wake_all()
            if first:
                self._call_hooks()
            elif self._hooks_thread == get_ident():
                return self._held_names()  # a hook called close(): the outer call continues when the hook returns
            else:
                await self._sleep_until(lambda: self.state is CLOSED, until_ns)
                return self._left if self.state is CLOSED else self._held_names()

            if wait_ns != 0 and (held := self._held_names()):
                bound = "for ever" if wait_ns is None else f"for {wait_ns / NS:g} s at most"
                log.warning("holdfast: close() waits %s for the release of: %s", bound, ", ".join(held))
            await self._sleep_until(lambda: self.keeper.idle(ignore_undos=True), until_ns)
            await self._sleep_until(self.keeper.idle, min(until_ns, self.clock.now_ns() + WIRE_NS))
            await self._end()
        except BaseException:
            if first:
                self._being_closed = False
            raise
        return self._left

    async def _end(self) -> None:
        """End waiters, lose the leases that are still held, stop the keeper, and close the transport."""
        self.state = ABORTING
        self.transport.wake_all()
        await self._sleep_until(lambda: not self._pending(), self.clock.now_ns() + WIRE_NS)
        self._left = self._held_names()
        if self._left:
            log.warning("holdfast: close() leaves these leases to expire by their ttl: %s", ", ".join(self._left))
        # Only for the holders: on the engine, the leases expire by their ttls.
        lose_all(self, [(lease, LossReason.CLOSED, "") for lease in self.keeper.live_leases()])
        self.keeper.stop()
        await self._sleep_until(self.keeper.stopped, self.clock.now_ns() + 2 * WIRE_NS)
        try:
            await self.transport.close()
        except Unavailable as error:
            self.emit("unavailable", "", detail=str(error))
        self.state = CLOSED
        self._wake_all()

    async def _sleep_until(self, done: Callable[[], object], until_ns: int) -> None:
        """Sleep until `done()` is true. The end of a lease wakes the sleeper, and it also polls."""
        waker = self.transport.waker()
        self._wakers.append(waker)
        self.keeper.on_idle(self._wake_all)
        while not done() and self.clock.now_ns() < until_ns:
            await waker.wait(min(until_ns, self.clock.now_ns() + _POLL_NS))

    def may_warn_of_own_lease(self, now_ns: int) -> bool:
        """Return true once a minute: many threads of a process may wait for each other for good reasons."""
        if now_ns < self._own_lease_warned_ns + 60 * NS:
            return False
        self._own_lease_warned_ns = now_ns
        return True

    async def pause(self, until_ns: int) -> None:
        """Sleep until then, or until `close()` begins."""
        waker = self.transport.waker()
        self._wakers.append(waker)
        try:
            if self.is_open:
                await waker.wait(until_ns)
        finally:
            self._wakers.remove(waker)

    def wake_pauses(self) -> None:
        """End every `pause`, so that its caller looks at the present state."""
        self._wake_all()

    def _wake_all(self) -> None:
        for waker in self._wakers.copy():  # list.copy: `tuple(list)` may crash CPython 3.11 while other threads append
            waker.wake()

    def _pending(self) -> list[LeaseBase]:
        return [lease for lease in self.keeper.live_leases() if lease.state is PENDING]

    def _held_names(self) -> tuple[str, ...]:
        held = (readable(lease.name) for lease in self.keeper.live_leases() if lease.state is HELD)
        return tuple(sorted(held))


def close_timeout(error: BaseException | None) -> float:
    """Return how long to wait for held leases when the client's block is left with `error`."""
    return CLOSE_S if error is None else CLOSE_AFTER_ERROR_S


def _forked() -> None:
    for client in tuple(_clients):
        client.forked()


os.register_at_fork(after_in_child=_forked)


def _refuse_patched_process() -> None:
    """Raise `InvalidConfig` if gevent has patched the process.

    Threads are greenlets there: no keeper runs beside them, and `close` waits for ever in calls unknown to gevent.
    """
    monkey = sys.modules.get("gevent.monkey")
    patched = [name for name in _MUST_BE_UNPATCHED if monkey.is_module_patched(name)] if monkey is not None else []
    if patched:
        rule = "the keeper needs real threads and real waiting: use holdfast in a process that gevent does not patch"
        raise InvalidConfig("gevent.monkey", ", ".join(patched), rule)
