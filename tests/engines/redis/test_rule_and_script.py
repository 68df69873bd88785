"""Every script does what its rule says: same answers, same record, same wake-ups, at any time."""

from dataclasses import dataclass
from typing import Any

import hypothesis
import pytest
from hiredis import ReplyError
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample
from mutations import Mutation
from script_twin import CLIENTS, LONGEST_TTL_MS, NAME, Difference, Twin

from holdfast.commands import Acquire, Break, Release, Renew, Show, Undo, WaiterHeartbeat
from holdfast.engines.redis.scripts import SCRIPTS

TOKENS = tuple(f"{client}{number}" for client in CLIENTS for number in (1, 2))
TTLS_MS = (200, 800, 1000, 3000, LONGEST_TTL_MS)
# Not at all, the least there is, and what lies around the ends of offers, marks, leases, tombs and names.
JUMPS_US = (
    0, 0, 0, 0, 1, 999, 100_000, 199_999, 200_000, 999_999, 1_000_000, 1_000_001, 2_500_000, 4_999_999, 5_000_000,
    20_000_000, 30_000_000, 59_999_999, 60_000_000, 61_000_000, 130_000_000,
)  # fmt: skip


@dataclass(frozen=True)
class Said:
    """One step of a program: how long after the last one, and who says what."""

    after_us: int
    client: str
    command: Any


def sayings(token):
    """All that one token may say; what happens often stands here often."""
    asks = [
        Acquire(NAME, token, f"owner of {token}", ttl_ms, wait) for ttl_ms in TTLS_MS for wait in (True, True, False)
    ]
    ends = [Release(NAME, token, tombstone, to) for tombstone in (False, True) for to in ("", "", *TOKENS[::2])]
    renewals = [Renew(NAME, token, ttl_ms) for ttl_ms in TTLS_MS[1::2]]
    breaks = [Break(NAME, older, reason) for older, reason in ((0, "stuck"), (0, "why\nnot"), (1, "too late"))]
    rest = [
        Undo(NAME, token),
        Undo(NAME, token),
        WaiterHeartbeat(NAME),
        WaiterHeartbeat(NAME),
        WaiterHeartbeat(NAME),
        Show(NAME),
    ]
    return [*asks, *ends, *renewals, *breaks, *rest]


STEPS = [Said(jump, token[0], said) for token in TOKENS for said in sayings(token) for jump in JUMPS_US]
# Long ones, because much has to come together; short ones, because that is what a long one is cut down to.
PROGRAMS = st.one_of(*(st.lists(st.sampled_from(STEPS), min_size=least, max_size=least + 20) for least in (1, 30)))


def ask(after_us, token, ttl_ms=3000, wait=True):
    return Said(after_us, token[0], Acquire(NAME, token, f"owner of {token}", ttl_ms, wait))


def tell(after_us, client, command):
    return Said(after_us, client, command)


