"""The state of registries as rows: the primary key gives the entries in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.rules.registry import INDEX_MS, MAILBOX_MAX, MAILBOX_MS

if TYPE_CHECKING:
    import sqlite3

_ADD = "INSERT OR REPLACE INTO registry_index (registry, index_name, entry, token, until_us) VALUES (?, ?, ?, ?, ?)"
_KEY = "registry = ? AND index_name = ? AND entry = ?"
_REMOVE = f"DELETE FROM registry_index WHERE {_KEY} AND token = ?"  # noqa: S608
_ENTRIES = (
    "SELECT entry, token FROM registry_index WHERE registry = ? AND index_name = ? AND entry >= ? AND entry > ?"
    " AND substr(entry, 1, ?) = ? ORDER BY entry LIMIT ?"
)
# Successors are rows of an index of their own, with the successor's label in the place of the token.
_SUCCESSORS = "successor"
_SUCCESSOR = f"SELECT token, until_us FROM registry_index WHERE {_KEY}"  # noqa: S608
_NO_SUCCESSOR = f"DELETE FROM registry_index WHERE {_KEY}"  # noqa: S608
_ADD_MESSAGE = "INSERT INTO mailbox_message (token, message_id, text, until_us) VALUES (?, ?, ?, ?)"
_MESSAGES = "SELECT message_id, text FROM mailbox_message WHERE token = ? ORDER BY id LIMIT ?"
_OLDEST = "SELECT id FROM mailbox_message WHERE token = ? ORDER BY id LIMIT ?"
_DELETE_MESSAGES = f"DELETE FROM mailbox_message WHERE id IN ({_OLDEST})"  # noqa: S608
_FORGET_AT_ONCE = 200


class SqliteRegistryState:
    """The indexes, successors and mailboxes, inside one transaction."""

    def __init__(self, cursor: sqlite3.Cursor, now_us: int) -> None:
        self._cursor = cursor
        self._now_us = now_us
        self._until_us = now_us + INDEX_MS * 1000

    def add(self, registry: str, index_name: str, entry: str, token: str) -> None:
        self._cursor.execute(_ADD, (registry, index_name, entry, token, self._until_us))

    def remove(self, registry: str, index_name: str, entry: str, token: str) -> None:
        self._cursor.execute(_REMOVE, (registry, index_name, entry, token))

    def entries(self, registry: str, index_name: str, prefix: str, after: str, limit: int) -> list[tuple[str, str]]:
        values = (registry, index_name, prefix, after, len(prefix), prefix, limit)
        return self._cursor.execute(_ENTRIES, values).fetchall()

    def set_successor(self, registry: str, entry: str, successor: str, lasts_ms: int) -> None:
        if successor:
            self._cursor.execute(_ADD, (registry, _SUCCESSORS, entry, successor, self._now_us + lasts_ms * 1000))
        else:
            self._cursor.execute(_NO_SUCCESSOR, (registry, _SUCCESSORS, entry))

    def successor(self, registry: str, entry: str) -> tuple[str, int]:
        found = self._cursor.execute(_SUCCESSOR, (registry, _SUCCESSORS, entry)).fetchone() or ("", 0)
        return found[0], max(0, found[1] - self._now_us) // 1000

    def add_message(self, token: str, message_id: str, text: str) -> bool:
        count = self._cursor.execute("SELECT count(*) FROM mailbox_message WHERE token = ?", (token,)).fetchone()[0]
        if count >= MAILBOX_MAX:
            return False
        self._cursor.execute(_ADD_MESSAGE, (token, message_id, text, self._now_us + MAILBOX_MS * 1000))
        return True

    def messages(self, token: str, most: int) -> list[tuple[str, str]]:
        return self._cursor.execute(_MESSAGES, (token, most)).fetchall()

    def delete_messages(self, token: str, count: int) -> None:
        self._cursor.execute(_DELETE_MESSAGES, (token, count))


def forget_registries(cursor: sqlite3.Cursor, now_us: int) -> None:
    """Delete a few entries and mailbox messages that have ended, so that no command pays for many."""
    ended = "SELECT registry, index_name, entry FROM registry_index WHERE until_us <= ? LIMIT ?"
    cursor.execute(
        f"DELETE FROM registry_index WHERE (registry, index_name, entry) IN ({ended})",  # noqa: S608
        (now_us, _FORGET_AT_ONCE),
    )
    ended = "SELECT id FROM mailbox_message WHERE until_us <= ? LIMIT ?"
    cursor.execute(f"DELETE FROM mailbox_message WHERE id IN ({ended})", (now_us, _FORGET_AT_ONCE))  # noqa: S608
