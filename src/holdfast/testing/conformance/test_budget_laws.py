"""Budgets: reserved and spent amounts never exceed the limit, for all clients together."""

import time

import pytest

from holdfast import BudgetExceeded, Closed, InvalidConfig, InvalidName, Unavailable
from holdfast.commands import Reserve, Settle, UndoReserve
from holdfast.rules.budget import SUM_MAX
from holdfast.testing import eventually
from holdfast.testing.conformance.faces import passing, together
from holdfast.testing.conformance.faults import Interrupted

pytestmark = pytest.mark.capability("budgets")


def passes(budget, key, amount, **options):
    """Return whether the amount can be reserved."""
    try:
        budget.reserve(key, amount, **options)
    except BudgetExceeded:
        return False
    return True


@pytest.mark.large
@pytest.mark.acceptance("A3-22")
def test_exactly_the_limit_passes_with_concurrent_charges(face):
    """Of fifty charges of 1 against a limit of 10, ten pass: check and record are one step."""
    budgets = [face.connect().budget("fees", limit=10) for _ in range(5)]

    def charge(budget):
        return sum(passes(budget, "ann", 1) for _ in range(10))

    running = [face.start(charge, budget) for budget in budgets]

    assert sum(each.result() for each in running) == 10
    assert budgets[0].peek("ann").remaining == 0


def test_the_settled_amount_counts_and_the_rest_is_free(face):
    """A caller reserves an estimate; the settled amount counts."""
    budget = face.connect().budget("fees", limit=10)

    first = budget.reserve("ann", 7)
    assert budget.peek("ann")[:4] == (0, 7, 3, 10)
    with pytest.raises(BudgetExceeded) as refusal:
        budget.reserve("ann", 4)
    assert (refusal.value.amount, refusal.value.remaining, refusal.value.limit) == (4, 3, 10)
    assert refusal.value.retry_after > 0
    assert refusal.value.retryable
    with pytest.raises(BudgetExceeded) as refusal:
        budget.reserve("ann", 11)
    assert not refusal.value.retryable, "it never fits"
    second = budget.reserve("ann", 3)  # exactly the limit is allowed
    first.settle(2)
    second.refund()
    assert budget.peek("ann")[:4] == (2, 0, 8, 10)
    first.settle(2)  # a second call changes nothing
    second.refund()
    assert (first.settled, second.settled, budget.peek("ann").spent) == (True, True, 2)
    third = budget.reserve("ann", 5)
    third.settle(9)  # more than reserved: it was spent
    assert budget.peek("ann")[:4] == (11, 0, 0, 10)
    assert not passes(budget, "ann", 1)


def test_two_bills_for_one_reservation_are_a_mistake_and_the_first_counts(face):
    """Without an error, the second amount would be spent and never counted."""
    client = face.connect()
    budget = client.budget("fees", limit=10)
    paid, free = budget.reserve("ann", 3), budget.reserve("ann", 3)
    paid.settle(2)
    free.refund()
    wire = face.wire(client)

    for again in (lambda: paid.settle(9), paid.refund, lambda: free.settle(1)):
        with pytest.raises(InvalidConfig) as refusal:
            again()
        assert refusal.value.setting == "actual"
    assert wire.commands() == []
    with pytest.raises(ZeroDivisionError), budget.reserve("ann", 3) as reserved:
        reserved.settle(1)
        1 / 0  # noqa: B018
    assert budget.peek("ann").spent == 3


def test_a_budget_without_limit_counts_and_a_limit_of_zero_refuses(face):
    """A limit of 0 refuses everything; a limit of a key overrides the budget's."""
    client = face.connect()
    nothing, anything = client.budget("none", limit=0), client.budget("any", limit=None)

    assert not passes(nothing, "ann", 1)
    assert passes(nothing, "ann", 0)
    assert passes(nothing, "bob", 3, limit=3)
    assert not passes(nothing, "bob", 1, limit=3)
    assert passes(anything, "ann", 10**12)
    assert anything.peek("ann")[:4] == (0, 10**12, None, None)
    assert not passes(anything, "ann", 1, limit=10)


def test_keys_and_budgets_are_counted_separately(face):
    """The spending of one key takes nothing from another."""
    client = face.connect()

    for name in ("fees", "tokens"):
        for key in ("ann", "a:b", "ключ ✓"):
            assert [passes(client.budget(name, limit=2), key, 1) for _ in range(3)] == [True, True, False]


