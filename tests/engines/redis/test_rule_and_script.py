"""Every script of a lease does what its rule does: same answers, same record, same wake-ups, at any time."""

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

from holdfast.commands import Acquire, Break, ReleaseLease, Renew, Show, Undo, WaiterHeartbeat
from holdfast.engines.redis.lease import SCRIPTS

TOKENS = tuple(f"{client}{number}" for client in CLIENTS for number in (1, 2))
TTLS_MS = (200, 800, 1000, 3000, LONGEST_TTL_MS)
# No time, the smallest step, and the moments around the end of an offer, a heartbeat, a lease, a tombstone and a name.
JUMPS_US = (
    0, 0, 0, 0, 1, 999, 100_000, 199_999, 200_000, 999_999, 1_000_000, 1_000_001, 1_500_000, 2_499_999, 2_500_000,
    3_999_999, 4_000_000, 4_999_999, 5_000_000, 20_000_000, 30_000_000, 59_999_999, 60_000_000, 61_000_000, 130_000_000,
)  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One step of a program: the time since the last one, the client and its command."""

    after_us: int
    client: str
    command: Any


def token_commands(token):
    """Return all commands that one token may send; frequent ones several times."""
    acquires = [
        Acquire(NAME, token, f"holder {token}", ttl_ms, wait) for ttl_ms in TTLS_MS for wait in (True, True, False)
    ]
    releases = [
        ReleaseLease(NAME, token, tombstone, to) for tombstone in (False, True) for to in ("", "", *TOKENS[::2])
    ]
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
    return [*acquires, *releases, *renewals, *breaks, *rest]


STEPS = [Step(jump, token[0], each) for token in TOKENS for each in token_commands(token) for jump in JUMPS_US]
# Long ones, because a mistake may need many steps; short ones, because a long one shrinks to them.
PROGRAMS = st.one_of(*(st.lists(st.sampled_from(STEPS), min_size=least, max_size=least + 20) for least in (1, 30)))


def acquire(after_us, token, ttl_ms=3000, wait=True):
    return Step(after_us, token[0], Acquire(NAME, token, f"holder {token}", ttl_ms, wait))


def send(after_us, client, command):
    return Step(after_us, client, command)


# Programs that random ones rarely contain, and bugs of the past.
WITNESSES = {
    "a waiter leaves": [acquire(0, "a1"), acquire(0, "b1"), send(0, "b", Undo(NAME, "b1"))],
    "the successor is not the first": [
        acquire(0, "a1"), acquire(0, "b1"), acquire(0, "c1"), send(0, "a", ReleaseLease(NAME, "a1", to="c1")),
    ],
    "the lease is handed over twice": [
        acquire(0, "a1"), acquire(0, "b1"), acquire(0, "c1"), send(0, "a", ReleaseLease(NAME, "a1")),
        acquire(0, "a2"), acquire(0, "b1"), send(0, "b", ReleaseLease(NAME, "b1")),
    ],
    "the first waiter is silent when it would be next": [
        acquire(0, "a1", 20_000), acquire(0, "b1"), acquire(0, "c1"), send(4_999_999, "c", WaiterHeartbeat(NAME)),
        send(1, "a", ReleaseLease(NAME, "a1")),
    ],
    "an offer is renewed by its waiter": [
        acquire(0, "a1"), acquire(0, "b1"), send(0, "a", ReleaseLease(NAME, "a1")),
        send(0, "b", Renew(NAME, "b1", 1000)),
    ],
    "an offer is renewed": [acquire(0, "a1", 200), acquire(0, "b1", 1000), send(200_000, "b", Renew(NAME, "b1", 1000))],
    "a heartbeat keeps a waiter": [
        acquire(0, "a1", 20_000), acquire(0, "b1"), send(4_999_999, "b", WaiterHeartbeat(NAME)),
        send(1, "c", WaiterHeartbeat(NAME)),
    ],
    "a heartbeat keeps a waiter that is far from the front": [
        acquire(0, "a1", 20_000), acquire(0, "b1"), acquire(0, "b2"), acquire(0, "c1"),
        send(1_000_000, "c", WaiterHeartbeat(NAME)), send(2_999_999, "b", WaiterHeartbeat(NAME)),
        send(1_000_001, "b", WaiterHeartbeat(NAME)),
    ],
    "the first waiter is in doubt": [
        acquire(0, "a1", 20_000), acquire(0, "b1"), acquire(0, "c1"), send(1_500_000, "c", WaiterHeartbeat(NAME)),
        send(0, "a", ReleaseLease(NAME, "a1")),
    ],
    "the caller would be in doubt": [
        acquire(0, "a1", 20_000), acquire(0, "b1"), acquire(0, "c1"), send(1_500_000, "c", WaiterHeartbeat(NAME)),
        send(0, "b", Break(NAME, 0, "stuck")),
    ],
    "a client that missed its offer stays in doubt": [
        acquire(0, "a1", 200), acquire(0, "b1"), acquire(0, "c1"), send(200_000, "c", WaiterHeartbeat(NAME)),
        send(1_000_000, "c", WaiterHeartbeat(NAME)), acquire(0, "a2"), acquire(0, "c1"),
        send(0, "c", ReleaseLease(NAME, "c1")),
    ],
    "a heartbeat removes a silent waiter": [
        acquire(0, "a1", 200), acquire(0, "a2", 200), send(5_000_000, "b", WaiterHeartbeat(NAME)),
        acquire(0, "a1", 200),
    ],
    "two join in one step": [
        acquire(0, "a1", 200), acquire(0, "b1"), acquire(0, "c1"), send(200_000, "c", WaiterHeartbeat(NAME)),
        acquire(1_000_001, "a2"),
    ],
    "an offer outlives the heartbeat of its client": [
        acquire(0, "a1", 20_000), acquire(0, "b1", 20_000), send(4_999_999, "a", ReleaseLease(NAME, "a1")),
        send(1_000_000, "c", WaiterHeartbeat(NAME)),
    ],
    "a late client has no heartbeat left": [
        acquire(0, "a1", 200), acquire(0, "b2", 200), acquire(3_999_999, "a1"), acquire(1, "a1", 1000),
        acquire(199_999, "b1", 1000, wait=False), acquire(1_000_000, "a1", 200),
    ],
    "the last heartbeat lapses before the next one": [
        acquire(0, "a1", 200), acquire(0, "b1"), send(5_000_000, "b", Renew(NAME, "b2", 800)),
        acquire(1_000_000, "b2", 1000, wait=False),
    ],
    "a lease is renewed for less": [acquire(0, "a1"), send(0, "a", Renew(NAME, "a1", 800))],
    "the line is listed just as an offer lapses": [
        acquire(0, "a1", 200), acquire(0, "b1"), acquire(0, "c1"), send(200_000, "c", WaiterHeartbeat(NAME)),
        send(1_000_000, "c", Show(NAME)),
    ],
    "a waiter that was late will pop again": [
        acquire(0, "a1", 200), acquire(0, "b2"), acquire(0, "c1"), send(200_000, "c", WaiterHeartbeat(NAME)),
        send(1_000_000, "c", WaiterHeartbeat(NAME)), acquire(0, "b2"), acquire(0, "c1"),
        send(0, "c", ReleaseLease(NAME, "c1")),
    ],
    "a waiting line outlives its record": [
        acquire(0, "a1", 200), acquire(0, "b1"), acquire(61_000_000, "c1"), acquire(0, "a2"), send(0, "c", Show(NAME)),
    ],
    "a heartbeat without waiters": [acquire(0, "a1"), send(0, "b", WaiterHeartbeat(NAME))],
    "a waiter resends as the one before it gets the offer": [
        acquire(0, "a1", 200), acquire(0, "b1"), acquire(0, "c1"), acquire(200_000, "c1"),
    ],
    "a lapsed lease is renewed": [acquire(0, "a1", 200), send(200_000, "a", Renew(NAME, "a1", 200))],
    "a waiter stops waiting": [acquire(0, "a1"), acquire(0, "b1"), acquire(0, "b1", wait=False)],
    "a released token is resent": [
        acquire(0, "a1"), send(0, "a", ReleaseLease(NAME, "a1", tombstone=True)), acquire(0, "b1"),
        send(0, "b", ReleaseLease(NAME, "b1")), send(0, "a", Undo(NAME, "a1")), acquire(0, "a1"),
        send(0, "a", Renew(NAME, "a1", 200)),
    ],
    "an offer that was made is renewed": [
        acquire(0, "a1", 200), acquire(0, "b1", 1000), send(200_000, "c", WaiterHeartbeat(NAME)),
        send(0, "b", Renew(NAME, "b1", 1000)),
    ],
    "a silent waiter is removed by the release": [
        acquire(0, "a1", 20_000), acquire(0, "b1"), acquire(0, "c1"), acquire(0, "c2"),
        send(4_999_999, "c", WaiterHeartbeat(NAME)), send(1, "a", ReleaseLease(NAME, "a1")),
    ],
    "another token renews": [acquire(0, "a2"), send(0, "a", Renew(NAME, "a1", 3000))],
    "another token releases": [
        acquire(0, "a2"), send(0, "a", ReleaseLease(NAME, "a1")),
        send(0, "a", ReleaseLease(NAME, "a1", tombstone=True)),
    ],
    "a lapsed lease is released": [acquire(0, "a1", 200), send(200_000, "a", ReleaseLease(NAME, "a1"))],
    "an acquire is sent twice": [acquire(0, "a1", 200), acquire(1, "a1", 200)],
    "a released token acquires again": [acquire(0, "a1"), send(0, "a", ReleaseLease(NAME, "a1")), acquire(0, "a1")],
    "an offer is repeated to its client": [
        acquire(0, "a2", 200), acquire(0, "a1", 200), acquire(200_000, "a2"), send(0, "a", WaiterHeartbeat(NAME)),
    ],
    "an offer is confirmed later": [
        acquire(0, "a2"), acquire(0, "a1"), send(0, "a", ReleaseLease(NAME, "a2", tombstone=True)), acquire(1, "a1"),
    ],
    "a lease is undone": [acquire(0, "a1"), send(0, "a", Undo(NAME, "a1"))],
    "a lease is broken": [
        acquire(0, "a1"), send(0, "c", Break(NAME, 1, "too late")), send(0, "c", Break(NAME, 0, "stuck")),
    ],
    "a heartbeat comes after everything lapsed": [
        acquire(0, "a1", 200), acquire(0, "a2", 200), send(5_000_000, "a", Break(NAME, 1, "too late")),
        send(0, "c", WaiterHeartbeat(NAME)),
    ],
    "a record is lost under its waiting line": [
        acquire(0, "a1", 200), acquire(0, "b2", 800), send(0, "c", Undo(NAME, "c2")), acquire(0, "a2"),
        acquire(130_000_000, "a1", 200, wait=False), acquire(0, "b1", 1000),
    ],
    "a tombstone has expired": [send(0, "a", Undo(NAME, "a1")), acquire(60_000_000, "a1")],
}  # fmt: skip


@pytest.fixture
def twin(server):
    """Unchanged scripts and their rules."""
    twin = Twin(server.url)
    yield twin
    twin.close()


@pytest.mark.acceptance("C-14")
def test_every_lease_script_equals_its_rule(twin):
    """The rule is written twice, in Python and in Lua; nothing else keeps the two equal."""

    @settings(max_examples=200, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(PROGRAMS)
    def agree(program):
        twin.run(program)

    for program in WITNESSES.values():
        twin.run(program)
    agree()


MUTATIONS = [
    Mutation("a client in doubt gets the offer", "if waiter_of(token) and not doubtful[waiter[token][1]] then",
             "if waiter_of(token) then"),
    Mutation("a missed offer raises no doubt", "missed = { client, math.min(heartbeat_until, now + DOUBT_MS * 1000) }",
             ""),
    Mutation("no heartbeat is near the front", "near = near or (text and cmsgpack.unpack(text) == caller)", ""),
    Mutation("renew does not extend", "  ttl = renewed_ttl\n  expires = now + ttl * 1000\n", "  ttl = renewed_ttl\n"),
    Mutation("renew shortens a lease", "  expires = math.min(expires, now + ttl * 1000)\n",
             "  expires = now + renewed_ttl * 1000\n"),
    Mutation("the second short renewal shortens a lease", "ttl = math.max(ttl, renewed_ttl)", "ttl = renewed_ttl"),
    Mutation("renew forgets the new ttl", "  ttl = renewed_ttl\n  expires = now + ttl * 1000\n",
             "  expires = now + renewed_ttl * 1000\n"),
    Mutation("renew turns an offer into a lease", "or expires <= now or offered then", "or expires <= now then"),
    Mutation("renew checks no token", "if holder_token ~= ARGV[3] or expires", "if not holder_token or expires"),
    Mutation("renew revives an expired lease", "or expires <= now or offered then", "or offered then"),
    Mutation("release checks no token", "if holder_token ~= token then\n  local already_released",
             "if not holder_token then\n  local already_released"),
    Mutation("a quick release checks no token", "if holder_token == token and expires > now and not",
             "if holder_token and expires > now and not"),
    Mutation("a quick release releases an expired lease", "if holder_token == token and expires > now and not",
             "if holder_token == token and not"),
    Mutation("a quick release forgets the waiting line", "  if waiting == 0 then\n    holder_token",
             "  if true then\n    holder_token"),
    Mutation("a quick release forgets who released", "holder_token, last = nil, token", "holder_token = nil"),
    Mutation("a hand-over forgets who released", "= next_token, token, waiting - 1", "= next_token, last, waiting - 1"),
    Mutation("a hand-over does not shorten the line", "= next_token, token, waiting - 1",
             "= next_token, token, waiting"),
    Mutation("a hand-over goes to the last", "redis.call('ZRANGE', line_key, 0, 0)",
             "redis.call('ZREVRANGE', line_key, 0, 0)"),
    Mutation("a hand-over goes to a silent client", "if waiter and not redis.call('ZRANGEBYSCORE'",
             "if waiter and redis.call('ZRANGEBYSCORE'"),
    Mutation("a hand-over leaves the place in the line",
             "redis.call('ZREM', line_key, next_token)\n  redis.call('HDEL', waiters_key, next_token)", ""),
    Mutation("a hand-over leaves the waiter's data", "redis.call('HDEL', waiters_key, next_token)", ""),
    Mutation("a hand-over is a lease at once", "math.min(ttl * 1000, OFFER_MAX_US), true\n  redis",
             "math.min(ttl * 1000, OFFER_MAX_US), false\n  redis"),
    Mutation("release forgets who released", "\nlast = token", "\n"),
    Mutation("release ignores the successor", "next_token ~= '' and place_of(next_token)", "false"),
    Mutation("release leaves no tombstone", "if string.sub(ARGV[4], 1, 1) == '1' then", "if false then"),
    Mutation("a quick release leaves no tombstone", "not offered and ARGV[4] == '' then", "not offered then"),
    Mutation("the fence does not grow", "fence = math.max(fence + 1, now)", "fence = math.max(fence, now)"),
    Mutation("the fence is only a counter", "fence = math.max(fence + 1, now)", "fence = fence + 1"),
    Mutation("a re-sent acquire gets a new fence", "if not holder_token then\n  fence", "if true then\n  fence"),
    Mutation("a newcomer overtakes the line", "if not holder_token then offer_first() end\nend", "end"),
    Mutation("a newcomer does not see the line", "if waiting > 0 or offered or (holder_token",
             "if offered or (holder_token"),
    Mutation("a newcomer does not see an offer", "if waiting > 0 or offered or (holder_token and expires > now) then",
             "if waiting > 0 or (holder_token and expires > now and not offered) then"),
    Mutation("the ttl is not restarted on a re-send", "offered = token, caller, ARGV[4], now",
             "offered = token, caller, ARGV[4], since"),
    Mutation("a confirmed offer keeps its short end", "  since = now\n", "  since = now\n  now = now - 29000000\n"),
    Mutation("a confirmed offer stays an offer", "now + ttl * 1000, false", "now + ttl * 1000, offered"),
    Mutation("a confirmed offer is held since it was made", "  since = now\n", "\n"),
    Mutation("a re-sent acquire is held since then", "elseif offered then\n", "else\n"),
    Mutation("tombstones are ignored", "if ended then return { 'refused'", "if false then return { 'refused'"),
    Mutation("tombstones expire early", "TOMBSTONE_US = 60000000", "TOMBSTONE_US = 6000000"),
    Mutation("heartbeats lapse early", "HEARTBEAT_MS = 5000", "HEARTBEAT_MS = 4000"),
    Mutation("heartbeats near the front lapse early", "NEAR_HEARTBEAT_MS = 4000", "NEAR_HEARTBEAT_MS = 3000"),
    Mutation("a released token may hold again", "if token == last then return { 'refused', RELEASED } end", ""),
    Mutation("an offer lasts as long as a lease", "math.min(ttl * 1000, OFFER_MAX_US)", "ttl * 1000"),
    Mutation("an offer outlives a short lease", "math.min(ttl * 1000, OFFER_MAX_US)", "OFFER_MAX_US"),
    Mutation("an expired lease still holds", "if holder_token and expires <= now then", "if false then"),
    Mutation("a lease lasts one microsecond too long", "expires <= now", "expires < now"),
    Mutation("a client that missed its offer is forgotten", "(client == caller or heartbeat_until > now)", "false"),
    Mutation("silent clients get their offers again", "(client == caller or heartbeat_until > now)", "true"),
    Mutation("only one may join at a time", "joined[#joined + 1], waiter[token] = token, place",
             "joined, waiter[token] = { token }, place"),
    Mutation("a deleted heartbeat counts for ever", "if heartbeat_until == 0 then without_heartbeat = client end", ""),
    Mutation("the line is reversed", "redis.call('ZRANGE', line_key, 0, #removed)",
             "redis.call('ZREVRANGE', line_key, 0, #removed)"),
    Mutation("the line is read from its end", "redis.call('ZRANGE', line_key, 0, -1)",
             "redis.call('ZREVRANGE', line_key, 0, -1)"),
    Mutation("no waiter is woken", "if offered and held ~= fence_before then", "if false then"),
    Mutation("every waiter is woken again", "if offered and held ~= fence_before then", "if offered then"),
    Mutation("a waiter that pops gets a published wake-up", "\nif pops then", "\nif false then"),
    Mutation("a waiter that listens gets a pushed wake-up", "\nif pops then", "\nif true then"),
    Mutation("a waiter that changes to listening is not woken", "if changed then store_waiter(changed) end", ""),
    Mutation("an unconfirmed offer is not repeated", "if mine and held == fence_before then", "if false then"),
    Mutation("silent clients keep their places", "if silent[waiter[token][1]] then remove(token) end", ""),
    Mutation("the caller counts as silent", "if other == caller then",
             "if other == caller and tonumber(found[i + 1]) > now then"),
    Mutation("the caller is in doubt", "if other == caller then",
             "if other == caller and tonumber(found[i + 1]) <= now then"),
    Mutation("waiting records no heartbeat", "heartbeat = wait ~= '0'", "heartbeat = false"),
    Mutation("a heartbeat records nothing", "\nheartbeat, freeing = HEARTBEAT_MS, contended", "\nfreeing = contended"),
    Mutation("a heartbeat does not store what lapsed", "if contended_before then commit() end", ""),
    Mutation("heartbeats without waiters never expire", "  if contended then\n    if missed",
             "  if true then\n    if missed"),
    Mutation("a waiter that stops stays in the line", "if place then leave_line(token) end", ""),
    Mutation("every caller joins the line", "      if not heartbeat then", "      if false then"),
    Mutation("undo leaves the place in the line", "\nleave_line(token)", "\n"),
    Mutation("undo leaves the lease", "if holder_token == token then free() end", ""),
    Mutation("undo leaves no tombstone",
             "if not find_tombstone(token) then add_tombstone(token, TOMBSTONE_US, UNDONE, '') end", ""),
    Mutation("undo replaces an earlier tombstone", "if not find_tombstone(token) then add_tombstone",
             "if true then add_tombstone"),
    Mutation("break does not raise the fence", "\nnext_fence()", "\n"),
    Mutation("break hits any holder", "if not holder_token or int(held) ~= ARGV[3] then", "if not holder_token then"),
    Mutation("break stores no reason", "BROKEN, ARGV[4])", "BROKEN, '')"),
    Mutation("the record never expires", "redis.call('SET', base, record, 'PX', keep_ms)",
             "redis.call('SET', base, record)"),
    Mutation("the record is kept too short", "if holder_token and expires > ends then ends = expires end", ""),
    Mutation("the line never expires", "and line_until < now + keep_ms * 1000 then", "and false then"),
    Mutation("a new line never expires", "if new_line then line_until = 0 end", ""),
    Mutation("a new heartbeat never expires", "if added > 0 then line_until = 0 end", ""),
    Mutation("the line of a lost record is reused", "if was_empty and redis.call('ZCARD', line_key) > 0 then",
             "if false then"),
    Mutation("positions count removed waiters", "return place and place - #removed", "return place"),
    Mutation("show lists what lapsed", "advance()\nread_line()", "read_line()"),
    Mutation("show omits a waiter that has just joined", "for _, token in ipairs(joined) do add(token) end", ""),
]  # fmt: skip


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_the_comparison_finds_a_mistake_in_a_lease_script(one_server, mutation):
    """A comparison that finds no mistake proves nothing: each of these is one changed line."""
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
