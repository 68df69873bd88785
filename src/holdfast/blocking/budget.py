"""Budgets: reserve an amount, then settle what was spent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from holdfast.core.lease.lock import UNSET, Unset
from holdfast.core.limit.budget import BudgetBase, BudgetStatus, ReservationBase
from holdfast.core.step import run

if TYPE_CHECKING:
    from types import TracebackType


class Reservation(ReservationBase):
    """A reserved amount. Leaving its block settles it: as spent, or with nothing if the block failed."""

    def settle(self, actual: int) -> None:
        """Settle the reservation: count `actual` as spent, even if it is more than reserved; free the rest."""
        run(self._settle(actual))

    def refund(self) -> None:
        """Settle the reservation with nothing spent."""
        run(self._settle(0))

    def __enter__(self) -> Reservation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        run(self._leave(error))
        return False


class Budget(BudgetBase):
    """A budget per key and period. Threads may share it."""

    def reserve(self, key: str, amount: int, *, limit: int | Unset | None = UNSET) -> Reservation:
        """Reserve an amount; raise `BudgetExceeded` if the budget has no room for it.

        `key`: whose budget. `amount`: a whole number of the smallest unit. `limit`: the limit of this key, instead of
        the budget's own; `None` means no limit.
        """
        return Reservation(*run(self._reserve(key, amount, limit)))

    def peek(self, key: str, *, limit: int | Unset | None = UNSET) -> BudgetStatus:
        """Return the balance of `key`. `limit`: as in `reserve`."""
        return run(self._peek(key, limit))
