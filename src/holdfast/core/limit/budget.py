"""Budgets: reserve an amount first, then settle the amount really spent.

Budgets fail closed: if the engine is unavailable, there is no reservation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from holdfast.clock import NS_PER_MS, Seconds, ttl_ms
from holdfast.commands import BudgetBalance, GetBalance, Reserve, Settle, UndoReserve
from holdfast.core.lease.lock import Unset
from holdfast.core.resend import send_safely
from holdfast.engines import Capability
from holdfast.errors import BudgetExceeded, Closed, InvalidConfig, Unavailable
from holdfast.names import checked_name, name_of, new_token
from holdfast.observer import log
from holdfast.rules.budget import SUM_MAX

if TYPE_CHECKING:
    from holdfast.core.client import Client

HOLD_S = 60.0
PERIOD_S = 86400.0
_NO_LIMIT = -1


class BudgetStatus(NamedTuple):
    """The balance of a budget: the spent, reserved and remaining amounts (`remaining`: `None` without a limit).

    The period ends after `reset_after` seconds; 0 if none has begun.
    """

    spent: int
    reserved: int
    remaining: int | None
    limit: int | None
    reset_after: float


class BudgetBase:
    """A budget: its settings, checked before any I/O, and its commands."""

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

    async def _reserve(self, key: str, amount: int, limit: int | Unset | None) -> ReservedFields:
        """Reserve the amount, or raise `BudgetExceeded`.

        If the call ends without an answer, no caller has the amount: the keeper gives it back. A retry may come before
        that, so it gives the amount back first; its own earlier call must not refuse it.
        """
        name, amount, token = name_of(self.name, key), checked_amount("amount", amount), new_token()
        limit_sent, client = self._limit_of(limit), self._client
        for earlier in client.keeper.undelivered(UndoReserve, name):
            await send_safely(client, earlier)
        command = Reserve(name, token, amount, limit_sent, self._period_ms, self._hold_ms)
        undo = UndoReserve(name, token, self._period_ms)

        def give_back() -> None:
            client.keeper.deliver_later(undo, self._hold_ms * NS_PER_MS)

        answer = await send_safely(client, command, in_doubt=give_back)
        assert isinstance(answer, BudgetBalance)
        if not answer.ok:
            most = SUM_MAX if limit_sent == _NO_LIMIT else limit_sent
            remaining, retry_s = max(0, most - answer.spent - answer.reserved), answer.retry_us / 1e6
            after_s = retry_s if most >= amount else 0.0
            self._client.emit("rate_limited", name, seconds=after_s or None)
            raise BudgetExceeded(name, amount, remaining, most, after_s)
        return ReservedFields(self._client, name, key, token, amount, answer.began_us, self._hold_ms)

    async def _peek(self, key: str, limit: int | Unset | None) -> BudgetStatus:
        """Return the balance of a key."""
        most = self._limit_of(limit)
        answer = await send_safely(self._client, GetBalance(name_of(self.name, key), self._period_ms))
        assert isinstance(answer, BudgetBalance)
        left = None if most == _NO_LIMIT else max(0, most - answer.spent - answer.reserved)
        return BudgetStatus(
            answer.spent, answer.reserved, left, None if most == _NO_LIMIT else most, answer.reset_us / 1e6
        )


class ReservedFields(NamedTuple):
    """The arguments of a reservation."""

    client: Client
    name: str
    key: str
    token: str
    amount: int
    began_us: int
    hold_ms: int


class ReservationBase:
    """A reserved amount."""

    def __init__(
        self, client: Client, name: str, key: str, token: str, amount: int, began_us: int, hold_ms: int
    ) -> None:
        self._client = client
        self._name = name
        self._token = token
        self._began_us = began_us
        self._hold_ms = hold_ms
        self.key = key
        self.amount = amount
        self._actual: int | None = None

    @property
    def settled(self) -> bool:
        """True once the amount was settled or refunded."""
        return self._actual is not None

    def __repr__(self) -> str:
        return f"<reservation of {self.amount} for {self.key!r}{', settled' if self.settled else ''}>"

    async def _settle(self, actual: int) -> None:
        """Settle the amount really spent. A caller may settle the same amount again; another amount is a mistake."""
        actual, before = checked_amount("actual", actual), self._actual
        if before is None:
            answer = await send_safely(self._client, self._command(actual))
            assert isinstance(answer, BudgetBalance)
            if not answer.ok and answer.began_us == self._began_us and answer.spent + actual > SUM_MAX:
                rule = f"the budget has spent {answer.spent} in this period, and its sum may be at most {SUM_MAX}"
                raise InvalidConfig("actual", actual, rule)
            self._actual = actual
        elif before != actual:
            raise InvalidConfig("actual", actual, f"this reservation was already settled with {before}")

    async def _leave(self, error: BaseException | None) -> None:
        """End the block: unless the caller has settled, settle the whole amount, or 0 if the block failed.

        The work is over, so an unavailable engine is not an error of the work: the keeper keeps sending the command for
        as long as the amount is reserved. The block's own error always passes.
        """
        if self.settled:
            return
        actual = self.amount if error is None else 0
        try:
            await self._settle(actual)
        except Unavailable as unavailable:
            log.warning("%d of %r could not be settled; the client keeps trying: %s", actual, self._name, unavailable)
            self._hand_to_keeper(actual)
        except Closed as closed:
            if error is None:
                raise
            error.add_note(str(closed))
        except BaseException:
            self._hand_to_keeper(actual)
            raise

    def _hand_to_keeper(self, actual: int) -> None:
        self._actual = actual
        self._client.keeper.deliver_later(self._command(actual), self._hold_ms * NS_PER_MS)

    def _command(self, actual: int) -> Settle:
        return Settle(self._name, self._token, self._began_us, actual)


def checked_amount(setting: str, value: int) -> int:
    """Return the checked amount: a whole number of the smallest unit, because sums must be exact."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= SUM_MAX:
        rule = f"it must be a whole number of 0 to {SUM_MAX}: count in the smallest unit"
        raise InvalidConfig(setting, value, rule)
    return value


def _checked(setting: str, value: int | None) -> int:
    return _NO_LIMIT if value is None else checked_amount(setting, value)
