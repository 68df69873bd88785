"""Every script of registries and of `once` does what its rule does, at any time."""

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
class Step:
    """One step of a program: the time since the last one, the client and its command."""

    after_us: int
    client: str
    command: Any


# A registry with two keys, two groups and three servers.


def name_of(key):
    return f"people\0k{key}"


def indexes_of(group):
    return ("k", f"g:{group}") if group else ("k",)


def claim(token, key="x", ttl_ms=3000, group="", limit=-1):
    acquire = Acquire(name_of(key), token, f"holder {token}", ttl_ms, wait=False)
    return ClaimEntry(acquire, indexes_of(group), f"g:{group}" if limit >= 0 else "", limit, f"server {token[0]}")


def release(token, key="x", group="", successor="", successor_ms=1000, tombstone=False):
    lease = ReleaseLease(name_of(key), token, tombstone)
    return ReleaseEntry(lease, indexes_of(group), successor, successor_ms if successor else 0)


def entries(index_name="k", prefix="k", after="", limit=500):
    return ListEntries("people", index_name, prefix, after, limit)


def registry_commands(token):
    """Return all commands that one token may send; frequent ones several times."""
    groups = [("", -1), ("ann", -1), ("ann", 1), ("bob", 1), ("ann", 0)]
    claims = [claim(token, key, ttl, *group) for key in "xy" for ttl in TTLS_MS for group in groups]
    successors = [("", 0), ("", 0), ("server b", 1000), ("server c", 20_000)]
    releases = [
        release(token, key, group, *successor, tombstone)
        for key in "xy" for group in ("", "ann") for successor in successors for tombstone in (False, True)
    ]  # fmt: skip
    lists = [
        entries(), entries(), entries("g:ann"), entries("g:bob"), entries(prefix="kx"), entries(limit=1),
        entries(after="kx", limit=1), entries("g:ann", after="kx", limit=1), entries("g:ann", limit=1),
    ]  # fmt: skip
    sends = [SendToOwner(name_of(key), f"message {n}", f"text {n}") for key in "xx" for n in range(3)]
    reads = [(), ("message 0",), ("message 0", "message 1"), ("message 2", "message 1")]
    fetches = [FetchMail(name_of("x"), token, read) for read in reads]
    rest = [
        command for key in "xy"
        for command in (Renew(name_of(key), token, 3000), Undo(name_of(key), token), Break(name_of(key), 0, "why"))
    ]  # fmt: skip
    return [*claims, *releases, *releases, *lists, *lists, *sends, *fetches, *rest]


# Work that is done once, and waiters for its lease.
WORK = "work/1"


def begin(token, ttl_ms=3000):
    return BeginOnce(Acquire(WORK, token, f"holder {token}", ttl_ms, wait=False))


def finish(token, window_ms=5000, marker="done", tombstone=False):
    return FinishOnce(ReleaseLease(WORK, token, tombstone), MarkDone(WORK, f"{marker} by {token}", window_ms))


def waiting(token, ttl_ms=3000):
    return Acquire(WORK, token, f"holder {token}", ttl_ms, wait=True)


def once_commands(token):
    begins = [begin(token, ttl) for ttl in TTLS_MS] * 3
    ends = [
        finish(token, window, tombstone=tombstone) for window in (800, 5000, 60_000) for tombstone in (False, True)
    ] * 2
    waits = [waiting(token, ttl) for ttl in TTLS_MS]
    rest = [
        ReleaseLease(WORK, token), Undo(WORK, token), Renew(WORK, token, 3000), IsDone(WORK), IsDone(WORK),
        ResetCounter(WORK, "o"), WaiterHeartbeat(WORK), Break(WORK, 0, "why"), Show(WORK),
    ]  # fmt: skip
    return [*begins, *ends, *waits, *rest]


def programs(commands):
    steps = [Step(jump, token[0], each) for token in TOKENS for each in commands(token) for jump in JUMPS_US]
    return st.one_of(*(st.lists(st.sampled_from(steps), min_size=least, max_size=least + 20) for least in (1, 30)))


PROGRAMS = {"a registry": programs(registry_commands), "work": programs(once_commands)}


def program(*steps):
    """Return the steps, each by the client of its token, or by `a`; a number is a pause."""
    made, after_us = [], 0
    for step in steps:
        if isinstance(step, int):
            after_us += step
            continue
        lease = getattr(step, "acquire", None) or getattr(step, "release", step)
        made.append(Step(after_us, getattr(lease, "token", "a")[0], step))
        after_us = 0
    return made


