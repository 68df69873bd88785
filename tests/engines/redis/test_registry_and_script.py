"""Directories, and work that is done once: every script does what its rule says, at any time."""

from dataclasses import dataclass
from typing import Any

import pytest
from hiredis import ReplyError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import Mutation
from registry_twin import CLIENTS, RegistryTwin
from script_twin import Difference

from holdfast.commands import (
    Acquire,
    BeginOnce,
    Break,
    ClaimEntry,
    FetchMail,
    FinishOnce,
    IsDone,
    ListEntries,
    MarkDone,
    ReleaseEntry,
    ReleaseLease,
    Renew,
    ResetCounter,
    SendToOwner,
    Show,
    Undo,
    WaiterHeartbeat,
)
from holdfast.engines.redis.scripts import SCRIPTS

TOKENS = tuple(f"{client}{number}" for client in CLIENTS for number in (1, 2))
TTLS_MS = (800, 3000, 20_000)
JUMPS_US = (0, 0, 0, 0, 0, 1, 500, 1_000, 200_000, 799_999, 800_000, 1_000_000, 3_000_000, 5_000_000, 60_000_001)


@dataclass(frozen=True)
class Said:
    """One step of a program: how long after the last one, and who says what."""

    after_us: int
    client: str
    command: Any


# A directory with two keys, two groups and three servers.


def name_of(key):
    return f"people\0k{key}"


def shelves_of(group):
    return ("k", f"g:{group}") if group else ("k",)


def claiming(token, key="x", ttl_ms=3000, group="", limit=-1):
    ask = Acquire(name_of(key), token, f"owner of {token}", ttl_ms, wait=False)
    return ClaimEntry(ask, shelves_of(group), f"g:{group}" if limit >= 0 else "", limit, f"server {token[0]}")


def quitting(token, key="x", group="", successor="", successor_ms=1000, tombstone=False):
    end = ReleaseLease(name_of(key), token, tombstone)
    return ReleaseEntry(end, shelves_of(group), successor, successor_ms if successor else 0)


def listing(index_name="k", prefix="k", after="", limit=500):
    return ListEntries("people", index_name, prefix, after, limit)


def of_directory(token):
    """All that one token may say; what happens often stands here often."""
    groups = [("", -1), ("ann", -1), ("ann", 1), ("bob", 1), ("ann", 0)]
    claims = [claiming(token, key, ttl, *group) for key in "xy" for ttl in TTLS_MS for group in groups]
    heirs = [("", 0), ("", 0), ("server b", 1000), ("server c", 20_000)]
    quits = [
        quitting(token, key, group, *successor, tombstone) for key in "xy" for group in ("", "ann") for successor in heirs
        for tombstone in (False, True)
    ]  # fmt: skip
    lists = [
        listing(), listing(), listing("g:ann"), listing("g:bob"), listing(prefix="kx"), listing(limit=1),
        listing(after="kx", limit=1), listing("g:ann", after="kx", limit=1), listing("g:ann", limit=1),
    ]  # fmt: skip
    posts = [SendToOwner(name_of(key), f"letter {n}", f"text {n}") for key in "xx" for n in range(3)]
    reads = [(), ("letter 0",), ("letter 0", "letter 1"), ("letter 2", "letter 1")]
    fetches = [FetchMail(name_of("x"), token, read) for read in reads]
    rest = [
        command for key in "xy"
        for command in (Renew(name_of(key), token, 3000), Undo(name_of(key), token), Break(name_of(key), 0, "why"))
    ]  # fmt: skip
    return [*claims, *quits, *quits, *lists, *lists, *posts, *fetches, *rest]


# Work that is done once, with those who wait for it.
WORK = "work/1"


def begin(token, ttl_ms=3000):
    return BeginOnce(Acquire(WORK, token, f"owner of {token}", ttl_ms, wait=False))


def finish(token, window_ms=5000, note="done", tombstone=False):
    return FinishOnce(ReleaseLease(WORK, token, tombstone), MarkDone(WORK, f"{note} by {token}", window_ms))


def waiting(token, ttl_ms=3000):
    return Acquire(WORK, token, f"owner of {token}", ttl_ms, wait=True)


def of_work(token):
    begins = [begin(token, ttl) for ttl in TTLS_MS] * 3
    ends = [
        finish(token, window, tombstone=tombstone) for window in (800, 5000, 60_000) for tombstone in (False, True)
    ] * 2
    waits = [waiting(token, ttl) for ttl in TTLS_MS]
    rest = [
        ReleaseLease(WORK, token), Undo(WORK, token), Renew(WORK, token, 3000), IsDone(WORK), IsDone(WORK), ResetCounter(WORK, "o"),
        WaiterHeartbeat(WORK), Break(WORK, 0, "why"), Show(WORK),
    ]  # fmt: skip
    return [*begins, *ends, *waits, *rest]


def programs(sayings):
    steps = [Said(jump, token[0], said) for token in TOKENS for said in sayings(token) for jump in JUMPS_US]
    return st.one_of(*(st.lists(st.sampled_from(steps), min_size=least, max_size=least + 20) for least in (1, 30)))


