"""Inspection of leases from Python, as on the command line."""

import pytest

from holdfast import Closed, InvalidConfig, InvalidName
from holdfast.testing.conformance.faces import until_waiters


def test_every_held_name_is_listed_with_its_holder(face):
    """`held` works like `holdfast ls`: by prefix, with a limit, and without names that are only remembered."""
    client, other = face.connect(label="worker 7"), face.connect()
    client.lock("orders/0").acquire().release()
    leases = [client.lock(name).acquire() for name in ("orders/1", "orders/2", "reports")]
    waiting = face.start(lambda: other.lock("orders/2", timeout=20).acquire().release())
    until_waiters(client, "orders/2", 1)

    held = {one.name: one for one in client.held("orders/")}
    assert set(held) == {"orders/1", "orders/2"}
    assert held["orders/1"] == client.show("orders/1")._replace(
        seconds=held["orders/1"].seconds, remaining=held["orders/1"].remaining
    )
    assert (held["orders/1"].holder.label, held["orders/1"].fence) == ("worker 7", leases[0].fence)
    assert len(held["orders/2"].waiters) == 1
    assert {one.name for one in client.held()} == {"orders/1", "orders/2", "reports"}
    assert len(client.held(limit=2)) == 2
    for lease in leases:
        lease.release()
    waiting.result()
    assert client.held() == []


def test_an_invalid_prefix_or_limit_is_refused(face):
    """The refusal comes before any command; a closed client raises `Closed`."""
    client = face.connect()
    for limit in (0, -1, 100_001, True, 1.5, "many"):
        with pytest.raises(InvalidConfig):
            client.held(limit=limit)
    with pytest.raises(InvalidName):
        client.held("a\0b")
    client.close()
    with pytest.raises(Closed):
        client.held()
