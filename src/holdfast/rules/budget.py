"""The law of budgets: what is put aside counts as spent until it is settled.

A period begins with its first reservation and ends by the engine's calendar; then all is free again. What was put aside
and never settled is free after its hold, and known until the period ends: what was spent is counted even if it comes
late or is more than was put aside, since it has been spent. Only what is known as not yet settled is counted, so that
a token may say so again at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from holdfast.commands import BudgetBalance, GetBalance, Reserve, Settle
from holdfast.rules.lease_record import Moment

# How long a settled token is known: several times as long as anybody sends again that it is to be put aside.
SETTLED_US = 10_000_000


class Aside(NamedTuple):
    """An amount that is put aside until then; 0 and `settled` when it has been spent or given back."""

    amount: int
    until_us: int
    settled: bool


class Account(NamedTuple):
    """One period of one key: when it began, how long it lasts, what was spent, what is put aside."""

    began_us: int = 0
    ends_us: int = 0
    spent: int = 0
    aside: Mapping[str, Aside] = {}


def reserve(before: Account | None, command: Reserve, moment: Moment) -> tuple[Account | None, BudgetBalance]:
    """Put it aside, unless that would be more than the limit; equal passes."""
    account = settled(before, moment)
    known = account.aside.get(command.token)
    if known is not None and known.until_us > moment.wall_us:
        return before, _spent(account, moment, ok=not known.settled)
    reserved = sum(each.amount for each in _open(account, moment))
    if 0 <= command.limit < account.spent + reserved + command.amount:
        return before, _spent(account, moment, ok=False)

    if not account.ends_us:
        account = account._replace(began_us=moment.wall_us, ends_us=moment.wall_us + command.period_ms * 1000)
    mine = Aside(command.amount, moment.wall_us + command.hold_ms * 1000, settled=False)
    account = account._replace(aside={**account.aside, command.token: mine})
    return account, _spent(account, moment, ok=True)


def settle(before: Account | None, command: Settle, moment: Moment) -> tuple[Account | None, BudgetBalance]:
    """Count what was really spent. What belongs to a period that is over is history."""
    account = settled(before, moment)
    known = account.aside.get(command.token)
    if command.began_us != account.began_us or known is None or known.settled:
        return before, _spent(account, moment, ok=known is not None)

    done = Aside(0, moment.wall_us + SETTLED_US, settled=True)
    account = account._replace(spent=account.spent + command.actual, aside={**account.aside, command.token: done})
    return account, _spent(account, moment, ok=True)


def balance(before: Account | None, command: GetBalance, moment: Moment) -> tuple[Account | None, BudgetBalance]:  # noqa: ARG001
    """How it stands. Changes nothing."""
    return before, _spent(settled(before, moment), moment, ok=True)


def settled(account: Account | None, moment: Moment) -> Account:
    """The account at present, without what settled long ago. A calendar set back by over a period proves nothing."""
    if (
        account is None
        or not account.began_us - (account.ends_us - account.began_us) <= moment.wall_us < account.ends_us
    ):
        return Account()
    aside = {token: each for token, each in account.aside.items() if not each.settled or each.until_us > moment.wall_us}
    return account._replace(aside=aside)


def forget_at_us(account: Account) -> int:
    """When nothing of it matters any more."""
    return account.ends_us


def unpacked(stored: list[Any]) -> Account:
    """What was kept as plain lists."""
    began_us, ends_us, spent, aside = stored
    return Account(began_us, ends_us, spent, {token: Aside(*each) for token, each in aside.items()})


def _open(account: Account, moment: Moment) -> list[Aside]:
    """What is put aside and has not lapsed."""
    return [each for each in account.aside.values() if not each.settled and each.until_us > moment.wall_us]


def _spent(account: Account, moment: Moment, *, ok: bool) -> BudgetBalance:
    open_ = _open(account, moment)
    reserved = sum(each.amount for each in open_)
    reset_us = account.ends_us - moment.wall_us if account.ends_us else 0
    lapse_us = min((each.until_us - moment.wall_us for each in open_), default=reset_us)
    return BudgetBalance(ok, account.spent, reserved, account.began_us, reset_us, min(lapse_us, reset_us))
