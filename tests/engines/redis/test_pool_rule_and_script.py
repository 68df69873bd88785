"""Every script of a pool does what its rule does: same answers, same items, same wake-ups, at any time."""

from dataclasses import dataclass

import hypothesis
import mutations
import pytest
from hiredis import ReplyError
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample
from pool_twin import CLIENTS, NAME, PoolTwin, Step, borrow, change, give_back, send
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
from holdfast.rules.table import RuleKind, commands_of

TOKENS = tuple(f"{client}{number}" for client in CLIENTS for number in (1, 2))
TTLS_MS = (200, 1000, 3000, 20_000)
ITEMS = ("p", "q", "r")
JUMPS_US = (0, 0, 0, 0, 0, 1, 199_999, 200_000, 999_999, 1_000_001, 2_500_000, 5_000_000, 20_000_000, 61_000_000)
SHARES = (("", 1_000_000), ("", 1_000_000), ("t", 340_000), ("u", 0), ("v", 700_000))


def token_commands(token):
    """Return all commands that one token may send; frequent ones several times."""
    borrows = [
        Borrow(NAME, token, f"holder {token}", ttl_ms, wait, cooldown_ms, *share)
        for ttl_ms in TTLS_MS
        for wait in (True, True, False)
        for cooldown_ms in (0, 700)
        for share in SHARES
    ]
    returns = [
        Return(NAME, "", token, cooldown_ms, tombstone) for cooldown_ms in (0, 0, 300) for tombstone in (False, True)
    ] * 6
    extends = [Extend(NAME, "", token, ttl_ms) for ttl_ms in TTLS_MS] * 2
    breaks = [BreakItem(NAME, item, older, "why\nnot") for item in ITEMS for older in (0, 0, 1)]
    cools = [CoolItem(NAME, item, cooldown_ms) for item in (*ITEMS, "none") for cooldown_ms in (0, 400)]
    changes = [
        ChangePool(NAME, operation, items, leave, 3_141_592_653)
        for operation, items in (
            ("set", ITEMS), ("set", ITEMS[:1]), ("set", ()), ("add", ("s",)), ("add", ("p", "q")),
            ("remove", ("p",)), ("remove", ("q", "r")),
        )
        for leave in (False, True)
    ]  # fmt: skip
    rest = [UndoBorrow(NAME, token)] * 6 + [PoolHeartbeat(NAME)] * 8
    return [*borrows, *returns, *extends, *breaks, *cools, *changes, *rest]


STEPS = [Step(jump, token[0], each) for token in TOKENS for each in token_commands(token) for jump in JUMPS_US]
PROGRAMS = st.one_of(
    *(
        st.lists(st.sampled_from(STEPS), min_size=least, max_size=least + 20).map(
            lambda steps: [change(*ITEMS), *steps]
        )
        for least in (1, 25)
    )
)

