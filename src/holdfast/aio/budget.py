"""Budgets: put an amount aside, then say what was spent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from holdfast.core.lease.lock import UNSET, Unset
from holdfast.core.limit import budget
from holdfast.core.limit.budget import BudgetBase, BudgetStatus, ReservationBase, checked_amount
from holdfast.names import name_of

if TYPE_CHECKING:
    from types import TracebackType


class Reservation(ReservationBase):
    """Like `blocking.Reservation`, awaited."""

    async def settle(self, actual: int) -> None:
        """Like `blocking.Reservation.settle`, awaited."""
        await budget.settle(self, actual)

    async def refund(self) -> None:
        """Like `blocking.Reservation.refund`, awaited."""
        await budget.settle(self, 0)

    async def __aenter__(self) -> Reservation:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        await budget.leave(self, error)
        return False


class Budget(BudgetBase):
    """Like `blocking.Budget`, awaited."""

    async def reserve(self, key: str, amount: int, *, limit: int | Unset | None = UNSET) -> Reservation:
        """Like `blocking.Budget.reserve`, awaited."""
        reservation = Reservation(self._client, name_of(self.name, key), key, checked_amount("amount", amount))
        await budget.reserve(self, reservation, limit)
        return reservation

    async def peek(self, key: str, *, limit: int | Unset | None = UNSET) -> BudgetStatus:
        """Like `blocking.Budget.peek`, awaited."""
        return await budget.peek(self, key, limit)
