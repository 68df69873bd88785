"""The cost of each command of a stored queue, counted in steps of SQLite's virtual machine: no clock, so no noise."""

import sqlite3

import pytest

from holdfast.commands.queue import (
    ACK,
    BATCH_MAX,
    BEHIND,
    COSTLY_BATCH_MAX,
    RETRY,
    Join,
    MessageOutcome,
    NewMessage,
    Publish,
    Receive,
    ReclaimExpired,
    RecordOutcomes,
    TakeOver,
)
from holdfast.commands.queue_admin import GetStats, Peek
from holdfast.engines.sqlite.queue import StoredQueue
from holdfast.engines.sqlite.queue_tables import SCHEMA
from holdfast.rules import Moment
from holdfast.rules.table import RULES

NAME, START_US, TTL_MS = "q", 1_700_000_000_000_000, 3000
FEW, MANY = 40, 2000
OF_A_KEY = 3


class CountedQueue:
    """A queue in which so many keys have three messages each; a consumer holds a fourth of them."""

    def __init__(self, keys):
        self.now_us, self.steps, self.calls = START_US, 0, 0
        self.link = sqlite3.connect(":memory:", isolation_level=None)
        self.link.executescript(SCHEMA)
        self.send(Join(NAME, "holder", "", "", TTL_MS, keeps_messages=True))
        self.publish(*(f"key {at}" for at in range(keys) for _ in range(OF_A_KEY)))
        for at in range(0, keys // 4, BATCH_MAX):
            self.send(Receive(NAME, "holder", min(BATCH_MAX, keys // 4 - at)))
        self.link.set_progress_handler(self.step, 1)

    def step(self):
        self.steps += 1

    def publish(self, *keys):
        drafts = [NewMessage(f"{self.calls} {at}", b"body", key=key) for at, key in enumerate(keys)]
        for at in range(0, len(drafts), BATCH_MAX):
            self.calls += 1
            self.send(Publish(NAME, f"call {self.calls}", tuple(drafts[at : at + BATCH_MAX])))

    def send(self, command):
        state = StoredQueue(self.link.cursor(), NAME)
        moment = Moment(self.now_us, self.now_us, "1")
        state.concerned(command)
        answer = RULES[type(command)].apply(state, command, moment).answer
        state.save(self.now_us, 1)
        return answer

    def cost(self, command):
        before = self.steps
        answer = self.send(command)
        return self.steps - before, answer

    def costs(self):
        """Return the cost of each command by its name."""
        costs = {}

        def measure(what, command):
            costs[what], answer = self.cost(command)
            return answer

        drafts = (
            NewMessage("behind", b"", key="key 1"),
            NewMessage("first", b"", key="a new key"),
            NewMessage("plain", b""),
        )
        measure("publish", Publish(NAME, "measured", drafts))
        measure("join", Join(NAME, "asker", "", "", 10 * TTL_MS, keeps_messages=True))
        one, two = measure("receive", Receive(NAME, "asker", 2)).deliveries
        measure(
            "receive a share",
            Receive(NAME, "asker", 1, fair_share=True, lanes=("high", "", "low"), known_entries=(one.entry, two.entry)),
        )
        measure(
            "record outcomes",
            RecordOutcomes(NAME, "asker", (MessageOutcome(one.entry, ACK), MessageOutcome(two.entry, RETRY))),
        )
        measure("take over what is ready", TakeOver(NAME, "asker", "a new key", 3))
        self.now_us += TTL_MS * 1000
        measure("take over what was held", TakeOver(NAME, "asker", "key 1", 3))
        measure("statistics", GetStats(NAME))
        measure("peek", Peek(NAME, BEHIND, 5))
        self.now_us += 1000
        assert measure("reclaim", ReclaimExpired(NAME, 500, 0, 0, 3)).requeued == COSTLY_BATCH_MAX - 1
        return costs


@pytest.fixture
def counted():
    made = []

    def counted(keys):
        made.append(CountedQueue(keys))
        return made[-1]

    yield counted
    for each in made:
        each.link.close()


def test_no_command_costs_more_with_more_keys_and_messages(counted):
    """With ten keys or with thousands, only named rows are looked up. A reclaim moves at most one batch."""
    few, many = counted(4 * BATCH_MAX + FEW), counted(4 * BATCH_MAX + MANY)
    costs = few.costs()

    assert all(costs.values())
    assert many.costs() == costs
