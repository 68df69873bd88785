"""The minimal permissions of a user, and the behaviour without each of them."""

import re
import time

import pytest
import redis
from minimal_acl import (
    CHANNELS,
    COMMANDS,
    FOR_POOLS,
    FOR_QUEUES,
    FOR_REGISTRIES,
    KEYS,
    TO_CONFIRM,
    TO_SEE,
    grant,
)
from redis_faces import Place, lengthy, paired

from holdfast import Backoff, LeaseLost, Reject, Retry, Unavailable
from holdfast.engines.redis import counters, lease, pool, queue, registry
from holdfast.testing import eventually

ONE_FACE = pytest.mark.parametrize("face", ["blocking"])


@pytest.fixture
def user(server, new_server, place_on):
    """Return a function that connects to a server as a user with given permissions."""
    strict = new_server(server.kind)

    def connect(*rights, **options):
        strict.command("ACL", "SETUSER", "app", "reset", "on", ">pw", *rights)
        return place.connect(f"redis://app:pw@127.0.0.1:{strict.port}", **options)

    place = place_on(strict)
    connect.server, connect.place = strict, place
    return connect


def drained(queue):
    with queue.consumer() as consumer:
        [message] = consumer.receive(1, timeout=20)
        message.ack()
        return [message.body]


def live(user, client, other):
    """Do everything that a client does: acquire, wait, wake up, renew, undo, break, release."""
    place = user.place
    held = client.lock("x", ttl=1.0).acquire()
    waiting = place.start(lambda: other.lock("x", ttl=1.0).acquire(timeout=20))
    place.until_queued(client, "x", 1)
    place.until("renewed")
    user.server.command("SCRIPT", "FLUSH")
    held.release()
    began = time.monotonic()
    second = waiting.result()
    waited = time.monotonic() - began
    assert second.fence > held.fence
    assert client.lock("x").try_acquire() is None
    client.break_lease("x", "because")
    eventually(lambda: second.lost, 5)
    with pytest.raises(LeaseLost):
        second.release()
    return waited


@paired
def test_the_documented_permissions_are_enough(user):
    """A lock library does not need full access to the server."""
    client, other = user(*KEYS, *CHANNELS, *COMMANDS), user(*KEYS, *CHANNELS, *COMMANDS)

    waited = live(user, client, other)

    assert waited < 2
    assert user.place.kinds("unavailable", "renewal_failed") == []


def test_every_documented_permission_is_needed():
    """A script or a connection needs each permission; a list that only grows protects nothing."""

    def called(*tables):
        texts = "".join(script.text for table in tables for script in table.values())
        return {name.lower() for name in re.findall(r"redis\.p?call\('(\w+)'", texts)}

    connection = {"evalsha", "eval", "blpop", "subscribe", "select", "client|setname", "info", "scan"}
    locks = {right.removeprefix("+") for right in COMMANDS}

    assert locks == called(lease.SCRIPTS, counters.SCRIPTS) | connection
    assert {right.removeprefix("+") for right in FOR_POOLS} == called(pool.SCRIPTS) - locks
    assert {right.removeprefix("+") for right in FOR_REGISTRIES} == called(registry.SCRIPTS) - locks
    assert {right.removeprefix("+") for right in FOR_QUEUES} == called(queue.SCRIPTS) - locks


@ONE_FACE
def test_the_documented_permissions_are_enough_for_pools(user):
    """The same for every operation of a pool."""
    client, other = (user(*KEYS, *CHANNELS, *COMMANDS, *FOR_POOLS) for _ in range(2))
    pool = client.pool("x", on_death=0)
    pool.set_items(["a", "b"])
    held = [pool.borrow(tag="t", share=0.5), pool.borrow(timeout=5)]
    waiting = user.place.start(lambda: other.pool("x").borrow(timeout=20))
    eventually(lambda: pool.stats().waiting == 1)
    held[0].extend(20)
    held[0].release()
    waiting.result().release()
    held[1].cool(0.1)
    with client.semaphore("gpu", 2), client.rwlock("index").read():
        pass
    eventually(lambda: pool.stats().free == 2)
    pool.set_items([])
    assert user.place.kinds("unavailable", "renewal_failed") == []


