"""One counter behind each kind of guard, for tests and for the processes that they start.

All have the same shape: `admit`, `write`, `read`, `newest`, with a stamp where a holder would bring its lease. Those of
asyncio run in a loop of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from pathlib import Path

from holdfast import guards
from holdfast.aio import guards as aio_guards

TABLES = [
    "CREATE TABLE IF NOT EXISTS counters (name VARCHAR(40) PRIMARY KEY, value BIGINT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS orders (id BIGINT PRIMARY KEY, value BIGINT, fence BIGINT, token VARCHAR(200))",
    guards.SqlGuard().schema,
]
ROWS = ["INSERT INTO counters VALUES ('counter', 0)", "INSERT INTO orders (id, value) VALUES (7, 0)"]


class File:
    """A counter in a file with its fence record."""

    def __init__(self, where):
        self.path = Path(where["folder"]) / "counter.txt"
        self.guard = guards.FileGuard(self.path, timeout=30)

    def admit(self, stamp):
        self.guard.admit(stamp)

    def write(self, stamp, value):
        self.guard.write(stamp, str(value))

    def read(self):
        return int(self.path.read_text()) if self.path.exists() else 0

    def newest(self):
        return self.guard.newest()

    def close(self):
        pass


class Redis:
    """A counter in a key of a real server."""

    def __init__(self, where):
        import redis

        self.client = redis.Redis.from_url(where["redis"])
        self.guard = guards.RedisGuard(self.client, "counter")

    def admit(self, stamp):
        self.guard.admit(stamp)

    def write(self, stamp, value):
        self.guard.set(stamp, value)

    def read(self):
        return int(self.client.get("counter") or 0)

    def newest(self):
        return self.guard.newest()

    def close(self):
        self.client.close()


class Sql:
    """A counter in a transaction of a DB-API connection."""

    statements = ("UPDATE counters SET value = {} WHERE name = 'counter'", "SELECT value FROM counters")
    mark, what = "?", "counter"

    def __init__(self, where):
        self.guard = guards.SqlGuard()
        self.db = self.connected(where)

    def connected(self, where):
        return sqlite3.connect(Path(where["folder"]) / "guarded.db", timeout=30)

    def admit(self, stamp):
        with self.transaction():
            self.guard.admit(stamp, self.db, self.what)

    def write(self, stamp, value):
        with self.transaction():
            self.guard.admit(stamp, self.db, self.what)
            self.execute(self.statements[0].format(self.mark), (value,))

    def read(self):
        with self.transaction():
            return self.execute(self.statements[1]).fetchone()[0]

    def newest(self):
        with self.transaction():
            return self.guard.newest(self.db, self.what)

    def execute(self, statement, parameters=()):
        cursor = self.db.cursor()
        cursor.execute(statement, parameters)
        return cursor

    @contextlib.contextmanager
    def transaction(self):
        try:
            yield
        except BaseException:
            self.db.rollback()
            raise
        self.db.commit()

    def close(self):
        self.db.close()


class Row(Sql):
    """A counter in a row with fence columns."""

    statements = ("UPDATE orders SET value = {} WHERE id = 7", "SELECT value FROM orders WHERE id = 7")
    what = 7

    def __init__(self, where):
        super().__init__(where)
        self.guard = guards.RowGuard("orders")


class Psycopg(Sql):
    """A counter in PostgreSQL through psycopg."""

    mark = "%s"

    def connected(self, where):
        import psycopg

        return psycopg.connect(where["postgres"])


class PsycopgRow(Row):
    mark = "%s"
    connected = Psycopg.connected


class Pg8000(Sql):
    """A counter in PostgreSQL through pg8000."""

    mark = "%s"

    def connected(self, where):
        import pg8000.dbapi

        return pg8000.dbapi.connect("postgres", host="127.0.0.1", port=where["port"], database="postgres")


class Alchemy(Sql):
    """A counter in SQLite through SQLAlchemy Core."""

    mark = ":value"

    def connected(self, where):
        import sqlalchemy

        self.engine = sqlalchemy.create_engine(f"sqlite:///{where['folder']}/guarded.db", connect_args={"timeout": 30})
        return self.engine.connect()

    def execute(self, statement, parameters=()):
        from sqlalchemy import text

        return self.db.execute(text(statement), dict(zip(["value"], parameters, strict=False)))

    def close(self):
        self.db.close()
        self.engine.dispose()


class AlchemySession(Alchemy):
    """A counter in PostgreSQL through a session of SQLAlchemy's ORM."""

    def connected(self, where):
        import sqlalchemy
        from sqlalchemy.orm import Session

        self.engine = sqlalchemy.create_engine(where["postgres"].replace("postgresql:", "postgresql+psycopg:"))
        return Session(self.engine)


class Awaited:
    """The base of the asyncio counters, with its own event loop."""

    def __init__(self, where):
        self.runner = asyncio.Runner()
        self.run = self.runner.run
        self.run(self.open(where))

    def close(self):
        self.run(self.end())
        self.runner.close()


