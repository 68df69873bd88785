"""Budgets: reserve an amount, then settle what was spent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from holdfast.core.lease.lock import UNSET, Unset
from holdfast.core.limit.budget import BudgetBase, BudgetStatus, ReservationBase

if TYPE_CHECKING:
    from types import TracebackType


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
