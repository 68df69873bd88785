"""Locks: a lock acquires leases of one name."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Literal, Never, ParamSpec, TypeVar, cast

from holdfast.blocking.lease import Lease
from holdfast.clock import Seconds
from holdfast.core.lease.lock import (
    UNSET,
    LockBase,
    Unset,
    is_coroutine_function,
    refuse_generator,
    refuse_unfinished,
)
from holdfast.core.lease.lock_many import LeaseGroupBase, LockManyBase, delivered, undo_all
from holdfast.core.step import run
from holdfast.core.unknown_options import refuse_unknown
from holdfast.errors import InvalidConfig, LeaseLost, NotAcquired

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


P = ParamSpec("P")
R = TypeVar("R")


class Lock(LockBase):
    """A distributed lock, which acquires leases of one name. Use it in `with`, as a decorator, or through `acquire`."""

    _lease: type[Lease] = Lease

    def acquire(self, timeout: Seconds | Unset | None = UNSET, **unknown: Never) -> Lease:
        """Acquire the lease; raise `NotAcquired` when the timeout ends.

        `timeout`: seconds to wait; `None` waits for ever, `0` asks once. Without it, the lock's own timeout.
        `unknown`: any other keyword raises an error; for an option of redis-py, the error names the option of Holdfast.
        """
        if unknown:
            refuse_unknown("acquire", unknown, ("timeout",))
        wait_ns = self._timeout_of(timeout)
        lease = self._lease(*self._fields())
        lease.caller = threading.get_ident()
        try:
            run(lease.acquire_steps(wait_ns))
            lease.delivered = True
            return lease  # noqa: TRY300 - an interrupt may arrive even here
        except BaseException:
            lease.undo()
            raise

    def try_acquire(self) -> Lease | None:
        """Return the lease, or `None` if another holder has it. Does not wait."""
        try:
            return self.acquire(timeout=0)
        except NotAcquired:
            return None

    def locked(self) -> bool:
        """Return whether a process holds the lock now, with one request. A hint: the next moment may differ."""
        return run(self._is_locked())

    def __enter__(self) -> Lease:
        caller = threading.get_ident()
        depth, lease = self._depth(caller), cast("Lease | None", self._reentrant_lease(caller))
        fresh = lease is None
        lease = lease or self._lease(*self._fields())
        try:
            if fresh:
                lease.caller = caller
                run(lease.acquire_steps(self._timeout_ns))
            self._enter(caller, lease)
            lease.in_block = True
            lease.delivered = True
            return lease  # noqa: TRY300 - as above
        except BaseException:
            self._restore_depth(caller, depth)
            if fresh:
                lease.undo()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        block = None
        try:
            try:
                block = self._block_to_leave(threading.get_ident())
                if block.lease is not None:
                    run(block.lease.leave_steps(error))
            finally:
                block = self._block_ended(block, threading.get_ident())
        finally:
            self._block_ended(block, threading.get_ident())
        return False

    def __call__(self, work: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function so that it runs under the lease.

        `work`: the function. Fields in braces in the lock's name are filled in from its arguments.
        """
        refuse_generator(work)
        if is_coroutine_function(work):
            raise InvalidConfig("function", work.__qualname__, "a coroutine function needs the lock of holdfast.aio")
        name = self._name_from_arguments(work)

        @functools.wraps(work)
        def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            lock = self._lock_for(name(args, kwargs))
            done: list[R] = []
            entered = False
            try:
                with lock:
                    entered = True
                    done.append(work(*args, **kwargs))
                    refuse_unfinished(work, done[0])
            except LeaseLost as lost:
                lost.result = lost.result if not done else done[0]
                raise
            except NotAcquired as busy:
                if entered or not self._skips(busy):
                    raise
                return cast("R", None)
            return done[0]

        return locked

    def _lock_for(self, name: str) -> Lock:
        """Return the lock with the same settings for another name: the same object while a call is inside."""
        if name == self.name:
            return self
        new = type(self)(self._client, name, policies=("report",), **self._settings())
        lock: Lock = self._locks_by_name.setdefault(name, new)
        return lock


class LeaseGroup(LeaseGroupBase):
    """The leases that `lock_many` acquired: `group["name"].fence`, `group.check()`, `group.release()`."""

    def __getitem__(self, name: str) -> Lease:
        """Return the lease of a name. `name`: one of the names that `lock_many` got."""
        return cast("Lease", self._leases[name])

    def release(self) -> None:
        """Give every lease back. Raise `LeaseLost` if one of them was lost, after the others were given back."""
        run(self._leave(None))

    def __enter__(self) -> LeaseGroup:
        self.check()  # a block must not start with a lease that is over
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        try:
            run(self._leave(error))
        finally:
            self.end()
        return False


class LockMany(LockManyBase):
    """Several locks that are acquired together, all or none. Use it in `with`, or through `acquire`."""

    def acquire(self, timeout: Seconds | Unset | None = UNSET) -> LeaseGroup:
        """Acquire every lease; raise `NotAcquired`, and hold none, when the timeout ends.

        `timeout`: seconds to wait; `None` waits for ever, `0` asks once. Without it, the lock's own timeout.
        """
        wait_ns = self._timeout_of(timeout)
        leases = self._new_leases(threading.get_ident())
        try:
            run(self._acquire_all(leases, wait_ns))
            return LeaseGroup(delivered(leases))
        except BaseException:
            undo_all(leases)
            raise

    def __enter__(self) -> LeaseGroup:
        leases = self._new_leases(threading.get_ident())
        try:
            run(self._acquire_all(leases, self._timeout_ns))
            group = LeaseGroup(delivered(leases))
            self._enter(threading.get_ident(), group)
            for lease in leases:
                lease.in_block = True
            return group  # noqa: TRY300 - an interrupt may arrive even here
        except BaseException:
            self._block_ended(threading.get_ident(), leases)
            undo_all(leases)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        group: LeaseGroup | None = None
        try:
            try:
                group = self._block_to_leave(threading.get_ident())
                return group.__exit__(kind, error, trace)
            finally:
                self._leave_block(threading.get_ident(), group)
        finally:
            self._leave_block(threading.get_ident(), group)
