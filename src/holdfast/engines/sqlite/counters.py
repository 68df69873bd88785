"""Counters as rows: one row holds the counter of one name and kind."""

from __future__ import annotations

import json
import sqlite3
from typing import TYPE_CHECKING, Any

from holdfast.errors import UnreadableRecord
from holdfast.interrupts import raise_if_of_signal
from holdfast.rules.counters import unpacked, until_us

if TYPE_CHECKING:
    from holdfast.engines import Reply
    from holdfast.rules import Moment
    from holdfast.rules.counters import CounterRule

_LOAD = "SELECT body FROM counter WHERE kind = ? AND name = ?"
_STORE = "INSERT OR REPLACE INTO counter (kind, name, until_us, body) VALUES (?, ?, ?, ?)"
_DELETE = "DELETE FROM counter WHERE kind = ? AND name = ?"
_FORGET_AT_ONCE = 200


def answer(cursor: sqlite3.Cursor, rule: CounterRule, command: Any, moment: Moment) -> Reply:
    """Load the counter, apply the rule, store the counter, and return the answer."""
    kind, name = command.kind, command.name
    try:
        row = cursor.execute(_LOAD, (kind, name)).fetchone()
    except sqlite3.OperationalError as error:
        return unreadable(name, error)
    before = None if row is None else unpacked(kind, json.loads(row[0]))
    after, reply = rule(before, command, moment)
    if after is None and before is not None:
        cursor.execute(_DELETE, (kind, name))
    elif after is not before:
        cursor.execute(_STORE, (kind, name, until_us(after, command), json.dumps(after, separators=(",", ":"))))
    return reply


def unreadable(name: str, error: Exception) -> UnreadableRecord:
    """Return the error for a counter that cannot be read."""
    raise_if_of_signal(error)
    return UnreadableRecord("sqlite", detail=f"the counter {name!r} cannot be read: {error}")


def forget(cursor: sqlite3.Cursor, now_us: int) -> None:
    """Delete a few counters that have ended, so that no command pays for many."""
    ended = "SELECT kind, name FROM counter WHERE until_us <= ? LIMIT ?"
    cursor.execute(f"DELETE FROM counter WHERE (kind, name) IN ({ended})", (now_us, _FORGET_AT_ONCE))  # noqa: S608
