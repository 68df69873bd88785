"""Every script of a queue does what its rule says: same answers, same places, same wake-ups, at any time (T37)."""

import hypothesis
import mutations
import pytest
from hiredis import ReplyError
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample
from queue_programs import AMNESTY_MS, GRACE_MS, INTERVAL_MS, THREE, WITNESSES, join, keyed, send
from queue_twin import CLIENTS, QueueTwin, Said
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
# From which lanes is taken, and whether no more than a share.
FROM = ((("",), False), (("", ""), False), (("high", ""), False), (("", "high"), True), (THREE, False), (THREE, True))
KEYS = ("k", "kk", "k1")

# How dead letters are sent again: with a call's token, or without one.
HOW = ((True,), (False,), (True, "r1"), (False, "r2"))


def sayings(token):
    """All that one token may say; what happens often stands here often."""
    drafts = [((0, "", ""),), ((0, "", ""),) * 3, ((0, "x", ""),), ((300, "", ""), (0, "x", "")), ((0, "", "high"),)]
    drafts += [
        ((0, "", "", "k"),) * 2,
        ((0, "", "high", "k"), (0, "", "", "kk")),
        ((300, "x", "", "k1"), (0, "", "low")),
    ]
    publishes = [(Publish, (f"call {n}", bound, each)) for n in range(9) for bound in (0, 0, 4) for each in drafts]
    takes = [
        (Receive, (most, wait, idle, known, *lanes))
        for most in (0, 1, 2, 9)
        for wait in (True, False)
        for idle in (True, False)
        for known in (None, None, None, 1, 9)
        for lanes in FROM
    ]
    takes += [
        (Receive, (most, True, False, None, ("",), False, seen)) for most in (0, 1, 9) for seen in (0, 1, 2, 9)
    ] * 6
    outcomes = [
        (RecordOutcomes, (tuple((at, kind, delay_ms, error) for at in which), dead_max))
        for which in ((1,), (1, 1), (1, 2, 3))
        for kind in (ACK, ACK, RETRY, RELEASE, REJECT, VERIFY)
        for delay_ms in (0, 0, 400)
        for error in ("", "érror")
        for dead_max in (0, 2)
    ]
    joins = [(Join, (ttl_ms, keeps, heard)) for ttl_ms in TTLS_MS for keeps in (0, 1) for heard in (0, 1)] * 12
    beats = [(ConsumerHeartbeat, ttl_ms) for ttl_ms in TTLS_MS] * 8
    reaps = [(ReclaimExpired, (INTERVAL_MS, GRACE_MS, AMNESTY_MS, 2, dead_max)) for dead_max in (0, 0, 1)] * 12
    overs = [(TakeOver, (key, attempts, 1)) for key in KEYS for attempts in (1, 2)] * 16
    letters = [(Redrive, (ids, reset, *call)) for ids in ((1,), (1, 2, 1), (9,)) for reset, *call in HOW] * 3
    rest = [
        (Purge, ((1,),)),
        (Purge, ((2, 2, 9), "p1")),
        (GetDeadLetter, ((1,),)),
        (GetDeadLetter, ((5,),)),
        *[(Leave, ())] * 12,
    ]
    return [*publishes, *takes, *outcomes, *joins, *beats, *reaps, *overs, *letters, *rest]


STEPS = [Said(jump, kind, token, words) for token in TOKENS for kind, words in sayings(token) for jump in JUMPS_US]
PROGRAMS = st.one_of(
    *(
        st.lists(st.sampled_from(STEPS), min_size=least, max_size=least + 20).map(
            lambda steps: [*join(0, "a1", "b1"), send(0, many=3, call="1"), keyed(0, "k", "kk", "k", call="2"), *steps]
        )
        for least in (1, 25)
    )
)


@pytest.fixture
def twin(server):
    """Scripts and rules side by side, as they are."""
    twin = QueueTwin(server.url)
    yield twin
    twin.close()


