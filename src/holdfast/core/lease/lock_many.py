"""Acquire several locks, all or none.

Every caller acquires in the order of the names, so two callers never wait for each other. While it waits for a later
name, a caller keeps the earlier ones; if it gets no further, it releases them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.clock import NS, Seconds, timeout_ns
from holdfast.core.lease.lock import Unset
from holdfast.errors import HoldfastError, InvalidConfig, InvalidName, LeaseLost, NotAcquired

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from holdfast.core.client import Client
    from holdfast.core.lease.lease import LeaseBase
    from holdfast.core.lease.lock import LockBase


def checked_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names as given; raise `InvalidName` for a duplicate."""
    if isinstance(names, str | bytes):
        raise InvalidConfig("names", names, "it must be a list of names; for one name, call lock()")
    try:
        listed = tuple(names)
    except TypeError:
        raise InvalidConfig("names", names, "it must be a list of names") from None
    if not listed:
        raise InvalidConfig("names", listed, "it must contain at least one name")
    seen: set[object] = set()
    for name in listed:
        if isinstance(name, str) and name in seen:
            raise InvalidName(name, "lock_many takes each name once")
        seen.add(name if isinstance(name, str) else id(name))  # `lock` refuses a name that is no text
    return listed


class LockManyBase:
    """Several locks of one client, which are acquired together."""

    def __init__(
        self,
        client: Client,
        names: Iterable[str],
        lock: Callable[[str], LockBase],
        timeout: Seconds | None,
        on_loss: object,
    ) -> None:
        self.names = checked_names(names)
        self._client = client
        self._on_loss = on_loss
        self._locks = [lock(name) for name in self.names]
        self._timeout_ns = timeout_ns(timeout)
        self._entered: dict[object, list[Any]] = {}  # the groups of open blocks, by thread or task

    def __repr__(self) -> str:
        return f"<lock_many {list(self.names)!r} on {self._client.url}>"

    def _timeout_of(self, timeout: Seconds | Unset | None) -> int | None:
        return self._timeout_ns if isinstance(timeout, Unset) else timeout_ns(timeout)

    def _enter(self, caller: object, group: LeaseGroupBase) -> None:
        self._entered.setdefault(caller, []).append(group)

    def _block_to_leave(self, caller: object) -> Any:
        """Return the group of the newest block of this thread or task. Changes nothing."""
        if not self._entered.get(caller):
            raise RuntimeError(f"{self!r}: this thread or task leaves a block that it has not entered")
        return self._entered[caller][-1]

    def _block_ended(self, caller: object, leases: Iterable[LeaseBase]) -> None:
        """Record that a block has ended, in any way. Idempotent, because an interrupt may hit the first call."""
        first = next(iter(leases), None)
        groups = [group for group in self._entered.get(caller, ()) if not group.has(first)]
        if groups:
            self._entered[caller] = groups
        else:
            self._entered.pop(caller, None)

    def _leave_block(self, caller: object, group: LeaseGroupBase | None) -> None:
        group = group or self._block_to_leave(caller)
        group.end()
        self._block_ended(caller, group.leases())

    def _new_leases(self, caller: int) -> list[LeaseBase]:
        leases = [lock.new_lease() for lock in self._locks]
        for lease in leases:
            lease.caller = caller
        return leases

    async def _acquire_all(self, leases: list[LeaseBase], wait_ns: int | None) -> None:
        """Acquire every lease, in the order of the names; if one of them cannot be had, release the others."""
        clock = self._client.clock
        began_ns = clock.now_ns()
        try:
            for lease in sorted(leases, key=lambda lease: lease.name):
                await lease.acquire_steps(None if wait_ns is None else max(0, began_ns + wait_ns - clock.now_ns()))
            lost = next((lease for lease in leases if lease.is_lost()), None)
            if lost is not None:
                waited_s = (clock.now_ns() - began_ns) / NS
                raise NotAcquired(lost.name, reason="lost during the wait for the other names", waited=waited_s)
        except HoldfastError:
            await _release_each(leases)
            raise


class LeaseGroupBase:
    """The leases that `lock_many` acquired, by name."""

    _internal = frozenset(("leases", "has", "end"))

    def __init__(self, leases: list[LeaseBase]) -> None:
        self._leases = {lease.name: lease for lease in leases}

    def __iter__(self) -> Iterator[str]:
        return iter(self._leases)

    def __len__(self) -> int:
        return len(self._leases)

    def __repr__(self) -> str:
        return f"<leases {[*self._leases.values()]!r}>"

    @property
    def fences(self) -> dict[str, int]:
        """The fence of each name."""
        return {name: lease.fence for name, lease in self._leases.items()}

    def check(self) -> None:
        """Raise `LeaseLost` if one of the leases can no longer be trusted. Does no I/O."""
        for lease in self._leases.values():
            lease.check()

    async def _leave(self, error: BaseException | None) -> None:
        """Release every lease; raise `LeaseLost` if one of them was lost, after the others were released."""
        losses: list[LeaseLost] = []
        for lease in self._leases.values():
            try:
                await lease.leave_steps(error)
            except LeaseLost as lost:
                losses.append(lost)
        if losses:
            for other in losses[1:]:
                losses[0].add_note(str(other))
            raise losses[0]

    def _first(self) -> LeaseBase:
        return next(iter(self._leases.values()))

    def leases(self) -> list[LeaseBase]:
        """Return the leases."""
        return list(self._leases.values())

    def has(self, lease: LeaseBase | None) -> bool:
        """Return whether the lease is one of this group's."""
        return lease is not None and self._leases.get(lease.name) is lease

    def end(self) -> None:
        """Let the keeper finish what an interrupted release has left."""
        for lease in self._leases.values():
            lease.end()


def delivered(leases: list[LeaseBase]) -> list[LeaseBase]:
    """Mark the leases as held by a caller, and return them."""
    for lease in leases:
        lease.delivered = True
    return leases


def undo_all(leases: list[LeaseBase]) -> None:
    """Take back every lease: no caller has them."""
    for lease in leases:
        lease.undo()


async def _release_each(leases: list[LeaseBase]) -> None:
    for lease in leases:
        if lease.fence_or_none is not None:
            try:
                await lease.release_steps()
            except LeaseLost:
                continue  # it is free already
