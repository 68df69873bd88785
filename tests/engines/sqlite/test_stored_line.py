"""What stays in tables answers as the law's own values do: same answers, same line, same tombs, for any program."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.commands import Acquire, Break, Release, Renew, Show, Undo, WaiterHeartbeat
from holdfast.engines.sqlite import lease_rows as rows
from holdfast.engines.sqlite import schema as layout
from holdfast.rules import Moment, Record

TOKENS = ("a1", "a2", "a3", "b1", "b2", "c1")
TTL_MS = 1_000
MEMORY_US = 60_000_000

few = st.sampled_from([*[frozenset()] * 12, *(frozenset(client) for client in "abc"), frozenset("ab")])
steps = st.lists(
    st.tuples(
        st.sampled_from(("ask", "wait", "wait", "wait", "wait", "renew", "release", "give", "undo", "break", "mark")),
        st.sampled_from(TOKENS),
        st.sampled_from((0, 0, 0, 1, 300, 999, 1_000, 1_001, 30_000, 60_001)),  # milliseconds that pass before it
        few,  # proven dead
        few,  # fallen silent
    ),
    max_size=40,
)


def command_for(kind, token, record):
    fence = record.holder.fence if record.holder else 0
    return {
        "ask": Acquire("n", token, "o", TTL_MS, wait=False),
        "wait": Acquire("n", token, f"owner of {token}", TTL_MS, wait=True),
        "renew": Renew("n", token, TTL_MS),
        "release": Release("n", token, tombstone=token.endswith("1")),
        "give": Release("n", token, to="b2"),
        "undo": Undo("n", token),
        "break": Break("n", fence, "why"),
        "mark": WaiterHeartbeat("n"),
    }[kind]


@contextlib.contextmanager
def tables():
    """The tables of the engine, in a database of their own."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        link = connection.cursor()
        layout.prepare(link, live=None)
        yield link


def stored_step(link, command, moment):
    """One command as the engine does it: load, decide, store."""
    row = rows.load(link, command.name)
    step = RULES[type(command)].apply(row.record, command, moment)
    if step.record is not row.record:
        rows.store(link, command.name, row, step.record, MEMORY_US)
    return step


def waits(*tokens, after_ms=0):
    return [("wait", token, after_ms, frozenset(), frozenset()) for token in tokens]


@settings(max_examples=300, deadline=None)
@given(steps)
@example(waits("a1", "b1", "c1") + waits("c1", after_ms=1_000))  # a place, just as the one before it is served
@example([*waits("a1", "b1", "b2", "c1"), ("wait", "c1", 1, frozenset("b"), frozenset())])  # just as others fall
def test_a_record_in_tables_and_one_in_memory_never_differ(script):
    """The law is the same; a line that is asked piece by piece must not tell it another story."""
    plain, now_us = Record(), 1_000_000_000
    with tables() as link:
        for kind, token, passes_ms, gone, silent in script:
            now_us += passes_ms * 1_000
            moment = Moment(now_us, now_us, token[0], gone - {token[0]}, silent - {token[0]})
            command = command_for(kind, token, plain)
            expected = RULES[type(command)].apply(plain, command, moment)

            step = stored_step(link, command, moment)

            plain = expected.record
            assert (step.answer, step.wake) == (expected.answer, expected.wake), command
            assert_alike(rows.load(link, "n").record, plain, now_us)
            assert stored_step(link, Show("n"), moment).answer == RULES[Show].apply(plain, Show("n"), moment).answer


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


def effort(link, work):
    """How far SQLite's own machine runs for this: a measure that no busy computer can spoil."""
    count = 0

    def tick():
        nonlocal count
        count += 1

    link.connection.set_progress_handler(tick, 10)
    work()
    link.connection.set_progress_handler(None, 0)
    return count


@pytest.mark.parametrize(
    "command", [Renew("n", "h", 30_000), WaiterHeartbeat("n"), Acquire("n", "new", "o", 30_000, wait=False)]
)
def test_thousands_who_wait_cost_a_command_nothing(command):
    """A holder that renews, and a client that marks, must not pay for the length of the queue or for old tombs."""
    moment = Moment(1_000_000_000, 1_000_000_000, "h")
    with tables() as link:
        stored_step(link, Acquire("n", "h", "o", 30_000, wait=True), moment)
        stored_step(link, Acquire("n", "w", "o", 30_000, wait=True), moment)
        stored_step(link, Undo("n", "u"), moment)
        alone = effort(link, lambda: stored_step(link, command, moment))

        for number in range(2_000):
            stored_step(link, Acquire("n", f"w{number}", "o", 30_000, wait=True), moment)
            stored_step(link, Undo("n", f"u{number}"), moment)
        crowded = effort(link, lambda: stored_step(link, command, moment))
        handed_on = effort(link, lambda: stored_step(link, Release("n", "h"), moment))

    assert crowded <= alone + 5
    assert handed_on <= alone + 20
