"""One client: an engine, a keeper, and the rules of opening and closing.

`close()` refuses new work first, then waits for holders and for acquisitions in flight. After its bound it never
releases a lease under running work: such leases lapse, their holders are told, and their names are returned.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast import config
from holdfast.clock import NEVER_NS, NS, NS_PER_MS, Seconds, timeout_ns
from holdfast.core.keeper.keeper import WIRE_NS, Keeper
from holdfast.core.keeper.restart_guard import RestartGuard
from holdfast.core.lease.lease import ASKING, HELD
from holdfast.core.limit.local import Ledgers
from holdfast.engines import ALTERNATIVES, Capability, open_engine
from holdfast.errors import Closed, InvalidConfig, ReplyLost, Unavailable
from holdfast.names import readable, this_process
from holdfast.observer import Observer, emit, log

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, MutableMapping, Sequence

    from holdfast.clock import Clock
    from holdfast.commands import Answer, Command
    from holdfast.core.lease.lease import LeaseBase
    from holdfast.engines import Engine, Transport, Waker

OPEN, CLOSING, ABORTING, CLOSED = "open", "closing", "aborting", "closed"
CLOSE_S = 30.0
# An error that leaves the block of a client is not kept from whoever should see it: what is held may be held by the
# very code that failed, and would be waited for in vain.
LEAVE_S = 1.0
_POLL_NS = 50 * NS_PER_MS

_clients: weakref.WeakSet[Client] = weakref.WeakSet()


class Client:
    """What a face stands on."""

    def __init__(
        self,
        url: str | None,
        *,
        face: str,
        label: str,
        info: dict[str, Any] | None,
        observer: Observer | None,
        fence_memory: Seconds,
        clock: Clock | None,
        namespace: str | None,
    ) -> None:
        settings = config.settings(url, fence_memory=fence_memory, clock=clock, namespace=namespace)
        if observer is not None and not callable(observer):
            raise InvalidConfig("observer", observer, "it must be callable with an Event")
        self._label, self._info = label, info
        self.holder = this_process(label, info)
        self.packed = self.holder.packed()
        self.url = settings.url
        self.observer = observer
        self._url_setting = config.url_setting(url)
        with config.naming(url):
            self.engine: Engine = open_engine(settings)
        if settings.source is not None:
            self.url = self.engine.location().partition(" ")[0]  # a client object has no URL: where it leads to is told
        self.clock = self.engine.clock
        self.transport: Transport = self.engine.blocking() if face == "blocking" else self.engine.asyncio()
        self.restart_guard = RestartGuard(self.engine)
        self.keeper = Keeper(self.engine.keeper(), self.clock, observer, self.restart_guard)
        self.ledgers = Ledgers()
        # The objects of each read-write lock: whoever is inside through one of them is known to all.
        self.sides: MutableMapping[str, weakref.WeakSet[Any]] = weakref.WeakValueDictionary()
        self.state = OPEN
        self._wakers: list[Waker] = []
        self._left: tuple[str, ...] = ()
        self._being_closed = False
        _clients.add(self)

    def __reduce__(self) -> NoReturn:
        """Whatever is made by it has it inside, and tells the same."""
        raise TypeError("a holdfast client cannot be pickled or copied: connect in the process that is to use it")

    @property
    def guard(self) -> threading.RLock:
        return self.keeper.guard

    @property
    def closed(self) -> bool:
        return self.state is CLOSED

    def emit(
        self, kind: str, name: str, fence: int | None = None, seconds: float | None = None, detail: str = ""
    ) -> None:
        """Log what happened, and hand it to the observer."""
        emit(self.observer, kind, name, fence, seconds, detail)

    def begin(self, lease: LeaseBase) -> None:
        """Register a token before its first byte is sent; refuse when closing."""
        # First kept, then looked: whoever closes sets the state first and then looks for what is kept.
        self.keeper.leases[lease.token] = weakref.ref(lease)
        if self.state is not OPEN:
            self.keeper.forget(lease)
            raise Closed

    def refuse_without(self, capability: Capability) -> None:
        """Raise `InvalidConfig` if the engine does not declare the capability."""
        if capability not in self.engine.capabilities:
            raise InvalidConfig(
                self._url_setting, self.url, f"{self.engine.name} keeps leases and no {capability}: {ALTERNATIVES}"
            )

    async def send(self, command: Command) -> Answer:
        """One command that belongs to no lease of ours."""
        if self.state is CLOSED:
            raise Closed
        try:
            answer = self.transport.apply(command)
            return answer if isinstance(answer, tuple) else await answer
        except ReplyLost as error:
            raise Unavailable(error.engine, error.reason, error.detail) from error

    async def send_all(self, commands: Sequence[Command]) -> list[Any]:
        """Several such commands, in as few exchanges as the engine can do with; what it cannot answer is raised."""
        if self.state is CLOSED:
            raise Closed
        answers = await self.transport.apply_all(commands)
        for answer in answers:
            if isinstance(answer, Unavailable):
                raise Unavailable(answer.engine, answer.reason, answer.detail) from answer
        return list(answers)

    async def refresh_topology(self) -> None:
        """Have the engine learn anew where its servers are."""
        if self.state is CLOSED:
            raise Closed
        await self.transport.refresh()

    def forked(self) -> None:
        """In a child: every lease is the parent's, and nothing that was inherited is touched."""
        leases = self.keeper.live_leases()
        self.keeper.forked()
        self.engine.forked()
        self.restart_guard.forked()
        self.ledgers = Ledgers()
        self.holder = this_process(self._label, self._info)
        self.packed = self.holder.packed()
        self._wakers = []
        for lease in leases:
            lease._on_loss = None  # the callback is the parent's
            lease._state, lease._why = "lost", ("forked", "")


