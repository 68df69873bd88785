"""Every script of a queue does what its rule says: same answers, same places, same wake-ups, at any time (T37)."""

import hypothesis
import mutations
import pytest
from hiredis import ReplyError
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample
from queue_twin import CLIENTS, QueueTwin, Said
from script_twin import Difference

from holdfast.commands.queues import (
    ACK,
    DEAD,
    RELEASE,
    RETRY,
    TOUCH,
    Beat,
    Conclude,
    GetDead,
    Join,
    Leave,
    Publish,
    Purge,
    Reap,
    Redrive,
    Take,
)
from holdfast.engines.redis.scripts import ENTRIES
from holdfast.rules.letters import QUEUE_RULES

TOKENS = tuple(f"{client}{number}" for client in CLIENTS for number in (1, 2))
TTLS_MS = (200, 3000, 20_000)
JUMPS_US = (0, 0, 0, 0, 0, 0, 1, 100_000, 199_999, 200_000, 500_000, 700_000, 3_200_000, 61_000_000, -5_000_000)
INTERVAL_MS, GRACE_MS, AMNESTY_MS = 500, 200, 1000
LANES = (("",), ("", ""), ("high", ""), ("", "high"))
FOUR = tuple((at, ACK, 0, "") for at in (1, 2, 3, 4))


def join(after_us, *tokens, ttl_ms=3000):
    return [Said(after_us, Join, token, ttl_ms) for token in tokens]


def send(after_us, *drafts, call=None, bound=0, many=0):
    drafts = drafts or ((0, "", ""),) * (many or 1)
    return Said(after_us, Publish, "c1", (call or f"call {id(drafts)}", bound, drafts))


def take(after_us, token, most=1, wait=False, idle=False, known=None, lanes=("",)):
    return Said(after_us, Take, token, (most, wait, idle, known, lanes))


def end(after_us, token, *outcomes, dead_max=0):
    """What becomes of the last ones that it had, counted from the newest."""
    return Said(after_us, Conclude, token, (outcomes or ((1, ACK, 0, ""),), dead_max))


def reap(after_us, attempts=2, dead_max=0):
    return Said(after_us, Reap, "c1", (INTERVAL_MS, GRACE_MS, AMNESTY_MS, attempts, dead_max))


def looks(ms, *alive, attempts=2):
    """Looks at every interval, while these live."""
    steps = []
    for _ in range(0, ms, INTERVAL_MS):
        steps += [Said(0, Beat, token, 3000) for token in alive]
        steps.append(reap(INTERVAL_MS * 1000, attempts))
    return steps


# How dead letters are sent again: with a call's token, or without one.
HOW = ((True,), (False,), (True, "r1"), (False, "r2"))


def sayings(token):
    """All that one token may say; what happens often stands here often."""
    drafts = [((0, "", ""),), ((0, "", ""),) * 3, ((0, "x", ""),), ((300, "", ""), (0, "x", "")), ((0, "", "high"),)]
    publishes = [(Publish, (f"call {n}", bound, each)) for n in range(9) for bound in (0, 0, 4) for each in drafts]
    takes = [
        (Take, (most, wait, idle, known, lanes))
        for most in (0, 1, 2, 9)
        for wait in (True, False)
        for idle in (True, False)
        for known in (None, None, None, 1, 9)
        for lanes in LANES
    ]
    outcomes = [
        (Conclude, (tuple((at, kind, delay_ms, error) for at in which), dead_max))
        for which in ((1,), (1, 1), (1, 2, 3))
        for kind in (ACK, ACK, RETRY, RELEASE, DEAD, TOUCH)
        for delay_ms in (0, 0, 400)
        for error in ("", "érror")
        for dead_max in (0, 2)
    ]
    joins = [(Join, ttl_ms) for ttl_ms in TTLS_MS] * 30
    beats = [(Beat, ttl_ms) for ttl_ms in TTLS_MS] * 8
    reaps = [(Reap, (INTERVAL_MS, GRACE_MS, AMNESTY_MS, 2, dead_max)) for dead_max in (0, 0, 1)] * 12
    letters = [(Redrive, (ids, reset, *call)) for ids in ((1,), (1, 2, 1), (9,)) for reset, *call in HOW] * 3
    rest = [(Purge, ((1,),)), (Purge, ((2, 2, 9), "p1")), (GetDead, ((1,),)), (GetDead, ((5,),)), *[(Leave, ())] * 12]
    return [*publishes, *takes, *outcomes, *joins, *beats, *reaps, *letters, *rest]


STEPS = [Said(jump, kind, token, words) for token in TOKENS for kind, words in sayings(token) for jump in JUMPS_US]
PROGRAMS = st.one_of(
    *(
        st.lists(st.sampled_from(STEPS), min_size=least, max_size=least + 20).map(
            lambda steps: [*join(0, "a1", "b1"), send(0, many=4, call="first"), *steps]
        )
        for least in (1, 25)
    )
)
_CRASH = [*join(0, "a1", "b2"), send(0, many=3, call="1")]

