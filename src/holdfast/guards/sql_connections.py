"""Executes statements on the caller's connection, of a DB-API driver or of SQLAlchemy.

The rule: a statement of the guard joins the caller's transaction, open or implicit. This module never begins, commits
or rolls back. It refuses a connection in autocommit mode before it sends anything, unless the statement only reads.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.errors import InvalidConfig

_PARAMETER = re.compile(r":([a-z]+)")
_IDLE = 0  # the status of a PostgreSQL connection outside of a transaction


def execute(connection: Any, sql: str, values: Mapping[str, Any], writes: bool = True) -> Sequence[Any]:
    """Execute a statement with `:named` parameters in the caller's transaction and return its rows."""
    if _is_alchemy(connection):  # a connection from its pool wraps the driver's connection
        connection = getattr(connection, "driver_connection", None) or connection
    if _is_alchemy(connection):
        driver = _driver_of(connection)
        if writes:
            _refuse_committing(driver, connection)
        from sqlalchemy import text  # noqa: PLC0415 - the caller's connection is from SQLAlchemy

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


async def execute_awaited(connection: Any, sql: str, values: Mapping[str, Any], writes: bool = True) -> Sequence[Any]:
    """Like `execute`, on an asyncio connection."""
    if _is_alchemy(connection) and hasattr(connection, "run_sync"):
        found: Sequence[Any] = await connection.run_sync(
            execute, sql, values, writes
        )  # its own bridge to blocking code
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
    """Return the statement and its parameters in the driver's parameter style."""
    if style == "named":
        return sql, dict(values)
    order = [values[name] for name in _PARAMETER.findall(sql)]
    if style == "numeric":
        numbers = iter(range(1, len(order) + 1))
        return _PARAMETER.sub(lambda _: f":{next(numbers)}", sql), order
    return _PARAMETER.sub("?" if style == "qmark" else "%s", sql), order


def _paramstyle(connection: Any) -> str:
    """Return the `paramstyle` that the driver's module declares."""
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
        blocking = "use holdfast.guards for a blocking connection"
        rule = blocking if awaited else "use holdfast.aio.guards for an asyncio connection"
        raise InvalidConfig("connection", connection, rule)
    if writes:
        _refuse_committing(connection, connection)


def _is_alchemy(connection: Any) -> bool:
    return any(kind.__module__.startswith("sqlalchemy.") for kind in type(connection).__mro__)


def _driver_of(connection: Any) -> Any:
    """Return the driver's connection of a SQLAlchemy connection or session."""
    if hasattr(connection, "run_sync"):
        raise InvalidConfig("connection", connection, "use holdfast.aio.guards for an asyncio connection")
    if not hasattr(connection, "connection"):
        raise InvalidConfig("connection", connection, "it must be a connection or a session")
    bound = connection.connection() if callable(connection.connection) else connection
    return bound.connection.driver_connection


def _refuse_committing(driver: Any, given: Any) -> None:
    if _commits_alone(driver):
        rule = "begin a transaction first: the guard and the write must commit together"
        raise InvalidConfig("connection", given, rule)


def _commits_alone(driver: Any) -> bool:
    """Return whether the driver commits each statement by itself now."""
    inside = getattr(driver, "in_transaction", None)
    if inside is not None:  # sqlite3
        return not inside and (driver.isolation_level is None or getattr(driver, "autocommit", None) is True)
    status = getattr(getattr(driver, "info", None), "transaction_status", _IDLE)
    return bool(getattr(driver, "autocommit", False)) and status == _IDLE