MAIL = [SendToOwner(name_of("x"), f"message {n}", f"text {n}") for n in range(130)]
SECOND = 1_000_000
# Programs that random ones rarely contain, and bugs of the past.
WITNESSES = {
    "claimed, listed, released": program(
        claim("a1", group="ann"), claim("b1", "y", group="ann"), entries(), entries("g:ann"),
        release("a1", group="ann"), entries("g:ann", limit=1), entries(), entries("g:ann"), claim("c1"),
    ),
    "a limit with an expired entry": program(
        claim("a1", ttl_ms=800, group="ann", limit=1), claim("b1", "y", group="ann", limit=1), 800_000,
        claim("b1", "y", group="ann", limit=1), claim("b1", "y", group="ann", limit=1), entries("g:ann"),
    ),
    "another group since": program(
        claim("a1", ttl_ms=800, group="ann"), SECOND, claim("b1", group="bob"), entries("g:ann"),
    ),
    "another group since, counted": program(
        claim("a1", ttl_ms=800, group="ann"), SECOND, claim("b1", group="bob"),
        claim("c1", "y", group="ann", limit=1), entries("g:ann"), entries("g:bob"),
    ),
    "listed in pages": program(
        claim("a1"), claim("a2", "y"), entries(limit=1), entries(after="kx", limit=1), entries(prefix="ky"),
        entries(prefix="kx", limit=1), entries(prefix="kx", after="kx", limit=1),
    ),
    "an expired entry is removed": program(claim("a1", ttl_ms=800), SECOND, entries(), claim("b1"), entries()),
    "reserved for a successor that claims it": program(
        claim("a1"), release("a1", successor="server b"), claim("c1"), claim("b1"), release("b1"), claim("c2"),
    ),
    "a successor that does not come": program(
        claim("a1"), release("a1", successor="server b"), 999_001, claim("c1"), 999, claim("c2"),
    ),
    "claimed by a successor whose token was undone": program(
        claim("a1"), release("a1", successor="server b"), Undo(name_of("x"), "b1"), claim("b1"), claim("c1"),
    ),
    "handed off twice": program(
        claim("a1"), release("a1", successor="server b"), claim("b1"), release("b1"),
        release("a1", successor="server b"), claim("c1"), release("a1", successor="server b"), entries(),
    ),
    "handed off too late": program(
        claim("a1", ttl_ms=800), SECOND, release("a1", successor="server b"), claim("c1"), entries(),
    ),
    "messages": program(
        MAIL[0], claim("a1"), MAIL[0], MAIL[1], FetchMail(name_of("x"), "a1"), FetchMail(name_of("x"), "a1"),
        MAIL[2], FetchMail(name_of("x"), "a1", ("message 0", "message 1")),
        FetchMail(name_of("x"), "a1", ("message 2",)),
        MAIL[2], MAIL[0], FetchMail(name_of("x"), "a1", ("message 0",)), FetchMail(name_of("x"), "a2"),
    ),
    "many messages": program(
        claim("a1"), *MAIL, FetchMail(name_of("x"), "a1"),
        FetchMail(name_of("x"), "a1", tuple(f"never sent {n}" for n in range(40))),
        FetchMail(name_of("x"), "a1", tuple(f"message {n}" for n in range(100))),
    ),
    "messages are deleted with their owner": program(
        claim("a1"), MAIL[0], release("a1"), claim("b1"), FetchMail(name_of("x"), "a1"),
        FetchMail(name_of("x"), "b1"), MAIL[1], 3 * SECOND, MAIL[2], FetchMail(name_of("x"), "b1"),
    ),
    "done once": program(
        begin("a1"), begin("b1"), finish("a1"), IsDone(WORK), begin("b1"), 5 * SECOND, IsDone(WORK), begin("b1"),
    ),
    "finished while a client waits": program(
        begin("a1"), waiting("b1"), finish("a1"), waiting("b1"), IsDone(WORK), begin("c1"),
    ),
    "finished too late": program(begin("a1", 800), SECOND, finish("a1"), IsDone(WORK)),
    "finished by another": program(begin("a1"), finish("b1"), IsDone(WORK), begin("c1")),
    "finished twice": program(
        begin("a1"), finish("a1"), ResetCounter(WORK, "o"), finish("a1"), IsDone(WORK), begin("b1"),
    ),
    "a full mailbox": program(
        claim("a1", ttl_ms=20_000), *(SendToOwner(name_of("x"), f"message {n}", "") for n in range(1001)),
    ),
}  # fmt: skip


@pytest.fixture
def twin(server):
    """Unchanged scripts and their rules."""
    twin = RegistryTwin(server.url)
    yield twin
    twin.close()


