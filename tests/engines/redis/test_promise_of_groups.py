"""The promise of sentinels and clusters: the weakest server decides, and a change of one server is an event."""

from contextlib import contextmanager

import pytest

import holdfast
from holdfast import Unavailable
from holdfast.testing import eventually
from tests.support.clusters import Cluster, slot_of

NAMES = [f"held/{number}" for number in range(12)]


def facts(promise):
    return promise.as_dict()["facts"]


@contextmanager
def setting(server, name, value):
    """Change a setting of one server, and restore it afterwards."""
    before = server.command("CONFIG", "GET", name)[1].decode()
    server.command("CONFIG", "SET", name, value)
    try:
        yield
    finally:
        server.command("CONFIG", "SET", name, before)


def has(server, name):
    # A replica in a cluster sends whoever asks for a key to its master; a list it gives itself.
    return server.command("KEYS", f"hf2:{{{name}}}") != []


def replicas_of(place, name):
    group = place.server
    owner = group.server_of(name)
    return group.replicas_of(owner) if hasattr(group, "replicas_of") else group.replicas()


def test_a_group_promises_what_a_failover_leaves(grouped):
    """Another server with another clock may replace each of them; the facts list the servers."""
    client = grouped.connect()
    promise = client.promise()

    assert (promise.scope, promise.level, promise.fences_grow) == ("hosts", "survives client faults", False)
    assert any("lets a second holder in" in limit.sentence for limit in promise.caveats)
    if "+sentinel" in grouped.server.url:
        assert (facts(promise)["sentinels"], facts(promise)["replicas"]) == (True, 2)
    else:
        assert facts(promise)["cluster"] is True
        assert all(f":{master.port}" in facts(promise)["servers"] for master in grouped.server.masters())
    assert promise == client.promise()
    grouped.connect(require=("hosts", "survives client faults")).lock("x").acquire(timeout=5).release()


def test_the_weakest_server_of_a_cluster_decides_and_is_named(clustered):
    """One of them evicts: a third of all names is at risk, and a name does not show which."""
    client = clustered.connect()
    weak = clustered.server.server_of(NAMES[0])
    others = [master for master in clustered.server.masters() if master is not weak]

    with setting(weak, "maxmemory", "100mb"), setting(weak, "maxmemory-policy", "allkeys-lru"):
        promise = client.promise()

    assert promise.level == "efficiency only"
    evicts = [reason for reason in promise.reasons if "deletes leases" in reason]
    assert [f":{weak.port}" in reason for reason in evicts] == [True]
    assert any("the weakest decides" in reason and f":{weak.port}" in reason for reason in promise.reasons)
    assert not any(f":{other.port}" in evicts[0] for other in others)
    assert sorted(str(facts(promise)["maxmemory_policy"]).split(" / ")) == ["allkeys-lru", "noeviction", "noeviction"]
    assert client.promise().level == "survives client faults"


def test_a_confirmed_grant_is_on_the_replicas_of_the_server_of_its_name(grouped):
    """Each name has a server, and WAIT is sent there; a silent replica stops only the names of its server."""
    client = grouped.connect()
    for name in NAMES:
        lease = client.lock(name, ttl=20, confirm="replicas").acquire(timeout=5)
        assert all(has(replica, name) for replica in replicas_of(grouped, name))
        lease.release()

    silent = replicas_of(grouped, NAMES[0])[0]
    silent.freeze()
    with pytest.raises(Unavailable) as trouble:
        client.lock(NAMES[0], confirm="replicas").acquire(timeout=5)
    assert trouble.value.reason == "not confirmed"
    apart = [name for name in NAMES if grouped.server.server_of(name) is not grouped.server.server_of(NAMES[0])]
    for name in apart:
        client.lock(name, confirm="replicas").acquire(timeout=5).release()
    assert bool(apart) == ("+cluster" in grouped.server.url)
    silent.thaw()


def test_confirmed_renewals_follow_a_slot_that_moves(clustered):
    """The keeper sends to the old server, follows the redirect, and the replicas of the new server confirm."""
    client = clustered.connect()
    lease = client.lock(NAMES[0], ttl=3, confirm="replicas").acquire(timeout=5)
    owner = clustered.server.server_of(NAMES[0])
    clustered.until("renewed")
    to = next(master for master in clustered.server.masters() if master is not owner)

    clustered.server.move_slot(slot_of(NAMES[0]), to)
    renewed = clustered.kinds().count("renewed")

    try:
        eventually(lambda: clustered.kinds().count("renewed") >= renewed + 4, 20, "renewals at the new owner")
        assert not lease.lost
        assert all(has(replica, NAMES[0]) for replica in clustered.server.replicas_of(to))
        lease.release()
    finally:
        clustered.server.move_slot(slot_of(NAMES[0]), owner)


def test_a_promise_that_is_read_during_a_failover_waits_for_its_end(grouped):
    """The promise is about the server that takes over, not about the error of the dead one."""
    client = grouped.connect(f"{grouped.server.url}?socket_timeout=30")
    before = client.promise()
    server = grouped.server.server_of(NAMES[0])

    server.kill()
    after = client.promise()

    assert (before.level, after.level) == ("survives client faults",) * 2
    assert f":{server.port}" not in after.as_dict()["facts"].get("servers", "")


def test_a_cluster_that_lacks_a_server_promises_nothing():
    """No server replaces the dead one, and the others soon drop it from the map: a third of all names is refused."""
    with Cluster(replicas=0) as cluster, holdfast.connect(f"{cluster.url}?socket_timeout=1") as client:
        assert client.promise().level == "survives client faults"
        cluster.masters()[1].kill()
        eventually(lambda: b"cluster_state:fail" in cluster.servers[0].command("CLUSTER", "INFO"), what="its end")

        for _ in range(3):
            with pytest.raises(Unavailable) as refusal:
                client.promise()
            assert refusal.value.reason in ("moving", "unreachable")


def test_another_server_that_answers_is_an_event_and_costs_no_lease(grouped):
    """The server did not forget everything: replicated leases are there, and no client waits for old ones."""
    client, other = grouped.connect(), grouped.connect()
    held = [client.lock(name, ttl=60).acquire(timeout=5) for name in NAMES]
    waiting = grouped.start(lambda: other.lock(NAMES[0], ttl=60).acquire(timeout=50))
    grouped.until_queued(client, NAMES[0], 1)
    grouped.server.wait_replicated()

    grouped.server.failover(grouped.server.server_of(NAMES[0]))
    client.refresh_topology()

    grouped.until("engine_restarted", timeout=30)
    held[0].release()
    waiting.result(20).release()
    for lease in held[1:]:
        assert not lease.lost
        lease.release()
    assert grouped.kinds("lost") == []
    assert client._client.engine.restarts == other._client.engine.restarts == 0
    assert "answered before" in next(event.detail for event in grouped.events if event.kind == "engine_restarted")
