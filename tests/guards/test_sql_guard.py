"""Guarded rows: check and write commit together, whichever transaction comes first, and only in a transaction."""

import contextlib
import sqlite3
import sys
import threading
import uuid

import pg8000.dbapi
import psycopg
import pytest
import sqlalchemy
from guarded import ROWS, TABLES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.rows import dict_row
from sqlalchemy.orm import Session

from holdfast import Fenced, InvalidConfig, InvalidName, NotFound
from holdfast.aio import guards as aio_guards
from holdfast.clock import SYSTEM
from holdfast.guards import RowGuard, SqlGuard, Stamp
from holdfast.guards.sql_connections import rendered
from holdfast.rules.guard import UNSEEN, accepts, fence_max
from holdfast.testing import eventually

FENCE_MAX = fence_max(SYSTEM.wall_us())

FIVE, SIX = Stamp(5, "of five"), Stamp(6, "of six")
STAMPS = [Stamp(fence, token) for fence in (1, 2, 3, FENCE_MAX - 1, FENCE_MAX) for token in "ab"]
GUARD, ROW = SqlGuard(), RowGuard("orders")


@pytest.fixture
def db():
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        for statement in (*TABLES, *ROWS):
            db.execute(statement)
        db.commit()
        yield db


@pytest.fixture
def connect(where, _postgres):
    """Return a function that connects to PostgreSQL; the fixture closes the connections."""
    with contextlib.ExitStack() as opened:
        yield lambda **options: opened.enter_context(contextlib.closing(psycopg.connect(where["postgres"], **options)))


def answers_alike(db, guard, key, stamps):
    newest = UNSEEN
    for stamp in stamps:
        if accepts(newest, stamp):
            newest = stamp
            guard.admit(stamp, db, key)
        else:
            with pytest.raises(Fenced) as refusal:
                guard.admit(stamp, db, key)
            assert (refusal.value.fence, refusal.value.newest) == (stamp.fence, newest.fence)
        assert guard.newest(db, key) == newest


@pytest.mark.parametrize(("guard", "key"), [(GUARD, "orders/7"), (ROW, 7)], ids=["table", "row"])
@given(stamps=st.lists(st.sampled_from(STAMPS), min_size=1, max_size=12))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_statement_and_the_rule_answer_alike_on_sqlite(db, guard, key, stamps):
    """The rule is written twice, so a test compares admission and state."""
    answers_alike(db, guard, key, stamps)
    db.rollback()


@pytest.mark.parametrize(("guard", "key"), [(GUARD, "orders/7"), (ROW, 7)], ids=["table", "row"])
@given(stamps=st.lists(st.sampled_from(STAMPS), min_size=1, max_size=12))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_statement_and_the_rule_answer_alike_on_postgresql(connect, guard, key, stamps):
    """The statement is the same in another dialect."""
    with contextlib.closing(connect()) as db:
        answers_alike(db, guard, key, stamps)
        db.rollback()


def test_a_rolled_back_holder_was_never_admitted(db):
    """A failed transaction wrote nothing, so it excludes no holder."""
    GUARD.admit(FIVE, db, "x")
    db.commit()
    GUARD.admit(SIX, db, "x")
    db.rollback()

    GUARD.admit(FIVE, db, "x")

    assert GUARD.newest(db, "x") == FIVE


def test_each_name_and_each_row_has_its_own_fence(db):
    """The holder of one resource is no holder of another."""
    db.execute("INSERT INTO orders (id) VALUES (8)")
    GUARD.admit(SIX, db, "x")
    ROW.admit(SIX, db, 7)

    GUARD.admit(FIVE, db, "y")
    ROW.admit(FIVE, db, 8)

    assert (GUARD.newest(db, "x"), GUARD.newest(db, "y"), GUARD.newest(db, "z")) == (SIX, FIVE, UNSEEN)
    assert (ROW.newest(db, 7), ROW.newest(db, 8), ROW.newest(db, 9)) == (SIX, FIVE, UNSEEN)


def test_a_missing_row_cannot_be_guarded(db):
    """A missing row must not look like a passed check."""
    with pytest.raises(NotFound) as missing:
        ROW.admit(FIVE, db, 999)

    assert missing.value.name == "orders/999"


def test_rows_may_come_as_dictionaries_and_columns_have_other_names(db, connect):
    """Callers configure their connections freely, and reserved words can be names."""
    db.row_factory = lambda cursor, row: {column[0]: cell for column, cell in zip(cursor.description, row, strict=True)}
    GUARD.admit(FIVE, db, "x")
    with pytest.raises(Fenced):
        GUARD.admit(Stamp(4, "t"), db, "x")

    other = connect(row_factory=dict_row)
    other.execute('CREATE TEMPORARY TABLE "order" ("user" UUID, "limit" BIGINT, "Token" TEXT)')
    key = uuid.uuid4()
    other.execute('INSERT INTO "order" ("user") VALUES (%s)', (key,))
    guard = RowGuard("order", key="user", fence="limit", token="Token")
    guard.admit(FIVE, other, key)
    with pytest.raises(Fenced):
        guard.admit(Stamp(4, "t"), other, key)
    assert guard.newest(other, key) == FIVE


