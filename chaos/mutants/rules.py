"""Mutants of the rules, for the engines that run them (memory, SQLite): the client is right, the decision is wrong."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from chaos.mutants.clients import ignores_own_clock
from chaos.mutants.patching import put, wrap
from holdfast.commands import Released, ReleaseLease, Renew, Renewed
from holdfast.rules import lease as law
from holdfast.rules.lease_record import HolderRecord
from holdfast.rules.table import RULES, RuleKind, commands_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from holdfast.rules.lease import Step
    from holdfast.rules.lease_record import Moment, Record


def release_without_token_check(_folder: Path) -> None:
    """A release compares no token."""

    def release(record: Record, command: ReleaseLease, moment: Moment) -> Step:
        before, record = record, law.advance(record, moment)
        record = law.advance(record._replace(holder=None, last=command.token, touched_us=moment.now_us), moment)
        return law.Step(record, Released(), law._woken(before, record))

    RULES[ReleaseLease] = RULES[ReleaseLease]._replace(apply=release)


def recreate_on_renew(folder: Path) -> None:
    """A renewal restores a lease that is gone, and the client renews whatever its own clock says."""

    def renew(record: Record, command: Renew, moment: Moment) -> Step:
        record = law.advance(record, moment)
        expires_us = moment.now_us + command.ttl_ms * 1000
        there = record.holder
        if there is not None and there.token == command.token:
            return law.Step(record._replace(holder=there._replace(expires_us=expires_us)), Renewed())
        back = HolderRecord(
            command.token, moment.client, "", record.fence, command.ttl_ms, moment.now_us, expires_us, offered=False
        )
        return law.Step(record._replace(holder=back, touched_us=moment.now_us), Renewed())

    RULES[Renew] = RULES[Renew]._replace(apply=renew)
    ignores_own_clock(folder)


def client_clock(_folder: Path) -> None:
    """The wall clock of the requesting client decides whether a lease has expired."""

    def by_the_calendar(rule: Callable[..., Step]) -> Callable[..., Step]:
        return lambda record, command, moment: rule(record, command, moment._replace(now_us=time.time_ns() // 1000))

    for command in commands_of(RuleKind.LEASE):
        rule = RULES[command]
        RULES[command] = rule._replace(apply=by_the_calendar(rule.apply))


def fence_kept_on_takeover(_folder: Path) -> None:
    """The fence grows with a release; the next holder of an expired lease gets the old fence."""
    right = law.release
    put(law, "next_fence", lambda record, moment: record.fence or moment.wall_us)

    def release(record: Record, command: ReleaseLease, moment: Moment) -> Step:
        held = record.holder is not None and record.holder.token == command.token
        return right(record._replace(fence=record.fence + 1) if held else record, command, moment)

    RULES[ReleaseLease] = RULES[ReleaseLease]._replace(apply=release)


def offer_to_a_dead_waiter(_folder: Path) -> None:
    """An offer lasts for an hour, whether its waiter is alive or not."""
    law.OFFER_MAX_US = 3600 * 1_000_000

    def blind(advance: Callable[..., Record]) -> Callable[..., Record]:
        def changed(record: Record, moment: Moment) -> Record:
            holder = record.holder
            seen = moment.gone & {holder.client} if holder is not None and not holder.offered else frozenset()
            return advance(record, moment._replace(gone=seen, silent=frozenset()))

        return changed

    wrap(law, "advance", blind)


def barging(_folder: Path) -> None:
    """A free lease goes to the first request, past the waiting line."""

    def unfair(advance: Callable[..., Record]) -> Callable[..., Record]:
        def changed(record: Record, moment: Moment) -> Record:
            after = advance(record, moment)
            free = after.holder is not None and after.holder.offered
            return after._replace(holder=None, waiters=record.waiters) if free else after

        return changed

    wrap(law, "advance", unfair)
