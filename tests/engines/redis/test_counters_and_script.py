"""The counting scripts give the same answers as their rules at any time, also when the clock is set back."""

import pytest
from counters_twin import NAME, CountersTwin, Step
from hiredis import ReplyError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import Mutation
from script_twin import Difference

from holdfast.commands import GetBalance, Hit, Reserve, ResetCounter, Settle, UndoReserve
from holdfast.engines.redis.scripts import SCRIPTS
from holdfast.rules.budget import SUM_MAX

SECOND, MINUTE = 1_000_000, 60_000_000
JUMPS_US = (0, 0, 0, 1, 999, 9_999, 10_000, 10_001, 100_000, 333_333, 999_999, 1_000_000, 1_000_001, 7_000_000)
JUMPS_US += (59_000_000, 60_000_000, 61_000_000, -1, -500_000, -1_000_000, -61_000_000, -130_000_000)
# Hit by hit, and by hundredths; one window and two; numbers that do not divide evenly; a limit that changes.
RATES = [
    ((3, SECOND),), ((10, SECOND),), ((7, SECOND),), ((250, SECOND),), ((3, SECOND), (5, MINUTE)),
    ((250, SECOND), (7, MINUTE)), ((300, MINUTE), (101, SECOND)),
]  # fmt: skip
HITS = [
    Step(jump, Hit(NAME, rates, smooth, cost, take))
    for rates in RATES
    for smooth in (False, True)
    for cost in (1, 1, 1, 2, 3, 60)
    for take in (True, True, True, False)
    for jump in JUMPS_US
]
TOKENS = ("a", "b", "c")
SPENDINGS = [
    *(Reserve(NAME, token, amount, limit, period_ms, hold_ms)
      for token in TOKENS for amount in (0, 1, 5, SUM_MAX - 1) for limit in (-1, 0, 6, 10)
      for period_ms, hold_ms in ((60_000, 1_000), (1_000, 60_000))),
    *(Settle(NAME, token, began_us, actual)
      for token in TOKENS for actual in (0, 3, 9, SUM_MAX) for began_us in (-1, -1, 7)),
    *(UndoReserve(NAME, token, period_ms) for token in TOKENS for period_ms in (60_000, 1_000)),
    GetBalance(NAME, 60_000),
]  # fmt: skip
BILLS = [Step(jump, command) for command in SPENDINGS for jump in JUMPS_US]
FORGOTTEN = [Step(0, ResetCounter(NAME, Hit(NAME, rates, False, 1, True).kind)) for rates in RATES[:2]]


def programs(*steps):
    return st.one_of(*(st.lists(st.sampled_from(steps), min_size=least, max_size=least + 25) for least in (1, 30)))


# A few rates at a time: with all of them, a program would seldom meet one twice.
PROGRAMS = st.one_of(
    *(programs(*(said for said in HITS if (said.command.rates, said.command.smooth) == (rates, smooth)))
      for rates in RATES for smooth in (False, True)),
    programs(*BILLS),
    programs(*(said for said in HITS if said.command.rates in RATES[:3]), *FORGOTTEN),
)  # fmt: skip


def said(rates, *jumps_us, smooth=False, cost=1, take=True):
    """The same hit, after each of these times."""
    return [Step(jump, Hit(NAME, rates, smooth, cost, take)) for jump in jumps_us]


def bill(after_us, token, amount, limit=10, period_ms=60_000, hold_ms=1_000):
    return Step(after_us, Reserve(NAME, token, amount, limit, period_ms, hold_ms))


def paid(after_us, token, actual, began_us=-1):
    return Step(after_us, Settle(NAME, token, began_us, actual))


def undone(after_us, token):
    return Step(after_us, UndoReserve(NAME, token, 60_000))