PROGRAMS = {"a directory": programs(of_directory), "work": programs(of_work)}


def said(*steps):
    """By whoever's token it is, or by `a`; a number is how long nothing is said."""
    program, after_us = [], 0
    for step in steps:
        if isinstance(step, int):
            after_us += step
            continue
        ask = getattr(step, "ask", None) or getattr(step, "end", step)
        program.append(Said(after_us, getattr(ask, "token", "a")[0], step))
        after_us = 0
    return program


LETTERS = [SendToOwner(name_of("x"), f"letter {n}", f"text {n}") for n in range(130)]
SECOND = 1_000_000
# What random programs meet seldom, and what has gone wrong before.
WITNESSES = {
    "claimed, listed, given back": said(
        claiming("a1", group="ann"), claiming("b1", "y", group="ann"), listing(), listing("g:ann"),
        quitting("a1", group="ann"), listing("g:ann", limit=1), listing(), listing("g:ann"), claiming("c1"),
    ),
    "a limit, one of whom has lapsed": said(
        claiming("a1", ttl_ms=800, group="ann", limit=1), claiming("b1", "y", group="ann", limit=1), 800_000,
        claiming("b1", "y", group="ann", limit=1), claiming("b1", "y", group="ann", limit=1), listing("g:ann"),
    ),
    "another group since": said(
        claiming("a1", ttl_ms=800, group="ann"), SECOND, claiming("b1", group="bob"), listing("g:ann"),
    ),
    "another group since, counted": said(
        claiming("a1", ttl_ms=800, group="ann"), SECOND, claiming("b1", group="bob"),
        claiming("c1", "y", group="ann", limit=1), listing("g:ann"), listing("g:bob"),
    ),
    "told in parts": said(
        claiming("a1"), claiming("a2", "y"), listing(limit=1), listing(after="kx", limit=1), listing(prefix="ky"),
        listing(prefix="kx", limit=1), listing(prefix="kx", after="kx", limit=1),
    ),
    "a lapsed one is taken off": said(claiming("a1", ttl_ms=800), SECOND, listing(), claiming("b1"), listing()),
    "kept for an heir, who comes and goes": said(
        claiming("a1"), quitting("a1", successor="server b"), claiming("c1"), claiming("b1"), quitting("b1"), claiming("c2"),
    ),
    "an heir that does not come": said(
        claiming("a1"), quitting("a1", successor="server b"), 999_001, claiming("c1"), 999, claiming("c2"),
    ),
    "given to an heir by a token that was undone": said(
        claiming("a1"), quitting("a1", successor="server b"), Undo(name_of("x"), "b1"), claiming("b1"), claiming("c1"),
    ),
    "handed off twice": said(
        claiming("a1"), quitting("a1", successor="server b"), claiming("b1"), quitting("b1"),
        quitting("a1", successor="server b"), claiming("c1"), quitting("a1", successor="server b"), listing(),
    ),
    "handed off too late": said(
        claiming("a1", ttl_ms=800), SECOND, quitting("a1", successor="server b"), claiming("c1"), listing(),
    ),
    "letters": said(
        LETTERS[0], claiming("a1"), LETTERS[0], LETTERS[1], FetchMail(name_of("x"), "a1"), FetchMail(name_of("x"), "a1"),
        LETTERS[2], FetchMail(name_of("x"), "a1", ("letter 0", "letter 1")), FetchMail(name_of("x"), "a1", ("letter 2",)),
        LETTERS[2], LETTERS[0], FetchMail(name_of("x"), "a1", ("letter 0",)), FetchMail(name_of("x"), "a2"),
    ),
    "many letters": said(
        claiming("a1"), *LETTERS, FetchMail(name_of("x"), "a1"),
        FetchMail(name_of("x"), "a1", tuple(f"never sent {n}" for n in range(40))),
        FetchMail(name_of("x"), "a1", tuple(f"letter {n}" for n in range(100))),
    ),
    "letters go with their owner": said(
        claiming("a1"), LETTERS[0], quitting("a1"), claiming("b1"), FetchMail(name_of("x"), "a1"),
        FetchMail(name_of("x"), "b1"), LETTERS[1], 3 * SECOND, LETTERS[2], FetchMail(name_of("x"), "b1"),
    ),
    "done once": said(
        begin("a1"), begin("b1"), finish("a1"), IsDone(WORK), begin("b1"), 5 * SECOND, IsDone(WORK), begin("b1"),
    ),
    "finished while somebody waits": said(
        begin("a1"), waiting("b1"), finish("a1"), waiting("b1"), IsDone(WORK), begin("c1"),
    ),
    "finished too late": said(begin("a1", 800), SECOND, finish("a1"), IsDone(WORK)),
    "finished by another": said(begin("a1"), finish("b1"), IsDone(WORK), begin("c1")),
    "finished twice": said(begin("a1"), finish("a1"), ResetCounter(WORK, "o"), finish("a1"), IsDone(WORK), begin("b1")),
    "a full box": said(
        claiming("a1", ttl_ms=20_000), *(SendToOwner(name_of("x"), f"letter {n}", "") for n in range(1001)),
    ),
}  # fmt: skip


