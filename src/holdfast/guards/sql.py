"""Guards of rows in SQL databases, in the caller's own transaction.

One statement compares, records and locks the row with the stamp, and returns the newest stamp: ours, or that of an
earlier holder. The lock lasts until the caller's transaction ends, so check and write are one step: a second holder
waits for the end of the first transaction and then sees its result. Works with SQLite (3.35) and PostgreSQL (9.5).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.clock import SYSTEM
from holdfast.errors import Fenced, InvalidConfig, NotFound
from holdfast.guards.sql_connections import execute
from holdfast.names import checked_name
from holdfast.rules.guard import UNSEEN, Bearer, Stamp, stamp_of

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")

# The statement stores the larger fence and its token. It accepted our stamp if the stored stamp is ours afterwards.
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


class Statement(NamedTuple):
    """One SQL statement, and the resource's name for error messages."""

    name: str
    sql: str
    values: Mapping[str, Any]


class StampRules:
    """The part that both faces and both guards share: everything but the execution."""

    def __init__(self, admission: str, table: str, **columns: str) -> None:
        self.table = table
        self._names = {setting: _quoted(setting, column) for setting, column in columns.items()}
        self._names["table"] = _quoted("table", table, parts=2)
        self._admission, self._look = admission.format(**self._names), _LOOK.format(**self._names)

    def _name_of(self, key: object) -> str:
        return f"{self.table}/{key}"

    def _admitting(self, stamp: Stamp, key: object) -> Statement:
        return Statement(self._name_of(key), self._admission, {"key": key, **stamp._asdict()})

    def _looking(self, key: object) -> Statement:
        return Statement(self._name_of(key), self._look, {"key": key})

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self.table}>"


class TableRules(StampRules):
    """A guard whose stamps are in a table of their own."""

    def __init__(self, table: str = "holdfast_guard") -> None:
        super().__init__(_ADMIT_NAME, table, key="name", fence="fence", token="token")  # noqa: S106 - a column
        self.schema = _SCHEMA.format(**self._names)

    def _name_of(self, key: object) -> str:
        return checked_name(key, "a key")


class RowRules(StampRules):
    """A guard whose stamps are in the rows of the caller's table."""

    def __init__(self, table: str, *, key: str = "id", fence: str = "fence", token: str = "token") -> None:  # noqa: S107
        super().__init__(_ADMIT_ROW, table, key=key, fence=fence, token=token)


class BlockingStamps(StampRules):
    """The blocking execution of the statements."""

    def admit(self, lease: Bearer, connection: Any, key: Any) -> None:
        """Record the fence of `lease` for `key` in the transaction of `connection`, or raise `Fenced`.

        Then write, and commit both. `key`: the name (`SqlGuard`) or the key of the row (`RowGuard`).
        """
        stamp = stamp_of(lease, SYSTEM.wall_us())
        statement = self._admitting(stamp, key)
        check_stamp(statement, stamp, execute(connection, statement.sql, statement.values))

    def newest(self, connection: Any, key: Any) -> Stamp:
        """Return the newest stamp of `key`, read through `connection`; fence 0 if there is none."""
        statement = self._looking(key)
        return newest_of(execute(connection, statement.sql, statement.values, writes=False))


class SqlGuard(BlockingStamps, TableRules):
    """Guards any named resource by a row in a table of stamps.

    `table`: the name of that table. The attribute `schema` is the statement that creates it.
    """


class RowGuard(BlockingStamps, RowRules):
    """Guards the rows of your table, which has a column for the fence (64 bits) and one for the token.

    `table`: its name; `key`, `fence`, `token`: the names of its columns. For a row that does not exist `admit` raises
    `NotFound`.
    """


def check_stamp(statement: Statement, stamp: Stamp, rows: Sequence[Any]) -> None:
    """Raise `Fenced` unless every returned row has this stamp; `NotFound` if there is no row."""
    if not rows:
        raise NotFound(statement.name, "row to guard")
    for newest in map(_stamp_in, rows):
        if newest != stamp:
            raise Fenced(statement.name, stamp.fence, newest.fence)


def newest_of(rows: Sequence[Any]) -> Stamp:
    """Return the newest stamp of these rows."""
    return max(map(_stamp_in, rows), default=UNSEEN)


def _stamp_in(row: Any) -> Stamp:
    # A connection may be configured to return dictionaries.
    fence, token = (row["fence"], row["token"]) if isinstance(row, Mapping) else row
    if fence is None or token is None:
        return UNSEEN
    return Stamp(int(fence), token.decode() if isinstance(token, bytes) else token)  # some connections return bytes


def _quoted(setting: str, name: object, *, parts: int = 1) -> str:
    """Return a quoted name for a statement; raise `InvalidConfig` for anything that is not a plain name."""
    words = name.split(".") if isinstance(name, str) else []
    if not 0 < len(words) <= parts or not all(_WORD.fullmatch(word) for word in words):
        raise InvalidConfig(setting, name, "it must have only letters, digits and _")
    return ".".join(f'"{word}"' for word in words)
