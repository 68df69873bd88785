"""Lock clients that are broken on purpose: each is the real library with one mistake that others have made.

The rule: a mutant changes the library inside its worker processes, and nothing else: the round, the faults and the
checkers are those of the campaign. A campaign that does not catch a mutant has no say about the right client.
"""

from __future__ import annotations

import hashlib
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast import aio
from holdfast.clock import NS
from holdfast.commands import Granted, NotHeld, Release, Released, Renew, Renewed, Show
from holdfast.core import client, keeper, lease, lifecycle
from holdfast.core.run import run
from holdfast.engines.redis import scripts
from holdfast.errors import Unavailable
from holdfast.names import new_token
from holdfast.rules import RULES, trust
from holdfast.rules import lease as law
from holdfast.rules.record import Holder
from holdfast.testing.guard import GuardedFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.commands import Answer, Command
    from holdfast.rules.lease import Step
    from holdfast.rules.record import Moment, Record


def apply(name: str, folder: Path) -> None:
    """Break the library in this process; an empty name leaves it right."""
    if name:
        MUTATIONS[name](folder)


def _wrap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    setattr(owner, name, make(getattr(owner, name)))


def _put(owner: Any, name: str, wrong: Any) -> None:
    setattr(owner, name, wrong)


# The engine's side: rules that are wrong.


def release_without_token_check(_folder: Path) -> None:
    def release(record: Record, command: Release, moment: Moment) -> Step:
        before, record = record, law.settle(record, moment)
        record = law.settle(record._replace(holder=None, last=command.token, touched_us=moment.now_us), moment)
        return law.Step(record, Released(), law._woken(before, record))

    RULES[Release] = release


def script_releases_whatever(_folder: Path) -> None:
    """The same mistake where the server keeps the leases: its script compares no token."""
    script = scripts.SCRIPTS[Release]
    right = script.text
    script.text = right.replace("holder == token and", "holder and").replace("if holder ~= token then", "if false then")
    assert right.count("holder == token and") == right.count("if holder ~= token then") == 1, "the script has changed"
    script.sha = hashlib.sha1(script.text.encode()).hexdigest()  # noqa: S324 - the server's own name for it


def recreate_on_renew(folder: Path) -> None:
    """An engine that puts back what it does not find, and a client that renews whatever its own clock says."""

    def renew(record: Record, command: Renew, moment: Moment) -> Step:
        record = law.settle(record, moment)
        expires_us = moment.now_us + command.ttl_ms * 1000
        there = record.holder
        if there is not None and there.token == command.token:
            return law.Step(record._replace(holder=there._replace(expires_us=expires_us)), Renewed())
        back = Holder(
            command.token, moment.client, "", record.fence, command.ttl_ms, moment.now_us, expires_us, offered=False
        )
        return law.Step(record._replace(holder=back, touched_us=moment.now_us), Renewed())

    RULES[Renew] = renew
    _deaf_to_its_own_clock(folder)


