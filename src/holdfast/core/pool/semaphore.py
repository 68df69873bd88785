"""Semaphores: a fixed number of seats, each with a lease and a fence of its own.

A semaphore is a pool of numbered seats under a lock's roof: entered like a lock, kept like a pool. Its seats are made
with the first acquire and forgotten some time after the last. All users name the same number of permits; whoever names
another one is refused, until somebody changes it for all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.commands import SEMAPHORE
from holdfast.core.lease.lock import LockBase
from holdfast.core.pool.pool import ItemBase, Terms, change
from holdfast.engines import Capability
from holdfast.errors import HoldfastError, InvalidConfig
from holdfast.rules.pool import OTHER_PERMITS

if TYPE_CHECKING:
    from holdfast.commands import Granted
    from holdfast.core.client import Client

PERMITS_MAX = 10_000


class SemaphoreBase(LockBase):
    """A lock's settings, and how many may be inside at once."""

    # What a seat asks of its pool.
    kind = SEMAPHORE
    _expiry_cooldown_ms = 0
    _cooldown_ms = 0
    _cool_on: tuple[type[BaseException], ...] = ()

    def __init__(self, client: Client, name: str, *, permits: int, **settings: Any) -> None:
        client.refuse_without(Capability.POOLS)
        self._permits = _checked(permits)
        super().__init__(client, name, **settings)

    @property
    def permits(self) -> int:
        """How many may be inside at once."""
        return self._permits

    def __repr__(self) -> str:
        return f"<semaphore {self.name!r} of {self._permits} on {self._client.url}>"

    def _fields(self) -> tuple[Any, ...]:
        return (Terms(self), *super()._fields())

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "permits": self._permits}


class PermitBase(ItemBase):
    """The lease of a seat: it has the semaphore's name, and a number."""

    @property
    def number(self) -> int:
        """Which seat it is, from 1 on: for what there is one of per seat, such as a device."""
        return int(self._item)

    def __repr__(self) -> str:
        return f"<seat {self._item or '?'} of {self.name!r} fence={self._fence} {self.state}>"

    def _told(self, answer: Granted) -> None:
        self._item = answer.item

    def _refusal(self, reason: str, waited_s: float) -> HoldfastError:
        if reason == OTHER_PERMITS:
            rule = f"{self.name!r} has another number of permits now: stats().size tells it, resize() changes it"
            return InvalidConfig("permits", self._terms.pool._permits, rule)
        return super()._refusal(reason, waited_s)


async def resize(semaphore: SemaphoreBase, permits: int) -> None:
    """Another number of seats, for everybody. Seats that are taken beyond it go when they come back."""
    count = _checked(permits)
    seats = [str(number) for number in range(1, count + 1)]
    await change(semaphore, "set", seats, leave=True, permits=count)
    semaphore._permits = count


def _checked(permits: object) -> int:
    if isinstance(permits, bool) or not isinstance(permits, int) or not 1 <= permits <= PERMITS_MAX:
        raise InvalidConfig("permits", permits, f"it must be a whole number from 1 to {PERMITS_MAX}")
    return permits
