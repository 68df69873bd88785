"""Every script of a pool does what its rule says: same answers, same items, same wake-ups, at any time."""

from dataclasses import dataclass

import hypothesis
import mutations
import pytest
from hiredis import ReplyError
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample
from pool_twin import CLIENTS, NAME, PoolTwin, Said, ask, give, have, tell
from script_twin import Difference

from holdfast.commands import (
    POOL,
    RWLOCK,
    SEMAPHORE,
    Borrow,
    BreakItem,
    ChangePool,
    CoolItem,
    Extend,
    PoolHeartbeat,
    Return,
    UndoBorrow,
)
from holdfast.engines.redis.scripts import SCRIPTS
from holdfast.rules.pool import POOL_RULES

TOKENS = tuple(f"{client}{number}" for client in CLIENTS for number in (1, 2))
TTLS_MS = (200, 1000, 3000, 20_000)
ITEMS = ("p", "q", "r")
JUMPS_US = (0, 0, 0, 0, 0, 1, 199_999, 200_000, 999_999, 1_000_001, 2_500_000, 5_000_000, 20_000_000, 61_000_000)
SHARES = (("", 1_000_000), ("", 1_000_000), ("t", 340_000), ("u", 0), ("v", 700_000))


def sayings(token):
    """All that one token may say; what happens often stands here often."""
    asks = [
        Borrow(NAME, token, f"owner of {token}", ttl_ms, wait, cooldown_ms, *share)
        for ttl_ms in TTLS_MS
        for wait in (True, True, False)
        for cooldown_ms in (0, 700)
        for share in SHARES
    ]
    gives = [
        Return(NAME, "", token, cooldown_ms, tombstone) for cooldown_ms in (0, 0, 300) for tombstone in (False, True)
    ] * 6
    extends = [Extend(NAME, "", token, ttl_ms) for ttl_ms in TTLS_MS] * 2
    breaks = [BreakItem(NAME, item, older, "why\nnot") for item in ITEMS for older in (0, 0, 1)]
    cools = [CoolItem(NAME, item, cooldown_ms) for item in (*ITEMS, "none") for cooldown_ms in (0, 400)]
    changes = [
        ChangePool(NAME, how, items, leave, 3_141_592_653)
        for how, items in (
            ("set", ITEMS), ("set", ITEMS[:1]), ("set", ()), ("add", ("s",)), ("add", ("p", "q")),
            ("remove", ("p",)), ("remove", ("q", "r")),
        )
        for leave in (False, True)
    ]  # fmt: skip
    rest = [UndoBorrow(NAME, token)] * 6 + [PoolHeartbeat(NAME)] * 8
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
    "new items have an order of their own": [have("p", "q", "r", "s", "t")],
    "what is not there is not removed": [have("p"), have("q", how="remove"), ask(0, "a1"), ask(0, "b1")],
    "nobody overtakes": [ask(0, "a1"), ask(0, "b1", share=("t", 340_000)), ask(0, "c1"), give(0, "a1")],
    "a dead borrower's item rests": [
        have("p"), ask(0, "a1", 200, cooldown_ms=700), ask(200_000, "b1"), ask(700_000, "b1"),
    ],
    "an item cools": [
        have("p"), ask(0, "a1"), ask(0, "b1"), give(0, "a1", 300), ask(299_999, "b1"), ask(1, "b1"),
    ],
    "a share is used up": [
        have(*ITEMS), ask(0, "a1", share=("t", 340_000)), ask(0, "b1", share=("t", 340_000)), ask(0, "c1"),
        give(0, "a1"),
    ],
    "an item of two shares": [
        have(*ITEMS), ask(0, "a1", share=("v", 700_000)), ask(0, "b1", share=("w", 700_000)),
        ask(0, "c1", share=("v", 700_000)), ask(0, "c2", share=("w", 700_000)), give(0, "a1"), give(0, "b1"),
        ask(0, "a2", share=("v", 700_000)), ask(0, "b2", share=("w", 700_000)),
    ],
    "a share of what does not leave": [
        have(*ITEMS), ask(0, "a1"), ask(0, "a2"), ask(0, "b1"), have("p", leave=True), have("s", how="add"),
        ask(0, "c1", share=("v", 700_000)), ask(0, "c2", share=("v", 700_000)), give(0, "a1"), give(0, "a2"),
        give(0, "b1"),
    ],
    "some come back earlier than others": [
        have("p", "q"), ask(0, "a1", 20_000), ask(0, "a2", 1000), ask(0, "b1"), tell(0, "b", PoolHeartbeat(NAME)),
        tell(1_000_001, "b", PoolHeartbeat(NAME)),
    ],
    "the first who may use it": [
        have("p", "q"), ask(0, "a1"), ask(0, "b1", share=("t", 500_000)), ask(0, "b2", share=("t", 500_000)),
        ask(0, "c1"), ask(0, "c2"), give(0, "a1"), give(0, "b1"), give(0, "c1"),
    ],
    "an offer is not heard": [
        have("p"), ask(0, "a1"), ask(0, "b1"), ask(0, "c1"), give(0, "a1"), tell(1_000_001, "c", PoolHeartbeat(NAME)),
        tell(0, "b", PoolHeartbeat(NAME)),
    ],
    "an offer is told again": [
        have("p"), ask(0, "a1"), ask(0, "b1"), give(0, "a1"), tell(0, "b", PoolHeartbeat(NAME)),
    ],
    "an offer to the dead": [
        have("p"), ask(0, "a1", 20_000), ask(0, "b1"), ask(4_000_000, "c1"), give(999_999, "a1"),
        tell(1_000_001, "c", PoolHeartbeat(NAME)),
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
    "a renewal that comes too late": [
        have("p"), ask(0, "a1", 200), tell(200_000, "a", Extend(NAME, "", "a1", 1000)),
    ],
    "a renewal of what somebody else has": [
        have("p"), ask(0, "b1", 200), ask(200_000, "a1", 1000), tell(0, "b", Extend(NAME, "", "b1", 200)),
    ],
    "a return of what somebody else has": [
        have("p"), ask(0, "b1", 200), ask(200_000, "a1", 1000), give(0, "b1"),
    ],
    "what is lent cannot be taken away": [have("p"), ask(0, "a1"), have()],
    "a loan is undone": [have("p"), ask(0, "a1"), tell(0, "a", UndoBorrow(NAME, "a1"))],
    "a loan of another time is broken": [have("p"), ask(0, "a1"), tell(0, "a", BreakItem(NAME, "p", 1, "why"))],
    "who falls silent loses its place": [
        have("p", "q", "r"), ask(0, "a1", 200), ask(0, "a2", 20_000, wait=False),
        ask(0, "b1", 20_000, share=("v", 700_000)), ask(5_000_000, "c2", 200, share=("v", 700_000)),
    ],
    "an item comes back to two shares": [
        have("p", "q", "r"), ask(0, "b1", 1000, cooldown_ms=700, share=("t", 340_000)),
        ask(0, "a1", 1000, wait=False, share=("v", 700_000)),
        ask(2_500_000, "a1", 200, cooldown_ms=700, share=("t", 340_000)),
    ],
    "a token that ended comes again": [
        have("p"), ask(0, "a1"), give(0, "a1", tombstone=True), ask(0, "a1"), give(0, "a1"),
        tell(0, "b", UndoBorrow(NAME, "b1")), ask(0, "b1"),
    ],
    "a broken lease": [
        have("p"), ask(0, "a1", cooldown_ms=700), ask(0, "b1"), tell(0, "c", BreakItem(NAME, "p", 0, "stuck")),
        give(0, "a1"), ask(700_000, "b1"),
    ],
    "an item is cooled by hand": [
        have("p"), ask(0, "a1"), ask(0, "b2"), tell(0, "c", CoolItem(NAME, "p", 400)), give(0, "a1"),
        give(0, "b2"), tell(0, "c", CoolItem(NAME, "p", 400)), ask(0, "a2"), tell(0, "c", CoolItem(NAME, "p", 0)),
    ],
    "the impatient leave": [
        have("p"), ask(0, "a1"), ask(0, "b1"), ask(0, "b1", wait=False), ask(0, "c1"),
        tell(0, "c", UndoBorrow(NAME, "c1")),
    ],
    "an offer lapses in a pool that was emptied": [
        have("p"), ask(0, "a1"), ask(0, "b1", share=("t", 340_000)), give(0, "a1"),
        have("p", how="remove", leave=True), tell(1_000_001, "c", PoolHeartbeat(NAME)), ask(0, "b1", share=("t", 340_000)),
    ],
}  # fmt: skip