def test_a_block_spends_its_reservation_unless_it_fails(face):
    """A block settles its full amount without a call."""
    budget = face.connect().budget("fees", limit=10)

    with budget.reserve("ann", 4):
        pass
    assert budget.peek("ann")[:2] == (4, 0)
    with pytest.raises(ZeroDivisionError), budget.reserve("ann", 4):
        1 / 0  # noqa: B018
    assert budget.peek("ann")[:2] == (4, 0)
    with budget.reserve("ann", 4) as reserved:
        reserved.settle(1)
    assert budget.peek("ann")[:2] == (5, 0)


def test_a_period_ends_and_all_is_free_again(timed):
    """A period begins with the first reservation, and every reservation before its end belongs to it."""
    budget = timed.connect().budget("fees", limit=10, period=3600, hold=7200)

    budget.reserve("ann", 4).settle(4)
    open_ = budget.reserve("ann", 6)
    assert budget.peek("ann").reset_after == pytest.approx(3600)
    timed.clock.advance(3599)
    assert not passes(budget, "ann", 1)
    timed.clock.advance(1)
    assert budget.peek("ann")[:4] == (0, 0, 10, 10)
    assert passes(budget, "ann", 10)
    open_.settle(6)
    assert budget.peek("ann")[:3] == (0, 10, 0), "what belongs to a period that is over is history"


@together
def test_an_unsettled_reservation_is_free_after_its_hold_time(face):
    """A reservation of a dead process ends after its hold time."""
    budget = face.connect().budget("fees", limit=10, hold=0.3)

    late = budget.reserve("ann", 10)
    assert not passes(budget, "ann", 1)
    time.sleep(0.35)
    assert budget.peek("ann")[:3] == (0, 0, 10)
    late.settle(7)
    assert budget.peek("ann")[:3] == (7, 0, 3), "what was spent is counted, however late"


@pytest.mark.parametrize("reached", [True, False])
def test_a_lost_answer_is_asked_for_again_and_counts_once(face, reached):
    """The token identifies both copies as one command."""
    client = face.connect()
    budget = client.budget("fees", limit=10)
    wire = face.wire(client)

    wire.lose_reply(Reserve, times=2, reached=reached)
    reserved = budget.reserve("ann", 4)
    assert len(wire.commands(Reserve)) == 3
    assert budget.peek("ann")[:2] == (0, 4)
    wire.lose_reply(Settle, times=2, reached=reached)
    reserved.settle(3)
    assert len(wire.commands(Settle)) == 3
    assert budget.peek("ann")[:2] == (3, 0)


@pytest.mark.parametrize("late", [False, True])
def test_settle_may_be_resent_at_any_time(timed, late):
    """A resent settle counts once, even much later and after the hold time."""
    client = timed.connect()
    budget = client.budget("fees", limit=10, period=86400, hold=60)
    wire = timed.wire(client)
    reserved = budget.reserve("ann", 4)
    if late:
        timed.clock.advance(70)

    wire.lose_reply(Settle)
    with passing(timed.clock), pytest.raises(Unavailable):
        reserved.settle(3)
    wire.heal()
    assert budget.peek("ann")[:2] == (3, 0)
    timed.clock.advance(3600)
    reserved.settle(3)
    assert budget.peek("ann")[:2] == (3, 0)


@pytest.mark.finding("X7")
def test_a_retried_reserve_is_not_refused_by_its_own_earlier_call(timed):
    """The retry comes before the keeper could give the amount back, so the retry gives it back first."""
    client = timed.connect()
    budget = client.budget("fees", limit=10)
    wire = timed.wire(client)

    wire.lose_reply(Reserve)
    wire.fail(UndoReserve)
    with passing(timed.clock), pytest.raises(Unavailable) as error:
        budget.reserve("ann", 10)
    assert error.value.retryable
    wire.heal()
    reserved = budget.reserve("ann", 10)

    assert budget.peek("ann")[:2] == (0, 10)
    with passing(timed.clock):
        eventually(lambda: wire.commands(UndoReserve, by="keeper") and wire.client.keeper.idle(), what="the undo")
    assert budget.peek("ann")[:2] == (0, 10), "the undo of the first call leaves the second alone"
    reserved.settle(3)
    assert budget.peek("ann")[:2] == (3, 0)


@pytest.mark.finding("T8")
@pytest.mark.parametrize("reached", [True, False])
def test_an_interrupted_reserve_gives_the_amount_back(face, reached):
    """No caller has the reservation, so the keeper undoes it; a copy that comes later reserves nothing."""
    client = face.connect()
    budget = client.budget("fees", limit=10)
    wire = face.wire(client)

    wire.lose_reply(Reserve, times=1, reached=reached, error=Interrupted())
    with pytest.raises(Interrupted):
        budget.reserve("ann", 10)
    eventually(lambda: wire.client.keeper.idle() and budget.peek("ann").reserved == 0, what="the amount is free")
    (lost,) = wire.commands(Reserve)
    face.peer().say(lost)

    assert budget.peek("ann")[:2] == (0, 0), "a late copy of the command"
    assert passes(budget, "ann", 10)


