"""Budgets: put an amount aside first, then say what was really spent. Money fails closed: no engine, no reservation."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from holdfast.clock import NS_PER_MS, Seconds, ttl_ms
from holdfast.commands import BudgetBalance, GetBalance, Reserve, Settle
from holdfast.core.lease.lock import UNSET, Unset
from holdfast.core.resend import send_safely
from holdfast.engines import Capability
from holdfast.errors import BudgetExceeded, Closed, InvalidConfig, Unavailable
from holdfast.names import checked_name, name_of, new_token
from holdfast.observer import log

if TYPE_CHECKING:
    from holdfast.core.client import Client

HOLD_S = 60.0
PERIOD_S = 86400.0
_AMOUNT_MAX = 2**53
_ANY = -1


class BudgetStatus(NamedTuple):
    """How a budget stands: what was spent, what is put aside, what is left (`None` if there is no limit).

    The period ends after `reset_after` seconds; 0 if none has begun.
    """

    spent: int
    reserved: int
    remaining: int | None
    limit: int | None
    reset_after: float


class BudgetBase:
    """Settings, checked before any input or output."""

    def __init__(self, client: Client, name: str, *, limit: int | None, period: Seconds, hold: Seconds) -> None:
        client.refuse_without(Capability.BUDGETS)
        self._client = client
        self.name = checked_name(name)
        self._limit = _checked("limit", limit)
        self._period_ms = ttl_ms(period, setting="period")
        self._hold_ms = ttl_ms(hold, setting="hold")

    def __repr__(self) -> str:
        return f"<budget {self.name!r} on {self._client.url}>"

    def _limit_of(self, limit: int | Unset | None) -> int:
        return self._limit if isinstance(limit, Unset) else _checked("limit", limit)


class ReservationBase:
    """An amount that is put aside."""

    def __init__(self, client: Client, name: str, key: str, amount: int) -> None:
        self._client = client
        self._name = name
        self._token = new_token()
        self._began_us = self._hold_ms = 0
        self.key = key
        self.amount = amount
        self._actual: int | None = None

    @property
    def settled(self) -> bool:
        """Whether it has been spent or given back."""
        return self._actual is not None

    def __repr__(self) -> str:
        return f"<reservation of {self.amount} for {self.key!r}{', settled' if self.settled else ''}>"


async def reserve(budget: BudgetBase, reservation: ReservationBase, limit: int | Unset | None) -> None:
    """Put it aside, or `BudgetExceeded`. If the answer stays lost, the hold gives it back."""
    most = budget._limit_of(limit)
    name, amount = reservation._name, reservation.amount
    command = Reserve(name, reservation._token, amount, most, budget._period_ms, budget._hold_ms)
    answer = await send_safely(budget._client, command)
    assert isinstance(answer, BudgetBalance)
    if not answer.ok:
        remaining, retry_s = max(0, most - answer.spent - answer.reserved), answer.retry_us / 1e6
        after_s = retry_s if most >= amount else 0.0
        budget._client.emit("rate_limited", name, seconds=after_s or None)
        raise BudgetExceeded(name, amount, remaining, most, after_s)
    reservation._began_us, reservation._hold_ms = answer.began_us, budget._hold_ms


async def settle(reservation: ReservationBase, actual: int) -> None:
    """Say what was spent; said again it is no more than true, and another number is a mistake."""
    actual, before = checked_amount("actual", actual), reservation._actual
    if before is None:
        await send_safely(reservation._client, _settling(reservation, actual))
        reservation._actual = actual
    elif before != actual:
        raise InvalidConfig("actual", actual, f"this reservation was settled with {before} already")


async def leave(reservation: ReservationBase, error: BaseException | None) -> None:
    """The end of a block: all of it was spent, unless it was said otherwise; nothing, if the block failed.

    The work is over, so an engine that cannot be told is no error of it: the keeper goes on telling for as long as the
    amount is put aside. The block's own error is never replaced.
    """
    if reservation.settled:
        return
    actual = reservation.amount if error is None else 0
    try:
        await settle(reservation, actual)
    except Unavailable as trouble:
        log.warning("%d of %r could not be settled yet, and will be: %s", actual, reservation._name, trouble)
        _hand_on(reservation, actual)
    except Closed as closed:
        if error is None:
            raise
        error.add_note(str(closed))
    except BaseException:
        _hand_on(reservation, actual)
        raise


def _hand_on(reservation: ReservationBase, actual: int) -> None:
    reservation._actual = actual
    reservation._client.keeper.deliver_later(_settling(reservation, actual), reservation._hold_ms * NS_PER_MS)


def _settling(reservation: ReservationBase, actual: int) -> Settle:
    return Settle(reservation._name, reservation._token, reservation._began_us, actual)


async def peek(budget: BudgetBase, key: str, limit: int | Unset | None) -> BudgetStatus:
    """How the budget of a key stands."""
    most = budget._limit_of(limit)
    answer = await send_safely(budget._client, GetBalance(name_of(budget.name, key), budget._period_ms))
    assert isinstance(answer, BudgetBalance)
    left = None if most == _ANY else max(0, most - answer.spent - answer.reserved)
    return BudgetStatus(answer.spent, answer.reserved, left, None if most == _ANY else most, answer.reset_us / 1e6)


def checked_amount(setting: str, value: int) -> int:
    """Whole numbers of the smallest unit: sums must be exact."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _AMOUNT_MAX:
        raise InvalidConfig(setting, value, "it must be a whole number, 0 or more: count in the smallest unit")
    return value


def _checked(setting: str, value: int | None) -> int:
    return _ANY if value is None else checked_amount(setting, value)


__all__ = ["HOLD_S", "PERIOD_S", "UNSET", "BudgetBase", "BudgetStatus", "ReservationBase", "Unset"]