def in_thread(work):
    """Run it in a thread; the list gets its error or `None` at the end."""
    outcome = []

    def run():
        try:
            work()
            outcome.append(None)
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def waits(db, watcher):
    """Return whether the connection waits for a lock of another one."""
    pid = db.info.backend_pid
    asked = "SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s"
    return watcher.execute(asked, (pid,)).fetchone()[0] == "Lock"


@pytest.mark.parametrize(("guard", "key"), [(GUARD, "orders/7"), (ROW, 7)], ids=["table", "row"])
@pytest.mark.parametrize("ending", ["commit", "rollback"])
@pytest.mark.parametrize("seen", [True, False], ids=["seen", "unseen"])
def test_an_older_holder_waits_for_the_result_of_the_newer_one(connect, guard, key, ending, seen):
    """Under READ COMMITTED the committed state decides, also for the first row of a name."""
    newer, older, watcher = connect(), connect(), connect(autocommit=True)
    if seen:
        guard.admit(Stamp(1, "before"), newer, key)
        newer.commit()
    guard.admit(SIX, newer, key)
    newer.execute("UPDATE orders SET value = 6 WHERE id = 7")

    def write_late():
        guard.admit(FIVE, older, key)
        older.execute("UPDATE orders SET value = 5 WHERE id = 7")
        older.commit()

    thread, outcome = in_thread(write_late)
    eventually(lambda: waits(older, watcher))
    assert outcome == []
    getattr(newer, ending)()
    thread.join(20)

    older.rollback()
    value = watcher.execute("SELECT value FROM orders WHERE id = 7").fetchone()[0]
    if ending == "commit":
        assert isinstance(outcome[0], Fenced)
        assert value == 6
    else:
        assert outcome == [None]
        assert value == 5


def test_a_newer_holder_waits_for_the_writes_of_the_older_one(connect):
    """Two overlapping holders are ordered: no write of the older one follows the newer one."""
    older, newer, watcher = connect(), connect(), connect(autocommit=True)
    ROW.admit(FIVE, older, 7)
    found = []

    def write():
        ROW.admit(SIX, newer, 7)
        found.append(newer.execute("SELECT value FROM orders WHERE id = 7").fetchone()[0])
        newer.commit()

    thread, outcome = in_thread(write)
    eventually(lambda: waits(newer, watcher))
    older.execute("UPDATE orders SET value = 5 WHERE id = 7")
    older.commit()
    thread.join(20)

    assert (outcome, found) == ([None], [5])
    with pytest.raises(Fenced):
        ROW.admit(FIVE, older, 7)


def test_the_server_ends_a_holder_that_is_frozen_in_its_transaction(connect):
    """Otherwise its successor would wait for the whole freeze; its earlier writes are rolled back."""
    frozen, newer = connect(), connect()
    frozen.execute("SET idle_in_transaction_session_timeout = '1s'")
    frozen.commit()
    ROW.admit(FIVE, frozen, 7)
    frozen.execute("UPDATE orders SET value = 5 WHERE id = 7")

    ROW.admit(SIX, newer, 7)  # waits for that moment
    newer.execute("UPDATE orders SET value = value + 6 WHERE id = 7")
    newer.commit()

    with pytest.raises(psycopg.Error, match=r"idle-in-transaction|closed"):
        frozen.commit()
    assert newer.execute("SELECT value FROM orders WHERE id = 7").fetchone() == (6,)
    assert ROW.newest(newer, 7) == SIX


def test_a_holder_that_is_frozen_in_its_transaction_blocks_sqlite(where):
    """No process can end it from outside: the successor gets an error and has written nothing."""
    file = f"{where['folder']}/guarded.db"
    with contextlib.closing(sqlite3.connect(file)) as frozen, contextlib.closing(sqlite3.connect(file, 0.1)) as newer:
        ROW.admit(FIVE, frozen, 7)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            ROW.admit(SIX, newer, 7)
        newer.rollback()

        frozen.execute("UPDATE orders SET value = 5 WHERE id = 7")
        frozen.commit()
        ROW.admit(SIX, newer, 7)
        newer.commit()
        with pytest.raises(Fenced):
            ROW.admit(FIVE, frozen, 7)
        assert newer.execute("SELECT value FROM orders WHERE id = 7").fetchone() == (5,)


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize(("guard", "key"), [(GUARD, "orders/7"), (ROW, 7)], ids=["table", "row"])
def test_a_stricter_isolation_level_refuses_an_old_holder(connect, level, guard, key):
    """An old snapshot admits no old holder: the server fails the transaction."""
    older, newer = connect(), connect()
    guard.admit(FIVE, newer, key)
    newer.commit()
    older.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
    older.execute("SELECT value FROM orders WHERE id = 7").fetchone()
    guard.admit(SIX, newer, key)
    newer.commit()

    with pytest.raises(psycopg.errors.SerializationFailure):
        guard.admit(FIVE, older, key)

    older.rollback()
    with pytest.raises(Fenced):
        guard.admit(FIVE, older, key)


