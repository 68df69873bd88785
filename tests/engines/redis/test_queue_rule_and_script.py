"""Every script of a queue does what its rule does: same answers, same places, same wake-ups, at any time (T37)."""

import hypothesis
import mutations
import pytest
from hiredis import ReplyError
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample
from queue_programs import GRACE_MS, INTERVAL_MS, POSTPONE_MS, THREE, WITNESSES, join, keyed, publish
from queue_twin import CLIENTS, QueueTwin, Step
from script_twin import Difference

from holdfast.commands.queue import (
    ACK,
    REJECT,
    RELEASE,
    RETRY,
    VERIFY,
    ConsumerHeartbeat,
    GetDeadLetter,
    Join,
    Leave,
    Publish,
    Purge,
    Receive,
    ReclaimExpired,
    RecordOutcomes,
    Redrive,
    TakeOver,
)
from holdfast.engines.redis.scripts import SCRIPTS
from holdfast.rules.table import RuleKind, commands_of

TOKENS = tuple(f"{client}{number}" for client in CLIENTS for number in (1, 2))
TTLS_MS = (200, 3000, 20_000)
JUMPS_US = (0, 0, 0, 0, 0, 0, 1, 100_000, 199_999, 200_000, 500_000, 700_000, 3_200_000, 61_000_000, -5_000_000)
# The lanes of a receive, and whether it takes a fair share.
LANES = ((("",), False), (("", ""), False), (("high", ""), False), (("", "high"), True), (THREE, False), (THREE, True))
KEYS = ("k", "kk", "k1")

# The arguments of a redrive: whether it resets, and a token or none.
REDRIVES = ((True,), (False,), (True, "r1"), (False, "r2"))


def steps_of():
    """Return the kind and arguments of all commands that a token may send; frequent ones several times."""
    messages = [((0, "", ""),), ((0, "", ""),) * 3, ((0, "x", ""),), ((300, "", ""), (0, "x", "")), ((0, "", "high"),)]
    messages += [
        ((0, "", "", "k"),) * 2,
        ((0, "", "high", "k"), (0, "", "", "kk")),
        ((300, "x", "", "k1"), (0, "", "low")),
    ]
    publishes = [(Publish, (f"call {n}", bound, each)) for n in range(9) for bound in (0, 0, 4) for each in messages]
    receives = [
        (Receive, (most, wait, idle, known, *lanes))
        for most in (0, 1, 2, 9)
        for wait in (True, False)
        for idle in (True, False)
        for known in (None, None, None, 1, 9)
        for lanes in LANES
    ]
    receives += [
        (Receive, (most, True, False, None, ("",), False, seen)) for most in (0, 1, 9) for seen in (0, 1, 2, 9)
    ] * 6
    outcomes = [
        (RecordOutcomes, (tuple((at, kind, delay_ms, error) for at in which), *options))
        for which in ((1,), (1, 1), (1, 2, 3))
        for kind in (ACK, ACK, RETRY, RELEASE, REJECT, VERIFY)
        for delay_ms in (0, 0, 400)
        for error in ("", "érror")
        for options in ((0,), (2, True))
    ]
    joins = [(Join, (ttl_ms, keeps, announces)) for ttl_ms in TTLS_MS for keeps in (0, 1) for announces in (0, 1)] * 12
    heartbeats = [(ConsumerHeartbeat, ttl_ms) for ttl_ms in TTLS_MS] * 8
    reclaims = [(ReclaimExpired, (INTERVAL_MS, GRACE_MS, POSTPONE_MS, 2, dead_max)) for dead_max in (0, 0, 1)] * 12
    take_overs = [(TakeOver, (key, attempts, 1)) for key in KEYS for attempts in (1, 2)] * 16
    redrives = [(Redrive, (ids, reset, *call)) for ids in ((1,), (1, 2, 1), (9,)) for reset, *call in REDRIVES] * 3
    rest = [
        (Purge, ((1,),)),
        (Purge, ((2, 2, 9), "p1")),
        (GetDeadLetter, ((1,),)),
        (GetDeadLetter, ((5,),)),
        *[(Leave, ())] * 12,
    ]
    return [*publishes, *receives, *outcomes, *joins, *heartbeats, *reclaims, *take_overs, *redrives, *rest]


