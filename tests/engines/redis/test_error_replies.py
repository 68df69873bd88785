"""Every error reply of the server has one defined outcome."""

import time
from contextlib import suppress

import pytest
from redis_faces import calls_of, paired

from holdfast import Unavailable
from holdfast.commands import Acquire, Granted, Released, ReleaseLease, Renew, Renewed, Undo
from holdfast.testing import eventually
from holdfast.testing.resp import ServerError

# The reaction of the core does not depend on the face; slow tests use one face only.
ONE_FACE = pytest.mark.parametrize("face", ["blocking"])
# A second attempt gets the same error.
LASTING = ("no permission", "failed", "other topology")
SPIN = "while true do end"
SPOIL = "for i = 1, 15000 do redis.call('SET', 'load:' .. i, 'x') end"


def refused(client, reason, timeout=0):
    """Check that the acquire fails for this reason and starts nothing."""
    with pytest.raises(Unavailable) as trouble:
        client.lock("x").acquire(timeout=timeout)
    assert trouble.value.reason == reason
    assert trouble.value.retryable == (reason not in LASTING)
    return trouble.value


@paired
def test_a_server_that_has_forgotten_the_scripts_is_sent_their_text(place):
    """After SCRIPT FLUSH, a restart or a failover the caller notices nothing."""
    client = place.connect()
    leases = [client.lock(name, ttl=1.0).acquire() for name in "abc"]
    place.server.command("SCRIPT", "FLUSH")

    place.until("renewed", 3)
    place.server.command("SCRIPT", "FLUSH")
    for lease in leases:
        lease.release()

    assert place.kinds("lost", "unavailable", "renewal_failed") == []


@ONE_FACE
def test_a_server_that_is_loading_is_not_ready(new_server, place_on):
    """At first contact the error comes at once; a waiter that had contact continues to wait."""
    server = new_server(appendonly=True, arguments=("--key-load-delay", "100"))
    place = place_on(server)
    client, waiter = place.connect(), place.connect()
    # A waiter meets another run of its server, and waits until the old lease must have ended.
    held = client.lock("x", ttl=10).acquire()
    waiting = place.start(lambda: waiter.lock("x").acquire(timeout=30))
    place.until_queued(client, "x", 1)
    server.command("EVAL", SPOIL, "0")
    server.kill()
    server.start(wait=False)
    eventually(lambda: "LOADING" in answer_of(server, "GET", "x"), 10, "the server to be loading")

    refused(place.connect(), "loading")
    server.wait_ready()
    server.command("EVAL", SPOIL.replace("'SET'", "'DEL'").replace(", 'x'", ""), "0")

    held.release()
    successor = waiting.result()
    assert successor.fence > held.fence
    successor.release()


def wake(client):
    """Make the waiters send a command during the error."""
    client._client.transport.wake_all()


def answer_of(server, *words):
    try:
        return str(server.command(*words))
    except (OSError, ServerError) as error:
        return str(error)


@paired
def test_a_replica_is_read_only(server, new_server, place_on):
    """After a failover the old address may be a replica; it refuses writes, which may pass."""
    replica = new_server(server.kind)
    place = place_on(replica)
    client, waiter = place.connect(), place.connect()
    held = client.lock("x", ttl=2).acquire()
    waiting = place.start(lambda: waiter.lock("x").acquire(timeout=30))
    place.until_queued(client, "x", 1)
    replica.command("REPLICAOF", "127.0.0.1", 1)
    wake(waiter)

    place.until("unavailable")
    refused(place.connect(), "read-only")
    place.until("renewal_failed")
    replica.command("REPLICAOF", "NO", "ONE")

    place.until("renewed_late" if "renewed_late" in place.kinds() else "renewed")
    held.release()
    waiting.result().release()
    assert place.kinds("lost") == []


@paired
def test_a_server_busy_with_another_script_is_unavailable(server, new_server, place_on):
    """It answers BUSY after its time limit; a waiter that had contact continues to try."""
    server = new_server(server.kind, arguments=("--lua-time-limit", "5"))
    place = place_on(server)
    client, waiter = place.connect(), place.connect()
    held = client.lock("x", ttl=20).acquire()
    waiting = place.start(lambda: waiter.lock("x").acquire(timeout=30))
    place.until_queued(client, "x", 1)
    spinning = place.start(lambda: server.command("EVAL", SPIN, "0", timeout=30))
    eventually(lambda: "BUSY" in answer_of(server, "GET", "x"), 10)
    wake(waiter)

    place.until("unavailable")
    refused(place.connect(), "busy")
    server.command("SCRIPT", "KILL")

    assert isinstance(spinning.error(), ServerError)
    held.release()
    waiting.result().release()


