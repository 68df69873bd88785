"""The shelves of directories as rows: found by their index, in order."""

from __future__ import annotations

import sqlite3

from holdfast.rules.registry import INDEX_MS, MAILBOX_MAX, MAILBOX_MS

_PUT = "INSERT OR REPLACE INTO shelf (directory, shelf, entry, token, until_us) VALUES (?, ?, ?, ?, ?)"
_DROP = "DELETE FROM shelf WHERE directory = ? AND shelf = ? AND entry = ? AND token = ?"
_FIND = (
    "SELECT entry, token FROM shelf WHERE directory = ? AND shelf = ? AND entry >= ? AND entry > ?"
    " AND substr(entry, 1, ?) = ? ORDER BY entry LIMIT ?"
)
_HEIRS = "h"
_HEIR = "SELECT token, until_us FROM shelf WHERE directory = ? AND shelf = ? AND entry = ?"
_NO_HEIR = "DELETE FROM shelf WHERE directory = ? AND shelf = ? AND entry = ?"
_LETTERS = "SELECT letter, text FROM letter WHERE token = ? ORDER BY id LIMIT ?"
_TEAR = "DELETE FROM letter WHERE id IN (SELECT id FROM letter WHERE token = ? ORDER BY id LIMIT ?)"
_FORGET_AT_ONCE = 200


class SqliteRegistryState:
    """The shelves, inside one transaction."""

    def __init__(self, link: sqlite3.Cursor, now_us: int) -> None:
        self._link = link
        self._now_us = now_us
        self._until_us = now_us + INDEX_MS * 1000

    def add(self, directory: str, index_name: str, entry: str, token: str) -> None:
        self._link.execute(_PUT, (directory, index_name, entry, token, self._until_us))

    def remove(self, directory: str, index_name: str, entry: str, token: str) -> None:
        self._link.execute(_DROP, (directory, index_name, entry, token))

    def entries(self, directory: str, index_name: str, prefix: str, after: str, limit: int) -> list[tuple[str, str]]:
        asked = (directory, index_name, prefix, after, len(prefix), prefix, limit)
        return self._link.execute(_FIND, asked).fetchall()

    def set_successor(self, directory: str, entry: str, successor: str, lasts_ms: int) -> None:
        if successor:
            self._link.execute(_PUT, (directory, _HEIRS, entry, successor, self._now_us + lasts_ms * 1000))
        else:
            self._link.execute(_NO_HEIR, (directory, _HEIRS, entry))

    def successor(self, directory: str, entry: str) -> tuple[str, int]:
        found = self._link.execute(_HEIR, (directory, _HEIRS, entry)).fetchone() or ("", 0)
        return found[0], max(0, found[1] - self._now_us) // 1000

    def add_message(self, token: str, message_id: str, text: str) -> bool:
        if self._link.execute("SELECT count(*) FROM letter WHERE token = ?", (token,)).fetchone()[0] >= MAILBOX_MAX:
            return False
        fields = (token, message_id, text, self._now_us + MAILBOX_MS * 1000)
        self._link.execute("INSERT INTO letter (token, letter, text, until_us) VALUES (?, ?, ?, ?)", fields)
        return True

    def messages(self, token: str, most: int) -> list[tuple[str, str]]:
        return self._link.execute(_LETTERS, (token, most)).fetchall()

    def delete_messages(self, token: str, count: int) -> None:
        self._link.execute(_TEAR, (token, count))


def forget(link: sqlite3.Cursor, now_us: int) -> None:
    """Drop a few that nobody has touched for a month."""
    ended = "SELECT directory, shelf, entry FROM shelf WHERE until_us <= ? LIMIT ?"
    link.execute(f"DELETE FROM shelf WHERE (directory, shelf, entry) IN ({ended})", (now_us, _FORGET_AT_ONCE))  # noqa: S608
    ended = "SELECT id FROM letter WHERE until_us <= ? LIMIT ?"
    link.execute(f"DELETE FROM letter WHERE id IN ({ended})", (now_us, _FORGET_AT_ONCE))  # noqa: S608