class AwaitedFile(Awaited):
    async def open(self, where):
        self.path = Path(where["folder"]) / "counter.txt"
        self.guard = aio_guards.FileGuard(self.path, timeout=30)

    def admit(self, stamp):
        self.run(self.guard.admit(stamp))

    def write(self, stamp, value):
        self.run(self.guard.write(stamp, str(value)))

    read = File.read

    def newest(self):
        return self.run(self.guard.newest())

    async def end(self):
        pass


class AwaitedRedis(Awaited):
    async def open(self, where):
        from redis import asyncio as redis

        self.client = redis.Redis.from_url(where["redis"])
        self.guard = aio_guards.RedisGuard(self.client, "counter")

    def admit(self, stamp):
        self.run(self.guard.admit(stamp))

    def write(self, stamp, value):
        self.run(self.guard.set(stamp, value))

    def read(self):
        return int(self.run(self.client.get("counter")) or 0)

    def newest(self):
        return self.run(self.guard.newest())

    async def end(self):
        await self.client.aclose()


class AwaitedSql(Awaited):
    """A counter in PostgreSQL through psycopg's asyncio connection."""

    mark, what, statements = "%s", Sql.what, Sql.statements

    async def open(self, where):
        import psycopg

        self.guard = aio_guards.SqlGuard()
        self.db = await psycopg.AsyncConnection.connect(where["postgres"])

    async def execute(self, statement, parameters=()):
        return await (await self.db.execute(statement, parameters)).fetchone()

    def admit(self, stamp):
        self.run(self._in_transaction(self.guard.admit, stamp, self.db, self.what))

    def write(self, stamp, value):
        async def both():
            await self.guard.admit(stamp, self.db, self.what)
            await self.execute(f"{self.statements[0].format(self.mark)} RETURNING value", (value,))

        self.run(self._in_transaction(both))

    def read(self):
        return self.run(self._in_transaction(self.execute, self.statements[1]))[0]

    def newest(self):
        return self.run(self._in_transaction(self.guard.newest, self.db, self.what))

    async def _in_transaction(self, work, *arguments):
        try:
            answer = await work(*arguments)
        except BaseException:
            await self.db.rollback()
            raise
        await self.db.commit()
        return answer

    async def end(self):
        await self.db.close()


class AwaitedSqlite(AwaitedSql):
    """A counter in SQLite through aiosqlite."""

    mark = "?"

    async def open(self, where):
        import aiosqlite

        self.guard = aio_guards.SqlGuard()
        self.db = await aiosqlite.connect(Path(where["folder"]) / "guarded.db", timeout=30)


class AwaitedRow(AwaitedSqlite):
    """A counter in a row with fence columns."""

    what, statements = Row.what, Row.statements

    async def open(self, where):
        await super().open(where)
        self.guard = aio_guards.RowGuard("orders")


class AwaitedAlchemy(AwaitedSql):
    """A counter in PostgreSQL through an asyncio session of SQLAlchemy's ORM."""

    mark = ":value"

    async def open(self, where):
        from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

        self.guard = aio_guards.SqlGuard()
        self.engine = create_async_engine(where["postgres"].replace("postgresql:", "postgresql+psycopg:"))
        self.db = AsyncSession(self.engine)

    async def execute(self, statement, parameters=()):
        from sqlalchemy import text

        return (await self.db.execute(text(statement), dict(zip(["value"], parameters, strict=False)))).fetchone()

    async def end(self):
        await self.db.close()
        await self.engine.dispose()


KINDS = {
    "file": File,
    "redis": Redis,
    "sqlite3": Sql,
    "sqlite3-row": Row,
    "psycopg": Psycopg,
    "psycopg-row": PsycopgRow,
    "pg8000": Pg8000,
    "alchemy": Alchemy,
    "alchemy-session": AlchemySession,
    "file-awaited": AwaitedFile,
    "redis-awaited": AwaitedRedis,
    "psycopg-awaited": AwaitedSql,
    "aiosqlite": AwaitedSqlite,
    "aiosqlite-row": AwaitedRow,
    "alchemy-awaited": AwaitedAlchemy,
}
POSTGRES = {"psycopg", "psycopg-row", "pg8000", "alchemy-session", "psycopg-awaited", "alchemy-awaited"}


def prepare(where):
    """Create empty counters in every location."""
    with contextlib.closing(sqlite3.connect(Path(where["folder"]) / "guarded.db")) as db, db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = OFF")
        for statement in (*TABLES, *ROWS):
            db.execute(statement)
    if "postgres" in where:
        import psycopg

        with psycopg.connect(where["postgres"]) as db:
            for statement in (*TABLES, "TRUNCATE counters, orders, holdfast_guard", *ROWS):
                db.execute(statement)


@contextlib.contextmanager
def opened(kind, where):
    with contextlib.closing(KINDS[kind](where)) as guarded:
        yield guarded
