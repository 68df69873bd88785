"""Leases in tables behave like records in memory: same answers, waiting line and tombstones, for any program."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.commands import Acquire, Break, ReleaseLease, Renew, Show, Undo, WaiterHeartbeat
from holdfast.engines.sqlite import lease_rows, schema
from holdfast.rules import Moment, Record
from holdfast.rules.table import RULES

TOKENS = ("a1", "a2", "a3", "b1", "b2", "c1")
TTL_MS = 1_000
MEMORY_US = 60_000_000

few = st.sampled_from([*[frozenset()] * 12, *(frozenset(client) for client in "abc"), frozenset("ab")])
steps = st.lists(
    st.tuples(
        st.sampled_from(
            ("try", "wait", "wait", "wait", "wait", "renew", "release", "give", "undo", "break", "heartbeat")
        ),
        st.sampled_from(TOKENS),
        st.sampled_from((0, 0, 0, 1, 300, 999, 1_000, 1_001, 30_000, 60_001)),  # milliseconds that pass before it
        few,  # proven dead
        few,  # silent
    ),
    max_size=40,
)


def command_for(kind, token, record):
    fence = record.holder.fence if record.holder else 0
    return {
        "try": Acquire("n", token, "o", TTL_MS, wait=False),
        "wait": Acquire("n", token, f"holder of {token}", TTL_MS, wait=True),
        "renew": Renew("n", token, TTL_MS),
        "release": ReleaseLease("n", token, tombstone=token.endswith("1")),
        "give": ReleaseLease("n", token, to="b2"),
        "undo": Undo("n", token),
        "break": Break("n", fence, "why"),
        "heartbeat": WaiterHeartbeat("n"),
    }[kind]


@contextlib.contextmanager
def tables():
    """The tables of the engine, in a database of their own."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        cursor = connection.cursor()
        schema.prepare(cursor, Path("memory"))
        yield cursor


def stored_step(cursor, command, moment):
    """One command as the engine does it: load, decide, store."""
    row = lease_rows.load(cursor, command.name)
    step = RULES[type(command)].apply(row.record, command, moment)
    if step.record is not row.record:
        lease_rows.store(cursor, command.name, row, step.record, MEMORY_US)
    return step


def waits(*tokens, after_ms=0):
    return [("wait", token, after_ms, frozenset(), frozenset()) for token in tokens]


@settings(max_examples=300, deadline=None)
@given(steps)
@example(waits("a1", "b1", "c1") + waits("c1", after_ms=1_000))  # a position, just as the waiter before it is served
@example([*waits("a1", "b1", "b2", "c1"), ("wait", "c1", 1, frozenset("b"), frozenset())])  # just as other clients die
def test_a_record_in_tables_and_one_in_memory_never_differ(script):
    """The rule is the same; a waiting line that is read row by row must not lead it to another decision."""
    plain, now_us = Record(), 1_000_000_000
    with tables() as cursor:
        for kind, token, passes_ms, gone, silent in script:
            now_us += passes_ms * 1_000
            moment = Moment(now_us, now_us, token[0], gone - {token[0]}, silent - {token[0]})
            command = command_for(kind, token, plain)
            expected = RULES[type(command)].apply(plain, command, moment)

            step = stored_step(cursor, command, moment)

            plain = expected.record
            assert (step.answer, step.wake) == (expected.answer, expected.wake), command
            assert_alike(lease_rows.load(cursor, "n").record, plain, now_us)
            assert stored_step(cursor, Show("n"), moment).answer == RULES[Show].apply(plain, Show("n"), moment).answer


def assert_alike(stored, plain, now_us):
    assert stored[:2] + stored[4:] == plain[:2] + plain[4:]
    assert list(stored.waiters) == list(plain.waiters)
    assert dict(stored.waiters.clients) == plain.waiters.clients
    assert len(stored.waiters) == len(plain.waiters)
    assert stored.tombstones.ends_us == plain.tombstones.ends_us
    for token in TOKENS:
        assert stored.waiters.place(token) == plain.waiters.place(token)
        assert stored.waiters.find(token) == plain.waiters.find(token)
        assert stored.tombstones.find(token, now_us) == plain.tombstones.find(token, now_us)


def effort(cursor, work):
    """How far SQLite's own machine runs for this: a measure that no busy computer can spoil."""
    count = 0

    def tick():
        nonlocal count
        count += 1

    cursor.connection.set_progress_handler(tick, 10)
    work()
    cursor.connection.set_progress_handler(None, 0)
    return count


@pytest.mark.parametrize(
    "command", [Renew("n", "h", 30_000), WaiterHeartbeat("n"), Acquire("n", "new", "o", 30_000, wait=False)]
)
def test_thousands_of_waiters_cost_a_command_nothing(command):
    """A holder that renews, or a client that sends a heartbeat, must not pay for the waiting line or old tombstones."""
    moment = Moment(1_000_000_000, 1_000_000_000, "h")
    with tables() as cursor:
        stored_step(cursor, Acquire("n", "h", "o", 30_000, wait=True), moment)
        stored_step(cursor, Acquire("n", "w", "o", 30_000, wait=True), moment)
        stored_step(cursor, Undo("n", "u"), moment)
        alone = effort(cursor, lambda: stored_step(cursor, command, moment))

        for number in range(2_000):
            stored_step(cursor, Acquire("n", f"w{number}", "o", 30_000, wait=True), moment)
            stored_step(cursor, Undo("n", f"u{number}"), moment)
        crowded = effort(cursor, lambda: stored_step(cursor, command, moment))
        handed_on = effort(cursor, lambda: stored_step(cursor, ReleaseLease("n", "h"), moment))

    assert crowded <= alone + 5
    assert handed_on <= alone + 20