WITNESSES = {
    "the first waiter is in doubt": [
        change("p"), borrow(0, "a1", 20_000), borrow(0, "b1"), borrow(0, "c1"),
        send(1_500_000, "c", PoolHeartbeat(NAME)), give_back(0, "a1"),
    ],
    "a client that missed its offer stays in doubt": [
        change("p"), borrow(0, "a1", 200), borrow(0, "b1"), borrow(0, "c1"), send(200_000, "c", PoolHeartbeat(NAME)),
        send(1_000_000, "c", PoolHeartbeat(NAME)), borrow(0, "a2"), borrow(0, "c1"), give_back(0, "c1"),
    ],
    "the least recently acquired first": [
        change("p", "q"), borrow(0, "a1"), borrow(1, "b1"), give_back(1, "b1"), give_back(1, "a1"), borrow(1, "c1"),
    ],
    "a writer that gives up lets the readers behind it in": [
        change("p"), borrow(0, "a1", 20_000), borrow(0, "b1", share=("t", 340_000)), borrow(0, "c1"),
        borrow(0, "b1", wait=False, share=("t", 340_000)),
    ],
    "new items have an order of their own": [change("p", "q", "r", "s", "t")],
    "an unknown item is not removed": [change("p"), change("q", operation="remove"), borrow(0, "a1"), borrow(0, "b1")],
    "no newcomer overtakes": [
        borrow(0, "a1"), borrow(0, "b1", share=("t", 340_000)), borrow(0, "c1"), give_back(0, "a1"),
    ],
    "a dead borrower's item cools": [
        change("p"), borrow(0, "a1", 200, cooldown_ms=700), borrow(200_000, "b1"), borrow(700_000, "b1"),
    ],
    "an item cools": [
        change("p"), borrow(0, "a1"), borrow(0, "b1"), give_back(0, "a1", 300), borrow(299_999, "b1"), borrow(1, "b1"),
    ],
    "a share is used up": [
        change(*ITEMS), borrow(0, "a1", share=("t", 340_000)), borrow(0, "b1", share=("t", 340_000)), borrow(0, "c1"),
        give_back(0, "a1"),
    ],
    "an item of two shares": [
        change(*ITEMS), borrow(0, "a1", share=("v", 700_000)), borrow(0, "b1", share=("w", 700_000)),
        borrow(0, "c1", share=("v", 700_000)), borrow(0, "c2", share=("w", 700_000)), give_back(0, "a1"),
        give_back(0, "b1"), borrow(0, "a2", share=("v", 700_000)), borrow(0, "b2", share=("w", 700_000)),
    ],
    "a share has no leaving items": [
        change(*ITEMS), borrow(0, "a1"), borrow(0, "a2"), borrow(0, "b1"), change("p", leave=True),
        change("s", operation="add"), borrow(0, "c1", share=("v", 700_000)), borrow(0, "c2", share=("v", 700_000)),
        give_back(0, "a1"), give_back(0, "a2"), give_back(0, "b1"),
    ],
    "items come back at different times": [
        change("p", "q"), borrow(0, "a1", 20_000), borrow(0, "a2", 1000), borrow(0, "b1"),
        send(0, "b", PoolHeartbeat(NAME)), send(1_000_001, "b", PoolHeartbeat(NAME)),
    ],
    "the first waiter that may use it": [
        change("p", "q"), borrow(0, "a1"), borrow(0, "b1", share=("t", 500_000)), borrow(0, "b2", share=("t", 500_000)),
        borrow(0, "c1"), borrow(0, "c2"), give_back(0, "a1"), give_back(0, "b1"), give_back(0, "c1"),
    ],
    "an offer is missed": [
        change("p"), borrow(0, "a1"), borrow(0, "b1"), borrow(0, "c1"), give_back(0, "a1"),
        send(1_000_001, "c", PoolHeartbeat(NAME)), send(0, "b", PoolHeartbeat(NAME)),
    ],
    "an offer is repeated": [
        change("p"), borrow(0, "a1"), borrow(0, "b1"), give_back(0, "a1"), send(0, "b", PoolHeartbeat(NAME)),
    ],
    "an offer to a dead client": [
        change("p"), borrow(0, "a1", 20_000), borrow(0, "b1"), borrow(4_000_000, "c1"), give_back(999_999, "a1"),
        send(1_000_001, "c", PoolHeartbeat(NAME)),
    ],
    "a lent item leaves": [
        change("p", "q"), borrow(0, "a1"), change("q", leave=True), change("r", operation="add"), give_back(0, "a1"),
        borrow(0, "b1"), borrow(0, "c1"),
    ],
    "a leaving item stays after all": [
        change("p"), borrow(0, "a1"), change(leave=True), change("p", operation="add"), give_back(0, "a1"),
        borrow(0, "b1"),
    ],
    "the pool is emptied under waiters": [
        change("p"), borrow(0, "a1"), borrow(0, "b1"), borrow(0, "c2"), change(leave=True), borrow(0, "b1"),
        give_back(0, "a1"),
    ],
    "a renewal that was overtaken": [
        change("p"), borrow(0, "a1", 20_000), send(0, "a", Extend(NAME, "", "a1", 200)), borrow(200_000, "b1"),
    ],
    "a renewal that comes too late": [
        change("p"), borrow(0, "a1", 200), send(200_000, "a", Extend(NAME, "", "a1", 1000)),
    ],
    "a renewal of another token's item": [
        change("p"), borrow(0, "b1", 200), borrow(200_000, "a1", 1000), send(0, "b", Extend(NAME, "", "b1", 200)),
    ],
    "a return of another token's item": [
        change("p"), borrow(0, "b1", 200), borrow(200_000, "a1", 1000), give_back(0, "b1"),
    ],
    "a lent item cannot be removed": [change("p"), borrow(0, "a1"), change()],
    "a borrow is undone": [change("p"), borrow(0, "a1"), send(0, "a", UndoBorrow(NAME, "a1"))],
    "an older lease is broken": [change("p"), borrow(0, "a1"), send(0, "a", BreakItem(NAME, "p", 1, "why"))],
    "a silent client loses its place": [
        change("p", "q", "r"), borrow(0, "a1", 200), borrow(0, "a2", 20_000, wait=False),
        borrow(0, "b1", 20_000, share=("v", 700_000)), borrow(5_000_000, "c2", 200, share=("v", 700_000)),
    ],
    "an item comes back to two shares": [
        change("p", "q", "r"), borrow(0, "b1", 1000, cooldown_ms=700, share=("t", 340_000)),
        borrow(0, "a1", 1000, wait=False, share=("v", 700_000)),
        borrow(2_500_000, "a1", 200, cooldown_ms=700, share=("t", 340_000)),
    ],
    "a token that ended is resent": [
        change("p"), borrow(0, "a1"), give_back(0, "a1", tombstone=True), borrow(0, "a1"), give_back(0, "a1"),
        send(0, "b", UndoBorrow(NAME, "b1")), borrow(0, "b1"),
    ],
    "a broken lease": [
        change("p"), borrow(0, "a1", cooldown_ms=700), borrow(0, "b1"), send(0, "c", BreakItem(NAME, "p", 0, "stuck")),
        give_back(0, "a1"), borrow(700_000, "b1"),
    ],
    "an item is cooled by hand": [
        change("p"), borrow(0, "a1"), borrow(0, "b2"), send(0, "c", CoolItem(NAME, "p", 400)), give_back(0, "a1"),
        give_back(0, "b2"), send(0, "c", CoolItem(NAME, "p", 400)), borrow(0, "a2"),
        send(0, "c", CoolItem(NAME, "p", 0)),
    ],
    "a waiter stops waiting": [
        change("p"), borrow(0, "a1"), borrow(0, "b1"), borrow(0, "b1", wait=False), borrow(0, "c1"),
        send(0, "c", UndoBorrow(NAME, "c1")),
    ],
    "an offer lapses in a pool that was emptied": [
        change("p"), borrow(0, "a1"), borrow(0, "b1", share=("t", 340_000)), give_back(0, "a1"),
        change("p", operation="remove", leave=True), send(1_000_001, "c", PoolHeartbeat(NAME)),
        borrow(0, "b1", share=("t", 340_000)),
    ],
}  # fmt: skip