STEPS = [Step(jump, kind, token, each) for token in TOKENS for kind, each in steps_of() for jump in JUMPS_US]
BEGINNING = [*join(0, "a1", "b1"), publish(0, many=3, call="1"), keyed(0, "k", "kk", "k", call="2")]
PROGRAMS = st.one_of(
    *(
        st.lists(st.sampled_from(STEPS), min_size=least, max_size=least + 20).map(lambda steps: [*BEGINNING, *steps])
        for least in (1, 25)
    )
)


@pytest.fixture
def twin(server):
    """Unchanged scripts and their rules."""
    twin = QueueTwin(server.url)
    yield twin
    twin.close()


def test_every_queue_script_equals_its_rule(twin):
    """The rule is written twice, in Python and in Lua; nothing else keeps the two equal."""

    @settings(max_examples=100, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(PROGRAMS)
    def agree(program):
        twin.run(program)

    for program in WITNESSES.values():
        twin.run(program)
    agree()


Mutation = mutations.Mutation
MUTATIONS = [
    Mutation("expired consumers are woken", "if consumer and consumer[EXPIRES] > now then", "if consumer then"),
    Mutation("a copy of a publish is published", "if before then return answer end", "before = nil"),
    Mutation("a bound that is reached is passed", "if size + fresh > tonumber", "if size > tonumber"),
    Mutation("a key is known within one call only after it", "(seen[dedup] or redis", "(redis"),
    Mutation("an unseen message is delivered beside new ones", "  unseen = #found > 0\n", ""),
    Mutation("an outcome for another consumer's message", "fences[i] and not handled", "not handled"),
    Mutation("two outcomes for one message", "and not handled[entry]", ""),
    Mutation("a message that failed stays in quarantine", "      message.crashes = 0\n      if kind == RETRY",
             "      if kind == RETRY"),
    Mutation("a released message loses an attempt", "    elseif kind == RELEASE then\n",
             "    elseif kind == RELEASE then\n      add_failure(message, '', '', 1, 0)\n"),
    Mutation("every new message is blamed", "local blamed = new and alone", "local blamed = new"),
    Mutation("no grace", "int(now - grace)", "int(now)"),
    Mutation("no postponed check", "local postponed = checked > 0 and", "local postponed = false and"),
    Mutation("the blame is decided again for the rest",
             "if unfinished then put_consumer(unfinished[1], unfinished[2]) end", ""),
    Mutation("a message from quarantine comes with others", "quarantined, most, sources[1] = true, 0,",
             "quarantined, most, sources[1] = true, most,"),
    Mutation("every consumer drains", "if drain_token ~= token or drain_until <= now then", "if false then"),
    Mutation("a redriven dead letter stays", "redis.call('HDEL', base .. ':dead', unpack(ids))", ""),
    Mutation("the newest dead letters are dropped", "redis.call('ZRANGE', base .. ':dead_order', 0, over - 1)",
             "redis.call('ZRANGE', base .. ':dead_order', -over, -1)"),
    Mutation("a consumer that left still waits", "  redis.call('ZREM', base .. ':waiting', token)\n  if", "  if"),
    Mutation("an empty queue never expires", "redis.call('SET', base, record, 'PX', ARGV[2])",
             "redis.call('SET', base, record)"),
    Mutation("two messages of a key are ready", "if key and (stored_heads[key] or heads[key]) then", "if false then"),
    Mutation("two messages of a key in one call are ready", "(stored_heads[key] or heads[key])", "stored_heads[key]"),
    Mutation("an ack does not free its key", "if message then ready = ready + free_key(message.key) end", ""),
    Mutation("a reject does not free its key",
             "        add_dead_letter(message, reason)\n        ready = ready + free_key(message.key)",
             "        add_dead_letter(message, reason)"),
    Mutation("a dead letter of a reclaim frees no key", "dead, ready = dead + 1, ready + free_key(message.key)",
             "dead = dead + 1"),
    Mutation("nobody is woken for the next message of a key", "wake_waiting(requeued + ready)",
             "wake_waiting(requeued)"),
    Mutation("a key has a head for ever", "  set_head(key, false)\n", ""),
    Mutation("the holder of a head is not stored", "set_head(key, entry .. ' ' .. token)", "set_head(key, entry)"),
    Mutation("a retry loses its key", "add_ready(lane_of(message), text_of(message), message.key)",
             "add_ready(lane_of(message), text_of(message))"),
    Mutation("a delay loses its key", "add_delayed(text_of(message), now + delay_ms * 1000, message.key)",
             "add_delayed(text_of(message), now + delay_ms * 1000)"),
    Mutation("a message stays behind after it is ready",
             "each_part(followed_lines, function(...) redis.call('ZREM', base .. ':key_lines', ...) end)", ""),
    Mutation("a redriven message is ready beside its key",
             "if message.key and (heads[message.key] or heads_of({ message.key })[1]) then", "if false then"),
    Mutation("a take-over from a live consumer",
             "if consumer and not consumer[BLAME] and (consumer[EXPIRES] > now or",
             "if consumer and (consumer[EXPIRES] > now + 1e9 or"),
    Mutation("a consumer lives on after a take-over", "if consumer then put_consumer(holder, consumer) end", ""),
    Mutation("a take-over has a grace", "not consumer[BLAME] and (consumer[EXPIRES] > now or",
             "not consumer[BLAME] and (consumer[EXPIRES] > now - 1e6 or"),
    Mutation("an outage is a death", "(consumer[EXPIRES] > now or may_be_alive(consumer[TTL] * 1000))",
             "consumer[EXPIRES] > now"),
    Mutation("a postponed check does not count",
             "return now < checked or next_check - checked >= math.floor(ttl / 2) end", "return now < checked end"),
    Mutation("a late check does not count",
             "return now - next_check > math.max(math.floor(ttl / 3), CHECK_LATE_US)", "return false"),
    Mutation("a second take-over delivers again", "if holder == token then return", "if false then return"),
    Mutation("a message stays in its lane after a take-over",
             "  redis.call('LREM', base .. ':ready:' .. lane, 1, entry)\n", ""),
    Mutation("dead consumers come back", "return consumer and not consumer[BLAME] and consumer", "return consumer"),
    Mutation("an owner's old messages are blamed", "local new = tonumber(received) >= blame_start(consumer)",
             "local new = true"),
    Mutation("an owner's old messages count as new", "if tonumber(newest[i]) >= start then new = new + 1 end",
             "new = new + 1"),
    Mutation("the blame window ends with the last heartbeat",
             "return consumer[EXPIRES] - ttl - math.floor(ttl / BLAME_WINDOWS_PER_TTL)",
             "return consumer[EXPIRES] - ttl"),
    Mutation("all of an owner's messages from quarantine are blamed", "QUARANTINE and not consumer[KEEPS_MESSAGES]",
             "QUARANTINE"),
    Mutation("an idle consumer gets the whole quarantine", "math.min(tonumber(ARGV[6]), most)", "most"),
    Mutation("no fair share", "elseif ARGV[7] == '1' then", "elseif false then"),
    Mutation("a share is rounded down", "math.ceil(ready / consumers)", "math.floor(ready / consumers)"),
    Mutation("a fast consumer gets most messages", "math.min(math.ceil(ready / consumers), fair)",
             "math.ceil(ready / consumers)"),
    Mutation("messages of others do not count", "math.ceil((ready + held) / consumers)",
             "math.ceil(ready / consumers)"),
    Mutation("a consumer with many messages gets none", "math.max(1, math.min(", "math.max(0, math.min("),
    Mutation("no entry is lost", "if not held then lost[#lost + 1] = known[i] end", ""),
    Mutation("a repeated delivery has a new fence", "answer[5][i] = int(score)", "answer[5][i] = int(now)"),
    Mutation("a lane with messages is forgotten", "if sizes[lane] == 0 then remove_lane(lane) end",
             "remove_lane(lane)"),
    Mutation("the key of a session outlives it",
             "if consumer[ANNOUNCE_EXPIRY] then redis.call('DEL', base .. ':alive:' .. token) end", ""),
    Mutation("a consumer that leaves in steps gets no heartbeat",
             "put_consumer(token, consumer)\n  redis.call('ZREM', base .. ':waiting', token)",
             "redis.call('ZREM', base .. ':waiting', token)"),
    Mutation("a dead consumer gets a new key", "if consumer[ANNOUNCE_EXPIRY] and not consumer[BLAME] then",
             "if consumer[ANNOUNCE_EXPIRY] then"),
]  # fmt: skip


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_the_comparison_finds_a_mistake_in_a_queue_script(one_server, mutation):
    """A comparison that finds no mistake proves nothing: each of these is one changed line."""
    texts = [SCRIPTS[kind].text for kind in commands_of(RuleKind.QUEUE)]
    assert any(mutation.line in text for text in texts), "the line is no longer there"
    twin = QueueTwin(one_server.url, mutation)

    def differs(program):
        try:
            twin.run(program)
        except (Difference, ReplyError):  # a script that fails is noticed too
            return True
        return False

    def found():
        search = settings(
            max_examples=300, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck),
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
