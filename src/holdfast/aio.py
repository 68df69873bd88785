"""The asyncio face: the names and shapes of the blocking one, awaited.

Leases are kept by a thread, so that a blocked event loop loses none. Besides the policies of the blocking face there is
`on_loss="cancel"`: it cancels the task that entered the block, as `asyncio.timeout` does, and the block ends in
`LeaseLost` once the task has settled.
"""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, cast

from holdfast.clock import Clock, Seconds
from holdfast.config import FENCE_MEMORY_S
from holdfast.core import client as _client
from holdfast.core import inspection, leader, lifecycle, outlook
from holdfast.core.lease import LeaseBase, SignalBase
from holdfast.core.lock import TTL_S, UNSET, LockBase, Unset, is_coroutine_function, refuse_generator
from holdfast.errors import InvalidConfig, LeaseLost, NotAcquired
from holdfast.rules.promise import required

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
    from types import TracebackType

    from holdfast.core.inspection import Holding
    from holdfast.core.leader import Leading
    from holdfast.engines import Promise
    from holdfast.observer import Observer

P = ParamSpec("P")
R = TypeVar("R")

_POLICIES = ("report", "cancel")


class Signal(SignalBase):
    """Like `blocking.Signal`, awaited."""

    __slots__ = ()

    async def wait(self, timeout: Seconds | None = None) -> bool:
        """Like `blocking.Signal.wait`, awaited."""
        return await self._wait(timeout)


class Lease(LeaseBase):
    """Like `blocking.Lease`, awaited."""

    _task: asyncio.Task[Any] | None
    _cancelled: bool

    @property
    def lost(self) -> Signal:
        """Set when the lease can no longer be vouched for."""
        return Signal(self, self._is_lost)

    async def release(self) -> None:
        """Like `blocking.Lease.release`, awaited."""
        await lifecycle.release(self)

    async def __aenter__(self) -> Lease:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        try:
            await lifecycle.leave(self, error)
        finally:
            lifecycle.end(self)
        return False


