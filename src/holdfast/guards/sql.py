"""Rows that refuse late writers, in the caller's own transaction.

One statement compares, records and locks the row that holds the stamp, and answers with the newest stamp: ours, or that
of whoever was here before. The lock lasts until the caller's transaction ends, so that check and write are one step: a
second holder waits for the end of the first, and then sees what it left. Known to SQLite (3.35) and PostgreSQL (9.5).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.errors import Fenced, InvalidConfig, NotFound
from holdfast.guards.drivers import ask
from holdfast.names import checked_name
from holdfast.rules.guard import UNSEEN, Bearer, Stamp, stamp_of

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")

# The larger fence wins, and its token with it. Ours has been accepted if it is what stands there afterwards.
_ADMIT_NAME = """
INSERT INTO {table} AS seen (name, fence, token) VALUES (:key, :fence, :token)
ON CONFLICT (name) DO UPDATE SET
    fence = CASE WHEN excluded.fence > seen.fence THEN excluded.fence ELSE seen.fence END,
    token = CASE WHEN excluded.fence > seen.fence THEN excluded.token ELSE seen.token END
RETURNING fence, token"""
_ADMIT_ROW = """
UPDATE {table} AS seen SET
    {fence} = CASE WHEN :fence > COALESCE(seen.{fence}, 0) THEN :fence ELSE seen.{fence} END,
    {token} = CASE WHEN :fence > COALESCE(seen.{fence}, 0) THEN :token ELSE seen.{token} END
WHERE seen.{key} = :key RETURNING {fence} AS fence, {token} AS token"""
_LOOK = "SELECT seen.{fence} AS fence, seen.{token} AS token FROM {table} AS seen WHERE seen.{key} = :key"
_SCHEMA = """\
CREATE TABLE IF NOT EXISTS {table} (
    name VARCHAR(512) PRIMARY KEY, fence BIGINT NOT NULL, token VARCHAR(200) NOT NULL
)"""


class Question(NamedTuple):
    """One statement, and the name under which a refusal tells of it."""

    name: str
    sql: str
    values: Mapping[str, Any]


class StampRules:
    """What both faces and both places of a stamp share: everything but the asking."""

    def __init__(self, admission: str, table: str, **columns: str) -> None:
        self.table = table
        self._names = {setting: _quoted(setting, column) for setting, column in columns.items()}
        self._names["table"] = _quoted("table", table, parts=2)
        self._admission, self._look = admission.format(**self._names), _LOOK.format(**self._names)

    def _name_of(self, key: object) -> str:
        return f"{self.table}/{key}"

    def _admitting(self, stamp: Stamp, key: object) -> Question:
        return Question(self._name_of(key), self._admission, {"key": key, **stamp._asdict()})

    def _looking(self, key: object) -> Question:
        return Question(self._name_of(key), self._look, {"key": key})

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self.table}>"


class TableRules(StampRules):
    """A table of stamps."""

    def __init__(self, table: str = "holdfast_guard") -> None:
        super().__init__(_ADMIT_NAME, table, key="name", fence="fence", token="token")  # noqa: S106 - a column
        self.schema = _SCHEMA.format(**self._names)

    def _name_of(self, key: object) -> str:
        return checked_name(key, "a key")


class RowRules(StampRules):
    """A table of the caller's, with a fence and a token in each row."""

    def __init__(self, table: str, *, key: str = "id", fence: str = "fence", token: str = "token") -> None:  # noqa: S107
        super().__init__(_ADMIT_ROW, table, key=key, fence=fence, token=token)


class Asked(StampRules):
    """The blocking way to ask."""

    def admit(self, lease: Bearer, connection: Any, key: Any) -> None:
        """Let this holder in, in the transaction of `connection`, or raise `Fenced`. Then write, and commit both."""
        stamp = stamp_of(lease)
        question = self._admitting(stamp, key)
        judge(question, stamp, ask(connection, question.sql, question.values))

    def newest(self, connection: Any, key: Any) -> Stamp:
        """The newest holder that came; fence 0 if none did."""
        question = self._looking(key)
        return newest_of(ask(connection, question.sql, question.values, writes=False))


class SqlGuard(Asked, TableRules):
    """Guards whatever you name, by a row in a table of stamps. `schema` is the statement that makes the table."""


class RowGuard(Asked, RowRules):
    """Guards the rows of a table of yours, which has a column for the fence (64 bits) and one for the token.

    It guards rows that are there: for one that is not, `admit` raises `NotFound`.
    """


def judge(question: Question, stamp: Stamp, rows: Sequence[Any]) -> None:
    """Whether the stamp is what stands there now, in each row that was asked for."""
    if not rows:
        raise NotFound(question.name, "row to guard")
    for newest in map(_stamp_in, rows):
        if newest != stamp:
            raise Fenced(question.name, stamp.fence, newest.fence)


def newest_of(rows: Sequence[Any]) -> Stamp:
    """The newest stamp of the rows that were found."""
    return max(map(_stamp_in, rows), default=UNSEEN)


def _stamp_in(row: Any) -> Stamp:
    # Connections may have been told to answer with dictionaries.
    fence, token = (row["fence"], row["token"]) if isinstance(row, Mapping) else row
    if fence is None or token is None:
        return UNSEEN
    return Stamp(int(fence), token.decode() if isinstance(token, bytes) else token)  # as the connection was told


def _quoted(setting: str, name: object, *, parts: int = 1) -> str:
    """A name as it stands in a statement; nothing else than a name can get there."""
    words = name.split(".") if isinstance(name, str) else []
    if not 0 < len(words) <= parts or not all(_WORD.fullmatch(word) for word in words):
        raise InvalidConfig(setting, name, "it must be a name of letters, digits and _")
    return ".".join(f'"{word}"' for word in words)