@pytest.fixture(params=[POOL, SEMAPHORE, RWLOCK])
def twin(server, request):
    """Unchanged scripts and their rules."""
    twin = PoolTwin(server.url, request.param)
    yield twin
    twin.close()


def test_every_pool_script_equals_its_rule(twin):
    """The rule is written twice, in Python and in Lua; nothing else keeps the two equal."""

    @settings(max_examples=120, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(PROGRAMS)
    def agree(program):
        twin.run(program)

    for program in WITNESSES.values():
        twin.run(program)
    agree()


@dataclass(frozen=True)
class Mutation(mutations.Mutation):
    """A mistake that one kind of pool shows."""

    kind: str = POOL


LATE = "if (client == caller or heartbeat_until > now) and (size > 0 or kind == RWLOCK) then"
MUTATIONS = [
    Mutation("a client in doubt gets the offer", "elseif not doubtful[waiter[1]] then", "elseif true then"),
    Mutation("a missed offer raises no doubt", "int(math.min(heartbeat_until, now + DOUBT_MS * 1000))",
             "int(heartbeat_until)"),
    Mutation("a lent item keeps its old order", "item[STATE], item[ORDER], item[BACK], item[COOLDOWN] = LENT, "
             "item[FENCE],", "item[STATE], item[ORDER], item[BACK], item[COOLDOWN] = LENT, item[ORDER],"),
    Mutation("the fence does not grow", "fence = math.max(fence + 1, now)", "fence = math.max(fence, now)"),
    Mutation("a dead borrower's item does not cool", "if item[STATE] == LENT and ends > now then", "if false then"),
    Mutation("a cooldown lasts for ever", "item[STATE], item[BACK] = COOLING, ends",
             "item[STATE], item[BACK] = COOLING, ends + 1"),
    Mutation("a cooldown is forgotten", "COOLING, now + cooldown_ms * 1000, cooldown_ms", "COOLING, now, cooldown_ms"),
    Mutation("no waiter is woken when an item cools", "    wake(waiter[1], first_waiter[2], waiter[8])", ""),
    Mutation("a late waiter loses its place", LATE, "if false then"),
    Mutation("a late waiter waits in an empty pool",
             "(client == caller or heartbeat_until > now) and (size > 0 or kind == RWLOCK)",
             "(client == caller or heartbeat_until > now)"),
    Mutation("silent clients get their offers again", LATE, "if true then"),
    Mutation("silent clients keep their places", "if waiter and silent[waiter[1]] then leave_line(token) end", ""),
    Mutation("a leaving item stays", "  if item[LEAVING] then\n    leaving = leaving - 1\n    return drop(name)",
             "  if false then"),
    Mutation("a lent item is removed", "(#lent > 1 and not leave)", "false"),
    Mutation("an unknown item is removed", "if #absent > 1 or", "if false or"),
    Mutation("new items are used in their order", "(part * part + placed) % SPREAD_BELOW", "added"),
    Mutation("waiters stay in an empty pool",
             "    if waiter then wake(waiter[1], token, waiter[8]) end\n  end\nend\ncommit()", "  end\nend\ncommit()"),
    Mutation("another token returns", "if not item or not taken(item) or item[TOKEN] ~= token then",
             "if not item or not taken(item) then"),
    Mutation("a second copy of a return fails", "return item and item[LAST] == token and 1 or", "return"),
    Mutation("another token extends", "or item[TOKEN] ~= ARGV[5] or item[BACK] <= now then",
             "or item[BACK] <= now then"),
    Mutation("an expired lease is extended", "or item[TOKEN] ~= ARGV[5] or item[BACK] <= now then",
             "or item[TOKEN] ~= ARGV[5] then"),
    Mutation("a renewal that was overtaken shortens the lease", "math.max(item[BACK], now + item[TTL] * 1000)",
             "now + item[TTL] * 1000"),
    Mutation("a return leaves no tombstone", "if ARGV[7] == '1' then", "if false then"),
    Mutation("undo leaves no tombstone",
             "if not find_tombstone(token) then add_tombstone(token, TOMBSTONE_US, UNDONE, '') end", ""),
    Mutation("undo leaves the item", "if item then free(name, item) end\noffer_free_items()", "offer_free_items()"),
    Mutation("undo leaves the place in the line", "\nleave_line(token)\n", "\n"),
    Mutation("tombstones are ignored", "if ended then return { 'refused', ended.why } end", ""),
    Mutation("break hits any lease", "or int(item[FENCE]) ~= ARGV[5] then", "then"),
    Mutation("break does not raise the fence", "item[FENCE] = next_fence()\ncool_or_free", "cool_or_free"),
    Mutation("a lent item is cooled by hand", "if not item or taken(item) then", "if not item then"),
    Mutation("an offer lasts as long as a lease", "math.min(waiter[2] * 1000, OFFER_MAX_US)", "waiter[2] * 1000"),
    Mutation("no waiter is woken", "    elseif pops then", "    elseif true then\n    elseif pops then"),
    Mutation("a waiter that pops gets a published wake-up", "    elseif pops then", "    elseif false then"),
    Mutation("an unconfirmed offer is not repeated", "if not just_offered[token] then wake(client, token, false) end",
             ""),
    Mutation("waiting records no heartbeat", "    record_heartbeat(NEAR_HEARTBEAT_MS)", ""),
    Mutation("a share is as large as the pool", "math.max(1, math.floor(size * ppm / WHOLE_PPM))", "size"),
    Mutation("a share forgets what was lent", "redis.call('ZREM', base .. ':share:' .. share, name)", "local _ = 0"),
    Mutation("a share does not get returned items", "redis.call('ZADD', base .. ':share:' .. share, int(order), name)",
             "local _ = 0"),
    Mutation("shares outlive a change", "\nreset_shares()\nlocal added", "\nlocal added"),
    Mutation("an item of two shares is in one", "all[#all + 1] = share", "all = { share }"),
    Mutation("a leaving item is in a share", "if not (item and item[LEAVING]) then", "if true then"),
    Mutation("all_ms is that of the first item", "place or -1, all_ms(), life }", "place or -1, next_ms(), life }"),
    Mutation("all_ms of a heartbeat is that of the first item", "first or '', all_ms(), near",
             "first or '', next_ms(), near"),
    Mutation("a cooling item is free at once",
             "until_ms(item[BACK] + (item[STATE] == LENT and item[COOLDOWN] * 1000 or 0))",
             "until_ms(item[BACK])"),
    Mutation("a record is new with every step", "life = life or now", "life = now"),
    Mutation("a waiter that stops stays in the line", "  elseif place then\n    leave_line(token)",
             "  elseif place then"),
    Mutation("an empty pool never expires", "ending = kind ~= POOL or size == 0", "ending = kind ~= POOL"),
    Mutation("permits never expire", "ending = kind ~= POOL or size == 0", "ending = size == 0", SEMAPHORE),
    Mutation("other permits are accepted", "    if permits > 0 then", "    if false then", SEMAPHORE),
    Mutation("a writer enters among readers", "elseif redis.call('HLEN', base .. ':items') > 0 then",
             "elseif redis.call('HEXISTS', base .. ':items', WRITER) == 1 then", RWLOCK),
    Mutation("a reader enters beside a writer",
             "if redis.call('HEXISTS', base .. ':items', WRITER) == 1 then return end",
             "", RWLOCK),
    Mutation("a writer that gives up leaves the readers behind it in line",
             "place = nil\n    offer_free_items()", "place = nil", RWLOCK),
    Mutation("a reader overtakes a waiting writer", "not (kind == RWLOCK and waiting > 0)", "true", RWLOCK),
]  # fmt: skip


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_a_mistake_in_a_script_of_a_pool_is_noticed(one_server, mutation):
    """A comparison is worth what it catches: each of these mistakes would be one line in a review."""
    texts = [SCRIPTS[kind].text for kind in commands_of(RuleKind.POOL)]
    assert any(mutation.line in text for text in texts), "the line is no longer there"
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