class Lock(LockBase):
    """Like `blocking.Lock`, awaited."""

    async def acquire(self, timeout: Seconds | Unset | None = UNSET) -> Lease:
        """Like `blocking.Lock.acquire`, awaited."""
        patience_ns = self._patience(timeout)
        lease = Lease(*self._fields())
        try:
            await lifecycle.acquire(lease, patience_ns)
            lease._owned = True
            return lease  # noqa: TRY300 - an interrupt may strike even here
        except BaseException:
            lifecycle.undo(lease)
            raise

    async def try_acquire(self) -> Lease | None:
        """Like `blocking.Lock.try_acquire`, awaited."""
        try:
            return await self.acquire(timeout=0)
        except NotAcquired:
            return None

    async def __aenter__(self) -> Lease:
        who = asyncio.current_task()
        depth, lease = self._depth(who), cast("Lease | None", self._inside(who))
        fresh = lease is None
        lease = lease or Lease(*self._fields())
        try:
            if fresh:
                await lifecycle.acquire(lease, self._patience_ns)
            self._enter(who, lease)
            if fresh:
                _cancel_on_loss(lease, self._on_loss)
            lease._owned = True
            return lease  # noqa: TRY300 - as above
        except BaseException:
            self._back_to(who, depth)
            if fresh:
                lifecycle.undo(lease)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        block = None
        try:
            try:
                block = self._leaving(asyncio.current_task())
                if block.lease is not None:
                    await lifecycle.leave(block.lease, _settled(block.lease, error))
            finally:
                block = self._left(block, asyncio.current_task())
        finally:
            self._left(block, asyncio.current_task())
        return False

    def __call__(self, work: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
        """Like `blocking.Lock.__call__`, for coroutine functions."""
        refuse_generator(work)
        if not is_coroutine_function(work):
            name = getattr(work, "__qualname__", work)
            raise InvalidConfig("function", name, "a plain function needs the lock of the blocking face")
        name = self._naming(work)

        @functools.wraps(work)
        async def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            lock = self._like(name(args, kwargs))
            done: list[R] = []
            try:
                async with lock:
                    done.append(await work(*args, **kwargs))
            except LeaseLost as lost:
                lost.result = lost.result if not done else done[0]
                raise
            return done[0]

        return locked

    def _like(self, name: str) -> Lock:
        """The lock of the same settings for another name; one and the same while anybody is inside."""
        if name == self.name:
            return self
        lock: Lock = self._likes.setdefault(name, Lock(self._client, name, policies=_POLICIES, **self._settings()))
        return lock


class Term(Lease):
    """Like `blocking.Term`, awaited."""

    _candidacy: leader.Candidacy

    @property
    def over(self) -> Signal:
        """Set when the work should end: the term was resigned, handed over, or lost."""
        return Signal(self, lambda: self._candidacy.is_over(self) or self._is_lost())


class Leader:
    """Like `blocking.Leader`, awaited."""

    def __init__(self, lock: Lock, candidacy: leader.Candidacy) -> None:
        self._lock = lock
        self._candidacy = candidacy

    @property
    def name(self) -> str:
        return self._lock.name

    @property
    def candidate(self) -> str:
        return self._candidacy.candidate

    async def run(self, work: Callable[[Term], Awaitable[R]]) -> R:
        """Like `blocking.Leader.run`, awaited."""
        done: list[R] = []
        try:
            async with self as term:
                done.append(await work(term))
        except LeaseLost as lost:
            lost.result = lost.result if not done else done[0]
            raise
        return done[0]

    async def current(self) -> Leading | None:
        """Like `blocking.Leader.current`, awaited."""
        return await leader.current(self._candidacy)

    async def candidates(self) -> list[str]:
        """Like `blocking.Leader.candidates`, awaited."""
        return await leader.candidates(self._candidacy)

    async def observe(self, interval: Seconds = 1.0) -> AsyncIterator[Leading | None]:
        """Like `blocking.Leader.observe`, awaited."""
        watch = leader.Watch(self._candidacy, interval)
        while True:
            yield await watch.change()

    def resign(self) -> None:
        """Like `blocking.Leader.resign`; only a word to the running term, so there is nothing to await."""
        self._candidacy.step_down()

    async def hand_over(self, to: str) -> None:
        """Like `blocking.Leader.hand_over`, awaited."""
        await leader.hand_over(self._candidacy, to)

    async def __aenter__(self) -> Term:
        term = Term(*self._lock._fields())  # the leader is a shape around its lock
        term._candidacy = self._candidacy
        try:
            self._candidacy.enter(term)
            await lifecycle.acquire(term, self._lock._patience_ns)
            self._candidacy.begin(term)
            _cancel_on_loss(term, self._lock._on_loss)
            term._owned = True
            return term  # noqa: TRY300 - as above
        except BaseException:
            self._candidacy.forget(term)
            lifecycle.undo(term)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        term = self._candidacy.term
        try:
            await leader.end_term(self._candidacy, error if term is None else _settled(term, error))
        finally:
            leader.ended(self._candidacy, term)
        return False


class Holdfast:
    """Like `blocking.Holdfast`, awaited. Tasks of one event loop may share it."""

    def __init__(self, client: _client.Client) -> None:
        self._client = client

    @property
    def url(self) -> str:
        """Where the leases live, without any password."""
        return self._client.url

    def lock(
        self,
        name: str,
        ttl: Seconds = TTL_S,
        timeout: Seconds | None = None,
        *,
        reentrant: bool = False,
        on_loss: str | Callable[[Lease], object] = "report",
        confirm: str | None = None,
    ) -> Lock:
        """Like `blocking.Holdfast.lock`."""
        return Lock(
            self._client,
            name,
            ttl=ttl,
            timeout=timeout,
            reentrant=reentrant,
            on_loss=on_loss,
            confirm=confirm,
            policies=_POLICIES,
        )

    def leader(
        self,
        name: str,
        ttl: Seconds = TTL_S,
        timeout: Seconds | None = None,
        *,
        candidate: str | None = None,
        on_loss: str | Callable[[Term], object] = "report",
        confirm: str | None = None,
    ) -> Leader:
        """Like `blocking.Holdfast.leader`."""
        label = leader.candidate_name(self._client, candidate)
        lock = Lock(
            self._client,
            name,
            ttl=ttl,
            timeout=timeout,
            reentrant=False,
            on_loss=on_loss,
            confirm=confirm,
            policies=_POLICIES,
            label=label,
        )
        return Leader(lock, leader.Candidacy(self._client, lock.name, label))

    async def show(self, name: str) -> Holding:
        """Like `blocking.Holdfast.show`, awaited."""
        return await inspection.show(self._client, name)

    async def break_lease(self, name: str, reason: str) -> None:
        """Like `blocking.Holdfast.break_lease`, awaited."""
        await inspection.break_lease(self._client, name, reason)

    async def refresh_topology(self) -> None:
        """Like `blocking.Holdfast.refresh_topology`, awaited."""
        await self._client.refresh_topology()

    async def promise(self) -> Promise:
        """Like `blocking.Holdfast.promise`, awaited."""
        return await outlook.promise(self._client)

    async def close(self, timeout: Seconds | None = _client.CLOSE_S) -> tuple[str, ...]:
        """Like `blocking.Holdfast.close`, awaited."""
        return await _client.close(self._client, timeout)

    async def __aenter__(self) -> Holdfast:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        await self.close()
        return False

    def __repr__(self) -> str:
        return f"<holdfast {self._client.url} {self._client.state}>"


async def connect(
    url: str | None = None,
    *,
    label: str = "",
    info: dict[str, Any] | None = None,
    observer: Observer | None = None,
    fence_memory: Seconds = FENCE_MEMORY_S,
    clock: Clock | None = None,
    require: str | Iterable[str] = (),
) -> Holdfast:
    """Like `blocking.connect`, awaited: the client belongs to the running event loop."""
    wanted = required(require)
    client = _client.Client(
        url,
        face="asyncio",
        label=label,
        info=info,
        observer=observer,
        fence_memory=fence_memory,
        clock=clock,
    )
    try:
        await outlook.require(client, wanted)
    except BaseException:
        await _client.close(client, 0)
        raise
    return Holdfast(client)


def _cancel_on_loss(lease: Lease, policy: object) -> None:
    """Have the loss of this lease cancel the task that is just entering its block."""
    if policy != "cancel":
        return
    lease._task = asyncio.current_task()  # the face's own class
    lease._cancelled = False
    lease._on_loss = _cancel


def _cancel(lease: Lease) -> None:
    if lease._task is not None:
        lease._cancelled = True
        lease._task.cancel()


def _settled(lease: LeaseBase, error: BaseException | None) -> BaseException | None:
    """The work's own outcome: a cancellation that we caused is taken back, one from outside stays."""
    task = getattr(lease, "_task", None)
    if task is None:
        return error
    lease._task = None  # type: ignore[attr-defined]  # from now on it is too late to cancel
    if not lease._cancelled:  # type: ignore[attr-defined]
        return error
    ours = task.uncancel() == 0
    return None if ours and isinstance(error, asyncio.CancelledError) else error
