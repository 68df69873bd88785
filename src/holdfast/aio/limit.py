"""Rate limits: may this key do this now? Budgets: reserve an amount, then settle what was spent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from holdfast.clock import Seconds
from holdfast.core.lease.lock import UNSET, Unset
from holdfast.core.limit.budget import BudgetBase, BudgetStatus, ReservationBase
from holdfast.core.limit.limit import Decision, LimiterBase

if TYPE_CHECKING:
    from types import TracebackType


class RateLimiter(LimiterBase):
    """A rate limit per key. Tasks may share it."""

    async def hit(self, key: str, cost: int = 1) -> Decision:
        """Count an action of `key` if it is allowed now; return the decision, true if so. A refusal counts nothing.

        `cost`: how many units the action counts.
        """
        known = self._known_refusal(key, cost)
        return await self._hit(key, cost) if known is None else known

    async def peek(self, key: str, cost: int = 1) -> Decision:
        """Return whether an action of `key` with this `cost` would be allowed now. Counts nothing."""
        return await self._hit(key, cost, take=False)

    async def wait(self, key: str, cost: int = 1, timeout: Seconds | None = None) -> Decision:
        """Wait until an action of `key` is allowed, and count it; raise `RateLimited` if that cannot be in time.

        `cost`: how many units the action counts. `timeout`: seconds to wait; `None` waits for ever.
        """
        return await self._wait(key, cost, timeout)

    async def reset(self, key: str) -> None:
        """Delete the counts of `key`."""
        await self._reset(key)


class Reservation(ReservationBase):
    """A reserved amount. Leaving its block settles it: as spent, or with nothing if the block failed."""

    async def settle(self, actual: int) -> None:
        """Settle the reservation: count `actual` as spent, even if it is more than reserved; free the rest."""
        await self._settle(actual)

    async def refund(self) -> None:
        """Settle the reservation with nothing spent."""
        await self._settle(0)

    async def __aenter__(self) -> Reservation:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        await self._leave(error)
        return False


class Budget(BudgetBase):
    """A budget per key and period. Tasks may share it."""

    async def reserve(self, key: str, amount: int, *, limit: int | Unset | None = UNSET) -> Reservation:
        """Reserve an amount; raise `BudgetExceeded` if the budget has no room for it.

        `key`: whose budget. `amount`: a whole number of the smallest unit. `limit`: the limit of this key, instead of
        the budget's own; `None` means no limit.
        """
        return Reservation(*(await self._reserve(key, amount, limit)))

    async def peek(self, key: str, *, limit: int | Unset | None = UNSET) -> BudgetStatus:
        """Return the balance of `key`. `limit`: as in `reserve`."""
        return await self._peek(key, limit)
