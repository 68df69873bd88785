"""Budgets: put an amount aside, then say what was spent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from holdfast.core.lease.lock import UNSET, Unset
from holdfast.core.limit import budget
from holdfast.core.limit.budget import BudgetBase, BudgetStatus, ReservationBase, checked_amount
from holdfast.core.step import run
from holdfast.names import name_of

if TYPE_CHECKING:
    from types import TracebackType


class Reservation(ReservationBase):
    """An amount that is put aside. As a block: what is not settled by its end was spent, or given back if it failed."""

    def settle(self, actual: int) -> None:
        """So much was spent, even if it is more; the rest is free again."""
        run(budget.settle(self, actual))

    def refund(self) -> None:
        """Nothing was spent."""
        run(budget.settle(self, 0))

    def __enter__(self) -> Reservation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        run(budget.leave(self, error))
        return False


class Budget(BudgetBase):
    """So much in a period, for each key by itself. Threads may share it."""

    def reserve(self, key: str, amount: int, *, limit: int | Unset | None = UNSET) -> Reservation:
        """Put an amount aside; `BudgetExceeded` if there is no room. `limit` is for keys that have one of their own."""
        reservation = Reservation(self._client, name_of(self.name, key), key, checked_amount("amount", amount))
        run(budget.reserve(self, reservation, limit))
        return reservation

    def peek(self, key: str, *, limit: int | Unset | None = UNSET) -> BudgetStatus:
        """How the budget of a key stands."""
        return run(budget.peek(self, key, limit))
