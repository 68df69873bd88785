"""What a client remembers of a quiet name makes it faster, and decides nothing: others may have been there since."""

from __future__ import annotations

import pytest

from holdfast.commands import Acquire, Break, Busy, Granted, NotHeld, Refused, Release, Released, Renew, Renewed, Undo


@pytest.fixture
def stores(connect):
    """Two clients of one file, each of which remembers for itself."""
    return [connect()._client.engine.store for _ in range(2)]


def say(store, command):
    return store.answer_all((command,), None)[0]


def ask(token, *, wait=False):
    return Acquire("x", token, "{}", 30_000, wait)


def hold(store, token="mine"):
    """Twice, so that the second lease is granted on what is remembered."""
    say(store, ask("before"))
    say(store, Release("x", "before"))
    granted = say(store, ask(token))
    assert "x" in store._known
    return granted.fence


def test_a_lease_that_somebody_took_is_not_granted_again(stores):
    """A free name is remembered as free; the answer still comes from the file."""
    mine, other = stores
    hold(mine)
    say(mine, Release("x", "mine"))
    taken = say(other, ask("other"))

    refused = say(mine, ask("again"))

    assert isinstance(taken, Granted)
    assert isinstance(refused, Busy)
    assert refused.fence == taken.fence


def test_a_broken_lease_is_not_renewed(stores):
    """The holder remembers that it holds; somebody has ended that by force."""
    mine, other = stores
    fence = hold(mine)
    assert isinstance(say(mine, Renew("x", "mine", 30_000)), Renewed)
    assert isinstance(say(other, Break("x", fence, "stuck")), Released)

    assert say(mine, Renew("x", "mine", 30_000)) == NotHeld("broken", "stuck")
    assert say(mine, Release("x", "mine")) == NotHeld("broken", "stuck")


def test_a_release_offers_to_whoever_has_joined_since(stores):
    """The holder remembers a name without waiters; one has come."""
    mine, other = stores
    fence = hold(mine)
    assert isinstance(say(other, ask("waiter", wait=True)), Busy)

    say(mine, Release("x", "mine"))

    assert isinstance(say(mine, ask("again")), Busy)
    assert say(other, ask("waiter", wait=True)).fence > fence


def test_a_token_that_was_undone_elsewhere_is_refused(stores):
    """Its tomb is in the file, not in anybody's memory."""
    mine, other = stores
    hold(mine)
    say(mine, Release("x", "mine"))
    say(other, Undo("x", "late"))

    assert say(mine, ask("late")) == Refused("undone")


def test_a_name_that_was_forgotten_and_made_anew_is_looked_up(stores):
    """The row that is remembered may not be there any more; a lease that is only remembered would exclude nobody."""
    mine, other = stores
    fence = hold(mine)
    say(mine, Release("x", "mine"))
    mine.database.transact(lambda link: link.execute("DELETE FROM record"))

    assert say(mine, ask("again")).fence > fence
    assert isinstance(say(other, ask("thief")), Busy)
