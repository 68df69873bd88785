"""Queues as rows behave like `MemoryQueueState`: same answers, places and wake-ups, at any time (T37).

The same rules run on both sides; the states that they work on are compared.
"""

import random
import sqlite3
import sys

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from holdfast.commands.queue import (
    ACK,
    BEHIND,
    DELAYED,
    HELD,
    QUARANTINE,
    READY,
    REJECT,
    RELEASE,
    RETRY,
    VERIFY,
    ConsumerHeartbeat,
    DeadLetterPage,
    GetDeadLetter,
    Join,
    Leave,
    ListDeadLetters,
    ListKeys,
    MessageOutcome,
    NewMessage,
    OutcomesRecorded,
    Publish,
    Purge,
    Receive,
    Received,
    ReclaimExpired,
    RecordOutcomes,
    Redrive,
    TakeOver,
)
from holdfast.commands.queue_admin import CheckConsistency, GetStats, ListConsumers, Peek
from holdfast.engines.sqlite import queue as queues
from holdfast.engines.sqlite.queue import StoredQueue
from holdfast.engines.sqlite.queue_tables import SCHEMA
from holdfast.rules import Moment
from holdfast.rules.queue import consumers
from holdfast.rules.queue.memory_state import MemoryQueueState
from holdfast.rules.table import RULES

NAME = "one queue"
MEMORY_US = 60_000_000
START_US = 1_700_000_000_000_000
BOOTED_US = START_US - 3_600_000_000  # where the clock that never jumps began
CLIENTS = ("1", "2", "3")
TOKENS = tuple(f"{client}{letter}" for client in CLIENTS for letter in "ab")
INSPECTIONS = (
    GetStats(NAME),
    ListConsumers(NAME, 3),
    ListConsumers(NAME, 200),
    CheckConsistency(NAME),
    ListDeadLetters(NAME, "", 2),
    ListDeadLetters(NAME, "", 200),
    Peek(NAME, READY, 200),
    Peek(NAME, READY, 2, "high"),
    Peek(NAME, READY, 200, QUARANTINE),
    Peek(NAME, DELAYED, 200),
    Peek(NAME, HELD, 3),
    Peek(NAME, HELD, 200),
    Peek(NAME, BEHIND, 2),
    Peek(NAME, BEHIND, 200),
)
JUMPS = (0, 0, 1, 100_000, 200_000, 700_000, 3_200_000, 61_000_000, -5_000_000)
JUMPS_US = st.sampled_from(JUMPS)
CALLS = st.sampled_from(["", "", "letters 1", "letters 2"])
OUTCOMES = st.tuples(
    st.integers(1, 4), st.sampled_from([ACK, RETRY, RELEASE, REJECT, VERIFY]), st.sampled_from([0, 0, 400])
)
KEYS = st.sampled_from(["k", "ł"])
DRAFTS = st.tuples(
    st.sampled_from([0, 0, 0, 300]),
    st.sampled_from(["", "", "x"]),
    st.sampled_from(["", "", "high"]),
    KEYS | st.just(""),
)
PLAIN = (0, "", "", "")
LANES = (("",), ("high", ""), ("", "high"), ("high", "", "low"))