def statements_of(db):
    statements = []
    db.set_trace_callback(statements.append)
    return statements


@pytest.mark.parametrize("guard", [GUARD, ROW], ids=["table", "row"])
def test_a_connection_in_autocommit_mode_is_refused(guard, db, where, connect):
    """The check would commit before the write, and a newer holder could come between."""
    db.isolation_level = None
    statements = statements_of(db)
    with pytest.raises(InvalidConfig):
        guard.admit(FIVE, db, "7")
    assert statements == []
    db.execute("BEGIN IMMEDIATE")
    guard.admit(FIVE, db, "7")
    db.execute("ROLLBACK")

    if sys.version_info >= (3, 12):
        with contextlib.closing(sqlite3.connect(":memory:", autocommit=True)) as newer, pytest.raises(InvalidConfig):
            guard.admit(FIVE, newer, "7")

    alone = connect(autocommit=True)
    with pytest.raises(InvalidConfig):
        guard.admit(FIVE, alone, "7" if guard is GUARD else 7)
    with alone.transaction():
        guard.admit(FIVE, alone, "7" if guard is GUARD else 7)
        raise psycopg.Rollback

    with contextlib.closing(pg8000.dbapi.connect("postgres", host="127.0.0.1", port=where["port"])) as other:
        other.autocommit = True
        with pytest.raises(InvalidConfig):
            guard.admit(FIVE, other, "7")

    engine = sqlalchemy.create_engine(f"sqlite:///{where['folder']}/guarded.db", isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, Session(engine) as session:
        for one in (connection, session):
            with pytest.raises(InvalidConfig):
                guard.admit(FIVE, one, "7")
    engine.dispose()


@pytest.mark.parametrize("name", ["", "a b", 'x"y', "a;b", "1a", "a.b.c", None, 7, "x" * 64, "a.", "ä"])
def test_an_invalid_name_never_reaches_a_statement(name):
    """A table or column name is a plain word, which prevents SQL injection."""
    with pytest.raises(InvalidConfig):
        SqlGuard(name)
    for setting in ("key", "fence", "token"):
        with pytest.raises(InvalidConfig):
            RowGuard("orders", **{setting: name})


def test_invalid_names_and_connections_are_refused_before_any_statement(db, where):
    """The error comes where the mistake is made."""
    statements = statements_of(db)

    for name in ("", None, 7, "x" * 600, "a\0b"):
        with pytest.raises(InvalidName):
            GUARD.admit(FIVE, db, name)
    for connection in (None, "sqlite:///x", db.cursor()):
        with pytest.raises(InvalidConfig):
            GUARD.admit(FIVE, connection, "x")

    assert statements == []


def refused_at_once(operation):
    """Return the error of an operation that must fail before it waits."""
    try:
        operation.send(None)
    except InvalidConfig as error:
        return error
    finally:
        operation.close()
    return None


@pytest.mark.usefixtures("_postgres")
def test_each_face_refuses_the_connections_of_the_other(db, where):
    """Otherwise a coroutine would be dropped and nothing checked."""
    import asyncio

    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    async def awaited():
        connection = await psycopg.AsyncConnection.connect(where["postgres"])
        engine = create_async_engine(where["postgres"].replace("postgresql:", "postgresql+psycopg:"))
        session = AsyncSession(engine)
        for one in (connection, session):
            with pytest.raises(InvalidConfig):
                GUARD.admit(FIVE, one, "x")
        await session.close()
        await engine.dispose()
        await connection.close()

    asyncio.run(awaited())
    engine = sqlalchemy.create_engine("sqlite://")
    with pytest.raises(InvalidConfig):
        GUARD.admit(FIVE, engine, "x")
    with engine.connect() as connection:
        for one in (db, connection):
            assert isinstance(refused_at_once(aio_guards.SqlGuard().admit(FIVE, one, "x")), InvalidConfig)
    engine.dispose()


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ("qmark", ("? ? ?", [1, 2, 1])),
        ("format", ("%s %s %s", [1, 2, 1])),
        ("pyformat", ("%s %s %s", [1, 2, 1])),
        ("numeric", (":1 :2 :3", [1, 2, 1])),
        ("named", (":a :b :a", {"a": 1, "b": 2})),
    ],
)
def test_parameters_follow_the_style_of_the_driver(style, expected):
    """DB-API has five parameter styles."""
    assert rendered(":a :b :a", {"a": 1, "b": 2}, style) == expected