@paired
def test_a_full_server_grants_nothing_and_still_frees(server, new_server, place_on):
    """At maxmemory a holder can renew, release and undo; otherwise a full server would never empty."""
    server = new_server(server.kind)
    place = place_on(server)
    client, peer = place.connect(), place.peer()
    held = client.lock("x", ttl=1.0).acquire()
    assert isinstance(peer.send(Acquire("held", "aa", "", 20_000, wait=False)), Granted)
    assert isinstance(peer.send(Acquire("undone", "bb", "", 20_000, wait=False)), Granted)
    server.command("CONFIG", "SET", "maxmemory", 1)

    with pytest.raises(Unavailable) as full:
        client.lock("y").acquire(timeout=5)
    renewed = len(place.kinds("renewed"))
    place.until("renewed", renewed + 1)
    assert peer.send(Renew("held", "aa", 20_000)) == Renewed()
    peer.send(Undo("undone", "bb"))
    peer.send(Undo("never seen", "cc"))
    held.release()
    released_again = [peer.send(ReleaseLease("held", "aa")) for _ in range(2)]

    assert full.value.reason == "full"
    assert released_again == [Released(), Released()]
    assert place.kinds("lost", "renewal_failed") == []
    assert client.show("undone").holder is None
    assert client.show("x").holder is None
    server.command("CONFIG", "SET", "maxmemory", 0)
    client.lock("y").acquire(timeout=0).release()


@ONE_FACE
def test_a_full_server_still_stores_done_markers_and_spending(server, new_server, place_on):
    """The work is over, so a full server must not lose its done marker or its cost."""
    server = new_server(server.kind)
    client = place_on(server).connect()
    once, budget = client.once("payments"), client.budget("fees", limit=10)
    reserved = budget.reserve("ann", 7)
    with once.first("42") as first:
        first.result = "done"
        server.command("CONFIG", "SET", "maxmemory", 1)
    reserved.settle(4)

    assert once.seen("42")
    assert client.show("payments/42").holder is None
    assert budget.peek("ann")[:2] == (4, 0)
    with pytest.raises(Unavailable) as full:
        budget.reserve("ann", 1)
    assert full.value.reason == "full"
    server.command("CONFIG", "SET", "maxmemory", 0)
    assert once.call("42", lambda: "again") == "done"


@ONE_FACE
def test_a_full_server_still_hands_a_key_to_its_successor(server, new_server, place_on):
    """A server that stops while memory is short hands its keys off as usual."""
    server = new_server(server.kind)
    place = place_on(server)
    ours, theirs = (place.connect(label=f"server {n}").registry("x", ttl=20) for n in (1, 2))
    lease, other = ours.claim("42", group="ann"), ours.claim("43", group="ann")
    server.command("CONFIG", "SET", "maxmemory", 1)

    lease.hand_off("server 2", within=60)
    other.release()

    assert ours.list() == ours.list(group="ann") == []
    server.command("CONFIG", "SET", "maxmemory", 0)
    assert ours.claim("42").owner.label == "server 2"
    theirs.claim("42").release()


@ONE_FACE
def test_a_server_that_cannot_save_takes_no_writes(server, new_server, place_on, tmp_path):
    """With MISCONF the server reports a failing disk."""
    data = tmp_path / "data"
    data.mkdir()
    server = new_server(server.kind, directory=data, arguments=("--save", "900", "1000000"))
    place = place_on(server)
    client = place.connect()
    for file in data.iterdir():
        file.unlink()
    data.rmdir()
    with suppress(ServerError):
        server.command("BGSAVE")
    eventually(lambda: b"rdb_last_bgsave_status:err" in server.command("INFO", "persistence"), 10)

    refused(client, "read-only")
    server.command("CONFIG", "SET", "stop-writes-on-bgsave-error", "no")

    client.lock("x").acquire(timeout=0).release()
    server.command("CONFIG", "SET", "save", "")  # otherwise it refuses to stop


