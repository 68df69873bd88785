"""A model of keys against every engine.

Publish, receive, ack, release, crash, expire and take over, in any order (T37).

The model is not the rules. It knows no lanes, places or attempts: only the unfinished messages of each key, their
holders, and which consumers are known to be alive. Every answer of an engine has to fit it.
"""

import itertools
import time

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from holdfast import config
from holdfast.commands import Granted, NotHeld, Renewed
from holdfast.commands.queue import (
    ACK,
    HELD,
    RELEASE,
    ConsumerHeartbeat,
    Join,
    MessageOutcome,
    NewMessage,
    NotTakenOver,
    Publish,
    Receive,
    Received,
    ReclaimExpired,
    RecordOutcomes,
    TakeOver,
)
from holdfast.commands.queue_admin import GetStats, ListConsumers
from holdfast.engines import open_engine
from holdfast.rules.queue import consumers
from holdfast.rules.queue import messages as queue
from holdfast.rules.queue.memory_state import MemoryQueueState
from holdfast.testing.conformance.faults import Peer

pytestmark = pytest.mark.capability("queues")

LONG_MS = 600_000
OVER_S = 0.004
OFTEN = 1_000_000  # attempts: no message becomes a dead letter here
KEYS = ("k", "l")
WHICH = st.integers(0, 9)
ROUNDS = settings(max_examples=25, stateful_step_count=40, deadline=None)
numbers = itertools.count(1)


class Keys(RuleBasedStateMachine):
    """Everything that may be true of a queue, on any engine."""

    def __init__(self, peers):
        super().__init__()
        self.peers, self.name, self.number = peers, f"model {next(numbers)}", itertools.count(1)
        self.lines = {}  # by key: the published and unfinished messages, the oldest first
        self.fences = {}  # by key: the last one
        self.holders = {}  # by key: the consumer that received its first message, and has not finished it
        self.has = {}  # by consumer, by key: its deliveries
        self.sure, self.late, self.dead = set(), set(), set()  # consumers: live; expired but not declared dead; dead
        for _ in range(3):
            self.join()
        self.publish([*KEYS, *KEYS, ""])

    def say(self, token, command):
        return self.peers[int(token) % len(self.peers)].say(command)

    def one_of(self, which, *groups):
        tokens = sorted(set().union(*groups), key=int)
        return tokens[which % len(tokens)]

    # Steps.

    @rule(keys=st.lists(st.sampled_from((*KEYS, "")), min_size=1, max_size=4))
    def publish(self, keys):
        drafts = tuple(NewMessage(f"m{next(self.number)}", b"body", key=key) for key in keys)
        assert self.say("0", Publish(self.name, drafts[0].id, drafts)).ids == tuple(each.id for each in drafts)
        for each in drafts:
            self.lines.setdefault(each.key or each.id, []).append(each.id)

    @precondition(lambda self: len(self.has) < 8)
    @rule()
    def join(self):
        token = str(next(self.number))
        assert isinstance(self.say(token, Join(self.name, token, "", token, LONG_MS)), Granted)
        self.sure.add(token)
        self.has[token] = {}

    @rule(which=WHICH, most=st.integers(1, 4))
    def take(self, which, most):
        token = self.one_of(which, self.has)
        answer = self.say(token, Receive(self.name, token, most, quarantine_max=True))
        if token in self.dead:
            assert isinstance(answer, NotHeld)
            return
        self.wake(token)  # any command is a heartbeat
        free = [key for key, line in self.lines.items() if line and key not in self.holders]
        assert bool(answer.deliveries) == bool(free)
        for each in answer.deliveries:
            assert self.key_of(each) in free
            self.given(token, each)

    def wake(self, token):
        assert self.say(token, ConsumerHeartbeat(self.name, token, LONG_MS)) == Renewed()
        self.late.discard(token)
        self.sure.add(token)

    def key_of(self, delivery):
        return delivery.message.key or delivery.message.id

    def given(self, token, delivery):
        """Check a delivery: the first message of its key, with a new fence."""
        key = self.key_of(delivery)
        assert delivery.message.id == self.lines[key][0], "not in the order of sending"
        assert self.holders.get(key) not in self.sure, "two have it"
        assert delivery.fence > self.fences.get(key, 0), "an old fence"
        self.fences[key], self.holders[key], self.has[token][key] = delivery.fence, token, delivery

    @rule(which=WHICH, key=st.sampled_from(KEYS), kind=st.sampled_from((ACK, ACK, RELEASE)))
    def end(self, which, key, kind):
        """Ack or release: only the consumer that holds the message may do it, and only until it is declared dead."""
        token = self.one_of(which, self.has)
        for one in [key] if key in self.has[token] else [*self.has[token]][:1]:
            entry = self.has[token].pop(one).entry
            answer = self.say(
                token, RecordOutcomes(self.name, token, (MessageOutcome(entry, kind, keyed=one in KEYS),))
            )
            assert answer.lost == ((entry,) if token in self.dead else ())
            if token not in self.dead:
                del self.holders[one]
                if kind == ACK:
                    self.lines[one].pop(0)

    @precondition(lambda self: self.sure)
    @rule(which=WHICH)
    def expire(self, which):
        self.lapse(self.one_of(which, self.sure))

    def lapse(self, token):
        assert self.say(token, ConsumerHeartbeat(self.name, token, 1)) == Renewed()
        time.sleep(OVER_S)
        self.sure.discard(token)
        self.late.add(token)

    @rule(which=WHICH, key=st.sampled_from(KEYS))
    def expire_and_take_over(self, which, key):
        holder = self.holders.get(key)
        if holder in self.sure:
            self.lapse(holder)
        self.take_over(which, key)

    @precondition(lambda self: self.late)
    @rule(which=WHICH)
    def wake_late(self, which):
        self.wake(self.one_of(which, self.late))

    @rule()
    def crash(self):
        """Reclaim: all expired consumers are dead, and any consumer may receive their messages."""
        while not (looked := self.say("0", ReclaimExpired(self.name, 1, 0, 1, OFTEN))).checked or looked.postponed:
            time.sleep(looked.next_ms / 1000)
        self.dead |= self.late
        self.late.clear()
        self.holders = {key: token for key, token in self.holders.items() if token in self.sure}
        assert {each.token for each in self.say("0", ListConsumers(self.name, 100)).consumers} == self.sure

    @rule(which=WHICH, key=st.sampled_from(KEYS))
    def take_over(self, which, key):
        token = self.one_of(which, self.sure or {"0"}, self.dead)
        answer = self.say(token, TakeOver(self.name, token, key, OFTEN))
        holder = self.holders.get(key)
        if token not in self.sure:
            assert isinstance(answer, NotHeld)
        elif not self.lines.get(key):
            assert answer == NotTakenOver("")
        elif holder == token:
            assert answer.deliveries == (self.has[token][key],)
        elif holder in self.sure:
            assert answer == NotTakenOver(HELD, holder, self.fences[key])
        else:
            assert isinstance(answer, Received)
            (delivery,) = answer.deliveries
            self.given(token, delivery)
            if holder in self.late:
                self.late.discard(holder)
                self.dead.add(holder)

    # Invariants.

    @invariant()
    def it_is_sound(self):
        assert self.peers[0].audit(self.name) == (sum(map(len, self.lines.values())), ())

    def teardown(self):
        """Check that nothing is lost: when all consumers are dead, a new one receives everything."""
        while self.sure:
            self.expire(0)
        self.crash()
        self.join()
        (successor,) = self.sure
        while any(self.lines.values()):
            self.take(self.place_of(successor), 4)
            while self.has[successor]:
                self.end(self.place_of(successor), "", ACK)
        left = self.say("0", GetStats(self.name))
        assert (*left[:5], left.behind) == (0,) * 6

    def place_of(self, token):
        return sorted(self.has, key=int).index(token)


