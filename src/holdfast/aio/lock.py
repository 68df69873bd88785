"""Locks: a lock acquires leases of one name."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Literal, Never, ParamSpec, TypeVar, cast

from holdfast.aio.lease import Lease, cancel_on_loss, work_outcome
from holdfast.clock import Seconds
from holdfast.core.lease.lock import UNSET, LockBase, Unset, is_coroutine_function, refuse_generator
from holdfast.core.lease.lock_many import LeaseGroupBase, LockManyBase, delivered, undo_all
from holdfast.core.unknown_options import refuse_unknown
from holdfast.errors import InvalidConfig, LeaseLost, NotAcquired

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType


P = ParamSpec("P")
R = TypeVar("R")

POLICIES = ("report", "cancel")


class Lock(LockBase):
    """A distributed lock, which acquires leases of one name. Use `async with`, the decorator, or `acquire`."""

    _lease: type[Lease] = Lease

    async def acquire(self, timeout: Seconds | Unset | None = UNSET, **unknown: Never) -> Lease:
        """Acquire the lease; raise `NotAcquired` when the timeout ends.

        `timeout`: seconds to wait; `None` waits for ever, `0` asks once. Without it, the lock's own timeout.
        `unknown`: any other keyword raises an error; for an option of redis-py, the error names the option of Holdfast.
        """
        if unknown:
            refuse_unknown("acquire", unknown, ("timeout",))
        wait_ns = self._timeout_of(timeout)
        lease = self._lease(*self._fields())
        lease.caller = id(asyncio.current_task())
        try:
            await lease.acquire_steps(wait_ns)
            lease.delivered = True
            return lease  # noqa: TRY300 - an interrupt may arrive even here
        except BaseException:
            lease.undo()
            raise

    async def try_acquire(self) -> Lease | None:
        """Return the lease, or `None` if another holder has it. Does not wait."""
        try:
            return await self.acquire(timeout=0)
        except NotAcquired:
            return None

    async def locked(self) -> bool:
        """Return whether a process holds the lock now, with one request. A hint: the next moment may differ."""
        return await self._is_locked()

    async def __aenter__(self) -> Lease:
        caller = asyncio.current_task()
        depth, lease = self._depth(caller), cast("Lease | None", self._reentrant_lease(caller))
        fresh = lease is None
        lease = lease or self._lease(*self._fields())
        try:
            if fresh:
                lease.caller = id(caller)
                await lease.acquire_steps(self._timeout_ns)
            self._enter(caller, lease)
            lease.in_block = True
            if fresh:
                cancel_on_loss(self._on_loss, lease)
            lease.delivered = True
            return lease  # noqa: TRY300 - as above
        except BaseException:
            self._restore_depth(caller, depth)
            if fresh:
                lease.undo()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        block = None
        try:
            try:
                block = self._block_to_leave(asyncio.current_task())
                if block.lease is not None:
                    await block.lease.leave_steps(work_outcome(block.lease, error))
            finally:
                block = self._block_ended(block, asyncio.current_task())
        finally:
            self._block_ended(block, asyncio.current_task())
        return False

    def __call__(self, work: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
        """Decorate a coroutine function so that it runs under the lease.

        `work`: the function. Fields in braces in the lock's name are filled in from its arguments.
        """
        refuse_generator(work)
        if not is_coroutine_function(work):
            name = getattr(work, "__qualname__", work)
            raise InvalidConfig("function", name, "a plain function needs the lock of the blocking face")
        name = self._name_from_arguments(work)

        @functools.wraps(work)
        async def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            lock = self._lock_for(name(args, kwargs))
            done: list[R] = []
            entered = False
            try:
                async with lock:
                    entered = True
                    done.append(await work(*args, **kwargs))
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
        new = type(self)(self._client, name, policies=POLICIES, **self._settings())
        lock: Lock = self._locks_by_name.setdefault(name, new)
        return lock


class LeaseGroup(LeaseGroupBase):
    """The leases that `lock_many` acquired: `group["name"].fence`, `group.check()`, `group.release()`."""

    def __getitem__(self, name: str) -> Lease:
        """Return the lease of a name. `name`: one of the names that `lock_many` got."""
        return cast("Lease", self._leases[name])

    async def release(self) -> None:
        """Give every lease back. Raise `LeaseLost` if one of them was lost, after the others were given back."""
        await self._leave(None)

    async def __aenter__(self) -> LeaseGroup:
        self.check()  # a block must not start with a lease that is over
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        try:
            await self._leave(work_outcome(self._first(), error))
        finally:
            self.end()
        return False


class LockMany(LockManyBase):
    """Several locks that are acquired together, all or none. Use it in `async with`, or through `acquire`."""

    async def acquire(self, timeout: Seconds | Unset | None = UNSET) -> LeaseGroup:
        """Acquire every lease; raise `NotAcquired`, and hold none, when the timeout ends.

        `timeout`: seconds to wait; `None` waits for ever, `0` asks once. Without it, the lock's own timeout.
        """
        wait_ns = self._timeout_of(timeout)
        leases = self._new_leases(id(asyncio.current_task()))
        try:
            await self._acquire_all(leases, wait_ns)
            return LeaseGroup(delivered(leases))
        except BaseException:
            undo_all(leases)
            raise

    async def __aenter__(self) -> LeaseGroup:
        leases = self._new_leases(id(asyncio.current_task()))
        try:
            await self._acquire_all(leases, self._timeout_ns)
            group = LeaseGroup(delivered(leases))
            self._enter(asyncio.current_task(), group)
            for lease in leases:
                lease.in_block = True
            cancel_on_loss(self._on_loss, *leases)
            return group  # noqa: TRY300 - an interrupt may arrive even here
        except BaseException:
            self._block_ended(asyncio.current_task(), leases)
            undo_all(leases)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        group: LeaseGroup | None = None
        try:
            try:
                group = self._block_to_leave(asyncio.current_task())
                return await group.__aexit__(kind, error, trace)
            finally:
                self._leave_block(asyncio.current_task(), group)
        finally:
            self._leave_block(asyncio.current_task(), group)
