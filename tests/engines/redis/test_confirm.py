"""`confirm="replicas"`: a grant or renewal counts once every known replica has it; otherwise it is undone."""

from functools import partial

import pytest

from holdfast import InvalidConfig, LeaseLost, Unavailable
from holdfast.testing import eventually
from tests.support.proxy import named

QUICKLY = ("--repl-diskless-sync-delay", "0")


@pytest.fixture
def trio(new_server):
    """Return a primary and two synchronised replicas."""
    primary, *replicas = (new_server(arguments=QUICKLY) for _ in range(3))
    for replica in replicas:
        replica.command("REPLICAOF", "127.0.0.1", str(primary.port))
    for replica in replicas:
        eventually(lambda r=replica: b"master_link_status:up" in r.command("INFO", "replication"), 20)
    yield primary, *replicas
    for replica in replicas:
        replica.kill()  # a primary would wait for them at its end


def has(server, name):
    return server.command("EXISTS", f"hf2:{{{name}}}") == 1


def test_a_confirmed_grant_is_on_every_replica_before_the_caller_has_it(trio, place_on):
    """Every replica that may be promoted knows the grant, also a leader's and a waiter's."""
    primary, *replicas = trio
    place = place_on(primary)
    client, other = place.connect(), place.connect()

    held = client.lock("x", ttl=20, confirm="replicas").acquire(timeout=5)
    assert all(has(replica, "x") for replica in replicas)
    waiting = place.start(lambda: other.lock("x", ttl=20, confirm="replicas").acquire(timeout=20))
    place.until_queued(client, "x", 1)
    held.release()

    lease = waiting.result()
    assert lease.fence > held.fence
    assert lease.remaining() > 15  # a whole ttl, also for a waiter that blocked on the server
    lease.release()
    if place.face == "blocking":
        with client.leader("y", confirm="replicas"):
            assert all(has(replica, "y") for replica in replicas)


@pytest.mark.parametrize("face", ["blocking"])
def test_one_missing_replica_undoes_the_grant(trio, place_on):
    """One of two replicas is not enough, and the grant is undone. A lost replica stays known."""
    primary, slow, gone = trio
    place = place_on(primary)
    client = place.connect()
    client.lock("x", confirm="replicas").acquire(timeout=5).release()

    slow.freeze()
    with pytest.raises(Unavailable) as trouble:
        client.lock("x", confirm="replicas").acquire(timeout=5)

    assert trouble.value.reason == "not confirmed"
    assert "1 of 2 replicas" in str(trouble.value)
    assert trouble.value.retryable
    eventually(lambda: client.show("x").holder is None, 5)
    client.lock("x").acquire(timeout=5).release()  # a lock without confirm is not delayed
    slow.thaw()
    eventually(lambda: not lagging(primary), 10)
    client.lock("x", confirm="replicas").acquire(timeout=5).release()
    gone.kill()
    eventually(lambda: b"connected_slaves:1" in primary.command("INFO", "replication"), 10)
    with pytest.raises(Unavailable) as trouble:
        client.lock("x", confirm="replicas").acquire(timeout=5)
    assert "1 of 2 replicas" in str(trouble.value)  # it may still become the next primary


def lagging(primary):
    return b"lag=0" not in primary.command("INFO", "replication").split(b"slave1")[0]


@pytest.mark.parametrize("face", ["blocking"])
def test_a_renewal_that_is_not_confirmed_does_not_count(trio, place_on):
    """A replica without the renewals would grant the lease again, so the holder trusts only confirmed renewals."""
    primary, slow, _ = trio
    place = place_on(primary)
    client = place.connect()
    plain = client.lock("plain", ttl=2).acquire()
    lease = client.lock("x", ttl=2, confirm="replicas").acquire(timeout=5)
    place.until("renewed", 2)

    slow.freeze()

    eventually(lambda: lease.lost, 10)
    assert "renewal_failed" in place.kinds()
    with pytest.raises(LeaseLost):
        lease.release()
    plain.check()
    plain.release()
    slow.thaw()


def cut_off(primary, replica):
    """Cut the replica off from its primary, like a replica that has just been promoted."""
    replica.command("REPLICAOF", "NO", "ONE")
    eventually(lambda: b"connected_slaves:1" in primary.command("INFO", "replication"), 10)


def confirming(place, client, **settings):
    """Start an acquire that waits for replicas; repeat it if it ended too early."""
    asking = []

    def seen():
        if not asking or asking[-1].done():
            asking.append(place.start(lambda: client.lock("x", confirm="replicas", **settings).acquire(timeout=5)))
        return b"cmd=wait" in place.server.command("CLIENT", "LIST")

    eventually(seen, 20, "a server that waits for its replicas")
    return asking[-1]


@pytest.mark.parametrize("face", ["blocking"])
def test_a_failover_meanwhile_forgets_no_replica(trio, place_on):
    """The promoted replica does not know the grant, so the client waits for it in vain."""
    primary, promoted, _ = trio
    place = place_on(primary)
    client = place.connect()
    client.lock("x", confirm="replicas").acquire(timeout=5).release()
    engine = client._client.engine
    cut_off(primary, promoted)
    asking = confirming(place, client)

    engine.known_servers.identity_of(engine.topology.only).forget_run()  # as if a sentinel announced another primary

    trouble = asking.error()
    assert isinstance(trouble, Unavailable)
    assert "1 of 2 replicas" in str(trouble)
    eventually(lambda: client.show("x").holder is None, 5)