def test_whatever_happens_a_key_has_one_owner_at_a_time_and_nothing_is_lost(engine):
    """One owner per key, in the order of publication; the fences of a key only grow; dead consumers stay dead."""
    peers = engine.peer(), engine.peer()
    run_state_machine_as_test(lambda: Keys(peers), settings=ROUNDS)


def alive(monkeypatch, answer):
    monkeypatch.setattr(consumers, "_is_alive", lambda *_: answer)


def never_next(monkeypatch):
    for home in (queue, consumers):
        monkeypatch.setattr(home, "free_key", lambda *_: False)


def dead_are_accepted(monkeypatch):
    for home in (queue, consumers):
        monkeypatch.setattr(home, "live_consumer", lambda state, token: state.get_consumer(token))


MISTAKES = {
    "all of a key are ready": lambda patch: patch.setattr(MemoryQueueState, "key_head", lambda *_: None),
    "a message that is taken over stays in its lane": lambda patch: patch.setattr(
        MemoryQueueState, "remove_ready", lambda *_: None
    ),
    "a fence is old": lambda patch: patch.setattr(consumers, "next_fence", lambda *_: 5),
    "a live consumer loses its message": lambda patch: alive(patch, False),
    "an expired consumer keeps its message": lambda patch: alive(patch, True),
    "a reclaim loses messages": lambda patch: patch.setattr(MemoryQueueState, "list_held", lambda *_: []),
    "the next is never ready": never_next,
    "a dead consumer is accepted": dead_are_accepted,
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_model_notices_a_mistake_in_the_rules_of_keys(mistake, monkeypatch):
    """A model is worth what it catches: each of these mistakes would be one line in a review."""
    peer = Peer(open_engine(config.settings("memory://a law with a mistake")))
    MISTAKES[mistake](monkeypatch)
    quick = settings(ROUNDS, phases=[Phase.generate], derandomize=True, database=None, report_multiple_bugs=False)
    with pytest.raises((AssertionError, ValueError, LookupError)):
        run_state_machine_as_test(lambda: Keys([peer]), settings=quick)
    peer.close()
