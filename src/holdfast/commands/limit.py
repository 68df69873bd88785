"""The commands and answers of rate limits and budgets."""

from __future__ import annotations

from typing import NamedTuple


class Hit(NamedTuple):
    """Decide whether an action is within its rate limits; if so, count it in every window, otherwise in none.

    `rates`: pairs of a count and a period in microseconds. `smooth`: the allowance grows back evenly (GCRA) instead of
    being counted over a sliding window. Without `take` the engine decides and counts nothing. This is the only command
    that is never resent: after a lost reply the action counts as used.
    """

    name: str
    rates: tuple[tuple[int, int], ...]
    smooth: bool
    cost: int
    take: bool

    @property
    def kind(self) -> str:
        """The counter that holds the counts. It depends on the periods, so that the counts of a rate may change."""
        return f"{'g' if self.smooth else 'l'}:{','.join(str(period_us) for _, period_us in self.rates)}"


class ResetCounter(NamedTuple):
    """Delete the counter of this name and kind."""

    name: str
    kind: str


class Reserve(NamedTuple):
    """Reserve this amount for `hold_ms`, if the spent and reserved amounts leave room for it.

    `limit` is the most that may be spent in a period, or -1 for no limit.
    """

    name: str
    token: str
    amount: int
    limit: int
    period_ms: int
    hold_ms: int
    kind: str = "b"


class Settle(NamedTuple):
    """Replace the token's reservation, made in the period that began at `began_us`, by the amount really spent."""

    name: str
    token: str
    began_us: int
    actual: int
    kind: str = "b"


class UndoReserve(NamedTuple):
    """Free the amount that this token may have reserved, and refuse every copy of its `Reserve` that comes later."""

    name: str
    token: str
    period_ms: int
    kind: str = "b"


class GetBalance(NamedTuple):
    """Return the spent and the reserved amount. Changes nothing."""

    name: str
    period_ms: int
    kind: str = "b"


class LimitDecision(NamedTuple):
    """Whether the action is allowed. `remaining` of `limit` is left in the window that is closest to its limit.

    `retry_us`: how long the action stays refused; 0 if it was allowed. `reset_us`: the time until that window is empty.
    `period_us`: the period of that window, which tells windows with equal limits apart.
    """

    allowed: bool
    remaining: int
    limit: int
    retry_us: int
    reset_us: int
    period_us: int


class BudgetBalance(NamedTuple):
    """The balance of a budget. `ok`: the amount is reserved or settled.

    The period ends in `reset_us`; 0 if no period has begun. `retry_us`: when a reserved amount may become free, if it
    is not spent.
    """

    ok: bool
    spent: int
    reserved: int
    began_us: int
    reset_us: int
    retry_us: int = 0
