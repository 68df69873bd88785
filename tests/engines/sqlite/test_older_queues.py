"""Queues of a file of the layout before this one: every message stays, and the tables become those of a new file."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest

import holdfast
from holdfast.engines.sqlite import database
from holdfast.engines.sqlite import schema as layout
from holdfast.errors import Unavailable

# The tables of queues in layout 2. All others are as they were.
OLDER = """
CREATE TABLE queue (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    fence INTEGER NOT NULL,
    looked_us INTEGER NOT NULL,
    look_us INTEGER NOT NULL,
    called TEXT NOT NULL,
    called_us INTEGER NOT NULL,
    lanes TEXT NOT NULL,
    delayed INTEGER NOT NULL,
    held INTEGER NOT NULL,
    dead INTEGER NOT NULL,
    hungry INTEGER NOT NULL,
    consumers INTEGER NOT NULL,
    counts TEXT NOT NULL,
    known_us INTEGER NOT NULL,
    forget_us INTEGER NOT NULL
);
CREATE INDEX queue_forget ON queue (forget_us);
CREATE TABLE queue_message (
    entry INTEGER PRIMARY KEY AUTOINCREMENT,
    queue INTEGER NOT NULL,
    place TEXT NOT NULL,
    lane TEXT NOT NULL,
    due_us INTEGER NOT NULL,
    consumer TEXT NOT NULL,
    id TEXT NOT NULL,
    body BLOB NOT NULL,
    headers TEXT NOT NULL,
    key TEXT NOT NULL,
    home TEXT NOT NULL,
    sent_us INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    crashes INTEGER NOT NULL,
    first_by TEXT NOT NULL,
    last_by TEXT NOT NULL,
    why TEXT NOT NULL
);
CREATE INDEX queue_message_ready ON queue_message (queue, lane, entry) WHERE place = 'ready';
CREATE INDEX queue_message_due ON queue_message (queue, due_us, entry) WHERE place = 'delayed';
CREATE INDEX queue_message_held ON queue_message (queue, consumer, entry) WHERE place = 'held';
CREATE TABLE queue_letter (
    queue INTEGER NOT NULL,
    place TEXT NOT NULL,
    reason TEXT NOT NULL,
    died_us INTEGER NOT NULL,
    id TEXT NOT NULL,
    body BLOB NOT NULL,
    headers TEXT NOT NULL,
    key TEXT NOT NULL,
    home TEXT NOT NULL,
    sent_us INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    crashes INTEGER NOT NULL,
    first_by TEXT NOT NULL,
    last_by TEXT NOT NULL,
    why TEXT NOT NULL
);
CREATE UNIQUE INDEX queue_letter_id ON queue_letter (queue, id);
CREATE UNIQUE INDEX queue_letter_place ON queue_letter (queue, place);
CREATE TABLE queue_consumer (
    queue INTEGER NOT NULL,
    token TEXT NOT NULL,
    client TEXT NOT NULL,
    owner TEXT NOT NULL,
    label TEXT NOT NULL,
    fence INTEGER NOT NULL,
    ttl_ms INTEGER NOT NULL,
    since_us INTEGER NOT NULL,
    ends_us INTEGER NOT NULL,
    crowd INTEGER NOT NULL,
    hungry INTEGER,
    PRIMARY KEY (queue, token)
) WITHOUT ROWID;
CREATE INDEX queue_consumer_ends ON queue_consumer (queue, ends_us, token);
CREATE INDEX queue_consumer_client ON queue_consumer (client, queue);
CREATE INDEX queue_consumer_hungry ON queue_consumer (queue, hungry) WHERE hungry IS NOT NULL;
CREATE TABLE queue_known (
    queue INTEGER NOT NULL,
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    what TEXT NOT NULL,
    until_us INTEGER NOT NULL,
    PRIMARY KEY (queue, kind, key)
) WITHOUT ROWID;
CREATE INDEX queue_known_until ON queue_known (until_us);
"""
SENT_US = 1_700_000_000_000_000
NEVER_US = 1 << 62


def message(number):
    return (f"id{number}", f'"m{number}"'.encode(), "", "", "", SENT_US, 0, 0, "", "", "")


@pytest.fixture
def older(path, connect):
    """A file of layout 2: two messages are ready, one is delayed, two are with a consumer, and one is dead."""
    with connect() as client:
        client.queue("other").publish("x")
    database._databases.clear()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as link:

        def insert(table, *fields):
            link.execute(f"INSERT INTO {table} VALUES (?{', ?' * (len(fields) - 1)})", fields)

        ask = "SELECT name FROM sqlite_master WHERE name GLOB 'queue*' AND type = 'table'"
        for (table,) in link.execute(ask).fetchall():
            link.execute(f"DROP TABLE {table}")
        link.executescript(OLDER)
        link.execute("UPDATE meta SET value = '2' WHERE key = 'layout'")
        insert("queue", 1, "jobs", 5, 0, 0, "", 0, '{"":2}', 1, 2, 1, 0, 1, '{"published":6}', 0, NEVER_US)
        insert("queue_consumer", 1, "token", "999", "{}", "old", 5, 30_000, 0, NEVER_US, 0, None)
        for entry, place, token in ((3, "held", "token"), (4, "held", "token"), (5, "ready", ""), (7, "ready", "")):
            insert("queue_message", entry, 1, place, "", 0, token, *message(entry))
        insert("queue_message", 6, 1, "delayed", "", SENT_US, "", *message(6))
        insert("queue_letter", 1, f"{7:020d}-id1", "bad", 7, *message(1))
    return path


def shape(path):
    """What the tables and their indexes are like; the order of columns is nobody's business."""
    with contextlib.closing(sqlite3.connect(path)) as link:
        made = link.execute("SELECT name, type, sql FROM sqlite_master WHERE name GLOB 'queue*'").fetchall()
        tables = [name for name, kind, _ in made if kind == "table"]
        columns = {name: sorted(row[1:] for row in link.execute(f"PRAGMA table_info({name})")) for name in tables}
        return columns, {name: sql for name, kind, sql in made if kind == "index"}