# What random programs meet seldom, and what has gone wrong before.
WITNESSES = {
    "a waiter leaves": [ask(0, "a1"), ask(0, "b1"), tell(0, "b", Undo(NAME, "b1"))],
    "the heir is not the first": [
        ask(0, "a1"), ask(0, "b1"), ask(0, "c1"), tell(0, "a", Release(NAME, "a1", to="c1")),
    ],
    "it is handed on to the first, and on to the next": [
        ask(0, "a1"), ask(0, "b1"), ask(0, "c1"), tell(0, "a", Release(NAME, "a1")), ask(0, "a2"), ask(0, "b1"),
        tell(0, "b", Release(NAME, "b1")),
    ],
    "the first is silent when it would be next": [
        ask(0, "a1", 20_000), ask(0, "b1"), ask(0, "c1"), tell(4_999_999, "c", WaiterHeartbeat(NAME)),
        tell(1, "a", Release(NAME, "a1")),
    ],
    "what is only offered is renewed": [
        ask(0, "a1"), ask(0, "b1"), tell(0, "a", Release(NAME, "a1")), tell(0, "b", Renew(NAME, "b1", 1000)),
    ],
    "an offer is renewed": [ask(0, "a1", 200), ask(0, "b1", 1000), tell(200_000, "b", Renew(NAME, "b1", 1000))],
    "a mark keeps a waiter": [
        ask(0, "a1", 20_000), ask(0, "b1"), tell(4_999_999, "b", WaiterHeartbeat(NAME)), tell(1, "c", WaiterHeartbeat(NAME)),
    ],
    "a mark finds a silent waiter": [
        ask(0, "a1", 200), ask(0, "a2", 200), tell(5_000_000, "b", WaiterHeartbeat(NAME)), ask(0, "a1", 200),
    ],
    "two join in one step": [
        ask(0, "a1", 200), ask(0, "b1"), ask(0, "c1"), tell(200_000, "c", WaiterHeartbeat(NAME)), ask(1_000_001, "a2"),
    ],
    "an offer outlives the mark of its client": [
        ask(0, "a1", 20_000), ask(0, "b1", 20_000), tell(4_999_999, "a", Release(NAME, "a1")),
        tell(1_000_000, "c", WaiterHeartbeat(NAME)),
    ],
    "a late client has no mark left": [
        ask(0, "a1", 200), ask(0, "b2", 200), ask(4_999_999, "a1"), ask(1, "a1", 1000),
        ask(199_999, "b1", 1000, wait=False), ask(1_000_000, "a1", 200),
    ],
    "the last mark falls and the next one stands alone": [
        ask(0, "a1", 200), ask(0, "b1"), tell(5_000_000, "b", Renew(NAME, "b2", 800)),
        ask(1_000_000, "b2", 1000, wait=False),
    ],
    "a lease is renewed for less": [ask(0, "a1"), tell(0, "a", Renew(NAME, "a1", 800))],
    "somebody looks just as an offer lapses": [
        ask(0, "a1", 200), ask(0, "b1"), ask(0, "c1"), tell(200_000, "c", WaiterHeartbeat(NAME)), tell(1_000_000, "c", Show(NAME)),
    ],
    "a waiter that was late will pop again": [
        ask(0, "a1", 200), ask(0, "b2"), ask(0, "c1"), tell(200_000, "c", WaiterHeartbeat(NAME)), tell(1_000_000, "c", WaiterHeartbeat(NAME)),
        ask(0, "b2"), ask(0, "c1"), tell(0, "c", Release(NAME, "c1")),
    ],
    "a queue outlives its record": [
        ask(0, "a1", 200), ask(0, "b1"), ask(61_000_000, "c1"), ask(0, "a2"), tell(0, "c", Show(NAME)),
    ],
    "somebody marks where nobody waits": [ask(0, "a1"), tell(0, "b", WaiterHeartbeat(NAME))],
    "a waiter asks again as the one before it is offered": [
        ask(0, "a1", 200), ask(0, "b1"), ask(0, "c1"), ask(200_000, "c1"),
    ],
    "a lapsed lease is renewed": [ask(0, "a1", 200), tell(200_000, "a", Renew(NAME, "a1", 200))],
    "a waiter loses patience": [ask(0, "a1"), ask(0, "b1"), ask(0, "b1", wait=False)],
    "a released token comes again": [
        ask(0, "a1"), tell(0, "a", Release(NAME, "a1", tombstone=True)), ask(0, "b1"), tell(0, "b", Release(NAME, "b1")),
        tell(0, "a", Undo(NAME, "a1")), ask(0, "a1"), tell(0, "a", Renew(NAME, "a1", 200)),
    ],
    "an offer that was made is renewed": [
        ask(0, "a1", 200), ask(0, "b1", 1000), tell(200_000, "c", WaiterHeartbeat(NAME)), tell(0, "b", Renew(NAME, "b1", 1000)),
    ],
    "a silent waiter falls as the lease is given back": [
        ask(0, "a1", 20_000), ask(0, "b1"), ask(0, "c1"), ask(0, "c2"), tell(4_999_999, "c", WaiterHeartbeat(NAME)),
        tell(1, "a", Release(NAME, "a1")),
    ],
    "somebody else renews": [ask(0, "a2"), tell(0, "a", Renew(NAME, "a1", 3000))],
    "somebody else releases": [
        ask(0, "a2"), tell(0, "a", Release(NAME, "a1")), tell(0, "a", Release(NAME, "a1", tombstone=True)),
    ],
    "a lapsed lease is released": [ask(0, "a1", 200), tell(200_000, "a", Release(NAME, "a1"))],
    "an acquire comes twice": [ask(0, "a1", 200), ask(1, "a1", 200)],
    "a released token asks again": [ask(0, "a1"), tell(0, "a", Release(NAME, "a1")), ask(0, "a1")],
    "an offer is asked about": [ask(0, "a2", 200), ask(0, "a1", 200), ask(200_000, "a2"), tell(0, "a", WaiterHeartbeat(NAME))],
    "an offer is confirmed later": [
        ask(0, "a2"), ask(0, "a1"), tell(0, "a", Release(NAME, "a2", tombstone=True)), ask(1, "a1"),
    ],
    "a lease is undone": [ask(0, "a1"), tell(0, "a", Undo(NAME, "a1"))],
    "a lease is broken": [
        ask(0, "a1"), tell(0, "c", Break(NAME, 1, "too late")), tell(0, "c", Break(NAME, 0, "stuck")),
    ],
    "a mark is made where all have lapsed": [
        ask(0, "a1", 200), ask(0, "a2", 200), tell(5_000_000, "a", Break(NAME, 1, "too late")),
        tell(0, "c", WaiterHeartbeat(NAME)),
    ],
    "a record is lost under its queue": [
        ask(0, "a1", 200), ask(0, "b2", 800), tell(0, "c", Undo(NAME, "c2")), ask(0, "a2"),
        ask(130_000_000, "a1", 200, wait=False), ask(0, "b1", 1000),
    ],
    "a tomb has crumbled": [tell(0, "a", Undo(NAME, "a1")), ask(60_000_000, "a1")],
}  # fmt: skip


