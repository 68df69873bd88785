"""A pool in tables answers like a pool in memory: the same rules on another state."""

import sqlite3

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.commands import (
    POOL,
    READ,
    RWLOCK,
    SEMAPHORE,
    WRITE,
    Borrow,
    BreakItem,
    ChangePool,
    CoolItem,
    Extend,
    GetPoolStats,
    Granted,
    PoolHeartbeat,
    Return,
    UndoBorrow,
)
from holdfast.engines.sqlite import pool as stored
from holdfast.rules import Moment
from holdfast.rules.pool_state import MemoryPoolState
from holdfast.rules.table import RULES

CLIENTS = ("1", "2", "3")
ITEMS = ("p", "q", "r", "s")
JUMPS_US = (0, 0, 0, 1, 200_000, 999_999, 1_000_001, 5_000_000, 61_000_000)
SEED = 2_654_435_769
TOKENS = [f"{client}-{number}" for client in CLIENTS for number in (1, 2)]


def words(kind, token):
    """Return the commands of one token for a kind of pool."""
    shares = {
        POOL: (("", 1_000_000), ("t", 500_000), ("u", 0)),
        SEMAPHORE: (("", 1_000_000),),
        RWLOCK: ((READ, 1), (WRITE, 1)),
    }
    for ttl_ms in (200, 3000):
        for wait in (True, True, False):
            for cooldown_ms in (0, 700):
                for share in shares[kind]:
                    permits = 2 if kind == SEMAPHORE else 0
                    yield Borrow("x", token, f"owner {token}", ttl_ms, wait, cooldown_ms, *share, permits, kind)
    for cooldown_ms in (0, 0, 0, 400):
        yield Return("x", "", token, cooldown_ms, cooldown_ms == 0, kind)
    yield Extend("x", "", token, 3000, kind)
    yield UndoBorrow("x", token, kind)
    yield BreakItem("x", "p" if kind == POOL else "1", 0, "why", kind)
    yield CoolItem("x", "q" if kind == POOL else "2", 300, kind)
    yield PoolHeartbeat("x", kind)
    if kind == POOL:
        for how, items in (("set", ITEMS), ("set", ITEMS[:2]), ("set", ()), ("add", ("t",)), ("remove", ("p", "q"))):
            for leave in (False, True):
                yield ChangePool("x", how, items, leave, SEED, 0, kind)
    if kind == SEMAPHORE:
        yield ChangePool("x", "set", ("1", "2", "3"), True, 5, 3, kind)
        yield ChangePool("x", "set", ("1", "2"), True, 5, 2, kind)


def borrow(token, *share):
    return 0, token, Borrow("x", token, f"owner {token}", 3000, True, 0, *(share or ("", 1_000_000)), 0, POOL)


def change(how, *items):
    return 0, TOKENS[0], ChangePool("x", how, items, True, SEED, 0, POOL)


# Two lines that may both be served, which random programs rarely produce.
TWO_LINES = [
    change("set", "p"), borrow("1-1"), borrow("2-1"), borrow("3-1", "t", 600_000), borrow("3-2", "u", 600_000),
    change("set", *ITEMS), change("add", "a", "b", "c", "d"),
]  # fmt: skip


def programs(kind):
    steps = [(jump, token, word) for token in TOKENS for word in words(kind, token) for jump in JUMPS_US]
    return st.lists(st.sampled_from(steps), min_size=1, max_size=40)


def resolved(command, has, state):
    if isinstance(command, Return | Extend):
        return command._replace(item=has.get(command.token, "none"))
    if isinstance(command, BreakItem) and (item := state.find(command.item)):
        return command._replace(fence=item.fence)
    return command


def run(kind, program):
    """Run one program on both states; each answer, and the statistics after each step, are equal."""
    link = sqlite3.connect(":memory:", isolation_level=None).cursor()
    for statement in stored.SCHEMA.split(";\n"):
        link.execute(statement)
    state, has, now_us = MemoryPoolState(kind), {}, 1_700_000_000_000_000
    first = ChangePool("x", "set", ITEMS, False, SEED, 0, kind)
    for jump, token, word in [(0, TOKENS[0], first if kind == POOL else PoolHeartbeat("x", kind)), *program]:
        now_us += jump
        client = token[0]
        silent = frozenset(other for other in state.watched() if (now_us // 7_000_000 + int(other)) % 5 == 0)
        moment = Moment(now_us, now_us, client, silent=silent - {client})
        for command in (resolved(word, has, state), GetPoolStats("x", 100, kind)):
            rule = RULES[type(command)].apply
            table = stored.StoredPool(link, kind, "x")
            assert table.watched() == state.watched()
            expected, found = rule(state, command, moment), rule(table, command, moment)
            table.save(now_us, 60_000_000)
            assert found == expected, command
            if isinstance(expected.answer, Granted):
                has[command.token] = expected.answer.item
    link.connection.close()


@pytest.mark.parametrize("kind", [POOL, SEMAPHORE, RWLOCK])
def test_a_pool_in_tables_answers_like_one_in_memory(kind):
    """The rules are written once, and their queries must mean the same on every state."""

    @settings(max_examples=150, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(programs(kind))
    def agree(program):
        run(kind, program)

    if kind == POOL:
        run(kind, TWO_LINES)
    agree()
