"""Rate limits: may this key do this now? Budgets: reserve an amount, then settle what was spent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from holdfast.clock import Seconds
from holdfast.core.lease.lock import UNSET, Unset
from holdfast.core.limit.budget import BudgetBase, BudgetStatus, ReservationBase
from holdfast.core.limit.limit import Decision, LimiterBase
from holdfast.core.step import run

if TYPE_CHECKING:
    from types import TracebackType


class RateLimiter(LimiterBase):
    """A rate limit per key. Threads may share it."""

    def hit(self, key: str, cost: int = 1) -> Decision:
        """Count an action of `key` if it is allowed now; return the decision, true if so. A refusal counts nothing.

        `cost`: how many units the action counts.
        """
        known = self._known_refusal(key, cost)
        return run(self._hit(key, cost)) if known is None else known

    def peek(self, key: str, cost: int = 1) -> Decision:
        """Return whether an action of `key` with this `cost` would be allowed now. Counts nothing."""
        return run(self._hit(key, cost, take=False))

    def wait(self, key: str, cost: int = 1, timeout: Seconds | None = None) -> Decision:
        """Wait until an action of `key` is allowed, and count it; raise `RateLimited` if that cannot be in time.

        `cost`: how many units the action counts. `timeout`: seconds to wait; `None` waits for ever.
        """
        return run(self._wait(key, cost, timeout))

    def reset(self, key: str) -> None:
        """Delete the counts of `key`."""
        run(self._reset(key))


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
