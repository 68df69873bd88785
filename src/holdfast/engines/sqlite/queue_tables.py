"""The tables of queues, and the work on all queues: delete unused ones, and end the consumers of a previous boot."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3

_QUEUES = """
CREATE TABLE queue (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    fence INTEGER NOT NULL,
    checked_us INTEGER NOT NULL,
    next_check_us INTEGER NOT NULL,
    drain_token TEXT NOT NULL,
    drain_until_us INTEGER NOT NULL,
    lanes TEXT NOT NULL,                   -- JSON: how many messages are ready, by lane
    delayed INTEGER NOT NULL,
    held INTEGER NOT NULL,
    dead INTEGER NOT NULL,
    waiting INTEGER NOT NULL,
    consumers INTEGER NOT NULL,
    counts TEXT NOT NULL,                  -- JSON: the counters since the queue began
    results_until_us INTEGER NOT NULL,     -- until when a result is remembered, on the calendar
    forget_us INTEGER NOT NULL,            -- when the queue can be forgotten, on the calendar
    behind INTEGER NOT NULL                -- messages behind the head of their key
);
CREATE INDEX queue_forget ON queue (forget_us);
"""
_MESSAGES = """
CREATE TABLE queue_message (
    entry INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used again: an old number never means another message
    queue INTEGER NOT NULL,
    place TEXT NOT NULL,                   -- ready, delayed, held or behind
    lane TEXT NOT NULL,                    -- the lane in which the message is ready, or was
    due_us INTEGER NOT NULL,               -- on the calendar
    consumer TEXT NOT NULL,                -- the session that holds it
    id TEXT NOT NULL,
    body BLOB NOT NULL,
    headers TEXT NOT NULL,
    key TEXT NOT NULL,
    home TEXT NOT NULL,                    -- the lane that it was published to
    sent_us INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    crashes INTEGER NOT NULL,
    first_by TEXT NOT NULL,
    last_by TEXT NOT NULL,
    why TEXT NOT NULL,
    fence INTEGER NOT NULL,                -- of the delivery, while it is held
    received_us INTEGER NOT NULL           -- time of the delivery, by the clock of this boot: see end_previous_boot()
);
CREATE INDEX queue_message_ready ON queue_message (queue, lane, entry) WHERE place = 'ready';
CREATE INDEX queue_message_due ON queue_message (queue, due_us, entry) WHERE place = 'delayed';
"""
# A key has one head: the file itself refuses a second one.
_ORDER = """
CREATE INDEX queue_message_held ON queue_message (queue, consumer, fence, entry) WHERE place = 'held';
CREATE UNIQUE INDEX queue_message_first ON queue_message (queue, key) WHERE key <> '' AND place <> 'behind';
CREATE INDEX queue_message_next ON queue_message (queue, key, entry) WHERE place = 'behind';
CREATE INDEX queue_message_behind ON queue_message (queue, entry) WHERE place = 'behind';
"""
_DEAD_LETTERS = """
CREATE TABLE queue_dead_letter (
    queue INTEGER NOT NULL,
    place TEXT NOT NULL,                   -- in the order of deaths: see position_of_dead_letter()
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
CREATE UNIQUE INDEX queue_dead_letter_id ON queue_dead_letter (queue, id);
CREATE UNIQUE INDEX queue_dead_letter_position ON queue_dead_letter (queue, place);
"""
_CONSUMERS = """
CREATE TABLE queue_consumer (
    queue INTEGER NOT NULL,
    token TEXT NOT NULL,
    client TEXT NOT NULL,                  -- the session of its process
    holder TEXT NOT NULL,
    label TEXT NOT NULL,
    fence INTEGER NOT NULL,
    ttl_ms INTEGER NOT NULL,
    since_us INTEGER NOT NULL,
    expires_us INTEGER NOT NULL,
    blame TEXT NOT NULL,                   -- declared dead, and whether one message must be the cause
    keeps_messages INTEGER NOT NULL,       -- whether it keeps messages for a long time
    waiting INTEGER,                       -- its place among the waiting consumers, if it waits
    PRIMARY KEY (queue, token)
) WITHOUT ROWID;
CREATE INDEX queue_consumer_expires ON queue_consumer (queue, expires_us, token);
CREATE INDEX queue_consumer_client ON queue_consumer (client, queue);
CREATE INDEX queue_consumer_waiting ON queue_consumer (queue, waiting) WHERE waiting IS NOT NULL;
"""
_RESULTS = """
CREATE TABLE queue_result (
    queue INTEGER NOT NULL,
    kind TEXT NOT NULL,                    -- a deduplication key, or the token of a call
    key TEXT NOT NULL,
    ids TEXT NOT NULL,                     -- JSON
    until_us INTEGER NOT NULL,             -- on the calendar
    PRIMARY KEY (queue, kind, key)
) WITHOUT ROWID;
CREATE INDEX queue_result_until ON queue_result (until_us);
"""
SCHEMA = _QUEUES + _MESSAGES + _ORDER + _DEAD_LETTERS + _CONSUMERS + _RESULTS
NEVER_US = 2**62
_FORGET_AT_ONCE = 20
_RESULTS_AT_ONCE = 512


def forget(cursor: sqlite3.Cursor, wall_us: int) -> None:
    """Delete a few empty queues that were not used for long, and a few remembered results that have ended."""
    forget_results(cursor, wall_us)
    ended = "SELECT id FROM queue WHERE forget_us <= ? LIMIT ?"
    cursor.execute(f"DELETE FROM queue WHERE id IN ({ended})", (wall_us, _FORGET_AT_ONCE))  # noqa: S608 - it has no messages


def forget_results(cursor: sqlite3.Cursor, wall_us: int) -> None:
    """Delete a few remembered results that have ended."""
    ended = "SELECT queue, kind, key FROM queue_result WHERE until_us <= ? LIMIT ?"
    cursor.execute(f"DELETE FROM queue_result WHERE (queue, kind, key) IN ({ended})", (wall_us, _RESULTS_AT_ONCE))  # noqa: S608


def has_consumers(cursor: sqlite3.Cursor, client: str, now_us: int) -> bool:
    """Return true if a consumer of this client may still work."""
    select = "SELECT 1 FROM queue_consumer WHERE client = ? AND expires_us > ? LIMIT 1"
    return cursor.execute(select, (client, now_us)).fetchone() is not None


def end_previous_boot(cursor: sqlite3.Cursor) -> None:
    """Let all consumers of a previous boot expire; the next check reclaims their messages.

    Times of another boot mean nothing, so all consumers expire at 0. For a consumer that keeps messages, store how long
    before its expiry it received each message: that still shows which messages were new to it. To any other consumer,
    all messages are new.
    """
    received = (
        "SELECT CASE WHEN keeps_messages THEN queue_message.received_us - expires_us ELSE 0 END FROM queue_consumer"
    )
    same_consumer = "queue_consumer.queue = queue_message.queue AND token = queue_message.consumer"
    cursor.execute(
        f"UPDATE queue_message SET received_us = coalesce(({received} WHERE {same_consumer}), 0) WHERE place = 'held'"  # noqa: S608
    )
    cursor.execute("UPDATE queue_consumer SET (since_us, expires_us, waiting) = (0, 0, NULL)")
    cursor.execute(
        "UPDATE queue SET (checked_us, next_check_us, drain_token, drain_until_us, waiting) = (0, 0, '', 0, 0)"
    )
