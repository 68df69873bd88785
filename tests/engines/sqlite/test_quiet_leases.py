"""A client remembers quiet names to be faster, and the file still decides: other clients may have used them since."""

from __future__ import annotations

import pytest

from holdfast.commands import (
    Acquire,
    Break,
    Busy,
    Granted,
    NotHeld,
    Refused,
    Released,
    ReleaseLease,
    Renew,
    Renewed,
    Undo,
)


@pytest.fixture
def stores(connect):
    """Two clients of one file, each of which remembers for itself."""
    return [connect()._client.engine.store for _ in range(2)]


def send(store, command):
    return store.answer_all((command,), None)[0]


def acquire(token, *, wait=False):
    return Acquire("x", token, "{}", 30_000, wait)


def hold(store, token="mine"):
    """Acquire twice, so that the second lease is granted from memory."""
    send(store, acquire("before"))
    send(store, ReleaseLease("x", "before"))
    granted = send(store, acquire(token))
    assert "x" in store._known
    return granted.fence


def test_a_lease_that_another_client_took_is_not_granted_again(stores):
    """A free name is remembered as free; the answer still comes from the file."""
    mine, other = stores
    hold(mine)
    send(mine, ReleaseLease("x", "mine"))
    taken = send(other, acquire("other"))

    refused = send(mine, acquire("again"))

    assert isinstance(taken, Granted)
    assert isinstance(refused, Busy)
    assert refused.fence == taken.fence


def test_a_broken_lease_is_not_renewed(stores):
    """The holder remembers that it holds; another client has broken the lease."""
    mine, other = stores
    fence = hold(mine)
    assert isinstance(send(mine, Renew("x", "mine", 30_000)), Renewed)
    assert isinstance(send(other, Break("x", fence, "stuck")), Released)

    assert send(mine, Renew("x", "mine", 30_000)) == NotHeld("broken", "stuck")
    assert send(mine, ReleaseLease("x", "mine")) == NotHeld("broken", "stuck")


def test_a_release_offers_to_a_waiter_that_joined_since(stores):
    """The holder remembers a name without waiters; one has joined."""
    mine, other = stores
    fence = hold(mine)
    assert isinstance(send(other, acquire("waiter", wait=True)), Busy)

    send(mine, ReleaseLease("x", "mine"))

    assert isinstance(send(mine, acquire("again")), Busy)
    assert send(other, acquire("waiter", wait=True)).fence > fence


def test_a_token_that_was_undone_elsewhere_is_refused(stores):
    """Its tombstone is in the file, and in no client's memory."""
    mine, other = stores
    hold(mine)
    send(mine, ReleaseLease("x", "mine"))
    send(other, Undo("x", "late"))

    assert send(mine, acquire("late")) == Refused("undone")


def test_a_name_that_was_deleted_and_created_again_is_looked_up(stores):
    """The remembered row may be gone; a lease that exists in memory only would exclude no other client."""
    mine, other = stores
    fence = hold(mine)
    send(mine, ReleaseLease("x", "mine"))
    mine.database.transact(lambda cursor: cursor.execute("DELETE FROM lease"))

    assert send(mine, acquire("again")).fence > fence
    assert isinstance(send(other, acquire("other")), Busy)
