"""Connections as users have them: from a pool, with answers in bytes, or outside of a transaction."""

import asyncio
import contextlib
import sqlite3

import aiosqlite
import pytest
import sqlalchemy

from holdfast import Fenced, InvalidConfig
from holdfast.aio import guards as aio_guards
from holdfast.guards import SqlGuard, Stamp

FIVE, SIX = Stamp(5, "of five"), Stamp(6, "of six")
GUARD = SqlGuard()


@pytest.fixture
def path(tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as db:
        db.execute(GUARD.schema)
        db.commit()
        yield tmp_path / "shop.db"


def test_a_connection_out_of_a_pool_is_one_of_its_driver(path):
    """SQLAlchemy returns wrappers around driver connections; the guard works on the driver connection."""
    engine = sqlalchemy.create_engine(f"sqlite:///{path}")
    with contextlib.closing(engine.raw_connection()) as raw:
        GUARD.admit(SIX, raw, "order")
        raw.commit()
        with pytest.raises(Fenced):
            GUARD.admit(FIVE, raw, "order")
        raw.rollback()
        assert GUARD.newest(raw, "order") == SIX
    engine.dispose()


def test_a_connection_may_answer_in_bytes(path):
    """The guard recognises the same holder, whatever the type of the stored token."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.text_factory = bytes
        GUARD.admit(SIX, db, "order")
        GUARD.admit(SIX, db, "order")
        assert GUARD.newest(db, "order") == SIX
        with pytest.raises(Fenced):
            GUARD.admit(FIVE, db, "order")


def test_reading_a_fence_needs_no_transaction(path):
    """Reading writes nothing. `admit` on such a connection is still refused."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        GUARD.admit(SIX, db, "order")
        db.commit()
    engine = sqlalchemy.create_engine(f"sqlite:///{path}", isolation_level="AUTOCOMMIT")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as plain, engine.connect() as alchemy:
        for connection in (plain, alchemy):
            assert GUARD.newest(connection, "order") == SIX
            with pytest.raises(InvalidConfig):
                GUARD.admit(SIX, connection, "order")
    engine.dispose()

    async def awaited():
        async with aiosqlite.connect(path, isolation_level=None) as db:
            return await aio_guards.SqlGuard().newest(db, "order")

    assert asyncio.run(awaited()) == SIX