WITNESSES = {
    "first in, first out": [
        *join(0, "a1"), send(0, many=3, call="1"), take(0, "a1", 2), take(0, "a1", 2), end(0, "a1"),
    ],
    "whoever waits is rung": [
        *join(0, "a1", "b1"), take(0, "a1", wait=True), take(0, "b1", wait=True), take(0, "a1", wait=True),
        send(0, call="1"), take(0, "a1"), take(0, "a1", wait=True), send(0, many=3, call="2"), take(0, "b1"),
    ],
    "more is left than was taken": [
        *join(0, "a1", "b1"), take(0, "b1", wait=True, lanes=("high",)), send(0, (0, "", "high"), (0, "", "high"),
        call="1"), take(0, "b1", wait=True, lanes=("",)), take(0, "a1", lanes=("high", "")),
    ],
    "the late are not rung": [
        *join(0, "a1", "b1", ttl_ms=200), take(0, "a1", wait=True), take(100_000, "b1", wait=True),
        Said(0, Beat, "b1", 3000), send(100_000, many=2, call="1"), take(200_000, "a1", wait=True),
    ],
    "a copy of a publish": [
        *join(0, "a1"), send(0, call="1"), send(0, call="1"), send(59_999_000, call="1"), send(1_000, call="1"),
    ],
    "a key that was used": [
        send(0, (0, "x", ""), (0, "x", ""), call="1"), send(699_999, (0, "x", ""), call="2"),
        send(1, (0, "x", ""), call="3"),
    ],
    "a bound": [
        *join(0, "a1"), send(0, many=3, bound=4, call="1"), send(0, many=2, bound=4, call="2"), take(0, "a1", 3),
        send(0, many=2, bound=4, call="2"), end(0, "a1"), send(0, many=2, bound=4, call="2"),
        send(0, (300, "", ""), call="3", bound=4),
    ],
    "delays": [
        *join(0, "a1"), send(0, (300, "", ""), (200, "", "high"), (300, "", ""), call="1"), take(199_999, "a1", 9),
        take(1, "a1", 9, lanes=("", "high")), take(100_000, "a1", 9), end(0, "a1", (1, RETRY, 400, "e")),
        take(399_999, "a1", idle=True), take(1, "a1"), end(0, "a1", (1, RELEASE, 400, "")), take(400_000, "a1"),
    ],
    "all that may become of it": [
        *join(0, "a1"), send(0, many=4, call="1"), take(0, "a1", 4),
        end(0, "a1", (4, ACK, 0, ""), (3, RETRY, 0, "oh"), (2, RELEASE, 0, ""), (1, DEAD, 0, "")),
        end(0, "a1", (4, ACK, 0, ""), (9, TOUCH, 0, "")), take(0, "a1", 4), end(0, "a1", (1, TOUCH, 0, ""),
        (1, DEAD, 0, "no"), (2, DEAD, 0, "")), Said(0, GetDead, "a1", ((1,),)),
        Said(0, GetDead, "a1", ((3,),)),
    ],
    "no more letters than that": [
        *join(0, "a1"), send(0, many=4, call="1"), take(0, "a1", 4),
        end(0, "a1", *((at, DEAD, 0, "") for at in (4, 3, 2)), dead_max=2), end(1, "a1", (1, DEAD, 0, ""), dead_max=1),
    ],
    "an answer was lost": [
        *join(0, "a1"), send(0, many=4, call="1"), take(0, "a1", 2), take(0, "a1", 9, known=1),
        take(0, "a1", 9, known=2), take(0, "a1", 1, known=0), take(0, "a1", 9, known=9),
    ],
    "a consumer leaves": [
        *join(0, "a1", "b1"), send(0, many=3, call="1"), take(0, "a1", 2), take(0, "b1", 9), take(0, "b1", wait=True),
        Said(0, Leave, "a1"), Said(0, Leave, "a1"), take(0, "b1", 9), end(0, "a1", *FOUR),
        take(0, "a1"), Said(0, Beat, "a1", 200), Said(0, Leave, "b1"),
        *join(0, "a2"), take(0, "a2", wait=True, lanes=("high",)), Said(0, Leave, "a2"),
    ],
    "a consumer dies alone": [
        *join(0, "a1", "b2"), send(0, call="1"), take(0, "a1"), reap(0), *looks(3500, "b2"), take(0, "b2"),
        end(0, "a1"), *join(0, "a2"), end(0, "b2", (1, RELEASE, 0, "")), take(0, "a2"), *looks(3500, "b2"),
    ],
    "a consumer dies in company": [
        *_CRASH, take(0, "a1", 3), reap(0), *looks(3500, "b2"), *join(0, "a2"), take(0, "a2", 3), *looks(3500, "b2"),
        take(0, "b2", 3), take(0, "b2", 3, idle=True), end(0, "b2", (1, RETRY, 0, "")), take(0, "b2", 3, idle=True),
        *join(0, "c1"), take(0, "c1", 3), take(30_000_000, "c1"), take(0, "b2", wait=True),
    ],
    "a suspect that kills is dead": [
        *_CRASH, take(0, "a1", 3), reap(0), *looks(3500, "b2"), *join(0, "a2"), take(0, "a2", 3), *looks(3500, "b2"),
        *join(0, "c1"), take(0, "c1", 1, idle=True), *looks(3500, "b2"), *join(0, "c2"), take(0, "c2", 1, idle=True),
        take(0, "c2", 1, idle=True), take(0, "c2", 1, idle=True), *looks(3500, "b2"), *looks(500, "b2", attempts=1),
        Said(0, Redrive, "b1", ((1, 2, 3), False)), Said(0, Redrive, "b1", ((1, 2, 3), True)),
    ],
    "nobody looked for long": [
        *_CRASH, take(0, "a1", 3), reap(0), reap(10_000_000), reap(500_000), Said(0, Beat, "b2", 3000), reap(600_000),
        reap(0), reap(500_000), reap(500_000), reap(-5_000_000), reap(1_000_000),
    ],
    "more than one look can do": [
        *join(0, "a1", "b2"), *(send(0, many=50, call=f"{n}") for n in range(3)), take(0, "a1", 129), reap(0),
        *looks(3500, "b2"), reap(0), reap(0), reap(0),
    ],
    "letters go again": [
        *join(0, "a1"), send(0, (0, "", "high"), (0, "", ""), call="1"), take(0, "a1", 2, lanes=("high", "")),
        end(0, "a1", (1, DEAD, 0, "e"), (2, DEAD, 0, "")), take(0, "a1", wait=True),
        Said(5, Redrive, "a1", ((1, 1), False, "call 1")), Said(5, Redrive, "a1", ((1, 1), False, "call 1")),
        Said(5, Redrive, "a1", ((1, 2), True)), take(0, "a1", 9),
        end(0, "a1", (1, DEAD, 0, "")), Said(0, Purge, "a1", ((1, 1, 5), "call 2")),
        Said(0, Purge, "a1", ((1, 1, 5), "call 2")), Said(0, Purge, "a1", ((1, 1, 5), "call 3")),
        Said(0, Leave, "a1"), take(0, "a1"),
    ],
    "the queue is forgotten": [
        *join(0, "a1"), send(0, call="1"), take(0, "a1"), end(0, "a1"), Said(0, Leave, "a1"), *join(61_000_000, "a1"),
    ],
}  # fmt: skip


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
    Mutation("an entry of another consumer is concluded", "scores[i] and not dropped", "not dropped"),
    Mutation("a message is concluded twice", "and not dropped[entry]", ""),
    Mutation("a message that failed stays a suspect", "      message.crashes = 0\n      if kind == 'retry'",
             "      if kind == 'retry'"),
    Mutation("a released message loses an attempt", "    if kind == 'release' then\n",
             "    if kind == 'release' then\n      failed(message, '', '', 1, 0)\n"),
    Mutation("neighbours are blamed", "local blamed = alone or lane_of(message) == SUSPECTS", "local blamed = true"),
    Mutation("no grace", "int(now - grace)", "int(now)"),
    Mutation("no amnesty", "local amnesty = looked > 0 and", "local amnesty = false and"),
    Mutation("the rest of a crowd is alone", "  crowded[2][CROWD] = true\n", ""),
    Mutation("a suspect comes in company", "    if not suspect and #found < most", "    if #found < most"),
    Mutation("everybody is asked to drain", "if called ~= token or called_until <= now then", "if false then"),
    Mutation("a letter that goes again stays dead", "redis.call('HDEL', base .. ':dead', unpack(moved, 2))", ""),
    Mutation("the newest letters are dropped", "redis.call('ZRANGE', base .. ':died', 0, over - 1)",
             "redis.call('ZRANGE', base .. ':died', -over, -1)"),
    Mutation("who leaves is still hungry", "  redis.call('ZREM', base .. ':hungry', token)\nend", "end"),
    Mutation("an empty queue stays for ever", "redis.call('SET', base, record, 'PX', ARGV[2])",
             "redis.call('SET', base, record)"),
]  # fmt: skip


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_a_mistake_in_a_script_of_a_queue_is_noticed(one_server, mutation):
    """A comparison is worth what it catches: each of these mistakes would be one line in a review."""
    assert any(mutation.line in ENTRIES[kind].text for kind in QUEUE_RULES), "the line is no longer there"
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