def test_a_reserve_that_never_reached_the_engine_is_not_undone(face):
    """During an outage nothing piles up in the keeper."""
    client = face.connect()
    budget = client.budget("fees", limit=10)
    wire = face.wire(client)

    wire.fail(Reserve)
    with pytest.raises(Unavailable):
        budget.reserve("ann", 1)

    assert wire.client.keeper.idle()
    assert wire.commands(UndoReserve) == []


@pytest.mark.finding("T9")
def test_sums_are_exact_up_to_their_bound_and_no_engine_exceeds_it(face):
    """Beyond 2**53 - 1 a script would round; the bound is the same on every engine."""
    client = face.connect()
    budget = client.budget("fees", limit=None)
    first, second = budget.reserve("ann", SUM_MAX - 3), budget.reserve("ann", 2)

    assert budget.peek("ann")[:2] == (0, SUM_MAX - 1)
    with pytest.raises(BudgetExceeded) as refusal:
        budget.reserve("ann", 2)
    assert (refusal.value.remaining, refusal.value.limit) == (1, SUM_MAX)
    first.settle(SUM_MAX - 1)
    with pytest.raises(InvalidConfig, match=f"at most {SUM_MAX}"):
        second.settle(2)
    assert budget.peek("ann").spent == SUM_MAX - 1
    second.settle(1)
    assert budget.peek("ann")[:2] == (SUM_MAX, 0)
    assert not passes(budget, "ann", 1, limit=SUM_MAX)


def test_without_its_engine_a_budget_refuses(face):
    """A budget fails closed."""
    client = face.connect()
    budget = client.budget("fees", limit=10)
    reserved = budget.reserve("ann", 4)
    wire = face.wire(client)

    wire.fail()
    with pytest.raises(Unavailable):
        budget.reserve("ann", 1)
    with pytest.raises(Unavailable):
        reserved.settle(4)
    wire.heal()
    reserved.settle(4)
    assert budget.peek("ann")[:2] == (4, 0)


def test_a_block_that_cannot_settle_ends_like_its_work(face):
    """The outcome of the work stands, and the keeper settles as soon as the engine is back."""
    client = face.connect()
    budget = client.budget("fees", limit=10)
    wire = face.wire(client)

    with budget.reserve("ann", 4) as spent:
        wire.fail(Settle)
    with pytest.raises(ZeroDivisionError), budget.reserve("bob", 4):
        1 / 0  # noqa: B018
    assert spent.settled
    assert [budget.peek(key)[:2] for key in ("ann", "bob")] == [(0, 4), (0, 4)]
    wire.heal()

    eventually(lambda: [budget.peek(key)[:2] for key in ("ann", "bob")] == [(4, 0), (0, 0)], what="both are settled")


def test_a_block_that_fails_after_its_client_was_closed_keeps_its_own_error(face):
    """Only a successful block reports that the settle could not be sent."""
    client = face.connect()
    failed, done = (client.budget("fees", limit=10).reserve("ann", 4) for _ in range(2))
    client.close()

    with pytest.raises(ZeroDivisionError), failed:
        1 / 0  # noqa: B018
    with pytest.raises(Closed), done:
        pass


def test_invalid_amounts_and_settings_of_budgets_are_refused_before_any_command(face):
    """Amounts are integers: sums of other numbers are not exact."""
    client = face.connect()
    budget = client.budget("fees", limit=10)
    reserved = budget.reserve("ann", 1)
    wire = face.wire(client)

    for amount in (-1, 1.5, True, None, "1", 2**53, 2**60):
        for setting, use in (
            ("amount", lambda amount=amount: budget.reserve("ann", amount)),
            ("actual", lambda amount=amount: reserved.settle(amount)),
            ("limit", lambda amount=amount: client.budget("fees", limit=-1 if amount is None else amount)),
        ):
            with pytest.raises(InvalidConfig) as refusal:
                use()
            assert refusal.value.setting == setting
    for options in ({"period": 0}, {"hold": -1}):
        with pytest.raises(InvalidConfig) as refusal:
            client.budget("fees", 10, **options)
        assert refusal.value.setting == next(iter(options))
    for key in ("", 7, None, b"ann", "n" * 513):
        with pytest.raises(InvalidName):
            budget.reserve(key, 1)
        with pytest.raises(InvalidName):
            budget.peek(key)
    assert wire.commands() == []
    client.close()
    for use in (lambda: budget.reserve("ann", 1), lambda: budget.peek("ann"), lambda: reserved.settle(1)):
        with pytest.raises(Closed):
            use()