def client_clock(_folder: Path) -> None:
    """Whether a lease is over is decided by the calendar of whoever asks."""

    def by_the_calendar(rule: Callable[..., Step]) -> Callable[..., Step]:
        return lambda record, command, moment: rule(record, command, moment._replace(now_us=time.time_ns() // 1000))

    for kind, rule in tuple(RULES.items()):
        RULES[kind] = by_the_calendar(rule)


def fence_kept_on_takeover(_folder: Path) -> None:
    """The fence grows with a release; whoever takes over what has lapsed gets the old one."""
    right = law.release
    _put(law, "next_fence", lambda record, moment: record.fence or moment.wall_us)

    def release(record: Record, command: Release, moment: Moment) -> Step:
        held = record.holder is not None and record.holder.token == command.token
        return right(record._replace(fence=record.fence + 1) if held else record, command, moment)

    RULES[Release] = release


def hand_off_to_the_dead(_folder: Path) -> None:
    """An offer lasts for a whole ttl, and nobody looks whether the waiter lives."""
    law.OFFER_MAX_US = 3600 * 1_000_000

    def blind(settle: Callable[..., Record]) -> Callable[..., Record]:
        def settled(record: Record, moment: Moment) -> Record:
            holder = record.holder
            seen = moment.gone & {holder.client} if holder is not None and not holder.offered else frozenset()
            return settle(record, moment._replace(gone=seen, silent=frozenset()))

        return settled

    _wrap(law, "settle", blind)


def barging(_folder: Path) -> None:
    """A free lease goes to whoever asks first, whoever waits."""

    def unfair(settle: Callable[..., Record]) -> Callable[..., Record]:
        def settled(record: Record, moment: Moment) -> Record:
            after = settle(record, moment)
            free = after.holder is not None and after.holder.offered
            return after._replace(holder=None, waiters=record.waiters) if free else after

        return settled

    _wrap(law, "settle", unfair)


# The client's side.


def unlock_by_name(_folder: Path) -> None:
    """What is late to be released is released whosever it is by now."""

    def by_name(ask_all: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        def asked(self: keeper.Keeper, commands: list[Command], *, confirm: bool = False) -> list[Any]:
            return ask_all(self, [_of_whoever_holds(self, command) for command in commands], confirm=confirm)

        return asked

    def _of_whoever_holds(self: keeper.Keeper, command: Command) -> Command:
        if isinstance(command, Release):
            with suppress(Unavailable):
                standing: Any = run(self._form.apply(Show(command.name)))
                if standing.holder is not None:
                    return command._replace(token=standing.holder.token)
        return command

    _wrap(keeper.Keeper, "_ask_all", by_name)


def _deaf_to_its_own_clock(_folder: Path) -> None:
    """The holder never compares its deadline with its clock."""

    def check(self: lease.LeaseBase) -> None:
        if self._state is not lease.HELD:
            raise self._loss()

    _put(keeper.Keeper, "_tell_expired", lambda _self: None)
    _put(lease.LeaseBase, "check", check)
    _put(lease.LeaseBase, "_is_lost", lambda self: self._state is lease.LOST)


def renew_after_loss(folder: Path) -> None:
    """ "Not yours" is taken for an answer like any other."""

    def stubborn(ask_all: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        def asked(self: keeper.Keeper, commands: list[Command], *, confirm: bool = False) -> list[Any]:
            answers = ask_all(self, commands, confirm=confirm)
            return [
                Renewed() if isinstance(command, Renew) and isinstance(answer, NotHeld) else answer
                for command, answer in zip(commands, answers, strict=True)
            ]

        return asked

    _deaf_to_its_own_clock(folder)
    _wrap(keeper.Keeper, "_ask_all", stubborn)


def never_renews(_folder: Path) -> None:
    """The keeper keeps nothing: a lease lasts for its first ttl."""
    _put(keeper.Keeper, "_renew", lambda _self, _now_ns: None)


def ttl_counted_from_the_answer(_folder: Path) -> None:
    """The ttl is counted from when the answer came, and the engine counts from when the command did."""

    def late(trust_from: Callable[..., None]) -> Callable[..., None]:
        def trusted(self: lease.LeaseBase, _sent_ns: int, ttl_ms: int) -> None:
            trust_from(self, self._client.clock.now_ns(), ttl_ms)

        return trusted

    _wrap(lease.LeaseBase, "_trust_from", late)


def loss_not_told(_folder: Path) -> None:
    """The keeper knows, and the work is not told."""
    _put(lease.LeaseBase, "check", lambda _self: None)
    _put(lease.LeaseBase, "_is_lost", lambda _self: False)


def cancels_nobody(_folder: Path) -> None:
    """`on_loss="cancel"` is accepted, and forgotten."""
    _put(aio, "_cancel_on_loss", lambda _lease, _policy: None)


def fence_apart_from_grant(folder: Path) -> None:
    """First the lease, then a number from a counter beside it."""
    counter = folder / "fence"

    def in_two_steps(granted: Callable[..., None]) -> Callable[..., None]:
        def took(self: lease.LeaseBase, _fence: int, sent_ns: int) -> None:
            number = int(counter.read_text() or 0) if counter.exists() else 0
            time.sleep(0.2)
            counter.write_text(str(number + 1))
            granted(self, number + 1, sent_ns)

        return took

    _wrap(lease.LeaseBase, "_granted", in_two_steps)


def blind_retry(_folder: Path) -> None:
    """After a lost answer it asks again as somebody else."""

    async def send(
        one: lease.LeaseBase,
        until_ns: int,
        give_up_ns: int,  # noqa: ARG001 - as the right one has it
    ) -> Answer:
        owner = one._client
        while True:
            one._sent_ns = owner.clock.now_ns()
            ask = one._ask(one._sent_ns < until_ns)
            try:
                return await owner.form.apply(ask, one._sent_ns + NS)
            except Unavailable:
                owner.keeper.let_go(one)
                one.token = new_token()
                owner.keeper.keep(one)
                await owner.form.bell().wait(owner.clock.now_ns() + NS // 20)

    _put(lifecycle, "_send", send)


def ttl_not_restarted_on_resend(_folder: Path) -> None:
    """After a lost answer it only looks whether it has the lease, and counts the ttl from then."""
    right = lifecycle._send

    async def send(one: lease.LeaseBase, until_ns: int, give_up_ns: int) -> Answer:
        owner = one._client
        one._sent_ns = owner.clock.now_ns()
        ask = one._ask(one._sent_ns < until_ns)
        try:
            return await owner.form.apply(ask, one._sent_ns + NS)
        except Unavailable:
            one._reached = True
        while owner.clock.now_ns() < give_up_ns:
            sent_ns = owner.clock.now_ns()
            try:
                standing: Any = await owner.form.apply(Show(one.name), sent_ns + NS)
            except Unavailable:
                await owner.form.bell().wait(owner.clock.now_ns() + NS // 20)
                continue
            if standing.holder is not None and standing.holder.token == one.token and not standing.offered:
                one._sent_ns = sent_ns
                return Granted(standing.holder.fence)
            break
        return await right(one, until_ns, give_up_ns)

    _put(lifecycle, "_send", send)


def fails_open(_folder: Path) -> None:
    """An engine that cannot be reached is taken for leave to go on."""

    def trusting(acquire: Callable[..., Any]) -> Callable[..., Any]:
        async def acquired(one: lease.LeaseBase, patience_ns: int | None) -> None:
            try:
                await acquire(one, patience_ns)
            except Unavailable:
                one._granted(time.time_ns() // 1000, one._client.clock.now_ns())

        return acquired

    _wrap(lifecycle, "acquire", trusting)


def no_timer_beside_the_wake_up(_folder: Path) -> None:
    """A waiter is woken by a message, or never."""

    def only_wait(self: keeper.Keeper, now_ns: int) -> None:
        for vigil in self._waiting.values():
            vigil.due_ns = now_ns + 3600 * NS

    _put(trust, "patience_ms", lambda *_: 3_600_000)
    _put(keeper.Keeper, "_mark", only_wait)


def nobody_is_woken(_folder: Path) -> None:
    """Whoever waits looks again every 2.5 s, and that is all."""

    def only_wait(self: keeper.Keeper, now_ns: int) -> None:
        for vigil in self._waiting.values():
            vigil.due_ns = now_ns + 5 * NS

    _put(law, "_woken", lambda *_: None)
    _put(trust, "patience_ms", lambda *_: 2500)
    _put(keeper.Keeper, "_mark", only_wait)


def cancel_without_undo(_folder: Path) -> None:
    """Whoever is cancelled just goes."""

    def forget(one: lease.LeaseBase) -> None:
        one._state = lease.ENDED
        one._client.keeper.no_longer_waiting(one)
        one._client.keeper.let_go(one)

    _put(lifecycle, "undo", forget)


def child_keeps_the_lease(_folder: Path) -> None:
    """After a fork there are two who believe that it is theirs."""
    _put(client.Client, "forked", lambda _self: None)


def close_leaves_the_keeper(_folder: Path) -> None:
    """Closed is what it says; its thread goes on."""

    async def close(one: client.Client, _timeout: object) -> tuple[str, ...]:
        one.state = client.CLOSED
        return ()

    _put(client, "close", close)


# The resource's side.


def guard_compares_nothing(_folder: Path) -> None:
    _put(GuardedFile, "write", lambda self, _fence, _token, change: self.unguarded_write(change))


def guard_not_told_of_readers(_folder: Path) -> None:
    """The resource hears of a new holder only when it writes."""
    _put(GuardedFile, "guarded_read", lambda self, _fence, _token: self.read().value)


MUTATIONS: dict[str, Callable[[Path], None]] = {
    mutation.__name__.replace("_", "-"): mutation
    for mutation in (
        release_without_token_check,
        script_releases_whatever,
        unlock_by_name,
        renew_after_loss,
        recreate_on_renew,
        child_keeps_the_lease,
        fails_open,
        client_clock,
        ttl_not_restarted_on_resend,
        never_renews,
        ttl_counted_from_the_answer,
        loss_not_told,
        cancels_nobody,
        fence_apart_from_grant,
        fence_kept_on_takeover,
        guard_compares_nothing,
        guard_not_told_of_readers,
        blind_retry,
        hand_off_to_the_dead,
        no_timer_beside_the_wake_up,
        nobody_is_woken,
        cancel_without_undo,
        barging,
        close_leaves_the_keeper,
    )
}