def test_every_script_of_a_queue_does_what_its_rule_says(twin):
    """The law is written twice, in Python and in Lua; nothing else keeps the two from drifting apart."""

    @settings(max_examples=100, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(PROGRAMS)
    def agree(program):
        twin.run(program)

    for program in WITNESSES.values():
        twin.run(program)
    agree()


Mutation = mutations.Mutation
MUTATIONS = [
    Mutation("the dead are rung", "if who and who[ENDS] > now then", "if who then"),
    Mutation("a copy of a publish is sent", "if before then return answer end", "before = nil"),
    Mutation("a bound that is reached is passed", "if size + fresh > tonumber", "if size > tonumber"),
    Mutation("a key is known within one call only after it", "(seen[dedup] or redis", "(redis"),
    Mutation("a forgotten message is given beside new ones", "  forgotten = #found > 0\n", ""),
    Mutation("an entry of another consumer is concluded", "fences[i] and not dropped", "not dropped"),
    Mutation("a message is concluded twice", "and not dropped[entry]", ""),
    Mutation("a message that failed stays a suspect", "      message.crashes = 0\n      if kind == 'retry'",
             "      if kind == 'retry'"),
    Mutation("a released message loses an attempt", "    elseif kind == 'release' then\n",
             "    elseif kind == 'release' then\n      failed(message, '', '', 1, 0)\n"),
    Mutation("neighbours are blamed", "local blamed = new and (who[FALLEN] == LONE or lane_of(message) == SUSPECTS "
             "and not who[KEEPS])",
             "local blamed = new"),
    Mutation("no grace", "int(now - grace)", "int(now)"),
    Mutation("no amnesty", "local amnesty = looked > 0 and", "local amnesty = false and"),
    Mutation("the rest of a crowd is alone", "if crowded then put_member(crowded[1], crowded[2]) end", ""),
    Mutation("a suspect comes in company", "suspect, most, sources[1] = true, 0,",
             "suspect, most, sources[1] = true, most,"),
    Mutation("everybody is asked to drain", "if called ~= token or called_until <= now then", "if false then"),
    Mutation("a letter that goes again stays dead", "redis.call('HDEL', base .. ':dead', unpack(moved, 2))", ""),
    Mutation("the newest letters are dropped", "redis.call('ZRANGE', base .. ':died', 0, over - 1)",
             "redis.call('ZRANGE', base .. ':died', -over, -1)"),
    Mutation("who leaves is still hungry", "  redis.call('ZREM', base .. ':hungry', token)\n  if", "  if"),
    Mutation("an empty queue stays for ever", "redis.call('SET', base, record, 'PX', ARGV[2])",
             "redis.call('SET', base, record)"),
    Mutation("two messages of a key are ready", "if key and (led[key] or firsts[key]) then", "if false then"),
    Mutation("two messages of a key in one call are ready", "(led[key] or firsts[key])", "led[key]"),
    Mutation("nobody follows what is done", "if message then ready = ready + follow(message.key) end", ""),
    Mutation("nobody follows what is dead",
             "        bury(message, reason)\n        ready = ready + follow(message.key)",
             "        bury(message, reason)"),
    Mutation("nobody follows who died with its consumer", "died, ready = died + 1, ready + follow(message.key)",
             "died = died + 1"),
    Mutation("whoever follows is not rung", "ring(moved + ready)", "ring(moved)"),
    Mutation("a key is led for ever", "  lead(key, false)\n", ""),
    Mutation("whoever has a key is not noted", "lead(key, entry .. ' ' .. token)", "lead(key, entry)"),
    Mutation("a retry loses its key", "append(lane_of(message), text_of(message), message.key)",
             "append(lane_of(message), text_of(message))"),
    Mutation("a delay loses its key", "delay(text_of(message), now + delay_ms * 1000, message.key)",
             "delay(text_of(message), now + delay_ms * 1000)"),
    Mutation("who was behind stays there",
             "each_part(left, function(...) redis.call('ZREM', base .. ':lines', ...) end)", ""),
    Mutation("a letter is ready beside its key",
             "if message.key and (firsts[message.key] or leads({ message.key })[1]) then", "if false then"),
    Mutation("whoever lives is robbed", "if who and not who[FALLEN] and (who[ENDS] > now or",
             "if who and (who[ENDS] > now + 1e9 or"),
    Mutation("whoever was robbed lives on", "if who then put_member(holder, who) end", ""),
    Mutation("a take-over has a grace", "not who[FALLEN] and (who[ENDS] > now or",
             "not who[FALLEN] and (who[ENDS] > now - 1e6 or"),
    Mutation("an outage is a death", "(who[ENDS] > now or forgiven(who[TTL] * 1000))", "who[ENDS] > now"),
    Mutation("an amnesty does not count", "return now < looked or look - looked >= math.floor(ttl / 2) end",
             "return now < looked end"),
    Mutation("a late look is none", "return now - look > math.max(math.floor(ttl / 3), LATE_US)", "return false"),
    Mutation("a second take-over takes again", "if holder == token then return", "if false then return"),
    Mutation("what is taken over stays in its lane", "  redis.call('LREM', base .. ':s:' .. lane, 1, entry)\n", ""),
    Mutation("the fallen come back", "return who and not who[FALLEN] and who", "return who"),
    Mutation("an owner's old messages are blamed", "local new = tonumber(taken) >= trial_of(who)", "local new = true"),
    Mutation("an owner's new message has company", "if tonumber(newest[i]) >= trial then new = new + 1 end",
             "new = new + 1"),
    Mutation("a trial ends with the last word", "return who[ENDS] - ttl - math.floor(ttl / TRIALS)",
             "return who[ENDS] - ttl"),
    Mutation("an owner's suspects are all blamed", "SUSPECTS and not who[KEEPS])", "SUSPECTS)"),
    Mutation("whoever is idle gets every suspect", "math.min(tonumber(ARGV[6]), most)", "most"),
    Mutation("the greedy have no share", "elseif ARGV[7] == '1' then", "elseif false then"),
    Mutation("a share is rounded down", "math.ceil(ready / crew)", "math.floor(ready / crew)"),
    Mutation("whoever is fast has most", "math.min(math.ceil(ready / crew), fair)", "math.ceil(ready / crew)"),
    Mutation("what others have counts for nothing", "math.ceil((ready + all) / crew)", "math.ceil(ready / crew)"),
    Mutation("whoever has much gets nothing", "math.max(1, math.min(", "math.max(0, math.min("),
    Mutation("nothing is gone", "if not has then gone[#gone + 1] = said[i] end", ""),
    Mutation("what is given again has a new fence", "answer[5][i] = int(score)", "answer[5][i] = int(now)"),
    Mutation("a lane with messages is forgotten", "if sizes[lane] == 0 then forget_lane(lane) end",
             "forget_lane(lane)"),
    Mutation("a life does not end with its consumer",
             "if who[HEARD] then redis.call('DEL', base .. ':live:' .. token) end", ""),
    Mutation("whoever leaves in steps is not renewed",
             "put_member(token, who)\n  redis.call('ZREM', base .. ':hungry', token)",
             "redis.call('ZREM', base .. ':hungry', token)"),
    Mutation("whoever falls has a new life", "if who[HEARD] and not who[FALLEN] then", "if who[HEARD] then"),
]  # fmt: skip


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_a_mistake_in_a_script_of_a_queue_is_noticed(one_server, mutation):
    """A comparison is worth what it catches: each of these mistakes would be one line in a review."""
    assert any(mutation.line in SCRIPTS[kind].text for kind in commands_of(RuleKind.QUEUE)), "the line is no longer there"
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