class Both(RuleBasedStateMachine):
    """One queue as rows and in memory, under a clock that the test moves. Reclaims work in small parts."""

    def __init__(self):
        super().__init__()
        self.small = pytest.MonkeyPatch()
        self.small.setattr(consumers, "BATCH_MAX", 2)
        self.small.setattr(consumers, "COSTLY_BATCH_MAX", 3)
        self.now_us, self.gone = START_US, frozenset()
        self.state, self.sent, self.calls = MemoryQueueState(), 0, 0
        self.theirs, self.ours, self.had, self.ids = {}, {}, {}, []
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        self.connection.executescript(SCHEMA)

    def teardown(self):
        self.connection.close()
        self.small.undo()

    # Commands.

    @initialize()
    def begin(self):
        for token in ("1a", "2a"):
            self.send(token, Join(NAME, token, "owner", f"läbel {token}", 3000))
        self.publish(0, [PLAIN] * 4, 0, False)

    @rule(
        jump_us=JUMPS_US,
        drafts=st.lists(DRAFTS, min_size=1, max_size=3),
        bound=st.sampled_from([0, 0, 6]),
        again=st.booleans(),
    )
    def publish(self, jump_us, drafts, bound, again):
        self.move(jump_us)
        self.calls += not again
        made = []
        for delay_ms, dedup, lane, key in drafts:
            self.sent += 1
            self.ids.append(f"ïd{self.sent}")
            body = bytes((self.sent % 256, 255, 0)) * (self.sent % 3)
            window_ms, wait_ms = 700 if dedup else 0, 0 if key else delay_ms
            made.append(NewMessage(self.ids[-1], body, "{}", wait_ms, dedup, window_ms, key, lane))
        self.send("1a", Publish(NAME, f"call {self.calls}", tuple(made), bound))

    @rule(
        jump_us=JUMPS_US,
        token=st.sampled_from(TOKENS),
        ttl_ms=st.sampled_from([200, 3000, 20_000]),
        keeps_messages=st.booleans(),
    )
    def join(self, jump_us, token, ttl_ms, keeps_messages):
        self.move(jump_us)
        self.send(token, Join(NAME, token, "owner", f"läbel {token}", ttl_ms, keeps_messages))

    @rule(jump_us=JUMPS_US, token=st.sampled_from(TOKENS))
    def heartbeat(self, jump_us, token):
        self.move(jump_us)
        self.send(token, ConsumerHeartbeat(NAME, token, 3000))

    @rule(token=st.sampled_from(TOKENS))
    def leave(self, token):
        self.send(token, Leave(NAME, token))

    @rule(
        jump_us=JUMPS_US,
        token=st.sampled_from(TOKENS),
        most=st.sampled_from([0, 1, 2, 9]),
        wait=st.booleans(),
        idle=st.booleans(),
        known=st.sampled_from([None, None, 1, 9]),
        lanes=st.sampled_from(LANES),
        share=st.booleans(),
        unseen=st.sampled_from([None, None, 0, 1, 9]),
    )
    def receive(self, jump_us, token, most, wait, idle, known, lanes, share, unseen=None):
        self.move(jump_us)
        entries = None if known is None else tuple(self.had.get(token, ())[:known])
        fences = [each.fence for each in self.state.newest_held(token, 200)]
        seen = -1 if unseen is None else [*fences[unseen:], 0][0]
        self.send(token, Receive(NAME, token, most, wait, idle, entries, lanes, share, seen))

    @rule(
        token=st.sampled_from(TOKENS),
        outcomes=st.lists(OUTCOMES, min_size=1, max_size=3),
        dead_max=st.sampled_from([0, 2]),
        resent=st.booleans(),
    )
    def record_outcomes(self, token, outcomes, dead_max, resent=False):
        had = self.had.get(token, ())
        made = tuple(
            MessageOutcome(had[-at] if at <= len(had) else "none", kind, delay_ms, "réason", "")
            for at, kind, delay_ms in outcomes
        )
        self.send(token, RecordOutcomes(NAME, token, made, dead_max, resent))

    @rule(jump_us=JUMPS_US, gone=st.sets(st.sampled_from(CLIENTS), max_size=1), dead_max=st.sampled_from([0, 0, 1]))
    def reclaim(self, jump_us, gone, dead_max):
        self.move(jump_us)
        self.gone = frozenset(gone)
        self.send("1a", ReclaimExpired(NAME, 500, 200, 1000, 2, dead_max))
        self.gone = frozenset()

    @rule(
        jump_us=JUMPS_US,
        token=st.sampled_from(TOKENS),
        key=KEYS,
        gone=st.sets(st.sampled_from(CLIENTS), max_size=1),
        attempts_max=st.sampled_from([1, 2, 9]),
    )
    def take_over(self, jump_us, token, key, gone, attempts_max):
        self.move(jump_us)
        self.gone = frozenset(gone)
        self.send(token, TakeOver(NAME, token, key, attempts_max, 2))
        self.gone = frozenset()

    @rule(token=st.sampled_from(TOKENS), limit=st.sampled_from([1, 100]))
    def list_keys(self, token, limit):
        self.send("1a", ListKeys(NAME, token, limit))

    @rule(which=st.lists(st.integers(1, 6), min_size=1, max_size=3), reset=st.booleans(), call=CALLS)
    def redrive(self, which, reset, call):
        self.send("1a", Redrive(NAME, self.some(which), reset, call))

    @rule(which=st.lists(st.integers(1, 6), min_size=1, max_size=3), call=CALLS)
    def purge(self, which, call):
        self.send("1a", Purge(NAME, self.some(which), call))

    @rule(which=st.integers(1, 6))
    def get(self, which):
        self.send("1a", GetDeadLetter(NAME, *self.some([which])))

    # Both sides.

    @invariant()
    def all_inspections_are_equal(self):
        for inspection in INSPECTIONS:
            seen = self.by_rule(self.state, "3", inspection)
            assert self.by_rows("3", inspection) == seen, inspection
            if isinstance(seen.answer, DeadLetterPage) and seen.answer.last:
                rest = inspection._replace(after=seen.answer.last)
                assert self.by_rows("3", rest) == self.by_rule(self.state, "3", rest), rest

    def some(self, which):
        return tuple(self.ids[-at] if at <= len(self.ids) else "none" for at in which)

    def move(self, jump_us):
        self.now_us += jump_us
        for state in (self.state, StoredQueue(self.connection.cursor(), NAME)):
            state.earlier_result("", self.now_us)  # ended results are gone for good, even if the clock is set back now

    def send(self, token, command):
        expected, wakeups = self.by_rule(self.state, token[0], command)
        answer, woken = self.by_rows(token[0], self.translated(command))
        if isinstance(expected, Received):
            for one, other in zip(expected.deliveries, answer.deliveries, strict=True):
                assert self.theirs.setdefault(one.entry, other.entry) == other.entry
                assert self.ours.setdefault(other.entry, one.entry) == one.entry
                if one.entry not in self.had.setdefault(token, []):
                    self.had[token].append(one.entry)
        assert (self.translated(expected), wakeups) == (answer, woken), command

    def by_rule(self, state, client, command):
        moment = Moment(self.now_us - BOOTED_US, self.now_us, client, self.gone)
        return RULES[type(command)].apply(state, command, moment)

    def by_rows(self, client, command):
        state = StoredQueue(self.connection.cursor(), NAME)
        result = self.by_rule(state, client, command)
        state.save(self.now_us, MEMORY_US)
        return result

    def translated(self, message):
        """Return the command or answer with the entries of the rows."""
        theirs = self.theirs
        if isinstance(message, Receive) and message.known_entries is not None:
            return message._replace(known_entries=tuple(theirs[entry] for entry in message.known_entries))
        if isinstance(message, RecordOutcomes):
            outcomes = (each._replace(entry=theirs.get(each.entry, each.entry)) for each in message.outcomes)
            return message._replace(outcomes=tuple(outcomes))
        if isinstance(message, OutcomesRecorded):
            return OutcomesRecorded(tuple(theirs.get(entry, entry) for entry in message.lost))
        if isinstance(message, Received):
            deliveries = tuple(each._replace(entry=theirs[each.entry]) for each in message.deliveries)
            return message._replace(deliveries=deliveries, lost=tuple(theirs[entry] for entry in message.lost))
        return message


