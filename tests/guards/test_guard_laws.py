"""The laws of every guard, for every resource and both faces."""

import os

import pytest
from guarded import opened

import holdfast
from holdfast import Fenced, InvalidConfig
from holdfast.clock import SYSTEM
from holdfast.guards import Stamp
from holdfast.rules.guard import fence_max
from holdfast.testing import assert_holds, eventually, guarded_writes_never_go_down, lost_updates

FENCE_MAX = fence_max(SYSTEM.wall_us())

WRITERS = f"{os.path.dirname(__file__)}/writers.py"
FIVE, SIX = Stamp(5, "of five"), Stamp(6, "of six")


def test_an_unwritten_resource_has_no_fence(guarded):
    """The first holder is admitted."""
    assert guarded.newest() == Stamp(0, "")

    guarded.write(Stamp(1, "first"), 1)

    assert (guarded.read(), guarded.newest()) == (1, Stamp(1, "first"))


def test_a_newer_holder_is_accepted_and_remembered(guarded):
    """The guard compares later holders with the newest fence."""
    guarded.write(FIVE, 1)
    guarded.write(SIX, 2)

    assert (guarded.read(), guarded.newest()) == (2, SIX)


def test_the_same_holder_may_write_again(guarded):
    """One lease covers many writes, and a resent one."""
    guarded.write(FIVE, 1)
    guarded.write(FIVE, 2)

    assert (guarded.read(), guarded.newest()) == (2, FIVE)


@pytest.mark.parametrize("late", [Stamp(4, "of four"), Stamp(4, "of five"), Stamp(5, "another")], ids=str)
def test_an_older_fence_or_a_foreign_token_is_refused_and_changes_nothing(guarded, late):
    """After a split two holders may have one fence; then the token decides."""
    guarded.write(FIVE, 1)

    with pytest.raises(Fenced) as refusal:
        guarded.write(late, 2)

    assert (refusal.value.fence, refusal.value.newest) == (late.fence, 5)
    assert (guarded.read(), guarded.newest()) == (1, FIVE)
    guarded.write(FIVE, 3)
    assert guarded.read() == 3


def test_an_admitted_holder_excludes_the_older_one(guarded):
    """Otherwise a late write of a predecessor could come between its read and its write."""
    guarded.write(FIVE, 1)
    guarded.admit(SIX)

    with pytest.raises(Fenced):
        guarded.write(FIVE, 2)
    with pytest.raises(Fenced):
        guarded.admit(FIVE)

    assert (guarded.read(), guarded.newest()) == (1, SIX)


def test_the_largest_fences_are_compared_exactly(guarded):
    """The guard must not round numbers that a float cannot represent."""
    guarded.write(Stamp(FENCE_MAX - 1, "a"), 1)
    guarded.write(Stamp(FENCE_MAX, "b"), 2)

    with pytest.raises(Fenced) as refusal:
        guarded.write(Stamp(FENCE_MAX - 1, "a"), 3)

    assert refusal.value.newest == FENCE_MAX
    assert guarded.newest() == Stamp(FENCE_MAX, "b")


NO_STAMPS = [
    *(Stamp(fence, "t") for fence in (0, -1, 2**53 - 1, 2**53, 5.0, "5", True)),
    *(Stamp(5, token) for token in ("", "x" * 201, b"t", "a\0b", "\ud800")),
    "no lease",
    None,
]


@pytest.mark.finding("T9")
def test_an_invalid_fence_is_refused_before_any_command(guarded):
    """An incomplete fence would admit all holders, or none for ever."""
    for bad in NO_STAMPS:
        with pytest.raises(InvalidConfig):
            guarded.write(bad, 1)

    assert (guarded.read(), guarded.newest()) == (0, Stamp(0, ""))


@pytest.mark.acceptance("A0-10", "G-1", "G-4")
@pytest.mark.parametrize("kind", ["file", "redis", "sqlite3", "psycopg-row", "alchemy-session"])
def test_a_holder_that_wakes_after_its_successor_wrote_is_refused(kind, where, server, holdfast_workers):
    """The holder cannot know that time has passed, so the resource refuses its fence, and its block raises."""
    holder = holdfast_workers.start(f"{WRITERS}:write_on_each_line", url=server.url, kind=kind, where=where, ttl=1)
    fence = int(holder.read_line().removeprefix("held "))
    holder.send_line("write")
    assert holder.read_line() == "wrote"

    holder.freeze()
    with holdfast.connect(server.url) as client, opened(kind, where) as guarded:
        assert (guarded.read(), guarded.newest().fence) == (1, fence)
        with client.lock("counter", timeout=20) as successor:
            guarded.write(successor, 2)
            holder.thaw()
            holder.send_line("write")
            answer = holder.read_line()
            holder.send_line("leave")
            outcome = holder.read_line()
        found, newest = guarded.read(), guarded.newest()

    assert answer == f"Fenced {fence} {successor.fence}"
    assert outcome == "LeaseLost expired"
    assert (found, newest) == (2, Stamp(successor.fence, successor.token))


@pytest.mark.acceptance("G-1")
@pytest.mark.parametrize("kind", ["file", "redis", "sqlite3", "psycopg", "psycopg-row"])
def test_racing_writers_are_ordered_and_no_write_is_lost(kind, where, holdfast_workers, holdfast_history):
    """Three processes use fences out of order; only the guard orders them."""
    facts = {"kind": kind, "where": where, "history": holdfast_history.path, "times": 40}
    crowd = [holdfast_workers.start(f"{WRITERS}:count", label=label, **facts) for label in "abc"]
    refused = [int(worker.read_line(60)) for worker in crowd]

    assert [worker.wait() for worker in crowd] == [0, 0, 0]
    events = holdfast_history.read()
    with opened(kind, where) as guarded:
        final = guarded.read()
    assert 0 < final < 120
    assert final + sum(refused) == 120
    assert_holds(events, guarded_writes_never_go_down)
    assert lost_updates(events, {"counter": final}) == []


@pytest.mark.parametrize("kind", ["redis-awaited"])
def test_a_guard_accepts_leases_of_both_faces(guarded, server):
    """Any other object with a fence and a token works too."""
    with holdfast.connect(server.url) as client:
        pool = client.pool("channels")
        pool.set_items(["one"])
        with client.lock("x") as lease:
            guarded.write(lease, 1)
        with pool.borrow() as item:
            guarded.write(item, 2)

        assert guarded.newest() == Stamp(item.fence, item.token)
        pool.set_items([], leave=True)
        eventually(lambda: guarded.read() == 2)
