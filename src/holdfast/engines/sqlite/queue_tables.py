"""The tables of queues, and what is done to all of them: forgetting, beginning anew after another boot, and bringing
those of an older version up to date."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3

_QUEUES = """
CREATE TABLE queue (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    fence INTEGER NOT NULL,
    looked_us INTEGER NOT NULL,
    look_us INTEGER NOT NULL,
    called TEXT NOT NULL,
    called_us INTEGER NOT NULL,
    lanes TEXT NOT NULL,                   -- JSON: how many messages are ready, by lane
    delayed INTEGER NOT NULL,
    held INTEGER NOT NULL,
    dead INTEGER NOT NULL,
    hungry INTEGER NOT NULL,
    consumers INTEGER NOT NULL,
    counts TEXT NOT NULL,                  -- JSON: what was counted since the queue began
    known_us INTEGER NOT NULL,             -- until when something of it is remembered, by the calendar
    forget_us INTEGER NOT NULL,            -- when it can be forgotten, by the calendar
    behind INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX queue_forget ON queue (forget_us);
"""
_MESSAGES = """
CREATE TABLE queue_message (
    entry INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used again: whoever names an old one has lost it
    queue INTEGER NOT NULL,
    place TEXT NOT NULL,                   -- ready, delayed, held or behind
    lane TEXT NOT NULL,                    -- where it is ready, or was
    due_us INTEGER NOT NULL,               -- by the calendar
    consumer TEXT NOT NULL,                -- who has it
    id TEXT NOT NULL,
    body BLOB NOT NULL,
    headers TEXT NOT NULL,
    key TEXT NOT NULL,
    home TEXT NOT NULL,                    -- the lane that it was sent to
    sent_us INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    crashes INTEGER NOT NULL,
    first_by TEXT NOT NULL,
    last_by TEXT NOT NULL,
    why TEXT NOT NULL,
    fence INTEGER NOT NULL DEFAULT 0,      -- of the delivery, while it is held
    taken_us INTEGER NOT NULL DEFAULT 0    -- when that was, by the clock of this boot: see begin_anew()
);
CREATE INDEX queue_message_ready ON queue_message (queue, lane, entry) WHERE place = 'ready';
CREATE INDEX queue_message_due ON queue_message (queue, due_us, entry) WHERE place = 'delayed';
"""
# Of a key one message comes first: the file itself refuses a second one.
_ORDER = """
CREATE INDEX queue_message_held ON queue_message (queue, consumer, fence, entry) WHERE place = 'held';
CREATE UNIQUE INDEX queue_message_first ON queue_message (queue, key) WHERE key <> '' AND place <> 'behind';
CREATE INDEX queue_message_next ON queue_message (queue, key, entry) WHERE place = 'behind';
CREATE INDEX queue_message_behind ON queue_message (queue, entry) WHERE place = 'behind';
"""
_LETTERS = """
CREATE TABLE queue_letter (
    queue INTEGER NOT NULL,
    place TEXT NOT NULL,                   -- in the order of deaths: see dead_letter_position()
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
"""
_CONSUMERS = """
CREATE TABLE queue_consumer (
    queue INTEGER NOT NULL,
    token TEXT NOT NULL,
    client TEXT NOT NULL,                  -- the session of its process
    owner TEXT NOT NULL,
    label TEXT NOT NULL,
    fence INTEGER NOT NULL,
    ttl_ms INTEGER NOT NULL,
    since_us INTEGER NOT NULL,
    ends_us INTEGER NOT NULL,
    fallen TEXT NOT NULL,                  -- taken for dead, and what is known of that
    keeps INTEGER NOT NULL,                -- whether it keeps what it takes for long
    hungry INTEGER,                        -- its place among those who wait, if it does
    PRIMARY KEY (queue, token)
) WITHOUT ROWID;
CREATE INDEX queue_consumer_ends ON queue_consumer (queue, ends_us, token);
CREATE INDEX queue_consumer_client ON queue_consumer (client, queue);
CREATE INDEX queue_consumer_hungry ON queue_consumer (queue, hungry) WHERE hungry IS NOT NULL;
"""
_KNOWN = """
CREATE TABLE queue_known (
    queue INTEGER NOT NULL,
    kind TEXT NOT NULL,                    -- a key of what was sent, or a call that was answered
    key TEXT NOT NULL,
    what TEXT NOT NULL,                    -- JSON: the ids
    until_us INTEGER NOT NULL,             -- by the calendar
    PRIMARY KEY (queue, kind, key)
) WITHOUT ROWID;
CREATE INDEX queue_known_until ON queue_known (until_us);
"""
SCHEMA = _QUEUES + _MESSAGES + _ORDER + _LETTERS + _CONSUMERS + _KNOWN
# From layout 2 to layout 3, once nobody uses the file: every message and letter stays where it is. Nobody could send a
# key then, so that a word in that column never meant anything.
_OLDER = """
ALTER TABLE queue ADD COLUMN behind INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queue_message ADD COLUMN fence INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queue_message ADD COLUMN taken_us INTEGER NOT NULL DEFAULT 0;
UPDATE queue_message SET key = '' WHERE key <> '';
DROP INDEX queue_message_held;
DROP INDEX queue_consumer_ends;
DROP INDEX queue_consumer_client;
DROP INDEX queue_consumer_hungry;
ALTER TABLE queue_consumer RENAME TO queue_consumer_older;
"""
_NEWER = """
INSERT INTO queue_consumer SELECT queue, token, client, owner, label, fence, ttl_ms, since_us, ends_us,
    CASE WHEN crowd THEN 'unclear' ELSE '' END, 0, hungry FROM queue_consumer_older;
DROP TABLE queue_consumer_older;
"""
UP_TO_DATE = _OLDER + _ORDER + _CONSUMERS + _NEWER

NEVER_US = 2**62
_FORGET_AT_ONCE = 20
_KNOWN_AT_ONCE = 512


def forget(link: sqlite3.Cursor, wall_us: int) -> None:
    """Drop a few queues that are over and were not used for long, and some of what need not be known any more."""
    forget_known(link, wall_us)
    ended = "SELECT id FROM queue WHERE forget_us <= ? LIMIT ?"
    link.execute(f"DELETE FROM queue WHERE id IN ({ended})", (wall_us, _FORGET_AT_ONCE))  # noqa: S608 - it has no rows


def forget_known(link: sqlite3.Cursor, wall_us: int) -> None:
    """Drop some of what need not be known any more."""
    ended = "SELECT queue, kind, key FROM queue_known WHERE until_us <= ? LIMIT ?"
    link.execute(f"DELETE FROM queue_known WHERE (queue, kind, key) IN ({ended})", (wall_us, _KNOWN_AT_ONCE))  # noqa: S608


def has_consumers(link: sqlite3.Cursor, client: str, now_us: int) -> bool:
    """Whether a consumer of this client may still be at work."""
    ask = "SELECT 1 FROM queue_consumer WHERE client = ? AND ends_us > ? LIMIT 1"
    return link.execute(ask, (client, now_us)).fetchone() is not None


def begin_anew(link: sqlite3.Cursor) -> None:
    """Times of another boot mean nothing, and its consumers are gone: the next look finds them, as it would any.

    They all have ended at 0. How long before its end a consumer that keeps messages took each of them still says which
    were new to it; to any other consumer, all are.
    """
    taken = "SELECT CASE WHEN keeps THEN queue_message.taken_us - ends_us ELSE 0 END FROM queue_consumer"
    its_own = "queue_consumer.queue = queue_message.queue AND token = queue_message.consumer"
    link.execute(
        f"UPDATE queue_message SET taken_us = coalesce(({taken} WHERE {its_own}), 0) WHERE place = 'held'"  # noqa: S608
    )
    link.execute("UPDATE queue_consumer SET (since_us, ends_us, hungry) = (0, 0, NULL)")
    link.execute("UPDATE queue SET (looked_us, look_us, called, called_us, hungry) = (0, 0, '', 0, 0)")
