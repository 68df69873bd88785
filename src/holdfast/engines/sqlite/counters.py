"""Tallies as rows: one row says all about what is counted under a name on a shelf."""

from __future__ import annotations

import json
import sqlite3
from typing import TYPE_CHECKING, Any

from holdfast.errors import Unavailable
from holdfast.rules.counters import COUNTER_RULES, unpacked, until_us

if TYPE_CHECKING:
    from holdfast.engines import Reply
    from holdfast.rules import Moment

_ASK = "SELECT body FROM tally WHERE shelf = ? AND name = ?"
_KEEP = "INSERT OR REPLACE INTO tally (shelf, name, until_us, body) VALUES (?, ?, ?, ?)"
_DROP = "DELETE FROM tally WHERE shelf = ? AND name = ?"
_FORGET_AT_ONCE = 200


def answer(link: sqlite3.Cursor, command: Any, moment: Moment) -> Reply:
    """Read, ask the law, write, answer."""
    kind, name = command.kind, command.name
    try:
        row = link.execute(_ASK, (kind, name)).fetchone()
        before = None if row is None else unpacked(kind, json.loads(row[0]))
    except (ValueError, TypeError, LookupError, AttributeError, sqlite3.OperationalError) as error:
        return Unavailable("sqlite", "corrupt", f"what was counted under {name!r} cannot be read: {error}")
    after, told = COUNTER_RULES[type(command)](before, command, moment)
    if after is None and before is not None:
        link.execute(_DROP, (kind, name))
    elif after is not before:
        link.execute(_KEEP, (kind, name, until_us(after, command), json.dumps(after, separators=(",", ":"))))
    return told


def forget(link: sqlite3.Cursor, now_us: int) -> None:
    """Drop a few that have ended, so that no command pays for many."""
    ended = "SELECT shelf, name FROM tally WHERE until_us <= ? LIMIT ?"
    link.execute(f"DELETE FROM tally WHERE (shelf, name) IN ({ended})", (now_us, _FORGET_AT_ONCE))  # noqa: S608