TestBoth = Both.TestCase
TestBoth.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)

MISTAKES = {
    "an entry is used again": ("SCHEMA", "entry INTEGER PRIMARY KEY AUTOINCREMENT", "entry INTEGER PRIMARY KEY"),
    "last in, first out": ("_READY", "ORDER BY entry", "ORDER BY entry DESC"),
    "lanes are mixed": ("_READY", "AND lane = ?", "AND lane <= ?"),
    "the consumer of a message does not matter": ("_FIND_HELD", "consumer = ?", "consumer <> ?"),
    "a delay ends too early": ("_DUE_NOW", "due_us <= ?", "due_us - 300000 <= ?"),
    "the last to expire comes first": ("_SOONEST", "ORDER BY expires_us", "ORDER BY expires_us DESC"),
    "expired consumers are not found": ("_EXPIRED", "expires_us <= ?", "expires_us < ?"),
    "dead clients are not found": ("_OF_CLIENT", "client = ?", "client <> ?"),
    "a heartbeat ends the wait": ("_PUT_CONSUMER", "SET (ttl_ms", "SET waiting = NULL, (ttl_ms"),
    "a resend moves the waiter back": ("_ADD_WAITING", "AND waiting IS NULL", ""),
    "the newest dead letter is evicted first": ("_EVICT", "ORDER BY place", "ORDER BY place DESC"),
    "a page begins with the last of the one before": ("_DEAD_LETTERS", "place > ?", "place >= ?"),
    "published keys are not remembered": ("_RESULT", "until_us > ?", "until_us < ?"),
    "a message behind is a head too": ("_HEAD", "AND place <> 'behind'", ""),
    "any key is as good": ("_HEAD", "key = ?", "key >= ?"),
    "the last in line comes next": ("_NEXT_OF_KEY", "ORDER BY entry", "ORDER BY entry DESC"),
    "messages behind are listed by key": ("_BEHIND", "ORDER BY entry", "ORDER BY key, entry"),
    "held messages are in the order of entries": ("_HELD_BY", "ORDER BY fence, entry", "ORDER BY entry"),
    "held entries are in the order of entries": ("_HELD_ENTRIES", "ORDER BY fence, entry", "ORDER BY entry"),
    "the oldest are the newest": ("_NEWEST", "fence DESC, entry DESC", "fence, entry"),
    "a delivery is dated by its fence": ("_DELIVER", "fence, received_us) =", "received_us, fence) ="),
    "the blame is forgotten": ("_PUT_CONSUMER", "excluded.blame)", "'')"),
}