def close_timeout(error: BaseException | None) -> float:
    """How long to wait for what is held when the client's block is left."""
    return CLOSE_S if error is None else LEAVE_S


async def close(client: Client, timeout: Seconds | None) -> tuple[str, ...]:
    """Refuse, wait, end; the names of leases that could not be waited for. Interrupted, it may be called again."""
    wait_ns = timeout_ns(timeout)
    if client.state is not CLOSED:
        client.transport.check_loop()
    until_ns = NEVER_NS if wait_ns is None else client.clock.now_ns() + wait_ns
    first = False
    try:
        with client.guard:
            first = not client._being_closed
            client._being_closed = True
            if client.state is OPEN:
                client.state = CLOSING
        for lease in client.keeper.live_leases():
            lease._closing()
        if not first:
            await _until(client, lambda: client.state is CLOSED, until_ns)
            return client._left if client.state is CLOSED else _names(client)

        if wait_ns != 0 and (held := _names(client)):
            bound = "for ever" if wait_ns is None else f"for {wait_ns / NS:g} s at most"
            log.warning("holdfast: closing waits %s until these are given back: %s", bound, ", ".join(held))
        await _until(client, lambda: client.keeper.idle(but_undos=True), until_ns)
        await _until(client, client.keeper.idle, min(until_ns, client.clock.now_ns() + WIRE_NS))
        await _end(client)
    except BaseException:
        if first:
            client._being_closed = False
        raise
    return client._left


async def _end(client: Client) -> None:
    client.state = ABORTING
    client.transport.wake_all()
    await _until(client, lambda: not _asking(client), client.clock.now_ns() + WIRE_NS)
    client._left = _names(client)
    for lease in client.keeper.live_leases():
        lease._lose("closed")  # the holder is told; the engine is not, so the lease lapses
    client.keeper.stop()
    await _until(client, client.keeper.stopped, client.clock.now_ns() + 2 * WIRE_NS)
    try:
        await client.transport.close()
    except Unavailable as error:
        client.emit("unavailable", "", detail=str(error))
    client.state = CLOSED
    _wake(client)


async def _until(client: Client, done: Callable[[], object], until_ns: int) -> None:
    """Sleep until `done()`; rung when a lease ends, and looking again now and then all the same."""
    waker = client.transport.waker()
    client._wakers.append(waker)
    client.keeper.on_idle(lambda: _wake(client))
    while not done() and client.clock.now_ns() < until_ns:
        await waker.wait(min(until_ns, client.clock.now_ns() + _POLL_NS))


def _wake(client: Client) -> None:
    for waker in client._wakers.copy():  # not a tuple of it: to make one may crash CPython 3.11 while others append
        waker.wake()


def _asking(client: Client) -> list[LeaseBase]:
    return [lease for lease in client.keeper.live_leases() if lease._state is ASKING]


def _names(client: Client) -> tuple[str, ...]:
    held = (readable(lease.name) for lease in client.keeper.live_leases() if lease._state is HELD)
    return tuple(sorted(held))


def _forked() -> None:
    for client in tuple(_clients):
        client.forked()


os.register_at_fork(after_in_child=_forked)