@pytest.fixture
def twin(server):
    """Scripts and rules side by side, as they are."""
    twin = RegistryTwin(server.url)
    yield twin
    twin.close()


@pytest.mark.parametrize("about", PROGRAMS)
def test_what_is_more_than_a_lease_does_what_its_rule_says(twin, about):
    """The law is written twice, in Python and in Lua; nothing else keeps the two from drifting apart."""

    @settings(max_examples=100, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(PROGRAMS[about])
    def agree(program):
        twin.run(program)

    for program in WITNESSES.values():
        twin.run(program)
    agree()


HELD = "if holder_token == ARGV[3] and expires > now and not offered"
MUTATIONS = [
    Mutation("a note is not looked for", "if marker then return", "if false then return"),
    Mutation("a note is left by anybody", f"{HELD} then\n  redis.call('DEL', base",
             "if true then\n  redis.call('DEL', base"),
    Mutation("a note is left too late", f"{HELD} then\n  redis.call('DEL', base",
             "if holder_token == ARGV[3] and not offered then\n  redis.call('DEL', base"),
    Mutation("a note is kept for ever", "redis.call('SET', base .. ':o', ARGV[5], 'PX', ARGV[6])",
             "redis.call('SET', base .. ':o', ARGV[5])"),
    Mutation("the heir does not matter", "if label ~= ARGV[10] and left_ms > 0", "if false"),
    Mutation("not even the heir may come", "if label ~= ARGV[10] and left_ms > 0", "if left_ms > 0"),
    Mutation("an heir has one more millisecond", "left_ms > 0 then return", "left_ms >= 0 then return"),
    Mutation("an heir that came is waited for", "if successor then redis.call('DEL'", "if false then redis.call('DEL'"),
    Mutation("an ended token uses up the heir", "local ended = ARGV[3] == last or", "local ended = false and"),
    Mutation("a group has no limit", "if others >= limit then", "if false then"),
    Mutation("a key counts against itself", "elseif found[i] ~= entry then", "else"),
    Mutation("the lapsed count", "record[12] <= now or record[13] then", "record[13] then"),
    Mutation("counted for the group of the last", "if record[7] ~= found[i + 1] or", "if not record[7] or"),
    Mutation("a claim is not listed", "redis.call('ZADD', index, 0, entry)", "local nothing"),
    Mutation("shelves stay for ever", "redis.call('PEXPIRE', index, INDEX_MS)", ""),
    Mutation("given back, still in its group", "else redis.call('HDEL', index, ARGV[5]) end", "end"),
    Mutation("handed off by anybody", f"{HELD} then\n  redis.call('DEL', registry",
             "if true then\n  redis.call('DEL', registry"),
    Mutation("handed off too late", f"{HELD} then\n  redis.call('DEL', registry",
             "if holder_token == ARGV[3] and not offered then\n  redis.call('DEL', registry"),
    Mutation("letters outlive their owner", "  redis.call('DEL', registry .. ':mailbox:' .. ARGV[3])",
             "  local nothing"),
    Mutation("the lapsed are listed", "if token and expires > now and not offered", "if token and not offered"),
    Mutation("listed for a group that it left", "(tokens[entry] or token) == token", "true"),
    Mutation("the last of a part is told twice", "after ~= '' and '(' .. after", "after ~= '' and '[' .. after"),
    Mutation("nobody says that there is more", "if i == limit then answer[2] = entry end", ""),
    Mutation("letters to the lapsed",
             "if not holder_token or expires <= now or offered then return { 'not held', NO_OWNER",
             "if not holder_token or offered then return { 'not held', NO_OWNER"),
    Mutation("a box has no bottom", "redis.call('LLEN', mailbox) >= MAILBOX_MAX", "false"),
    Mutation("a box stays for ever", "redis.call('PEXPIRE', mailbox, MAILBOX_MS)", ""),
    Mutation("the owner is not woken", "redis.pcall('PUBLISH', client, holder_token)", "local nothing"),
    Mutation("the newest letter comes first", "redis.call('RPUSH', mailbox,", "redis.call('LPUSH', mailbox,"),
    Mutation("what is given is gone", "if read > 0 then redis.call('LTRIM', mailbox, read, -1) end",
             "redis.call('DEL', mailbox)"),
    Mutation("what was read comes again", "if read > 0 then redis.call('LTRIM', mailbox, read, -1) end", ""),
    Mutation("all letters at once", "math.min(#found, read + FETCH_MAX)", "#found"),
]  # fmt: skip


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_a_mistake_in_such_a_script_is_found_out(one_server, mutation):
    """The comparison would mean nothing if it could not fail: a few programs find each of these mistakes."""
    assert any(mutation.line in script.text for script in SCRIPTS.values()), "the line is no longer there"
    twin = RegistryTwin(one_server.url, mutation)
    try:
        with pytest.raises((Difference, ReplyError)):
            for program in WITNESSES.values():
                twin.run(program)
    finally:
        twin.close()
