"""Failovers under held leases and waiters: the application does nothing and gets no false answer."""

import time

import pytest
from redis_faces import lengthy

from holdfast import LeaseLost, NotAcquired, Unavailable
from holdfast.testing import eventually
from holdfast.testing.servers import available
from tests.support.clusters import Cluster

# Longer than a failover on a busy machine, where sentinels vote more than once; no test waits for it. A third of it may
# have passed when the server is lost.
TTL_S = 60
KIND = next(iter(available()), "valkey")
NAMES = [f"held/{number}" for number in range(30)]


def hold(place, client):
    """Hold leases on every server, and wait until the replicas have them."""
    held = [client.lock(name, ttl=TTL_S).acquire(timeout=5) for name in NAMES]
    place.server.wait_replicated()
    return held


def waiters(place, name, count):
    """Start clients that wait for the name, in order."""
    waiting = []
    watcher = place.connect()
    for number in range(count):
        client = place.connect(label=f"waiter {number}")
        waiting.append(place.start(lambda client=client: client.lock(name, ttl=TTL_S).acquire(timeout=60)))
        place.until_queued(watcher, name, number + 1)
    return waiting


def handed_on(lease, waiting):
    """Release, let each waiter release in turn, and return the fences in that order."""
    fences = [lease.fence]
    lease.release()
    for each in waiting:
        mine = each.result(60)
        fences.append(mine.fence)
        mine.release()
    return fences


def handed_on_in_any_order(lease, waiting):
    """Release, let each waiter release when it holds the lease, and return the fences in that order."""
    fences, rest = [lease.fence], list(waiting)
    lease.release()
    while rest:
        served = eventually(lambda: next((each for each in rest if each.done()), None), 60, "a waiter that is served")
        rest.remove(served)
        mine = served.result()
        fences.append(mine.fence)
        mine.release()
    return fences


def ours(server):
    """Return the connections of our clients to a server."""
    return [line for line in server.command("CLIENT", "LIST").split(b"\n") if b" name=holdfast " in line]


def stands(client, lease):
    """Return the servers' view of a lease that is not lost."""
    now = client.show(lease.name)
    return not lease.lost and now.fence == lease.fence and now.holder is not None


@pytest.mark.parametrize("fault", ["kill", "freeze"])
def test_leases_and_waiters_survive_the_replacement_of_a_server(grouped, fault):
    """Replicated state continues: no lease is lost, each waiter is served, and no event reports a loss.

    The order may differ: the engine doubts each client until the client's first heartbeat to the new server.
    """
    client = grouped.connect()
    held = hold(grouped, client)
    waiting = waiters(grouped, NAMES[0], 3)
    grouped.server.wait_replicated()

    server = grouped.server.server_of(NAMES[0])
    getattr(server, fault)()
    grouped.server.wait_replaced(server)

    fences = handed_on_in_any_order(held[0], waiting)
    assert fences == sorted(set(fences))
    assert [lease.name for lease in held[1:] if not stands(client, lease)] == []
    other = grouped.connect()
    assert [name for name in NAMES[1:] if other.lock(name).try_acquire() is not None] == []
    for lease in held[1:]:
        lease.release()


@pytest.mark.acceptance("A1-25")
def test_a_graceful_failover_loses_no_lease_and_no_place(grouped):
    """No lease is lost or granted twice, and the waiting line is unchanged."""
    client = grouped.connect()
    held = hold(grouped, client)
    waiting = waiters(grouped, NAMES[0], 2)

    before = grouped.server.server_of(NAMES[0])
    grouped.server.failover(before)
    if "+sentinel" in grouped.server.url:
        # The old primary does not know of the failover for some seconds; a sentinel informs our clients.
        eventually(lambda: ours(before) == [], 10, "all to leave the former primary")

    fences = handed_on(held[0], waiting)
    assert fences == sorted(set(fences))
    assert [lease.name for lease in held[1:] if not stands(client, lease)] == []
    for lease in held[1:]:
        lease.release()
    assert grouped.kinds("lost") == []


def test_an_acquire_during_a_failover_waits_for_its_end(grouped):
    """The servers only have to agree, so the caller waits instead of getting an error."""
    client = grouped.connect()
    client.lock(NAMES[0]).acquire(timeout=5).release()
    newcomer = grouped.connect()
    newcomer.lock("elsewhere").acquire(timeout=5).release()

    grouped.server.server_of(NAMES[0]).kill()
    lease = newcomer.lock(NAMES[0]).acquire(timeout=60)

    assert lease.fence > 0
    lease.release()


