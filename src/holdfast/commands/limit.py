"""What is asked about limits and budgets, and what is answered."""

from __future__ import annotations

from typing import NamedTuple


class Hit(NamedTuple):
    """May this be done, so often and so fast? Counted at once if it may, in every window; else in none.

    `rates` are pairs of how many and in how many microseconds. `smooth` lets the allowance grow back evenly, instead of
    looking at the last window. Without `take` nothing is counted. It is the one command that is never sent twice: a
    lost answer counts as used.
    """

    name: str
    rates: tuple[tuple[int, int], ...]
    smooth: bool
    cost: int
    take: bool

    @property
    def kind(self) -> str:
        """Where the counts are kept: windows of other lengths are other counts, the numbers may change."""
        return f"{'g' if self.smooth else 'l'}:{','.join(str(period_us) for _, period_us in self.rates)}"


class ResetCounter(NamedTuple):
    """Nothing was counted under this name so far."""

    name: str
    kind: str


class Reserve(NamedTuple):
    """Put this amount aside for a while, if what was spent and is put aside leaves room for it.

    `limit` is what may be spent in a period, or -1 for any amount.
    """

    name: str
    token: str
    amount: int
    limit: int
    period_ms: int
    hold_ms: int
    kind: str = "b"


class Settle(NamedTuple):
    """So much was spent of what this token had put aside in the period that began then; the rest is free again."""

    name: str
    token: str
    began_us: int
    actual: int
    kind: str = "b"


class GetBalance(NamedTuple):
    """What was spent and what is put aside. Changes nothing."""

    name: str
    period_ms: int
    kind: str = "b"


class LimitDecision(NamedTuple):
    """Whether it may be done. `remaining` of `limit` is left in the window that matters most just now.

    `retry_us`: so long from now it would be refused again; 0 if it was not. `reset_us`: then that window is empty.
    """

    allowed: bool
    remaining: int
    limit: int
    retry_us: int
    reset_us: int


class BudgetBalance(NamedTuple):
    """How an account stands. `ok`: what was asked for was done. The period ends in `reset_us`; 0 if none has begun.

    `retry_us` tells when something that is put aside may be free again, if it is not spent.
    """

    ok: bool
    spent: int
    reserved: int
    began_us: int
    reset_us: int
    retry_us: int = 0
