"""A file that another version made: brought up to date, or refused and left as it is. Never guessed at."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest

from holdfast.clock import SYSTEM
from holdfast.engines.sqlite import location as place
from holdfast.engines.sqlite import schema as layout
from holdfast.errors import Unavailable

OLDER = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE session (id INTEGER PRIMARY KEY AUTOINCREMENT, live INTEGER NOT NULL, pid INTEGER NOT NULL,
                      marked_us INTEGER NOT NULL);
CREATE TABLE lease (name TEXT PRIMARY KEY, forget_us INTEGER NOT NULL, body TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX lease_forget ON lease (forget_us);
CREATE TABLE waiter (ticket INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, token TEXT NOT NULL,
                     session TEXT NOT NULL, owner TEXT NOT NULL, ttl_ms INTEGER NOT NULL, since_us INTEGER NOT NULL);
CREATE INDEX waiter_queue ON waiter (name, ticket);
CREATE TABLE tomb (name TEXT NOT NULL, token TEXT NOT NULL, until_us INTEGER NOT NULL, why TEXT NOT NULL,
                   detail TEXT NOT NULL, PRIMARY KEY (name, token)) WITHOUT ROWID;
INSERT INTO meta VALUES ('layout', '1');
"""
FENCE = 2**52


@pytest.fixture
def older(path):
    """A file of the layout before this one, with a lease on x for an hour to come."""

    def older(boot, session, live):
        far_us = SYSTEM.now_ns() // 1000 + 3_600_000_000
        seat = f"token\n{session}\n{FENCE}\n3600000\n0\n{far_us}\n0\n{{}}"
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(OLDER)
            connection.execute("INSERT INTO meta VALUES ('boot', ?)", (boot,))
            connection.execute("INSERT INTO session VALUES (?, ?, 4711, 0)", (session, live))
            connection.execute("INSERT INTO lease VALUES ('x', ?, ?)", (far_us, f"{FENCE}\n\n0\n0\n0\n{seat}"))

    return older


@pytest.fixture
def live(path):
    """The live file, empty: every byte of it is free."""
    live = path.with_name("hf.db.live")
    live.touch(mode=0o600)
    return live


def test_an_older_file_whose_users_are_dead_is_brought_up_to_date(older, live, connect):
    """Their leases are over; what they wrote under their fences is not, so the next fence is higher."""
    older(place.boot_id(), 5, live.stat().st_ino)

    heir = connect().lock("x").acquire(timeout=0)

    assert heir.fence == FENCE + 1
    assert connect().lock("x").try_acquire() is None
    heir.release()


def test_an_older_file_of_another_boot_is_brought_up_to_date(older, connect):
    """Nobody of another boot lives, whatever its live file says."""
    older("another boot", 5, live=7)

    heir = connect().lock("x").acquire(timeout=0)

    assert heir.fence == FENCE + 1
    heir.release()


@pytest.mark.parametrize("proof", ["its byte is locked", "its byte was in another file"])
def test_an_older_file_that_may_be_in_use_is_refused_and_untouched(older, live, connect, child, path, proof):
    """Two versions that write one file in two ways would be two lock domains: without proof of death nobody begins."""
    living, session = child(), 1
    if proof == "its byte is locked":
        living.ask("acquire", name="anything")  # the first session of a file locks byte 1
        for file in path.parent.glob("hf.db*"):
            if file.suffix != ".live":
                file.unlink()
        older(place.boot_id(), session, live.stat().st_ino)
    else:
        older(place.boot_id(), session, live.stat().st_ino + 1)
    before = path.read_bytes()

    with pytest.raises(Unavailable) as caught:
        connect().lock("x").acquire(timeout=0)

    assert caught.value.reason == "other layout"
    assert "process 4711" in caught.value.detail
    assert path.read_bytes() == before


def test_a_layout_of_a_newer_version_is_refused_and_untouched(connect, path):
    """An old library that writes into a new file would break it for everyone."""
    with connect() as client:
        client.lock("x").acquire().release()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE meta SET value = ? WHERE key = 'layout'", (layout.LAYOUT + 1,))
    before = path.read_bytes()

    with pytest.raises(Unavailable) as caught:
        connect().lock("x").acquire()

    assert caught.value.reason == "other layout"
    assert "upgrade" in caught.value.detail
    assert path.read_bytes() == before