@ONE_FACE
def test_the_documented_permissions_are_enough_for_registries(user):
    """The same for every operation of a registry."""
    rights = (*KEYS, *CHANNELS, *COMMANDS, *FOR_REGISTRIES)
    ours, theirs = (user(*rights, label=f"server {n}").registry("x", ttl=20) for n in (1, 2))
    lease = ours.claim("42", group="ann", limit=1)
    assert not theirs.claim("42")
    assert [each.key for each in theirs.list()] == [each.key for each in theirs.list(group="ann")] == ["42"]
    with theirs.join("42", "socket 1"):
        assert ours.members("42") == ["socket 1"]
    waiting = user.place.start(lambda: lease.receive(timeout=20))
    theirs.send("42", "to the owner")
    assert waiting.result() == "to the owner"
    assert lease.receive(timeout=0) is None
    lease.hand_off("server 2", within=20)
    taken = theirs.claim("42")
    assert taken
    with ours.take("42", force=True), pytest.raises(LeaseLost):
        taken.release()
    assert user.place.kinds("unavailable", "renewal_failed") == []


@ONE_FACE
def test_the_documented_permissions_are_enough_for_queues(user):
    """The same for every operation of a queue.

    T35: none of what managed servers forbid is asked for, also not to end a worker that waits.
    """
    client, other = (user(*KEYS, *CHANNELS, *COMMANDS, *FOR_QUEUES) for _ in range(2))
    with redis.Redis(port=user.server.port, username="app", password="pw") as app:
        for forbidden in ("CONFIG GET save", "CLIENT UNBLOCK 1", "SCRIPT FLUSH"):
            with pytest.raises(redis.exceptions.NoPermissionError):
                app.execute_command(*forbidden.split())
    queue, seen = client.queue("q", bound=100, backoff=Backoff(0, 1, 0, 0)), []

    def work(message):
        seen.append(message.body)
        if message.body == "bad":
            raise Reject("bad")
        if message.attempt == 1:
            raise Retry

    worker = other.queue("q", backoff=Backoff(0, 1, 0, 0)).worker(work)
    working = user.place.start(worker.run)
    eventually(lambda: queue.stats().waiting == 1)
    queue.publish_many(["good", "bad"])
    queue.publish("later", delay=0.2, dedup_key="x")
    eventually(lambda: sorted(seen) == ["bad", "good", "good", "later", "later"])
    eventually(lambda: queue.stats().dead == 1)
    assert [letter.body for letter in queue.dlq.list()] == ["bad"]
    assert queue.dlq.redrive() == 1
    eventually(lambda: queue.stats().counts.get("dead_lettered") == 2)
    assert len(queue.consumers()) == 1
    assert queue.peek("ready") == []
    assert queue.check()
    worker.stop()
    working.result()
    assert queue.dlq.purge() == 1
    for body in range(3):
        queue.publish(body, key=f"key {body % 2}")
    with queue.owner("pod", most=1) as owner:
        assert [work.key for work in (owner.claim("key 1"), owner.claim("key 0"))] == ["key 1", "key 0"]
        for work in owner.assignments.values():
            work.ack()
    assert queue.peek("behind") == []
    assert drained(queue) == [2]
    assert user.place.kinds("unavailable", "renewal_failed") == []


@ONE_FACE
def test_the_documented_permissions_are_enough_for_limits_budgets_and_once(user):
    """The permissions of locks are enough."""
    client = user(*KEYS, *CHANNELS, *COMMANDS)

    assert client.limit("10/second; 100/minute").hit("ann")
    assert client.limit("10/second", method="gcra").wait("ann", timeout=5)
    with client.budget("fees", limit=10).reserve("ann", 7) as reserved:
        reserved.settle(5)
    assert client.budget("fees", limit=10).peek("ann").spent == 5
    assert [client.once("payments").call("42", lambda: "done") for _ in range(2)] == ["done", "done"]
    assert user.place.kinds("unavailable") == []


