"""A client of the asyncio face, used in another event loop than its own."""

import asyncio

import pytest

from holdfast import InvalidConfig, aio
from holdfast.testing import eventually


def test_a_client_is_refused_in_another_loop_and_goes_on_in_its_own(server):
    """Its connection belongs to one loop. The error says so, and the mistake costs no lease."""
    own = asyncio.new_event_loop()
    try:
        client = own.run_until_complete(aio.connect(server.url))
        held, other = (own.run_until_complete(client.lock(name, ttl=20).acquire()) for name in ("held", "other"))
        uses = [
            lambda: client.lock("x").acquire(timeout=1),
            lambda: client.limit("5/hour").hit("ann"),
            lambda: client.show("held"),
            other.release,
            client.close,
        ]

        async def tried(use):
            with pytest.raises(InvalidConfig) as refusal:
                await use()
            return str(refusal.value)

        for use in uses:
            assert "belongs to the event loop in which it was opened" in asyncio.run(tried(use))

        held.check()
        # A release that was said in the wrong place is a release all the same: the keeper tells the engine.
        again = eventually(lambda: own.run_until_complete(client.lock("other").try_acquire()), 10)
        own.run_until_complete(again.release())
        own.run_until_complete(held.release())
        own.run_until_complete(client.close(timeout=0))
    finally:
        own.close()