THREE, MANY, BOTH = ((3, SECOND),), ((250, SECOND),), ((3, SECOND), (5, MINUTE))
LOOK = Step(0, GetBalance(NAME, 60_000))
# What has gone wrong, and what would go wrong with each of the mistakes below.
WITNESSES = {
    "used up, and back one by one": said(THREE, 0, 100_000, 100_000, 100_000, 699_999, 1, 99_999, 1, 0, 0),
    "two windows, one of them full": said(BOTH, 0, 0, 0, 0, 1_000_000, 0, 0, 0) + said(BOTH, 0, take=False),
    "close together": said(THREE, 0, 5_000, 5_000, 0, 990_000, 5_000),
    "only looked at": said(THREE, 0, 0, 0, 0, 0, take=False) + said(THREE, 0),
    "hundredths": said(MANY, 0, 9_999, 1, 1, 9_999, 975_000, 5_001, 9_999, 1, 1),
    "more than there is room for": said(THREE, 0) + said(THREE, 0, cost=3) + said(THREE, 0, 0, cost=2),
    "smoothly": said(THREE, 0, 0, 0, 0, 333_333, 1, 333_334, 0, 5_000_000, smooth=True),
    "set back, and on": said(THREE, 0, -1, 1_000_000, 0) + said(THREE, 0, -500_000, 0, 1_400_000, 200_000, smooth=True),
    "put aside and never settled": [bill(0, "a", 6), bill(0, "b", 5), bill(999_999, "b", 5), bill(1, "b", 5), LOOK],
    "just enough": [bill(0, "a", 10), paid(0, "a", 9), bill(0, "b", 1), bill(0, "c", 1)],
    "settled twice": [bill(0, "a", 3), paid(0, "a", 3), paid(0, "a", 3), bill(0, "a", 3), LOOK],
    "settled again, much later": [bill(0, "a", 3), paid(0, "a", 3), paid(11_000_000, "a", 3), LOOK],
    "settled after its hold": [bill(0, "a", 3, hold_ms=1_000), paid(2_000_000, "a", 3), LOOK],
    "undone, then a late copy": [bill(0, "a", 6), undone(0, "a"), bill(59_000_000, "a", 6), bill(0, "b", 10), LOOK],
    "undone before it came": [undone(0, "a"), undone(1, "a"), bill(0, "a", 6), bill(0, "b", 10), LOOK, paid(0, "b", 1)],
    "undone after it was settled": [bill(0, "a", 6), paid(0, "a", 6), undone(0, "a"), bill(11_000_000, "a", 4), LOOK],
    "the largest sum": [
        bill(0, "a", SUM_MAX - 1, -1),
        bill(0, "b", 2, -1),
        bill(0, "b", 1, -1),
        paid(0, "a", SUM_MAX),
        paid(0, "b", 1),
        LOOK,
    ],
    "settled in another period": [bill(0, "a", 3, period_ms=1_000), bill(1_000_000, "b", 1), paid(0, "b", 3, 7), LOOK],
}


@pytest.fixture
def twin(server):
    """Scripts and rules side by side, as they are."""
    twin = CountersTwin(server.url)
    yield twin
    twin.close()


def test_what_is_counted_on_a_server_is_what_the_rule_says(twin):
    """The law is written twice, in Python and in Lua; nothing else keeps the two from drifting apart."""

    @settings(max_examples=150, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(PROGRAMS)
    def agree(program):
        twin.run(program)

    for program in WITNESSES.values():
        twin.run(program)
    agree()


MUTATIONS = [
    Mutation("a refusal is counted", "if worst > 0 then return", "if worst > 0 and not take then return"),
    Mutation("looking is counted", "elseif take then", "else"),
    Mutation("an entry counts from its first hit", "last, total = present, total", "last, total = begin, total"),
    Mutation("what is old is never dropped", "if moment + period > now then break", "if true then break"),
    Mutation("what is old is dropped too early", "if moment + period > now", "if moment + period - 999 > now"),
    Mutation("the newest entry is forgotten", "if amount > 0 then older =", "if amount > 1 then older ="),
    Mutation("hundredths for every limit", "limit > GRAINS and", "limit > 0 and"),
    Mutation("one more than the limit", "short = total + cost - limit", "short = total + cost - limit - 1"),
    Mutation("the level never drains", "level = math.max(0, level - (present - last))", ""),
    Mutation("the clock may run backwards", "present = now > last and now or last", "present = now"),
    Mutation("what is put aside does not count", "spent + reserved() + amount", "spent + amount"),
    Mutation("equal does not pass", "amount > limit then return balance", "amount >= limit then return balance"),
    Mutation("it ends with the period of a clock that was set back", "present - now + period", "period"),
    Mutation("a hold never ends", "if not each[3] and each[2] > now then", "if not each[3] then"),
    Mutation("settled twice, counted twice", "and known and not known[3]", "and known"),
    Mutation("settled again later, counted twice", "and known and not known[3]", "and not (known and known[3])"),
    Mutation("settled after its hold, not counted", "if not each[3] or each[2] > now", "if each[2] > now"),
    Mutation("an undone token may reserve again", "now + UNDONE_US, true", "now + UNDONE_US, false"),
    Mutation("an undo of what was settled counts", "if not known or not known[3] then", "if true then"),
    Mutation("an undo before the period is forgotten", "begin(ARGV[2])", "if ends == 0 then return balance(true) end"),
    Mutation("a sum without a bound", "if spent + ARGV[3] > SUM_MAX then return balance(false) end", ""),
    Mutation("no limit means no bound", "if limit < 0 then limit = SUM_MAX end", "if limit < 0 then limit = 2^60 end"),
    Mutation("spent in a period that is over", "if tonumber(ARGV[2]) == began and", "if began > 0 and"),
]  # fmt: skip


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_a_script_that_counts_otherwise_is_found_out(one_server, mutation):
    """The comparison would mean nothing if it could not fail: a few programs find each of these mistakes."""
    assert any(mutation.applied_to(script.text) != script.text for kind, script in SCRIPTS.items() if script.counter)
    twin = CountersTwin(one_server.url, mutation)
    try:
        with pytest.raises((Difference, ReplyError)):
            for program in WITNESSES.values():
                twin.run(program)
    finally:
        twin.close()
