"""A silent server delays no lease on other servers, and no report of a loss."""

import time

import pytest
from redis_faces import lengthy

from holdfast import LeaseLost
from holdfast.testing import eventually

# Neither depends on the face: it is the keeper that waits.
ONE_FACE = pytest.mark.parametrize("face", ["blocking"])


def apart(cluster):
    """Return two names on different masters."""
    names = [f"name {number}" for number in range(100)]
    other = next(name for name in names if cluster.server_of(name) is not cluster.server_of(names[0]))
    return names[0], other


@ONE_FACE
def test_a_lease_is_renewed_in_time_while_another_server_is_silent(clustered):
    """Both renewals are due at once. The answer of one server must arrive long before the timeout of the other."""
    alive, silent = apart(clustered.server)
    client = clustered.connect()
    leases = [client.lock(name, ttl=1.5).acquire(timeout=5) for name in (alive, silent)]

    clustered.server.server_of(silent).freeze()

    eventually(lambda: [event for event in clustered.events.copy() if event.kind == "renewal_failed"], 10)
    renewed = [event for event in clustered.events if event.name == alive and event.kind.startswith("renewed")]
    assert [event.seconds > 0.15 for event in renewed[:1]] == [True]
    clustered.server.server_of(silent).thaw()
    clustered.server.heal()
    for lease in leases:
        if lease.lost:
            with pytest.raises(LeaseLost):
                lease.release()
        else:
            lease.release()


@lengthy
@ONE_FACE
def test_losses_are_reported_in_time_while_all_servers_are_silent(grouped):
    """To ask for the topology takes time for each silent server; a deadline in the meantime does not wait for it."""
    told = {}
    client = grouped.connect(
        observer=lambda event: told.setdefault(event.name, time.monotonic()) if event.kind == "lost" else None
    )
    leases = [client.lock(f"name {number}", ttl=1 + number / 5).acquire(timeout=5) for number in range(10)]

    for server in grouped.server.all_servers():
        server.freeze()
    ends = {lease.name: time.monotonic() + lease.remaining() for lease in leases}
    eventually(lambda: len(told) == len(leases), 10)

    late = max(told[name] - end for name, end in ends.items())
    for lease in leases:
        with pytest.raises(LeaseLost):
            lease.release()
    grouped.server.heal()
    assert late < 0.4