@pytest.mark.parametrize("about", PROGRAMS)
def test_every_registry_and_once_script_equals_its_rule(twin, about):
    """The rule is written twice, in Python and in Lua; nothing else keeps the two equal."""

    @settings(max_examples=100, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(PROGRAMS[about])
    def agree(program):
        twin.run(program)

    for program in WITNESSES.values():
        twin.run(program)
    agree()


HELD = "if holder_token == ARGV[3] and expires > now and not offered"
MUTATIONS = [
    Mutation("a marker is not read", "if marker then return", "if false then return"),
    Mutation("any token leaves a marker", f"{HELD} then\n  redis.call('DEL', base",
             "if true then\n  redis.call('DEL', base"),
    Mutation("a marker is left too late", f"{HELD} then\n  redis.call('DEL', base",
             "if holder_token == ARGV[3] and not offered then\n  redis.call('DEL', base"),
    Mutation("a marker never expires", "redis.call('SET', base .. ':o', ARGV[5], 'PX', ARGV[6])",
             "redis.call('SET', base .. ':o', ARGV[5])"),
    Mutation("the successor does not matter", "if label ~= ARGV[10] and left_ms > 0", "if false"),
    Mutation("not even the successor may claim", "if label ~= ARGV[10] and left_ms > 0", "if left_ms > 0"),
    Mutation("a successor has one more millisecond", "left_ms > 0 then return", "left_ms >= 0 then return"),
    Mutation("a successor that claimed is waited for", "if successor then redis.call('DEL'",
             "if false then redis.call('DEL'"),
    Mutation("an ended token uses up the successor", "local ended = ARGV[3] == last or", "local ended = false and"),
    Mutation("a group has no limit", "if others >= limit then", "if false then"),
    Mutation("a key counts against itself", "elseif found[i] ~= entry then", "else"),
    Mutation("expired entries count", "record[12] <= now or record[13] then", "record[13] then"),
    Mutation("counted for an earlier group", "if record[7] ~= found[i + 1] or", "if not record[7] or"),
    Mutation("a claim is not listed", "redis.call('ZADD', index, 0, entry)", "local nothing"),
    Mutation("indexes never expire", "redis.call('PEXPIRE', index, INDEX_MS)", ""),
    Mutation("released, still in its group", "else redis.call('HDEL', index, ARGV[5]) end", "end"),
    Mutation("handed off by any token", f"{HELD} then\n  redis.call('DEL', registry",
             "if true then\n  redis.call('DEL', registry"),
    Mutation("handed off too late", f"{HELD} then\n  redis.call('DEL', registry",
             "if holder_token == ARGV[3] and not offered then\n  redis.call('DEL', registry"),
    Mutation("messages outlive their owner", "  redis.call('DEL', registry .. ':mailbox:' .. ARGV[3])",
             "  local nothing"),
    Mutation("expired entries are listed", "if token and expires > now and not offered", "if token and not offered"),
    Mutation("listed for a group that it left", "(tokens[entry] or token) == token", "true"),
    Mutation("the last entry of a page is repeated", "after ~= '' and '(' .. after", "after ~= '' and '[' .. after"),
    Mutation("a page hides that there is more", "if i == limit then answer[2] = entry end", ""),
    Mutation("messages to an expired owner",
             "if not holder_token or expires <= now or offered then return { 'not held', NO_OWNER",
             "if not holder_token or offered then return { 'not held', NO_OWNER"),
    Mutation("a mailbox has no limit", "redis.call('LLEN', mailbox) >= MAILBOX_MAX", "false"),
    Mutation("a mailbox never expires", "redis.call('PEXPIRE', mailbox, MAILBOX_MS)", ""),
    Mutation("the owner is not woken", "redis.pcall('PUBLISH', client, holder_token)", "local nothing"),
    Mutation("the newest message comes first", "redis.call('RPUSH', mailbox,", "redis.call('LPUSH', mailbox,"),
    Mutation("a fetch deletes messages", "if read > 0 then redis.call('LTRIM', mailbox, read, -1) end",
             "redis.call('DEL', mailbox)"),
    Mutation("read messages come again", "if read > 0 then redis.call('LTRIM', mailbox, read, -1) end", ""),
    Mutation("all messages at once", "math.min(#found, read + FETCH_MAX)", "#found"),
]  # fmt: skip


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_the_comparison_finds_a_mistake_in_a_registry_script(one_server, mutation):
    """A comparison that finds no mistake proves nothing: a few programs find each of these."""
    assert any(mutation.line in script.text for script in SCRIPTS.values()), "the line is no longer there"
    twin = RegistryTwin(one_server.url, mutation)
    try:
        with pytest.raises((Difference, ReplyError)):
            for program in WITNESSES.values():
                twin.run(program)
    finally:
        twin.close()