def walk(by):
    """Run a random program of the machine above, without Hypothesis, which searches longer than this takes."""
    both = Both()
    try:
        both.begin()
        for _ in range(60):
            move, token, number = by.choice(MOVES), by.choice(TOKENS), by.choice((1, 1, 2, 3, 4))
            move(both, by, token, number)
            both.all_inspections_are_equal()
    finally:
        both.teardown()


def wait_in_line():
    """A waiting consumer keeps its place, whatever it sends meanwhile."""
    both = Both()
    try:
        both.begin()
        both.join(0, "1b", 3000, keeps_messages=False)
        both.receive(0, "1a", 9, False, False, None, ("",), False)
        for token in ("2a", "1b", "2a"):
            both.receive(0, token, 1, True, False, None, ("",), False)
        both.heartbeat(0, "2a")
        both.publish(0, [PLAIN], 0, False)
    finally:
        both.teardown()


def die_late():
    """A consumer that keeps messages dies with old ones and a new one; between two reclaims it sends heartbeats."""
    both = Both()
    try:
        both.begin()
        both.join(0, "3a", 3000, keeps_messages=True)
        both.receive(0, "3a", 3, False, False, None, ("",), False)
        both.heartbeat(2_000_000, "3a")
        both.heartbeat(2_000_000, "3a")
        both.receive(0, "3a", 1, False, False, None, ("",), False)
        both.heartbeat(3_300_000, "1a")
        both.heartbeat(0, "2a")
        for _ in range(3):
            both.reclaim(0, set(), 0)
            both.all_inspections_are_equal()
            both.heartbeat(0, "3a")
    finally:
        both.teardown()


MOVES = (
    lambda both, by, _, number: both.publish(
        by.choice(JUMPS),
        [(by.choice((0, 0, 300)), by.choice(("", "x")), by.choice(("", "high")), by.choice(("", "", "k", "ł")))]
        * number,
        0,
        False,
    ),
    lambda both, by, token, _: both.join(by.choice(JUMPS), token, by.choice((200, 3000)), by.random() < 0.5),
    lambda both, by, token, number: both.receive(
        0,
        token,
        number,
        by.random() < 0.5,
        by.random() < 0.5,
        by.choice((None, None, 0, 1)),
        by.choice(LANES),
        by.random() < 0.2,
    ),
    lambda both, by, token, _: both.take_over(by.choice(JUMPS), token, by.choice("kł"), set(), 2),
    lambda both, _, token, number: both.list_keys(token, number),
    lambda both, by, token, number: both.record_outcomes(
        token, [(at + 1, by.choice((ACK, RETRY, RELEASE, REJECT)), by.choice((0, 400))) for at in range(number)], 2
    ),
    lambda both, by, token, _: both.heartbeat(by.choice(JUMPS), token),
    lambda both, by, token, _: both.reclaim(by.choice(JUMPS), {token[0]} if by.random() < 0.2 else set(), 0),
    lambda both, _, __, number: both.redrive([number], reset=False, call=""),
)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_rows_of_a_queue_is_noticed(mistake, monkeypatch):
    """The comparison catches each of these mistakes, every one of which is one line."""
    constant, right, wrong = MISTAKES[mistake]
    home = sys.modules[__name__] if constant == "SCHEMA" else queues
    text = getattr(home, constant)
    assert right in text, "the line is no longer there"
    monkeypatch.setattr(home, constant, text.replace(right, wrong))
    with pytest.raises((AssertionError, ValueError, LookupError, sqlite3.Error)):
        wait_in_line()
        die_late()
        for seed in range(60):
            walk(random.Random(seed))
