"""Mutants of the client, on every engine: the engine decides rightly, and the client draws a wrong conclusion."""

from __future__ import annotations

import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from chaos.mutants.patching import put, wrap
from holdfast.aio import leader as aio_leader
from holdfast.aio import lock as aio_lock
from holdfast.clock import NS
from holdfast.commands import Acquire, Granted, NotHeld, ReleaseLease, Renew, Renewed, Show
from holdfast.core import client
from holdfast.core.keeper import keeper
from holdfast.core.lease import lease
from holdfast.core.lease.state import ENDED, HELD, LOST
from holdfast.core.step import run
from holdfast.errors import Unavailable
from holdfast.names import new_token
from holdfast.rules import lease as law
from holdfast.rules import trust

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from holdfast.commands import Answer, Command
    from holdfast.engines import Transport


async def _answer(transport: Transport, command: Command, until_ns: int | None = None) -> Answer:
    answer = transport.apply(command, until_ns)
    return answer if isinstance(answer, tuple) else await answer


def unlock_by_name(_folder: Path) -> None:
    """A late release releases the lease of its present holder."""

    def by_name(ask_all: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        def requested(self: keeper.Keeper, commands: list[Command], **options: Any) -> list[Any]:
            return ask_all(self, [_of_present_holder(self, command) for command in commands], **options)

        return requested

    def _of_present_holder(self: keeper.Keeper, command: Command) -> Command:
        if isinstance(command, ReleaseLease):
            with suppress(Unavailable):
                standing: Any = run(_answer(self._transport, Show(command.name)))
                if standing.holder is not None:
                    return command._replace(token=standing.holder.token)
        return command

    wrap(keeper.Keeper, "_send_all", by_name)


def ignores_own_clock(_folder: Path) -> None:
    """The holder never compares its deadline with its clock."""

    def check(self: lease.LeaseBase) -> None:
        if self.state is not HELD:
            raise self.loss()

    put(keeper.Keeper, "_report_expired", lambda _self: None)
    put(lease.LeaseBase, "check", check)
    put(lease.LeaseBase, "is_lost", lambda self: self.state is LOST)


def renew_after_loss(folder: Path) -> None:
    """The keeper ignores the answer that the lease is not held."""

    def stubborn(ask_all: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        def requested(self: keeper.Keeper, commands: list[Command], **options: Any) -> list[Any]:
            answers = ask_all(self, commands, **options)
            return [
                Renewed() if isinstance(command, Renew) and isinstance(answer, NotHeld) else answer
                for command, answer in zip(commands, answers, strict=True)
            ]

        return requested

    ignores_own_clock(folder)
    wrap(keeper.Keeper, "_send_all", stubborn)


def never_renews(_folder: Path) -> None:
    """The keeper renews nothing: a lease lasts for its first ttl."""
    put(keeper.Keeper, "_renew", lambda _self, _now_ns: None)


def ttl_counted_from_the_answer(_folder: Path) -> None:
    """The client counts the ttl from the arrival of the answer, the engine from the arrival of the command."""

    def late(trust_from: Callable[..., None]) -> Callable[..., None]:
        def trusted(self: lease.LeaseBase, _sent_ns: int, ttl_ms: int) -> None:
            trust_from(self, self.client.clock.now_ns(), ttl_ms)

        return trusted

    wrap(lease.LeaseBase, "_trust_from", late)


def loss_not_reported(_folder: Path) -> None:
    """The keeper knows of the loss, and the work does not learn of it."""
    put(lease.LeaseBase, "check", lambda _self: None)
    put(lease.LeaseBase, "is_lost", lambda _self: False)


def cancel_policy_ignored(_folder: Path) -> None:
    """`on_loss="cancel"` has no effect."""
    for module in (aio_lock, aio_leader):
        put(module, "cancel_on_loss", lambda _lease, _policy: None)


def fence_apart_from_grant(folder: Path) -> None:
    """The client takes the fence from a separate counter, in a second step after the grant."""
    counter = folder / "fence"

    def in_two_steps(granted: Callable[..., None]) -> Callable[..., None]:
        def took(self: lease.LeaseBase, _fence: int, sent_ns: int) -> None:
            number = int(counter.read_text() or 0) if counter.exists() else 0
            time.sleep(0.2)
            counter.write_text(str(number + 1))
            granted(self, number + 1, sent_ns)

        return took

    wrap(lease.LeaseBase, "_granted", in_two_steps)


def blind_retry(_folder: Path) -> None:
    """After a lost reply the client sends its acquire again with a new token."""

    async def ask(
        one: lease.LeaseBase,
        sent_ns: int,
        until_ns: int,
        give_up_ns: int,
    ) -> Answer:
        owner, one._sent_ns = one.client, sent_ns
        while True:
            question = Acquire(one.name, one.token, one.packed_holder, one.ttl_ms, wait=one._sent_ns < until_ns)
            try:
                return await _answer(owner.transport, question, one._sent_ns + NS)
            except Unavailable:
                owner.keeper.forget(one)
                one.token = new_token()
                owner.keeper.leases[one.token] = weakref.ref(one)
                await owner.transport.waker().wait(owner.clock.now_ns() + NS // 20)
                one._sent_ns = owner.clock.now_ns()

    put(lease.LeaseBase, "_request", ask)


def ttl_not_restarted_on_resend(_folder: Path) -> None:
    """After a lost reply the client only reads whether it holds the lease, and counts the ttl from then."""

    async def ask(one: lease.LeaseBase, sent_ns: int, until_ns: int, give_up_ns: int) -> Answer:
        owner, one._sent_ns = one.client, sent_ns
        question = Acquire(one.name, one.token, one.packed_holder, one.ttl_ms, wait=sent_ns < until_ns)
        try:
            return await _answer(owner.transport, question, sent_ns + NS)
        except Unavailable:
            one._reached = True
        while owner.clock.now_ns() < give_up_ns:
            one._sent_ns = owner.clock.now_ns()
            try:
                standing: Any = await _answer(owner.transport, Show(one.name), one._sent_ns + NS)
            except Unavailable:
                await owner.transport.waker().wait(owner.clock.now_ns() + NS // 20)
                continue
            if standing.holder is not None and standing.holder.token == one.token and not standing.offered:
                return Granted(standing.holder.fence)
            break
        one._sent_ns = owner.clock.now_ns()
        question = question._replace(wait=one._sent_ns < until_ns)
        return await _answer(owner.transport, question, one._sent_ns + NS)

    put(lease.LeaseBase, "_request", ask)


def fails_open(_folder: Path) -> None:
    """The client treats an unreachable engine as a grant."""

    def trusting(acquire: Callable[..., Any]) -> Callable[..., Any]:
        async def acquired(one: lease.LeaseBase, wait_ns: int | None) -> None:
            try:
                await acquire(one, wait_ns)
            except Unavailable:
                one._granted(time.time_ns() // 1000, one.client.clock.now_ns())

        return acquired

    wrap(lease.LeaseBase, "acquire_steps", trusting)


def no_recheck_timer(_folder: Path) -> None:
    """A waiter relies on its wake-up message alone."""
    _looks_again(after_ms=3_600_000, marks_after_ns=3600 * NS)


def no_wake_up(_folder: Path) -> None:
    """No waiter is woken; each polls every 2.5 s."""
    put(law, "_woken", lambda *_: None)
    _looks_again(after_ms=2500, marks_after_ns=5 * NS)


def polls_instead_of_waking(_folder: Path) -> None:
    """No waiter is woken; each polls often enough to confirm its offer in time, but slowly."""
    put(law, "_woken", lambda *_: None)
    _looks_again(after_ms=900, marks_after_ns=5 * NS)


def _looks_again(after_ms: int, marks_after_ns: int) -> None:
    """Set how often a waiter polls, and how often its keeper sends a heartbeat."""

    def only_wait(self: keeper.Keeper, now_ns: int) -> None:
        for schedule in self._heartbeats.due(now_ns):
            schedule.due_ns = now_ns + marks_after_ns

    put(trust, "recheck_after_ms", lambda *_: after_ms)
    put(keeper.Keeper, "_send_heartbeats", only_wait)


def cancel_without_undo(_folder: Path) -> None:
    """A cancelled acquire is not undone."""

    def forget(one: lease.LeaseBase) -> None:
        one.state = ENDED
        one.client.keeper.stop_heartbeat(one)
        one.client.keeper.forget(one)

    put(lease.LeaseBase, "undo", forget)


def child_keeps_the_lease(_folder: Path) -> None:
    """After a fork both parent and child believe that they hold the lease."""
    put(client.Client, "forked", lambda _self: None)


def close_leaves_the_keeper(_folder: Path) -> None:
    """A close reports success, and the keeper's thread goes on."""

    async def close(one: client.Client, _timeout: object) -> tuple[str, ...]:
        one.state = client.CLOSED
        return ()

    put(client.Client, "close", close)
