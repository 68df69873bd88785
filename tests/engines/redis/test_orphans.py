"""Waiters that have ended, in the waiting line of a server that does not know it.

A replica that is promoted may know a waiter whose end was told to its predecessor alone. Its client lives and goes on
saying so, for its other waiters; then nobody else would take that place out of the queue.
"""

import pytest

from holdfast import NotAcquired
from holdfast.testing import eventually

TURNS = 4


def image(server):
    """Return all keys of the server."""
    return {key: (server.command("DUMP", key), server.command("PTTL", key)) for key in server.command("KEYS", "hf2:*")}


def bring_back(server, keys):
    """Restore keys, as a replica that missed everything since then has them."""
    for key in server.command("KEYS", "hf2:*"):
        if key not in keys:
            server.command("DEL", key)
    for key, (text, left_ms) in keys.items():
        server.command("RESTORE", key, max(1, left_ms), text, "REPLACE")


@pytest.mark.parametrize("listens", [False, True], ids=["at once", "after a long wait"])
def test_a_client_undoes_a_waiter_that_the_server_should_have_forgotten(slow, listens):
    """The waiter gets the offer. Its client gets the wake-up, knows no such waiter, and undoes it."""
    holder, client = slow.connect(), slow.connect()
    held = holder.lock("x", ttl=30).acquire(timeout=5)
    if listens:
        with pytest.raises(NotAcquired):
            client.lock("x", ttl=30).acquire(timeout=2.2)  # longer than a thread blocks on the server
    ended = slow.start(lambda: client.lock("x", ttl=30).acquire(timeout=1))
    slow.until_queued(holder, "x", 1)
    before = image(slow.server)
    with pytest.raises(NotAcquired):
        ended.result()
    eventually(lambda: holder.show("x").waiters == (), 5)
    bring_back(slow.server, before)
    assert len(holder.show("x").waiters) == 1

    waiting = slow.start(lambda: client.lock("x", ttl=30).acquire(timeout=20))
    slow.until_queued(holder, "x", 2)
    held.release()
    lease = waiting.result()
    for _ in range(TURNS):
        lease.release()
        lease = client.lock("x", ttl=30).acquire(timeout=20)
    lease.release()

    eventually(lambda: holder.show("x").holder is None and holder.show("x").waiters == (), 3, "the end of the orphan")
    assert "undone" in slow.kinds()
