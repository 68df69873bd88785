"""The shelves of directories as rows: found by their index, in order."""

from __future__ import annotations

import sqlite3

from holdfast.rules.directory import SHELF_MS

_PUT = "INSERT OR REPLACE INTO shelf (directory, shelf, entry, token, until_us) VALUES (?, ?, ?, ?, ?)"
_DROP = "DELETE FROM shelf WHERE directory = ? AND shelf = ? AND entry = ? AND token = ?"
_FIND = (
    "SELECT entry, token FROM shelf WHERE directory = ? AND shelf = ? AND entry >= ? AND entry > ?"
    " AND substr(entry, 1, ?) = ? ORDER BY entry LIMIT ?"
)
_FORGET_AT_ONCE = 200


class SqliteShelves:
    """The shelves, inside one transaction."""

    def __init__(self, link: sqlite3.Cursor, now_us: int) -> None:
        self._link = link
        self._until_us = now_us + SHELF_MS * 1000

    def put(self, directory: str, shelf: str, entry: str, token: str) -> None:
        self._link.execute(_PUT, (directory, shelf, entry, token, self._until_us))

    def drop(self, directory: str, shelf: str, entry: str, token: str) -> None:
        self._link.execute(_DROP, (directory, shelf, entry, token))

    def standing(self, directory: str, shelf: str, prefix: str, after: str, limit: int) -> list[tuple[str, str]]:
        asked = (directory, shelf, prefix, after, len(prefix), prefix, limit)
        return self._link.execute(_FIND, asked).fetchall()


def forget(link: sqlite3.Cursor, now_us: int) -> None:
    """Drop a few that nobody has touched for a month."""
    ended = "SELECT directory, shelf, entry FROM shelf WHERE until_us <= ? LIMIT ?"
    link.execute(f"DELETE FROM shelf WHERE (directory, shelf, entry) IN ({ended})", (now_us, _FORGET_AT_ONCE))  # noqa: S608
