"""The rules of pools, in cases that no engine can show by itself."""

from holdfast.commands import Borrow, Busy, ChangePool, Granted, PoolHeartbeat, Return, UndoBorrow
from holdfast.rules import Moment
from holdfast.rules.pool import DUE_AT_ONCE
from holdfast.rules.pool_state import MemoryPoolState
from holdfast.rules.result import Wakeup
from holdfast.rules.table import RULES

START_US = 1_700_000_000_000_000


class Table:
    """A pool, and the commands sent to it."""

    def __init__(self, *items):
        self.state, self.now_us = MemoryPoolState(), START_US
        self.say("a", ChangePool("x", "set", items, False, 5))

    def say(self, client, command, after_us=0):
        self.now_us += after_us
        return RULES[type(command)].apply(self.state, command, Moment(self.now_us, self.now_us, client))

    def borrow(self, token, *, ttl_ms=3000, wait=True, after_us=0):
        return self.say(token[0], Borrow("x", token, "", ttl_ms, wait), after_us)


def test_a_starting_cooldown_wakes_the_next_waiters():
    """The item may be free earlier than expected; without a wake-up they would sleep until their next heartbeat."""
    table = Table("p")
    table.borrow("a1")
    table.borrow("b1")
    table.borrow("c1")

    assert table.say("a", Return("x", "p", "a1", cooldown_ms=500)).wakeups == [Wakeup("b", "b1")]
    assert table.say("c", PoolHeartbeat("x"), after_us=500_000).wakeups == [Wakeup("b", "b1")]


def test_a_waiter_that_takes_an_offer_in_the_same_step_is_not_woken():
    """It gets the answer itself."""
    table = Table("p")
    table.borrow("a1", ttl_ms=200)
    table.borrow("b1")
    dealt = table.borrow("b1", after_us=200_000)

    assert isinstance(dealt.answer, Granted)
    assert dealt.wakeups == []


def test_an_undone_waiter_is_not_woken_and_the_next_one_is():
    """The offer passes on in the same step."""
    table = Table("p")
    for token in ("a1", "b1", "c1"):
        table.borrow(token)
    table.say("a", Return("x", "p", "a1"))

    assert table.say("b", UndoBorrow("x", "b1")).wakeups == [Wakeup("c", "c1")]


def test_many_expired_loans_are_brought_back_in_parts():
    """No command is long, and no expired item is lent before it was brought back."""
    names = [str(number) for number in range(DUE_AT_ONCE + 10)]
    table = Table(*names)
    for name in names:
        table.borrow(f"a{name}", ttl_ms=200)
    assert table.state.counts() == (DUE_AT_ONCE + 10, 0, 0)
    table.say("b", PoolHeartbeat("x"), after_us=200_000)
    assert table.state.counts() == (10, 0, DUE_AT_ONCE)
    table.say("b", PoolHeartbeat("x"))
    assert table.state.counts() == (0, 0, DUE_AT_ONCE + 10)


def test_a_busy_answer_contains_the_time_until_the_next_free_item():
    """A waiter tries again then."""
    table = Table("p", "q")
    table.borrow("a1", ttl_ms=3000)
    table.borrow("a2", ttl_ms=1000)

    assert table.borrow("b1").answer == Busy("", table.state.fence, 1000, 0, "all busy")


def test_no_waiter_joins_the_line_of_an_empty_pool():
    """There is nothing to wait for, and the place would outlive the pool and precede later waiters."""
    table = Table("p")
    table.borrow("a1")
    table.borrow("b1")
    table.say("a", Return("x", "p", "a1"))
    table.say("a", ChangePool("x", "remove", ("p",), True, 5))
    table.say("c", PoolHeartbeat("x"), after_us=1_000_001)

    assert len(table.state.waiting_line) == 0
    assert table.borrow("b1").answer == Busy("", table.state.fence, 0, None, "empty pool")
