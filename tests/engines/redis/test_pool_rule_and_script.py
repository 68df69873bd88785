"""Every script of a pool does what its rule says: same answers, same items, same wake-ups, at any time."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pool_twin import CLIENTS, NAME, PoolTwin

from holdfast.commands import POOL, RW, SEATS, Borrow, BreakItem, Change, CoolItem, Extend, Return, TakeBack, Tend

TOKENS = tuple(f"{client}{number}" for client in CLIENTS for number in (1, 2))
TTLS_MS = (200, 1000, 3000, 20_000)
ITEMS = ("p", "q", "r")
JUMPS_US = (0, 0, 0, 0, 0, 1, 199_999, 200_000, 999_999, 1_000_001, 2_500_000, 5_000_000, 20_000_000, 61_000_000)
SHARES = (("", 1_000_000), ("", 1_000_000), ("t", 340_000), ("u", 0))


@dataclass(frozen=True)
class Said:
    """One step of a program: how long after the last one, and who says what."""

    after_us: int
    client: str
    command: Any


def ask(after_us, token, ttl_ms=3000, wait=True, rest_ms=0, share=SHARES[0]):
    return Said(after_us, token[0], Borrow(NAME, token, f"owner of {token}", ttl_ms, wait, rest_ms, *share))


def tell(after_us, client, command):
    return Said(after_us, client, command)


def have(*items, how="set", leave=False, after_us=0):
    return Said(after_us, "a", Change(NAME, how, items, leave, 77))


def give(after_us, token, cool_ms=0, entomb=False):
    return Said(after_us, token[0], Return(NAME, "", token, cool_ms, entomb))


def sayings(token):
    """All that one token may say; what happens often stands here often."""
    asks = [
        Borrow(NAME, token, f"owner of {token}", ttl_ms, wait, rest_ms, *share)
        for ttl_ms in TTLS_MS
        for wait in (True, True, False)
        for rest_ms in (0, 700)
        for share in SHARES
    ]
    gives = [Return(NAME, "", token, cool_ms, entomb) for cool_ms in (0, 0, 300) for entomb in (False, True)] * 6
    extends = [Extend(NAME, "", token, ttl_ms) for ttl_ms in TTLS_MS] * 2
    breaks = [BreakItem(NAME, item, older, "why\nnot") for item in ITEMS for older in (0, 0, 1)]
    cools = [CoolItem(NAME, item, cool_ms) for item in (*ITEMS, "none") for cool_ms in (0, 400)]
    changes = [
        Change(NAME, how, items, leave, 99)
        for how, items in (
            ("set", ITEMS), ("set", ITEMS[:1]), ("set", ()), ("add", ("s",)), ("add", ("p", "q")),
            ("remove", ("p",)), ("remove", ("q", "r")),
        )
        for leave in (False, True)
    ]  # fmt: skip
    rest = [TakeBack(NAME, token)] * 6 + [Tend(NAME)] * 8
    return [*asks, *gives, *extends, *breaks, *cools, *changes, *rest]


STEPS = [Said(jump, token[0], said) for token in TOKENS for said in sayings(token) for jump in JUMPS_US]
PROGRAMS = st.one_of(
    *(
        st.lists(st.sampled_from(STEPS), min_size=least, max_size=least + 20).map(lambda steps: [have(*ITEMS), *steps])
        for least in (1, 25)
    )
)

WITNESSES = {
    "the least recently acquired first": [
        have("p", "q"), ask(0, "a1"), ask(1, "b1"), give(1, "b1"), give(1, "a1"), ask(1, "c1"),
    ],
    "a dead borrower's item rests": [
        have("p"), ask(0, "a1", 200, rest_ms=700), ask(200_000, "b1"), ask(700_000, "b1"),
    ],
    "an item cools": [
        have("p"), ask(0, "a1"), ask(0, "b1"), give(0, "a1", 300), ask(299_999, "b1"), ask(1, "b1"),
    ],
    "a share is used up": [
        have(*ITEMS), ask(0, "a1", share=("t", 340_000)), ask(0, "b1", share=("t", 340_000)), ask(0, "c1"),
        give(0, "a1"),
    ],
    "the first who may use it": [
        have("p", "q"), ask(0, "a1"), ask(0, "b1", share=("t", 500_000)), ask(0, "b2", share=("t", 500_000)),
        ask(0, "c1"), ask(0, "c2"), give(0, "a1"), give(0, "b1"), give(0, "c1"),
    ],
    "an offer is not heard": [
        have("p"), ask(0, "a1"), ask(0, "b1"), ask(0, "c1"), give(0, "a1"), tell(1_000_001, "c", Tend(NAME)),
        tell(0, "b", Tend(NAME)),
    ],
    "an offer to the dead": [
        have("p"), ask(0, "a1", 20_000), ask(0, "b1"), ask(4_000_000, "c1"), give(999_999, "a1"),
        tell(1_000_001, "c", Tend(NAME)),
    ],
    "a lent item leaves": [
        have("p", "q"), ask(0, "a1"), have("q", leave=True), have("r", how="add"), give(0, "a1"), ask(0, "b1"),
        ask(0, "c1"),
    ],
    "a leaving item stays after all": [
        have("p"), ask(0, "a1"), have(leave=True), have("p", how="add"), give(0, "a1"), ask(0, "b1"),
    ],
    "the pool is emptied under waiters": [
        have("p"), ask(0, "a1"), ask(0, "b1"), ask(0, "c2"), have(leave=True), ask(0, "b1"), give(0, "a1"),
    ],
    "a renewal that was overtaken": [
        have("p"), ask(0, "a1", 20_000), tell(0, "a", Extend(NAME, "", "a1", 200)), ask(200_000, "b1"),
    ],
    "a token that ended comes again": [
        have("p"), ask(0, "a1"), give(0, "a1", entomb=True), ask(0, "a1"), give(0, "a1"),
        tell(0, "b", TakeBack(NAME, "b1")), ask(0, "b1"),
    ],
    "a broken lease": [
        have("p"), ask(0, "a1", rest_ms=700), ask(0, "b1"), tell(0, "c", BreakItem(NAME, "p", 0, "stuck")),
        give(0, "a1"), ask(700_000, "b1"),
    ],
    "an item is cooled by hand": [
        have("p"), ask(0, "a1"), ask(0, "b2"), tell(0, "c", CoolItem(NAME, "p", 400)), give(0, "a1"),
        give(0, "b2"), tell(0, "c", CoolItem(NAME, "p", 400)), ask(0, "a2"), tell(0, "c", CoolItem(NAME, "p", 0)),
    ],
    "the impatient leave": [
        have("p"), ask(0, "a1"), ask(0, "b1"), ask(0, "b1", wait=False), ask(0, "c1"),
        tell(0, "c", TakeBack(NAME, "c1")),
    ],
}  # fmt: skip


@pytest.fixture(params=[POOL, SEATS, RW])
def twin(server, request):
    """Scripts and rules side by side, as they are."""
    twin = PoolTwin(server.url, request.param)
    yield twin
    twin.close()


def test_every_script_of_a_pool_does_what_its_rule_says(twin):
    """The law is written twice, in Python and in Lua; nothing else keeps the two from drifting apart."""

    @settings(max_examples=120, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(PROGRAMS)
    def agree(program):
        twin.run(program)

    for program in WITNESSES.values():
        twin.run(program)
    agree()