@paired
@pytest.mark.parametrize("given", ["wrong", "none", "unknown user"])
def test_without_the_right_password_no_client_gets_in(server, new_server, place_on, given):
    """A missing permission does not pass by itself, so the error comes at once."""
    server = new_server(server.kind, password="right-one")
    secret = {"wrong": ":wrong-one@", "none": "", "unknown user": "stranger:right-one@"}[given]
    place = place_on(server)
    client = place.connect(f"redis://{secret}127.0.0.1:{server.port}")
    began = time.monotonic()

    error = refused(client, "no permission", timeout=None)

    assert time.monotonic() - began < 2
    assert "one" not in str(error).replace(" one ", "")
    place.connect().lock("x").acquire().release()


@paired
def test_a_user_without_permission_for_scripts_gets_an_error(server, new_server, place_on):
    """The server answers NOPERM for the command itself."""
    server = new_server(server.kind)
    server.command("ACL", "SETUSER", "reader", "on", ">pw", "~*", "+@connection", "+get")
    client = place_on(server).connect(f"redis://reader:pw@127.0.0.1:{server.port}")

    refused(client, "no permission", timeout=None)


@paired
def test_a_user_without_permission_for_the_key_gets_an_error(server, new_server, place_on):
    """The server answers NOPERM for a command or a key of the script."""
    server = new_server(server.kind)
    server.command("ACL", "SETUSER", "other", "on", ">pw", "~other:*", "&*", "+@all")
    client = place_on(server).connect(f"redis://other:pw@127.0.0.1:{server.port}")

    refused(client, "no permission", timeout=None)


@paired
def test_cut_connections_are_opened_again(place):
    """A load balancer or CLIENT KILL cuts connections; no lease is lost and no event is emitted."""
    proxy = place.proxy()
    client, other = place.connect(proxy.url), place.connect()
    held = client.lock("x", ttl=1.0).acquire()
    waiting = place.start(lambda: client.lock("y").acquire(timeout=20))
    waiting.result().release()

    for _ in range(3):
        proxy.cut()
        client.lock("z").acquire(timeout=5).release()
    proxy.cut()
    place.until("renewed", len(place.kinds("renewed")) + 1)

    assert place.kinds("lost") == []
    held.check()
    held.release()
    assert other.show("x").holder is None


@paired
def test_a_killed_client_is_connected_again_and_keeps_its_leases(place):
    """CLIENT KILL by an operator is a fault like any other."""
    client = place.connect()
    held = client.lock("x", ttl=1.0).acquire()
    place.until("renewed")

    place.server.command("CLIENT", "KILL", "TYPE", "normal")

    place.until("renewed", len(place.kinds("renewed")) + 1)
    held.release()
    assert place.kinds("lost") == []


@paired
def test_a_waiter_whose_subscription_was_killed_is_still_woken(place):
    """The listener reconnects by itself and then checks once."""
    client, holder = place.connect(), place.connect()
    held = holder.lock("x").acquire()
    waiting = place.start(lambda: client.lock("x").acquire(timeout=20))
    place.until_queued(holder, "x", 1)
    eventually(lambda: place.server.command("PUBSUB", "CHANNELS", "hf2:*"))

    place.server.command("CLIENT", "KILL", "TYPE", "pubsub")
    held.release()
    began = time.monotonic()

    waiting.result().release()
    assert time.monotonic() - began < 5


@paired
def test_a_renewal_that_meets_a_foreign_value_loses_the_lease(place):
    """Another program overwrote the record: the lease is lost, and the keeper survives."""
    client = place.connect()
    lease = client.lock("x", ttl=1.0).acquire()
    place.server.command("DEL", "hf2:{x}")
    place.server.command("RPUSH", "hf2:{x}", "not a record")
    place.server.command("EXPIRE", "hf2:{x}", 20)

    assert lease.lost.wait(5)

    place.server.command("DEL", "hf2:{x}")
    client.lock("x").acquire(timeout=5).release()


def test_unknown_scripts_of_a_batch_are_each_sent_with_their_text(sync):
    """A pipeline gets NOSCRIPT for every command in it."""
    proxy = sync.proxy()
    client = sync.connect(proxy.url)
    leases = [client.lock(f"n{number}", ttl=1.5).acquire() for number in range(20)]
    sync.server.command("SCRIPT", "FLUSH")

    sync.until("renewed", 20)

    assert proxy.count(calls_of(Renew)) >= 40
    assert sync.kinds("lost", "renewal_failed") == []
    for lease in leases:
        lease.release()