@pytest.fixture(params=[POOL, SEMAPHORE, RWLOCK])
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


@dataclass(frozen=True)
class Mutation(mutations.Mutation):
    """The same, shown under one of the roofs."""

    kind: str = POOL


LATE = "if (client == me or marked > now) and (size > 0 or kind == 'rwlock') then"
MUTATIONS = [
    Mutation("an item that was lent keeps its old order", "item[STATE], item[ORDER], item[BACK], item[REST] = 'lent', "
             "item[FENCE],", "item[STATE], item[ORDER], item[BACK], item[REST] = 'lent', item[ORDER],"),
    Mutation("the fence does not grow", "fence = math.max(fence + 1, now)", "fence = math.max(fence, now)"),
    Mutation("a dead borrower's item does not rest", "if item[STATE] == 'lent' and ends > now then", "if false then"),
    Mutation("a rest lasts for ever", "item[STATE], item[BACK] = 'cooling', ends",
             "item[STATE], item[BACK] = 'cooling', ends + 1"),
    Mutation("a cooldown is forgotten", "'cooling', now + cool * 1000, cool", "'cooling', now, cool"),
    Mutation("nobody looks again when an item cools", "    ring(seat[1], head[2], seat[8])", ""),
    Mutation("a late one loses its place", LATE, "if false then"),
    Mutation("a late one waits in an empty pool", "(client == me or marked > now) and (size > 0 or kind == 'rwlock')",
             "(client == me or marked > now)"),
    Mutation("the dead get their offers again", LATE, "if true then"),
    Mutation("silent clients keep their places", "if seat and fallen[seat[1]] then leave_queue(token) end", ""),
    Mutation("a leaving item stays", "  if item[LEAVING] then\n    leaving = leaving - 1\n    return drop(name)",
             "  if false then"),
    Mutation("a lent item is removed", "(#lent > 1 and not leave)", "false"),
    Mutation("an unknown item is removed", "if #absent > 1 or", "if false or"),
    Mutation("new items are used in their order", "(part * part + placed) % SPREAD_BELOW", "added"),
    Mutation("those who wait for nothing wait on",
             "    if seat then ring(seat[1], token, seat[8]) end\n  end\nend\ncommit()", "  end\nend\ncommit()"),
    Mutation("a foreign token returns", "if not item or not taken(item) or item[TOKEN] ~= token then",
             "if not item or not taken(item) then"),
    Mutation("a return cannot be said twice", "return item and item[LAST] == token and 1 or", "return"),
    Mutation("a foreign token extends", "or item[TOKEN] ~= ARGV[5] or item[BACK] <= now then",
             "or item[BACK] <= now then"),
    Mutation("what has lapsed is extended", "or item[TOKEN] ~= ARGV[5] or item[BACK] <= now then",
             "or item[TOKEN] ~= ARGV[5] then"),
    Mutation("a renewal that was overtaken cuts it short", "math.max(item[BACK], now + item[TTL] * 1000)",
             "now + item[TTL] * 1000"),
    Mutation("a return makes no tomb", "if ARGV[7] == '1' then", "if false then"),
    Mutation("undo makes no tomb", "if not tomb(token) then entomb(token, TOMB_US, 'undone', '') end", ""),
    Mutation("undo leaves the item", "if item then free(name, item) end\nhand_out()", "hand_out()"),
    Mutation("undo leaves the place in the queue", "\nleave_queue(token)\n", "\n"),
    Mutation("tombs are ignored", "if ended then return { 'refused', ended.why } end", ""),
    Mutation("break hits whoever has it", "or int(item[FENCE]) ~= ARGV[5] then", "then"),
    Mutation("break does not raise the fence", "item[FENCE] = next_fence()\nrest", "rest"),
    Mutation("what is lent is cooled by hand", "if not item or taken(item) then", "if not item then"),
    Mutation("an offer lasts as long as a lease", "math.min(seat[2] * 1000, OFFER_US)", "seat[2] * 1000"),
    Mutation("nobody is woken", "    elseif pops then", "    elseif true then\n    elseif pops then"),
    Mutation("who pops is only rung", "    elseif pops then", "    elseif false then"),
    Mutation("an unheard offer is not told again", "if not known[token] then ring(client, token, false) end", ""),
    Mutation("waiting is no sign of life", "    mark()\n  elseif place", "  elseif place"),
    Mutation("a share is as large as the pool", "math.max(1, math.floor(size * ppm / WHOLE))", "size"),
    Mutation("a share forgets what was lent", "redis.call('ZREM', base .. ':c:' .. share, name)", "local _ = 0"),
    Mutation("a share does not hear of returns", "redis.call('ZADD', base .. ':c:' .. share, int(order), name)",
             "local _ = 0"),
    Mutation("shares outlive a change", "\nregroup()\nlocal added", "\nlocal added"),
    Mutation("an item of two shares knows one", "many[#many + 1] = share", "many = { share }"),
    Mutation("an item that leaves is part of a share", "if not load(name)[LEAVING] then", "if true then"),
    Mutation("the first stands for all", "place or -1, all_ms(), life }", "place or -1, next_ms(), life }"),
    Mutation("the first stands for all who wait", "first or '', all_ms() }", "first or '', next_ms() }"),
    Mutation("who rests is free at once", "until_ms(item[BACK] + (item[STATE] == 'lent' and item[REST] * 1000 or 0))",
             "until_ms(item[BACK])"),
    Mutation("a record begins anew with every step", "life = life or now", "life = now"),
    Mutation("the impatient are kept in the queue", "  elseif place then\n    leave_queue(token)",
             "  elseif place then"),
    Mutation("an empty pool stays for ever", "local ends = kind ~= 'pool' or size == 0", "local ends = kind ~= 'pool'"),
    Mutation("seats stay for ever", "local ends = kind ~= 'pool' or size == 0", "local ends = size == 0", SEMAPHORE),
    Mutation("other permits are let in", "    if permits > 0 then", "    if false then", SEMAPHORE),
    Mutation("a writer enters among readers", "elseif redis.call('HLEN', base .. ':i') > 0 then",
             "elseif redis.call('HEXISTS', base .. ':i', 'writer') == 1 then", RWLOCK),
    Mutation("a reader enters beside a writer", "if redis.call('HEXISTS', base .. ':i', 'writer') == 1 then return end",
             "", RWLOCK),
    Mutation("a reader overtakes a writer that waits", "not (kind == 'rwlock' and waiting > 0)", "true", RWLOCK),
]  # fmt: skip


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_a_mistake_in_a_script_of_a_pool_is_noticed(one_server, mutation):
    """A comparison is worth what it catches: each of these mistakes would be one line in a review."""
    assert any(mutation.line in SCRIPTS[kind].text for kind in POOL_RULES), "the line is no longer there"
    twin = PoolTwin(one_server.url, mutation.kind, mutation)

    def differs(program):
        try:
            twin.run(program)
        except (Difference, ReplyError):  # a script that fails is noticed too
            return True
        return False

    def found():
        search = settings(
            max_examples=1500, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck),
            deadline=None,
        )  # fmt: skip
        try:
            return hypothesis.find(PROGRAMS, differs, settings=search)
        except NoSuchExample:
            return None

    try:
        assert any(map(differs, WITNESSES.values())) or found()
    finally:
        twin.close()