@pytest.mark.parametrize("face", ["blocking"])
def test_a_primary_that_becomes_a_replica_meanwhile_confirms_nothing(trio, place_on):
    """The server ends the wait like in any failover, and the caller may repeat the call."""
    primary, slow, promoted = trio
    place = place_on(primary)
    client = place.connect()
    client.lock("x", confirm="replicas").acquire(timeout=5).release()
    slow.freeze()
    asking = confirming(place, client, ttl=3)

    primary.command("REPLICAOF", "127.0.0.1", str(promoted.port))

    trouble = asking.error()
    assert isinstance(trouble, Unavailable)
    assert (trouble.reason, trouble.retryable) == ("not confirmed", True)
    slow.thaw()
    primary.command("REPLICAOF", "NO", "ONE")


def test_a_confirmation_whose_reply_was_lost_is_resent(trio, place_on):
    """The client resends with the same token; a cut connection does not undo a grant."""
    primary, *_ = trio
    place = place_on(primary)
    proxy = place.proxy()
    client = place.connect(proxy.url)
    client.lock("x", confirm="replicas").acquire(timeout=5).release()
    proxy.drop_reply(when=named("WAIT"))

    lease = client.lock("x", confirm="replicas").acquire(timeout=5)

    assert len(proxy.dropped) == 1
    assert client.show("x").fence == lease.fence
    lease.release()


MANY = {
    "pool": lambda client, **settings: client.pool("x", confirm="replicas", on_death=0, **settings).borrow(timeout=5),
    "semaphore": lambda client, **settings: client.semaphore("x", 2, confirm="replicas", **settings).acquire(timeout=5),
    "rwlock": lambda client, **settings: client.rwlock("x", confirm="replicas", **settings).write().acquire(timeout=5),
}


@pytest.mark.parametrize("face", ["blocking"])
@pytest.mark.parametrize("kind", MANY)
def test_items_and_permits_are_confirmed_like_locks(trio, place_on, kind):
    """A promoted replica would lend an unconfirmed item again."""
    primary, slow, other = trio
    place = place_on(primary)
    client = place.connect()
    client.pool("x").set_items(["a"])
    lease = MANY[kind](client, ttl=2)
    assert all(replica.command("HLEN", f"hf2:{{x}}:{kind}:tokens") == 1 for replica in (slow, other))
    place.until("renewed")
    lease.check()

    slow.freeze()
    eventually(lambda: lease.lost, 10)
    with pytest.raises(LeaseLost):
        lease.release()
    kinds = (client.pool("x"), client.semaphore("x", 2), client.rwlock("x"))
    eventually(lambda: not any(kind.stats().lent for kind in kinds), 10)
    with pytest.raises(Unavailable) as trouble:
        MANY[kind](client)
    assert trouble.value.reason == "not confirmed"
    eventually(lambda: not any(kind.stats().lent for kind in kinds), 10)
    slow.thaw()
    client.pool("x").set_items([])


@pytest.mark.parametrize("face", ["blocking"])
def test_an_extension_counts_only_if_all_replicas_have_it(trio, place_on):
    """Otherwise the borrower would trust a time that a promoted replica does not know."""
    primary, slow, _ = trio
    client = place_on(primary).connect()
    client.pool("x").set_items(["a"])
    with client.pool("x", ttl=30, confirm="replicas").borrow(timeout=5) as item:
        item.extend(40)
        assert item.ttl == 40
        slow.freeze()
        with pytest.raises(Unavailable) as trouble:
            item.extend(60)
        assert (trouble.value.reason, item.ttl) == ("not confirmed", 40)
        item.check()
        slow.thaw()
    client.pool("x").set_items([])


def test_a_server_without_replicas_confirms_nothing(place):
    """An empty set of replicas would always be confirmed, but the user wants a replica."""
    client = place.connect()

    with pytest.raises(Unavailable) as trouble:
        client.lock("x", confirm="replicas").acquire(timeout=5)

    assert trouble.value.reason == "not confirmed"
    assert "no replica is known" in str(trouble.value)
    eventually(lambda: client.show("x").holder is None, 5)


@pytest.mark.parametrize("face", ["blocking"])
@pytest.mark.parametrize("right", ["-wait", "-info"])
def test_without_the_permissions_nothing_is_confirmed(new_server, place_on, right):
    """`confirm` needs INFO and WAIT; the error names the missing one, and nothing is left behind."""
    server = new_server()
    server.command("ACL", "SETUSER", "app", "reset", "on", ">pw", "~hf2:*", "allchannels", "+@all", right)
    place = place_on(server)
    client = place.connect(f"redis://app:pw@127.0.0.1:{server.port}")

    with pytest.raises(Unavailable) as trouble:
        client.lock("x", confirm="replicas").acquire(timeout=5)

    assert trouble.value.reason == "no permission"
    eventually(lambda: client.show("x").holder is None, 5)


@pytest.mark.parametrize("wrong", ["all", 2, True, ""])
def test_an_unknown_value_of_confirm_is_refused(place, wrong):
    """The refusal comes before any command."""
    client = place.connect()
    for way in (client.lock, client.pool, client.rwlock, partial(client.semaphore, permits=2)):
        with pytest.raises(InvalidConfig) as refusal:
            way("x", confirm=wrong)
        assert refusal.value.setting == "confirm"
