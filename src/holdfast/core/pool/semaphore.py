"""Semaphores: a fixed number of permits, each with a lease and a fence of its own.

Programs use a semaphore like a lock; engines store it like a pool of numbered permits. The first acquire creates the
permits; the engine forgets them some time after the last use. All users must pass the same number of permits. The
engine refuses another number until `resize` changes it for all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.commands import SEMAPHORE
from holdfast.core.lease.lock import LockBase
from holdfast.core.pool.options import BorrowOptions, PoolOptions
from holdfast.core.pool.pool import ItemBase, PoolCommands
from holdfast.engines import Capability
from holdfast.errors import PERMIT, HoldfastError, InvalidConfig
from holdfast.rules.pool import OTHER_PERMITS

if TYPE_CHECKING:
    from holdfast.commands import Granted
    from holdfast.core.client import Client

PERMITS_MAX = 10_000


class SemaphoreBase(PoolCommands, LockBase):
    """A lock's settings, and the number of permits."""

    def __init__(self, client: Client, name: str, *, permits: int, **settings: Any) -> None:
        client.refuse_without(Capability.POOLS, "semaphores")
        self._options = PoolOptions(SEMAPHORE, permits=_checked(permits))
        super().__init__(client, name, **settings)

    @property
    def permits(self) -> int:
        """The number of permits: how many holders there may be at once."""
        return self._options.permits

    def __repr__(self) -> str:
        return f"<semaphore {self.name!r} of {self.permits} on {self._client.url}>"

    def _fields(self) -> tuple[Any, ...]:
        return (BorrowOptions(self._options), *super()._fields())

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "permits": self.permits}

    async def _is_locked(self) -> bool:
        now = await self._snapshot(0)
        return now.size > 0 and now.free == 0

    async def _resize(self, permits: int) -> None:
        """Change the number of permits for all users. Permits above it disappear when they are released."""
        count = _checked(permits)
        numbers = [str(number) for number in range(1, count + 1)]
        await self._change("set", numbers, leave=True, permits=count)
        self._options.permits = count


class PermitBase(ItemBase):
    """The lease of a permit. Its name is the semaphore's name; the permit also has a number."""

    _unit = PERMIT

    @property
    def number(self) -> int:
        """The number of the permit, from 1: use it to select a resource that exists once per permit, such as a GPU."""
        return int(self._item)

    def __repr__(self) -> str:
        return f"<permit {self._item or '?'} of {self.name!r} fence={self._fence} {self.state}>"

    def _item_granted(self, answer: Granted) -> None:
        self._item = answer.item

    def _refusal(self, reason: str, waited_s: float) -> HoldfastError:
        if reason == OTHER_PERMITS:
            rule = f"{self.name!r} has another number of permits now; stats().size returns it, resize() changes it"
            return InvalidConfig("permits", self._borrow.pool.permits, rule)
        return super()._refusal(reason, waited_s)


def _checked(permits: object) -> int:
    if isinstance(permits, bool) or not isinstance(permits, int) or not 1 <= permits <= PERMITS_MAX:
        raise InvalidConfig("permits", permits, f"it must be a whole number from 1 to {PERMITS_MAX}")
    return permits