def test_every_message_of_an_older_file_stays(older, connect):
    """Its consumers are dead, and what they had is found as ever; what is sent now comes behind."""
    queue = connect().queue("jobs")
    assert queue.check() == (6, ())
    assert queue.stats()[1:6] == (2, 0, 1, 2, 1)
    queue.publish("new")
    got = []
    with queue.consumer(prefetch=10) as consumer:
        while len(got) < 6:
            for message in consumer.receive(10, timeout=20):
                got.append(message.body)
                message.ack()
    assert sorted(got) == ["m3", "m4", "m5", "m6", "m7", "new"]
    assert [letter.id for letter in queue.dlq.list()] == ["id1"]
    assert queue.check() == (1, ())


def test_an_older_file_becomes_what_a_new_one_is(older, connect, tmp_path):
    """Nobody has to know later how old a file is."""
    connect().queue("jobs").stats()
    with holdfast.connect(f"sqlite://{tmp_path}/new.db") as client:
        client.queue("jobs").stats()
    assert shape(older) == shape(tmp_path / "new.db")


def test_an_older_file_that_is_in_use_is_refused_and_untouched(path, child, connect):
    """A process of the older version knows of no keys: its users end first."""
    child().ask("acquire", name="anything")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as link:
        link.execute("UPDATE meta SET value = '2' WHERE key = 'layout'")
    before = shape(path)

    with pytest.raises(Unavailable) as caught:
        connect().queue("jobs").publish("x")

    assert caught.value.reason == "other layout"
    assert "layout 2 is in use by process" in caught.value.detail
    assert shape(path) == before
    with contextlib.closing(sqlite3.connect(path)) as link:
        assert link.execute("SELECT value FROM meta WHERE key = 'layout'").fetchone() == ("2",)
    assert layout.LAYOUT == 3
