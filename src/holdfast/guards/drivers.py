"""How the connections that callers bring are spoken to: DB-API drivers and SQLAlchemy.

The rule: a statement of ours joins the transaction that the caller has, or would have. We never begin, commit or roll
back. A connection on which it would commit by itself is refused before anything is sent, unless it only reads.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.errors import InvalidConfig

_PARAMETER = re.compile(r":([a-z]+)")
_IDLE = 0  # what drivers of PostgreSQL call a connection outside of a transaction


def ask(connection: Any, sql: str, values: Mapping[str, Any], writes: bool = True) -> Sequence[Any]:
    """The rows that a statement with `:named` parameters answers, in the caller's transaction."""
    if _is_alchemy(connection):  # one from its pool is a wrapper around the driver's own
        connection = getattr(connection, "driver_connection", None) or connection
    if _is_alchemy(connection):
        driver = _driver_of(connection)
        if writes:
            _refuse_committing(driver, connection)
        from sqlalchemy import text  # noqa: PLC0415 - whoever brings one of its connections has it

        rows: Sequence[Any] = connection.execute(text(sql), dict(values)).all()
        return rows

    _check(connection, awaited=False, writes=writes)
    statement, parameters = rendered(sql, values, _paramstyle(connection))
    cursor = connection.cursor()
    try:
        cursor.execute(statement, parameters)
        found: Sequence[Any] = cursor.fetchall()
    finally:
        cursor.close()
    return found


async def ask_awaited(connection: Any, sql: str, values: Mapping[str, Any], writes: bool = True) -> Sequence[Any]:
    """Like `ask`, on a connection of asyncio."""
    if _is_alchemy(connection) and hasattr(connection, "run_sync"):
        found: Sequence[Any] = await connection.run_sync(ask, sql, values, writes)  # its own bridge to blocking code
        return found

    _check(connection, awaited=True, writes=writes)
    statement, parameters = rendered(sql, values, _paramstyle(connection))
    cursor = await connection.execute(statement, parameters)
    try:
        found = await cursor.fetchall()
    finally:
        await cursor.close()
    return found


def rendered(sql: str, values: Mapping[str, Any], style: str) -> tuple[str, Any]:
    """A statement and its parameters as a driver of this style wants them."""
    if style == "named":
        return sql, dict(values)
    order = [values[name] for name in _PARAMETER.findall(sql)]
    if style == "numeric":
        numbers = iter(range(1, len(order) + 1))
        return _PARAMETER.sub(lambda _: f":{next(numbers)}", sql), order
    return _PARAMETER.sub("?" if style == "qmark" else "%s", sql), order


def _paramstyle(connection: Any) -> str:
    """What the driver says of itself, in the module of the connection or above it."""
    for kind in type(connection).__mro__:
        module = kind.__module__
        while module:
            style = getattr(sys.modules.get(module), "paramstyle", None)
            if isinstance(style, str):
                return style
            module = module.rpartition(".")[0]
    raise InvalidConfig("connection", connection, "it must be a connection of a DB-API driver or of SQLAlchemy")


def _check(connection: Any, *, awaited: bool, writes: bool) -> None:
    commit = getattr(connection, "commit", None)
    if not callable(commit) or not callable(getattr(connection, "cursor", None)):
        raise InvalidConfig("connection", connection, "it must be a connection of a DB-API driver or of SQLAlchemy")
    if inspect.iscoroutinefunction(commit) != awaited:
        rule = "holdfast.guards is for blocking ones" if awaited else "holdfast.aio.guards is for those of asyncio"
        raise InvalidConfig("connection", connection, rule)
    if writes:
        _refuse_committing(connection, connection)


def _is_alchemy(connection: Any) -> bool:
    return any(kind.__module__.startswith("sqlalchemy.") for kind in type(connection).__mro__)


def _driver_of(connection: Any) -> Any:
    """The driver's connection below one of SQLAlchemy's, or below a session."""
    if hasattr(connection, "run_sync"):
        raise InvalidConfig("connection", connection, "holdfast.aio.guards is for those of asyncio")
    if not hasattr(connection, "connection"):
        raise InvalidConfig("connection", connection, "it must be a connection or a session, which has a transaction")
    bound = connection.connection() if callable(connection.connection) else connection
    return bound.connection.driver_connection


def _refuse_committing(driver: Any, given: Any) -> None:
    if _commits_alone(driver):
        rule = "begin a transaction first: the guard and the write have to commit together"
        raise InvalidConfig("connection", given, rule)


def _commits_alone(driver: Any) -> bool:
    """Whether each statement is a transaction of its own just now."""
    inside = getattr(driver, "in_transaction", None)
    if inside is not None:  # sqlite3
        return not inside and (driver.isolation_level is None or getattr(driver, "autocommit", None) is True)
    status = getattr(getattr(driver, "info", None), "transaction_status", _IDLE)
    return bool(getattr(driver, "autocommit", False)) and status == _IDLE