@lengthy
def test_an_acquire_without_a_primary_waits_until_its_timeout(grouped):
    """The wait may exceed one exchange, even at first contact, because other servers answer."""
    newcomer, group = grouped.connect(), grouped.server
    owner = group.server_of(NAMES[0])
    gone = [owner, *group.replicas_of(owner)] if "+cluster" in group.url else group.servers
    for server in gone:
        server.kill()

    asking = grouped.start(lambda: newcomer.lock(NAMES[0]).acquire(timeout=60))
    with pytest.raises(TimeoutError):
        asking.result(4)  # neither granted nor refused
    group.heal()

    asking.result(60).release()


@lengthy
def test_a_returning_primary_is_not_used(grouped):
    """The frozen server still believes that it is the primary, but no client of ours uses it."""
    client, other = grouped.connect(), grouped.connect()
    held = client.lock(NAMES[0], ttl=9).acquire(timeout=5)
    other.lock(NAMES[0]).try_acquire()
    grouped.server.wait_replicated()
    server = grouped.server.server_of(NAMES[0])
    server.freeze()
    grouped.server.wait_replaced(server)
    grouped.until("renewed", timeout=TTL_S)  # by now the client has found the new primary
    with pytest.raises(NotAcquired):
        other.lock(NAMES[0]).acquire(timeout=10)  # and so has this client
    server.thaw()

    until = time.monotonic() + 2
    while time.monotonic() < until:
        assert other.lock(NAMES[0]).try_acquire() is None
        assert not held.lost
    held.release()


@lengthy
def test_leases_that_all_servers_forgot_are_lost(grouped):
    """All servers restart without data: holders learn of the loss, waiters are served in some order, fences grow."""
    client = grouped.connect()
    held = [client.lock(name, ttl=6).acquire(timeout=5) for name in NAMES]
    waiting = waiters(grouped, NAMES[0], 2)

    for server in grouped.server.servers:
        server.kill()
    grouped.server.heal()

    first = eventually(lambda: next((each for each in waiting if each.done()), None), 60, "a waiter that is served")
    fences = [held[0].fence, first.result().fence]
    for lease in held:
        eventually(lambda lease=lease: lease.lost, 30, f"{lease!r} to be lost")
        with pytest.raises(LeaseLost):
            lease.release()
    first.result().release()
    (second,) = (each.result(60) for each in waiting if each is not first)
    fences.append(second.fence)
    second.release()
    assert fences == sorted(set(fences))


@lengthy
def test_a_missing_primary_raises_unavailable_at_the_timeout(clustered):
    """A master and its replica are gone: after bounded tries `Unavailable` gives the reason."""
    client = clustered.connect()
    name = NAMES[0]
    client.lock(name).acquire(timeout=5).release()
    master = clustered.server.server_of(name)
    for server in (*clustered.server.replicas_of(master), master):
        server.kill()

    began = time.monotonic()
    with pytest.raises(Unavailable) as trouble:
        client.lock(name).acquire(timeout=3)

    assert trouble.value.reason in ("moving", "reply lost")
    assert 2 < time.monotonic() - began < 20


def test_a_silent_master_does_not_cost_the_leases_on_the_others(place_in):
    """One keeper thread renews all leases. Those on the silent master expire; the others are renewed."""
    settings = ("--cluster-require-full-coverage", "no")
    with Cluster(KIND, replicas=0, arguments=settings) as cluster:
        place = place_in(cluster)
        client = place.connect()
        silent = cluster.server_of(NAMES[0])
        held = [client.lock(name, ttl=1).acquire(timeout=5) for name in NAMES]
        there = [lease for lease in held if cluster.server_of(lease.name) is silent]
        apart = [lease for lease in held if lease not in there]
        silent.freeze()

        eventually(lambda: all(lease.lost for lease in there), 20, "the loss of all that the silent one kept")
        time.sleep(2)

        assert len(apart) > 10
        assert [lease.name for lease in apart if lease.lost] == []
        for lease in apart:
            lease.release()
        silent.thaw()
        place.close()