@ONE_FACE
def test_a_client_in_another_database_needs_no_more_permissions(user):
    """SELECT is in the list."""
    user(*KEYS, *CHANNELS, *COMMANDS)
    client = user.place.connect(f"redis://app:pw@127.0.0.1:{user.server.port}/3")

    client.lock("x").acquire().release()

    assert b"db3:keys=2" in user.server.command("INFO", "keyspace")


@ONE_FACE
def test_without_the_channel_leases_are_still_granted(user):
    """A missing channel permission makes wake-ups late, not wrong: no client is refused or served twice."""
    rights = (*KEYS, "resetchannels", *COMMANDS)
    client, other = user(*rights), user(*rights)

    held = client.lock("x", ttl=1).acquire()
    waiting = user.place.start(lambda: other.lock("x", ttl=1).acquire(timeout=20))
    user.place.until_queued(client, "x", 1)
    held.release()
    lease = waiting.result()

    assert lease.fence > held.fence
    lease.release()
    assert user.place.kinds("lost", "unavailable") == []


@ONE_FACE
@pytest.mark.parametrize("right", ["+publish", "+subscribe"])
def test_without_wake_ups_leases_are_still_granted(user, right):
    """The same for the two commands of wake-ups."""
    rights = [*KEYS, *CHANNELS, *COMMANDS, f"-{right[1:]}"]
    client, other = user(*rights), user(*rights)
    held = client.lock("x", ttl=1).acquire()
    waiting = user.place.start(lambda: other.lock("x", ttl=1).acquire(timeout=20))
    user.place.until_queued(client, "x", 1)

    held.release()

    waiting.result().release()
    assert user.place.kinds("lost") == []


@ONE_FACE
@pytest.mark.parametrize("right", ["+evalsha", "+get", "+set", "+time", KEYS])
def test_without_a_needed_permission_no_lease_is_granted(user, right):
    """The error names the missing permission at once, and nothing is left half done."""
    rights = [*CHANNELS, *COMMANDS] if right == KEYS else [*KEYS, *CHANNELS, *COMMANDS, f"-{right[1:]}"]
    client = user(*rights)

    with pytest.raises(Unavailable) as trouble:
        client.lock("x").acquire(timeout=5)

    assert trouble.value.reason == "no permission"
    assert user.server.command("KEYS", "hf2:*") == []


@ONE_FACE
def test_without_info_a_restart_is_noticed_at_the_next_renewal(user):
    """The client does not know the run id: leases stay safe, and losses are reported later."""
    client = user(*KEYS, *CHANNELS, *COMMANDS, "-info")
    lease = client.lock("x", ttl=2).acquire()
    user.place.until("renewed")

    user.server.restart(keep_data=False)
    user.server.command("ACL", "SETUSER", "app", "reset", "on", ">pw", *KEYS, *CHANNELS, *COMMANDS, "-info")

    eventually(lambda: lease.lost, 10)
    assert user.place.kinds("engine_restarted") == []
    with pytest.raises(LeaseLost):
        lease.release()
    promise = client.promise()
    assert promise.level == "efficiency only"
    assert len(promise.unseen) == 4


@ONE_FACE
def test_the_read_permissions_are_enough_for_the_promise(user):
    """With both permissions the promise is complete."""
    client = user(*KEYS, *CHANNELS, *COMMANDS, TO_SEE)

    assert client.promise().unseen == ()
    with pytest.raises(Unavailable) as trouble:
        client.lock("x", confirm="replicas").acquire(timeout=5)
    assert trouble.value.reason == "no permission"
    client = user(*KEYS, *CHANNELS, *COMMANDS, TO_CONFIRM)
    with pytest.raises(Unavailable) as trouble:
        client.lock("x", confirm="replicas").acquire(timeout=5)
    assert trouble.value.reason == "not confirmed"


