"""The rules of budgets: a reserved amount counts as spent until it is settled.

A period begins with its first reservation and ends on the engine's calendar; then the whole budget is free again. An
amount that is not settled becomes free after its hold, but the account remembers its token until the period ends. So
the account counts an amount that was really spent, even if its `Settle` is late or exceeds the reservation. The account
counts each token once, so a client may resend a `Settle` at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from holdfast.commands import BudgetBalance, GetBalance, Reserve, Settle, UndoReserve
from holdfast.rules.lease_record import Moment

# How long the account remembers a settled token: several times as long as a client resends a `Reserve`.
SETTLED_US = 10_000_000
# How long the account remembers an undone token: a copy of its `Reserve` may come later, on another connection.
UNDONE_US = 60_000_000
# The largest sum of a budget. Scripts in Lua count exactly up to here, and every engine has the same bound.
SUM_MAX = 2**53 - 1


class ReservedAmount(NamedTuple):
    """An amount that is reserved until `until_us`. After it was settled, the amount is 0 and `settled` is true."""

    amount: int
    until_us: int
    settled: bool


class Account(NamedTuple):
    """One period of one budget: its start and end, the spent amount, and the reservations by token."""

    began_us: int = 0
    ends_us: int = 0
    spent: int = 0
    reservations: Mapping[str, ReservedAmount] = {}


def reserve(before: Account | None, command: Reserve, moment: Moment) -> tuple[Account | None, BudgetBalance]:
    """Reserve the amount, unless the total would exceed the limit; exactly the limit is allowed.

    Without a limit, the total is at most `SUM_MAX`.
    """
    account = advance(before, moment)
    known = account.reservations.get(command.token)
    if known is not None and known.until_us > moment.wall_us:
        return before, _balance(account, moment, ok=not known.settled)
    reserved = sum(each.amount for each in _open(account, moment))
    if account.spent + reserved + command.amount > (command.limit if command.limit >= 0 else SUM_MAX):
        return before, _balance(account, moment, ok=False)

    account = _begun(account, command.period_ms, moment)
    reservation = ReservedAmount(command.amount, moment.wall_us + command.hold_ms * 1000, settled=False)
    account = account._replace(reservations={**account.reservations, command.token: reservation})
    return account, _balance(account, moment, ok=True)


def settle(before: Account | None, command: Settle, moment: Moment) -> tuple[Account | None, BudgetBalance]:
    """Count the amount really spent. A reservation of an earlier period changes nothing.

    Refuse an amount that would make the sum larger than `SUM_MAX`: the sum would no longer be exact.
    """
    account = advance(before, moment)
    known = account.reservations.get(command.token)
    if command.began_us != account.began_us or known is None or known.settled:
        return before, _balance(account, moment, ok=known is not None)
    if account.spent + command.actual > SUM_MAX:
        return before, _balance(account, moment, ok=False)

    settled = ReservedAmount(0, moment.wall_us + SETTLED_US, settled=True)
    account = account._replace(
        spent=account.spent + command.actual, reservations={**account.reservations, command.token: settled}
    )
    return account, _balance(account, moment, ok=True)


def undo_reserve(before: Account | None, command: UndoReserve, moment: Moment) -> tuple[Account | None, BudgetBalance]:
    """Free the amount of a reservation that no caller has, and refuse late copies of its `Reserve`.

    The period begins if none has: the outcome must not depend on which of the two commands came first.
    """
    account = advance(before, moment)
    known = account.reservations.get(command.token)
    if known is not None and known.settled:
        return before, _balance(account, moment, ok=True)

    account = _begun(account, command.period_ms, moment)
    undone = ReservedAmount(0, moment.wall_us + UNDONE_US, settled=True)
    account = account._replace(reservations={**account.reservations, command.token: undone})
    return account, _balance(account, moment, ok=True)


def balance(before: Account | None, command: GetBalance, moment: Moment) -> tuple[Account | None, BudgetBalance]:  # noqa: ARG001
    """Return the balance. Changes nothing."""
    return before, _balance(advance(before, moment), moment, ok=True)


def advance(account: Account | None, moment: Moment) -> Account:
    """Return the account at this moment, without tokens that were settled long ago.

    Return an empty account if the period has ended, or if the calendar was set back by more than a period.
    """
    if (
        account is None
        or not account.began_us - (account.ends_us - account.began_us) <= moment.wall_us < account.ends_us
    ):
        return Account()
    reservations = {
        token: each
        for token, each in account.reservations.items()
        if not each.settled or each.until_us > moment.wall_us
    }
    return account._replace(reservations=reservations)


def forget_at_us(account: Account) -> int:
    """Return when the account is no longer needed."""
    return account.ends_us


def unpacked(stored: list[Any]) -> Account:
    """Return the account from its stored form, plain lists."""
    began_us, ends_us, spent, reservations = stored
    return Account(began_us, ends_us, spent, {token: ReservedAmount(*each) for token, each in reservations.items()})


def _begun(account: Account, period_ms: int, moment: Moment) -> Account:
    """Return the account with a period: the present one, or a new one if none has begun."""
    if account.ends_us:
        return account
    return account._replace(began_us=moment.wall_us, ends_us=moment.wall_us + period_ms * 1000)


def _open(account: Account, moment: Moment) -> list[ReservedAmount]:
    """Return the reservations that are neither settled nor past their hold."""
    return [each for each in account.reservations.values() if not each.settled and each.until_us > moment.wall_us]


def _balance(account: Account, moment: Moment, *, ok: bool) -> BudgetBalance:
    open_ = _open(account, moment)
    reserved = sum(each.amount for each in open_)
    reset_us = account.ends_us - moment.wall_us if account.ends_us else 0
    hold_ends_us = min((each.until_us - moment.wall_us for each in open_), default=reset_us)
    return BudgetBalance(ok, account.spent, reserved, account.began_us, reset_us, min(hold_ends_us, reset_us))
