"""The blocking face: for threads. `holdfast.aio` has the same names, awaited."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, cast

from holdfast.clock import Clock, Seconds
from holdfast.config import FENCE_MEMORY_S
from holdfast.core import client as _client
from holdfast.core import inspection, leader, lifecycle, outlook
from holdfast.core.lease import LeaseBase, SignalBase
from holdfast.core.lock import (
    TTL_S,
    UNSET,
    LockBase,
    Unset,
    is_coroutine_function,
    refuse_generator,
    refuse_unfinished,
)
from holdfast.core.run import run
from holdfast.errors import InvalidConfig, LeaseLost, NotAcquired
from holdfast.rules.promise import required

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType

    from holdfast.core.inspection import Holding
    from holdfast.core.leader import Leading
    from holdfast.engines import Promise
    from holdfast.observer import Observer

P = ParamSpec("P")
R = TypeVar("R")


class Signal(SignalBase):
    """Something that happens once to a lease: true when it has."""

    __slots__ = ()

    def wait(self, timeout: Seconds | None = None) -> bool:
        """Block until it happens; false if it has not by then, or if the lease ended well."""
        return run(self._wait(timeout))


class Lease(LeaseBase):
    """A right to a name, until it is released, lost or expired."""

    @property
    def lost(self) -> Signal:
        """Set when the lease can no longer be vouched for."""
        return Signal(self, self._is_lost)

    def release(self) -> None:
        """Give it back. Raises `LeaseLost` if it was lost; a second release does nothing."""
        run(lifecycle.release(self))

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        try:
            run(lifecycle.leave(self, error))
        finally:
            lifecycle.end(self)
        return False


class Lock(LockBase):
    """A way to get leases of one name. Use it in `with`, as a decorator, or through `acquire`."""

    def acquire(self, timeout: Seconds | Unset | None = UNSET) -> Lease:
        """Wait for the lease; `NotAcquired` when patience ends."""
        patience_ns = self._patience(timeout)
        lease = Lease(*self._fields())
        try:
            run(lifecycle.acquire(lease, patience_ns))
            lease._owned = True
            return lease  # noqa: TRY300 - an interrupt may strike even here
        except BaseException:
            lifecycle.undo(lease)
            raise

    def try_acquire(self) -> Lease | None:
        """The lease now, or `None`: one decision, no waiting."""
        try:
            return self.acquire(timeout=0)
        except NotAcquired:
            return None

    def __enter__(self) -> Lease:
        who = threading.get_ident()
        depth, lease = self._depth(who), cast("Lease | None", self._inside(who))
        fresh = lease is None
        lease = lease or Lease(*self._fields())
        try:
            if fresh:
                run(lifecycle.acquire(lease, self._patience_ns))
            self._enter(who, lease)
            lease._owned = True
            return lease  # noqa: TRY300 - as above
        except BaseException:
            self._back_to(who, depth)
            if fresh:
                lifecycle.undo(lease)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        block = None
        try:
            try:
                block = self._leaving(threading.get_ident())
                if block.lease is not None:
                    run(lifecycle.leave(block.lease, error))
            finally:
                block = self._left(block, threading.get_ident())
        finally:
            self._left(block, threading.get_ident())
        return False

    def __call__(self, work: Callable[P, R]) -> Callable[P, R]:
        """Run a function under the lease; fields in braces are filled from its arguments."""
        refuse_generator(work)
        if is_coroutine_function(work):
            raise InvalidConfig("function", work.__qualname__, "a coroutine function needs the lock of holdfast.aio")
        name = self._naming(work)

        @functools.wraps(work)
        def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            lock = self._like(name(args, kwargs))
            done: list[R] = []
            try:
                with lock:
                    done.append(work(*args, **kwargs))
                    refuse_unfinished(work, done[0])
            except LeaseLost as lost:
                lost.result = lost.result if not done else done[0]
                raise
            return done[0]

        return locked

    def _like(self, name: str) -> Lock:
        """The lock of the same settings for another name; one and the same while anybody is inside."""
        if name == self.name:
            return self
        lock: Lock = self._likes.setdefault(name, Lock(self._client, name, policies=("report",), **self._settings()))
        return lock


class Term(Lease):
    """The lease of a leader."""

    _candidacy: leader.Candidacy

    @property
    def over(self) -> Signal:
        """Set when the work should end: the term was resigned, handed over, or lost."""
        return Signal(self, lambda: self._candidacy.is_over(self) or self._is_lost())


class Leader:
    """One candidate in one election. `with leader as term:` waits to lead, then leads until the block ends."""

    def __init__(self, lock: Lock, candidacy: leader.Candidacy) -> None:
        self._lock = lock
        self._candidacy = candidacy

    @property
    def name(self) -> str:
        return self._lock.name

    @property
    def candidate(self) -> str:
        return self._candidacy.candidate

    def run(self, work: Callable[[Term], R]) -> R:
        """Wait to lead, run `work(term)` while leading, and give its result."""
        done: list[R] = []
        try:
            with self as term:
                done.append(work(term))
        except LeaseLost as lost:
            lost.result = lost.result if not done else done[0]
            raise
        return done[0]

    def current(self) -> Leading | None:
        """Who leads now, or `None`."""
        return run(leader.current(self._candidacy))

    def candidates(self) -> list[str]:
        """Who waits to lead, in order."""
        return run(leader.candidates(self._candidacy))

    def observe(self, interval: Seconds = 1.0) -> Iterator[Leading | None]:
        """Who leads, now and after every change, for ever. Looks every `interval`; a missed look loses nothing."""
        watch = leader.Watch(self._candidacy, interval)
        while True:
            yield run(watch.change())

    def resign(self) -> None:
        """Tell the running term that it is over; the next candidate leads when its work has settled."""
        self._candidacy.step_down()

    def hand_over(self, to: str) -> None:
        """Resign in favour of a waiting candidate; `NotFound` if it does not wait."""
        run(leader.hand_over(self._candidacy, to))

    def __enter__(self) -> Term:
        term = Term(*self._lock._fields())  # the leader is a shape around its lock
        term._candidacy = self._candidacy
        try:
            self._candidacy.enter(term)
            run(lifecycle.acquire(term, self._lock._patience_ns))
            self._candidacy.begin(term)
            term._owned = True
            return term  # noqa: TRY300 - as above
        except BaseException:
            self._candidacy.forget(term)
            lifecycle.undo(term)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        term = self._candidacy.term
        try:
            run(leader.end_term(self._candidacy, error))
        finally:
            leader.ended(self._candidacy, term)
        return False


class Holdfast:
    """A client: what `connect` gives. Threads may share it."""

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
        """A lock on the name. Nothing is sent before it is acquired."""
        return Lock(
            self._client,
            name,
            ttl=ttl,
            timeout=timeout,
            reentrant=reentrant,
            on_loss=on_loss,
            confirm=confirm,
            policies=("report",),
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
        """A candidate for the leadership of the name."""
        label = leader.candidate_name(self._client, candidate)
        lock = Lock(
            self._client,
            name,
            ttl=ttl,
            timeout=timeout,
            reentrant=False,
            on_loss=on_loss,
            confirm=confirm,
            policies=("report",),
            label=label,
        )
        return Leader(lock, leader.Candidacy(self._client, lock.name, label))

    def show(self, name: str) -> Holding:
        """Who holds the name, and who waits for it."""
        return run(inspection.show(self._client, name))

    def break_lease(self, name: str, reason: str) -> None:
        """End the lease of the name by force; its holder is told why."""
        run(inspection.break_lease(self._client, name, reason))

    def refresh_topology(self) -> None:
        """Learn anew which servers there are; `Unavailable` while they do not agree. They are followed without it."""
        run(self._client.refresh_topology())

    def promise(self) -> Promise:
        """What may be relied on here, from a look at the engine as it is now; print it."""
        return run(outlook.promise(self._client))

    def close(self, timeout: Seconds | None = _client.CLOSE_S) -> tuple[str, ...]:
        """Refuse new work, wait for what is under way, end. Gives the names of leases that are left to lapse."""
        return run(_client.close(self._client, timeout))

    def __enter__(self) -> Holdfast:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self.close()
        return False

    def __repr__(self) -> str:
        return f"<holdfast {self._client.url} {self._client.state}>"


def connect(
    url: str | None = None,
    *,
    label: str = "",
    info: dict[str, Any] | None = None,
    observer: Observer | None = None,
    fence_memory: Seconds = FENCE_MEMORY_S,
    clock: Clock | None = None,
    require: str | Iterable[str] = (),
) -> Holdfast:
    """Open an engine: the URL's, else `$HOLDFAST_URL`'s, else the embedded one of this user on this host.

    `require` are words that its promise must hold, such as `"survives restart"`; else `PromiseNotKept`.
    """
    wanted = required(require)
    client = _client.Client(
        url,
        face="blocking",
        label=label,
        info=info,
        observer=observer,
        fence_memory=fence_memory,
        clock=clock,
    )
    try:
        run(outlook.require(client, wanted))
    except BaseException:
        run(_client.close(client, 0))
        raise
    return Holdfast(client)
