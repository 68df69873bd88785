"""`confirm="replicas"`: a grant or renewal counts once every known replica has it; otherwise nobody holds anything."""

from functools import partial

import pytest

from holdfast import InvalidConfig, LeaseLost, Unavailable
from holdfast.testing import eventually
from tests.support.proxy import named

QUICKLY = ("--repl-diskless-sync-delay", "0")


@pytest.fixture
def trio(new_server):
    """A primary and two replicas, all in step."""
    primary, *replicas = (new_server(arguments=QUICKLY) for _ in range(3))
    for replica in replicas:
        replica.command("REPLICAOF", "127.0.0.1", str(primary.port))
    for replica in replicas:
        eventually(lambda r=replica: b"master_link_status:up" in r.command("INFO", "replication"), 20)
    yield primary, *replicas
    for replica in replicas:
        replica.kill()  # a primary that is asked to end would wait for them


def has(server, name):
    return server.command("EXISTS", f"hf2:{{{name}}}") == 1


def test_a_confirmed_grant_is_on_every_replica_before_anybody_hears_of_it(trio, place_on):
    """Whichever of them is promoted knows it. Also a leader's, and also the grant of one that had to wait."""
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
    assert lease.remaining() > 15  # a whole ttl, also for one that blocked on the server
    lease.release()
    if place.face == "blocking":
        with client.leader("y", confirm="replicas"):
            assert all(has(replica, "y") for replica in replicas)


@pytest.mark.parametrize("face", ["blocking"])
def test_one_replica_that_has_not_heard_of_it_has_the_grant_withdrawn(trio, place_on):
    """One of two is not all. Nobody holds the name afterwards. One that has gone stays known, and is missed."""
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
    client.lock("x").acquire(timeout=5).release()  # who does not ask for it is not held up
    slow.thaw()
    eventually(lambda: not lagging(primary), 10)
    client.lock("x", confirm="replicas").acquire(timeout=5).release()
    gone.kill()
    eventually(lambda: b"connected_slaves:1" in primary.command("INFO", "replication"), 10)
    with pytest.raises(Unavailable) as trouble:
        client.lock("x", confirm="replicas").acquire(timeout=5)
    assert "1 of 2 replicas" in str(trouble.value)  # nobody can tell from here that it will not be the next primary


def lagging(primary):
    return b"lag=0" not in primary.command("INFO", "replication").split(b"slave1")[0]


@pytest.mark.parametrize("face", ["blocking"])
def test_a_renewal_that_is_not_confirmed_does_not_count(trio, place_on):
    """A replica that missed the renewals would give the lease away: the holder trusts only what all have heard."""
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
    """It hears nothing of its primary any more: as one that has just been promoted."""
    replica.command("REPLICAOF", "NO", "ONE")
    eventually(lambda: b"connected_slaves:1" in primary.command("INFO", "replication"), 10)


def confirming(place, client, **settings):
    """Somebody who waits for replicas just now; begun again, if that was over before it was seen."""
    asking = []

    def seen():
        if not asking or asking[-1].done():
            asking.append(place.start(lambda: client.lock("x", confirm="replicas", **settings).acquire(timeout=5)))
        return b"cmd=wait" in place.server.command("CLIENT", "LIST")

    eventually(seen, 20, "a server that waits for its replicas")
    return asking[-1]


@pytest.mark.parametrize("face", ["blocking"])
def test_a_failover_that_is_told_meanwhile_makes_no_replica_unknown(trio, place_on):
    """The one that was promoted is missed to the end: it does not know of the grant, and grants already."""
    primary, promoted, _ = trio
    place = place_on(primary)
    client = place.connect()
    client.lock("x", confirm="replicas").acquire(timeout=5).release()
    engine = client._client.engine
    cut_off(primary, promoted)
    asking = confirming(place, client)

    engine.known_servers.of(engine.topology.only).another()  # as when a sentinel tells of another primary

    trouble = asking.error()
    assert isinstance(trouble, Unavailable)
    assert "1 of 2 replicas" in str(trouble)
    eventually(lambda: client.show("x").holder is None, 5)


@pytest.mark.parametrize("face", ["blocking"])
def test_a_primary_that_becomes_a_replica_meanwhile_confirms_nothing(trio, place_on):
    """The server ends the wait. That is a failover like any other: the same call may be made again."""
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


def test_a_confirmation_whose_reply_was_lost_is_asked_for_again(trio, place_on):
    """As any command is, with the same token: a connection that is cut is no reason to withdraw a grant."""
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
def test_one_of_many_is_confirmed_as_a_lock_is(trio, place_on, kind):
    """Its grant and its renewals: what a promoted replica does not know of, it lends again."""
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
def test_an_item_is_extended_only_if_all_replicas_have_heard_of_it(trio, place_on):
    """Otherwise the borrower trusts in a time that a promoted replica does not know; the item stays as it was."""
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
    """Nobody is everybody, in logic. Whoever asks for replicas wants some."""
    client = place.connect()

    with pytest.raises(Unavailable) as trouble:
        client.lock("x", confirm="replicas").acquire(timeout=5)

    assert trouble.value.reason == "not confirmed"
    assert "no replica is known" in str(trouble.value)
    eventually(lambda: client.show("x").holder is None, 5)


@pytest.mark.parametrize("face", ["blocking"])
@pytest.mark.parametrize("right", ["-wait", "-info"])
def test_without_the_rights_nothing_is_confirmed(new_server, place_on, right):
    """It needs INFO and WAIT; without, it is refused by name, and nothing is left behind."""
    server = new_server()
    server.command("ACL", "SETUSER", "app", "reset", "on", ">pw", "~hf2:*", "allchannels", "+@all", right)
    place = place_on(server)
    client = place.connect(f"redis://app:pw@127.0.0.1:{server.port}")

    with pytest.raises(Unavailable) as trouble:
        client.lock("x", confirm="replicas").acquire(timeout=5)

    assert trouble.value.reason == "no permission"
    eventually(lambda: client.show("x").holder is None, 5)


@pytest.mark.parametrize("wrong", ["all", 2, True, ""])
def test_a_confirmation_nobody_knows_is_refused(place, wrong):
    """Before anything is sent."""
    client = place.connect()
    for way in (client.lock, client.pool, client.rwlock, partial(client.semaphore, permits=2)):
        with pytest.raises(InvalidConfig) as told:
            way("x", confirm=wrong)
        assert told.value.setting == "confirm"