@pytest.fixture
def twin(server):
    """Scripts and rules side by side, as they are."""
    twin = Twin(server.url)
    yield twin
    twin.close()


@pytest.mark.acceptance("C-14")
def test_every_script_does_what_its_rule_says(twin):
    """The law is written twice, in Python and in Lua; nothing else keeps the two from drifting apart."""

    @settings(max_examples=200, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(PROGRAMS)
    def agree(program):
        twin.run(program)

    for program in WITNESSES.values():
        twin.run(program)
    agree()


MUTATIONS = [
    Mutation("renew does not extend", "expires = now + ttl * 1000\nfreeing", "freeing"),
    Mutation("renew forgets the new ttl", "ttl = tonumber(ARGV[4])\n", "\n"),
    Mutation("renew turns an offer into a lease", "or expires <= now or offered then", "or expires <= now then"),
    Mutation("renew asks for no token", "if holder_token ~= ARGV[3] or expires", "if not holder_token or expires"),
    Mutation("renew brings back what has lapsed", "or expires <= now or offered then", "or offered then"),
    Mutation("release asks for no token", "if holder_token ~= token then\n  local again",
             "if not holder_token then\n  local again"),
    Mutation("a quick release asks for no token", "if holder_token == token and expires > now and not",
             "if holder_token and expires > now and not"),
    Mutation("a quick release gives what has lapsed", "if holder_token == token and expires > now and not",
             "if holder_token == token and not"),
    Mutation("a quick release forgets the queue", "  if waiting == 0 then\n    holder_token", "  if true then\n    holder_token"),
    Mutation("a quick release forgets who released", "holder_token, last = nil, token", "holder_token = nil"),
    Mutation("a hand-over forgets who released", "= next_token, token, waiting - 1", "= next_token, last, waiting - 1"),
    Mutation("a hand-over counts nobody out", "= next_token, token, waiting - 1", "= next_token, token, waiting"),
    Mutation("a hand-over goes to the last", "redis.call('ZRANGE', line_key, 0, 0)",
             "redis.call('ZREVRANGE', line_key, 0, 0)"),
    Mutation("a hand-over goes to the silent", "if waiter and not redis.call('ZRANGEBYSCORE'",
             "if waiter and redis.call('ZRANGEBYSCORE'"),
    Mutation("a hand-over leaves the place in the queue",
             "redis.call('ZREM', line_key, next_token)\n  redis.call('HDEL', waiters_key, next_token)", ""),
    Mutation("a hand-over leaves the seat", "redis.call('HDEL', waiters_key, next_token)", ""),
    Mutation("a hand-over is a lease at once", "math.min(ttl * 1000, OFFER_MAX_US), true\n  redis",
             "math.min(ttl * 1000, OFFER_MAX_US), false\n  redis"),
    Mutation("release forgets who released", "\nlast = token", "\n"),
    Mutation("release does not look for the heir", "next_token ~= '' and place_of(next_token)", "false"),
    Mutation("release makes no tomb", "if string.sub(ARGV[4], 1, 1) == '1' then", "if false then"),
    Mutation("a quick release makes no tomb", "not offered and ARGV[4] == '' then", "not offered then"),
    Mutation("the fence does not grow", "fence = math.max(fence + 1, now)", "fence = math.max(fence, now)"),
    Mutation("the fence is only a counter", "fence = math.max(fence + 1, now)", "fence = fence + 1"),
    Mutation("a re-sent acquire gets a new fence", "if not holder_token then\n  fence", "if true then\n  fence"),
    Mutation("a newcomer overtakes the queue", "if not holder_token then offer_first() end\nend", "end"),
    Mutation("a newcomer does not see the queue", "if waiting > 0 or offered or (holder_token", "if offered or (holder_token"),
    Mutation("a newcomer does not see an offer", "if waiting > 0 or offered or (holder_token and expires > now) then",
             "if waiting > 0 or (holder_token and expires > now and not offered) then"),
    Mutation("the ttl is not restarted on a re-send", "offered = token, caller, ARGV[4], now",
             "offered = token, caller, ARGV[4], since"),
    Mutation("a confirmed offer keeps its short end", "  since = now\n", "  since = now\n  now = now - 29000000\n"),
    Mutation("a confirmed offer stays an offer", "now + ttl * 1000, false", "now + ttl * 1000, offered"),
    Mutation("a confirmed offer is held since it was made", "  since = now\n", "\n"),
    Mutation("a re-sent acquire is held since then", "elseif offered then\n", "else\n"),
    Mutation("tombs are ignored", "if ended then return { 'refused'", "if false then return { 'refused'"),
    Mutation("tombs crumble early", "TOMBSTONE_US = 5000000, 60000000", "TOMBSTONE_US = 5000000, 6000000"),
    Mutation("marks lapse early", "HEARTBEAT_US, TOMBSTONE_US = 5000000", "HEARTBEAT_US, TOMBSTONE_US = 4000000"),
    Mutation("a released token may hold again", "if token == last then return { 'refused', 'released' } end", ""),
    Mutation("an offer lasts as long as a lease", "math.min(ttl * 1000, OFFER_MAX_US)", "ttl * 1000"),
    Mutation("an offer outlives a short lease", "math.min(ttl * 1000, OFFER_MAX_US)", "OFFER_MAX_US"),
    Mutation("what has lapsed still holds", "if holder_token and expires <= now then", "if false then"),
    Mutation("a lease lasts one microsecond too long", "expires <= now", "expires < now"),
    Mutation("who did not hear an offer is forgotten", "(client == caller or heartbeat_until > now)", "false"),
    Mutation("the dead get their offers again", "(client == caller or heartbeat_until > now)", "true"),
    Mutation("only one may join at a time", "joined[#joined + 1], waiter[token] = token, place",
             "joined, waiter[token] = { token }, place"),
    Mutation("a mark taken away counts for ever", "if heartbeat_until == 0 then without_heartbeat = client end", ""),
    Mutation("the queue stands on its head", "redis.call('ZRANGE', line_key, 0, #removed)",
             "redis.call('ZREVRANGE', line_key, 0, #removed)"),
    Mutation("the queue is read from its end", "redis.call('ZRANGE', line_key, 0, -1)",
             "redis.call('ZREVRANGE', line_key, 0, -1)"),
    Mutation("nobody is woken", "if offered and held ~= fence_before then", "if false then"),
    Mutation("everybody is woken again", "if offered and held ~= fence_before then", "if offered then"),
    Mutation("who pops is only rung", "\nif pops then", "\nif false then"),
    Mutation("who listens is not rung", "\nif pops then", "\nif true then"),
    Mutation("who changes to listening is not rung", "if changed then store_waiter(changed) end", ""),
    Mutation("an unheard offer is not told again", "if mine and held == fence_before then", "if false then"),
    Mutation("silent clients keep their places", "if silent[waiter[token][1]] then remove(token) end", ""),
    Mutation("whoever asks is taken for silent", "if other ~= caller then", "if true then"),
    Mutation("waiting is no sign of life", "heartbeat = wait ~= '0'", "heartbeat = false"),
    Mutation("a mark marks nothing", "\nmarked = true", "\n"),
    Mutation("a mark forgets what it has seen", "if contended_before then commit() end", ""),
    Mutation("marks of nobody stay for ever", "  if contended then\n    local added",
             "  if true then\n    local added"),
    Mutation("the impatient are kept in the queue", "if place then leave_line(token) end", ""),
    Mutation("everybody joins the queue", "      if not heartbeat then", "      if false then"),
    Mutation("undo leaves the place in the queue", "\nleave_queue(token)", "\n"),
    Mutation("undo leaves the lease", "if holder_token == token then free() end", ""),
    Mutation("undo makes no tomb", "if not find_tombstone(token) then add_tombstone(token, TOMBSTONE_US, 'undone', '') end", ""),
    Mutation("undo forgets why it ended before", "if not find_tombstone(token) then add_tombstone", "if true then add_tombstone"),
    Mutation("break does not raise the fence", "\nnext_fence()", "\n"),
    Mutation("break hits whoever holds", "if not holder_token or int(held) ~= ARGV[3] then", "if not holder_token then"),
    Mutation("break does not say why", "'broken', ARGV[4])", "'broken', '')"),
    Mutation("the record stays for ever", "redis.call('SET', base, record, 'PX', keep_ms)",
             "redis.call('SET', base, record)"),
    Mutation("the record is kept too short", "if holder_token and expires > ends then ends = expires end", ""),
    Mutation("the queue stays for ever", "and line_until < now + keep_ms * 1000 then", "and false then"),
    Mutation("a new queue stays for ever", "if anew then line_until = 0 end", ""),
    Mutation("a new mark stays for ever", "if added > 0 then line_until = 0 end", ""),
    Mutation("the queue of a lost record is taken over", "if unknown and redis.call('ZCARD', line_key) > 0 then",
             "if false then"),
    Mutation("places count who has left", "return place and place - #removed", "return place"),
    Mutation("show shows what has lapsed", "advance()\nread_queue()", "read_line()"),
    Mutation("show forgets who has just joined", "for _, token in ipairs(joined) do add(token) end", ""),
]  # fmt: skip


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_a_mistake_in_a_script_is_noticed(one_server, mutation):
    """A comparison is worth what it catches: each of these mistakes would be one line in a review."""
    assert any(mutation.line in script.text for script in SCRIPTS.values()), "the line is no longer there"
    twin = Twin(one_server.url, mutation)

    def differs(program):
        try:
            twin.run(program)
        except (Difference, ReplyError):  # a script that fails is noticed too
            return True
        return False

    def found():
        """A program that shows it. The first search is always the same; if it fails, others may be luckier."""
        for attempt in range(4):
            search = settings(
                max_examples=2000, database=None, derandomize=attempt == 0, phases=[Phase.generate],
                suppress_health_check=list(HealthCheck), deadline=None,
            )  # fmt: skip
            try:
                return hypothesis.find(PROGRAMS, differs, settings=search)
            except NoSuchExample:
                continue
        return None

    try:
        assert any(map(differs, WITNESSES.values())) or found()
    finally:
        twin.close()