@ONE_FACE
def test_permissions_removed_while_a_lease_is_held_cause_a_loss(user):
    """Renewals fail until the trusted deadline; then the holder learns of the loss, and its block raises."""
    client = user(*KEYS, *CHANNELS, *COMMANDS)
    lease = client.lock("x", ttl=0.9).acquire()
    user.server.command("ACL", "SETUSER", "app", "-evalsha", "-eval")

    assert lease.lost.wait(5)

    assert "renewal_failed" in user.place.kinds()
    with pytest.raises(LeaseLost):
        lease.release()
    user.server.command("ACL", "SETUSER", "app", "+evalsha", "+eval")


def live_on(place, clients):
    """Do the same on servers that are replaced in between."""
    client, other = clients
    held = client.lock("x", ttl=20).acquire(timeout=5)
    waiting = place.start(lambda: other.lock("x", ttl=20).acquire(timeout=30))
    place.until_queued(client, "x", 1)
    place.server.wait_replicated()
    before = place.server.server_of("x")
    before.kill()
    place.server.wait_replaced(before)
    held.release()
    waiting.result().release()
    client.refresh_topology()
    assert place.kinds("lost") == []


@lengthy
def test_the_documented_permissions_are_enough_in_a_cluster(clustered):
    """A cluster needs three more permissions: for the slot map and for redirections."""
    grant(clustered.server.servers, *KEYS, *CHANNELS, *COMMANDS, "+cluster|slots", "+cluster|info", "+asking")
    url = clustered.server.url.replace("://", "://app:pw@")

    live_on(clustered, [clustered.connect(url) for _ in range(2)])


@lengthy
def test_the_documented_permissions_are_enough_behind_sentinels(sentinels, face, loop):
    """The servers need one more permission; the sentinels need queries and subscriptions."""
    place = Place(sentinels, face, loop)
    grant(sentinels.servers, *KEYS, *CHANNELS, *COMMANDS, "+role")
    sentinel_rights = ("+sentinel|get-master-addr-by-name", "+subscribe", "+client|setname")
    grant(sentinels.sentinels, "resetchannels", "&+switch-master", *sentinel_rights)
    url = sentinels.url.replace("://", "://app:pw@") + "?sentinel_username=app&sentinel_password=pw"

    live_on(place, [place.connect(url) for _ in range(2)])

    place.close()


def test_a_missing_permission_in_a_cluster_is_reported(clustered):
    """Without `cluster|slots` the client cannot find a server, and raises at once."""
    grant(clustered.server.servers, *KEYS, *CHANNELS, *COMMANDS)
    client = clustered.connect(clustered.server.url.replace("://", "://app:pw@"))

    with pytest.raises(Unavailable) as trouble:
        client.lock("x").acquire(timeout=5)

    assert trouble.value.reason == "no permission"
    assert "+cluster|slots" in trouble.value.detail


@pytest.mark.parametrize("face", ["blocking"])
@pytest.mark.parametrize("of_servers", [True, False])
def test_a_missing_permission_behind_sentinels_is_reported(sentinels, face, loop, of_servers):
    """The error says whether the user of the servers or of the sentinels lacks a permission."""
    place = Place(sentinels, face, loop)
    grant(sentinels.servers, *KEYS, *CHANNELS, *COMMANDS, *(() if of_servers else ("+role",)))
    asking = () if not of_servers else ("+sentinel|get-master-addr-by-name",)
    grant(sentinels.sentinels, "resetchannels", "&+switch-master", "+subscribe", "+client|setname", *asking)
    url = sentinels.url.replace("://", "://app:pw@") + "?sentinel_username=app&sentinel_password=pw"

    with pytest.raises(Unavailable) as trouble:
        place.connect(url).lock("x").acquire(timeout=5)

    assert trouble.value.reason == "no permission"
    assert ("+role" if of_servers else "+sentinel|get-master-addr-by-name") in trouble.value.detail
    place.close()
