"""Slots that move while their names are in use, and the topology of a cluster, through both faces."""

import threading
import time
from contextlib import suppress

import pytest
from redis_faces import lengthy

from holdfast import LeaseLost, Unavailable
from holdfast.clock import NS, SYSTEM
from holdfast.commands import Acquire, Busy, Granted, ReleaseLease, Renew, Undo
from holdfast.core.step import run
from holdfast.testing import assert_holds, eventually
from tests.support.clusters import slot_of

# Each in a slot of its own, which is moved there and back.
NAMES = [f"moving/{number}" for number in range(4)]


def errors_of(cluster):
    """Return how many redirects of each kind the servers have sent."""
    told = {}
    for server in cluster.servers:
        for line in server.command("INFO", "errorstats").decode().split("\r\n"):
            name, _, facts = line.partition(":count=")
            if facts:
                told[name.removeprefix("errorstat_")] = told.get(name.removeprefix("errorstat_"), 0) + int(facts)
    return told


def elsewhere(cluster, slot):
    owner = cluster.server_of_slot(slot)
    return next(server for server in cluster.masters() if server is not owner)


def test_slots_that_move_under_load_cause_no_error(clustered, holdfast_history):
    """Six workers, four names, slots that go round: grants are exclusive, fences grow, and no caller gets an error."""
    clients = [clustered.connect(label=f"client {number}") for number in range(3)]
    over = threading.Event()
    counted = dict.fromkeys(NAMES, 0)

    def work(client, worker):
        recorder, rounds = holdfast_history.recorder(worker), 0
        while not over.is_set():
            name = NAMES[rounds % len(NAMES)]
            rounds += 1
            asked_ns = time.monotonic_ns()
            lease = client.lock(name, ttl=5).acquire(timeout=30)
            facts = {"fence": lease.fence, "token": lease.token}
            until_ns = time.monotonic_ns() + int(lease.remaining() * 1e9)
            recorder.record("granted", name, since_ns=asked_ns, until_ns=until_ns, **facts)
            seen = counted[name]
            time.sleep(0.001)
            counted[name] = seen + 1
            recorder.record("write", name, value=seen + 1, accepted=True, **facts)
            recorder.record("released", name, **facts)
            lease.release()
        return rounds

    before = errors_of(clustered.server)
    running = [
        clustered.start(lambda client=client, worker=f"{number}-{at}": work(client, worker))
        for number, client in enumerate(clients)
        for at in range(2)
    ]
    moved = 0
    for _ in range(3):
        for name in NAMES:
            slot = slot_of(name)
            moved += clustered.server.move_slot(slot, elsewhere(clustered.server, slot))
            time.sleep(0.05)
    over.set()
    rounds = sum(each.result(60) for each in running)

    assert moved > 0
    assert sum(counted.values()) == rounds
    assert_holds(holdfast_history.read())
    after = errors_of(clustered.server)
    assert after.get("MOVED", 0) > before.get("MOVED", 0)
    assert after.get("ASK", 0) + after.get("TRYAGAIN", 0) > before.get("ASK", 0) + before.get("TRYAGAIN", 0)
    assert clustered.kinds("lost") == []


@pytest.mark.parametrize("moved", [False, True], ids=["before its keys move", "after its keys moved"])
def test_a_contended_name_in_a_moving_slot_waits_for_its_arrival(clustered, moved):
    """Each of two servers may have a part of its line, so no lease is granted; the holder renews all the while."""
    client, other = clustered.connect(), clustered.connect()
    name = NAMES[0]
    slot = slot_of(name)
    held = client.lock(name, ttl=4).acquire(timeout=5)
    waiting = clustered.start(lambda: other.lock(name, ttl=20).acquire(timeout=60))
    clustered.until_queued(client, name, 1)
    target = elsewhere(clustered.server, slot)
    owner = clustered.server.begin_move(slot, target)
    if moved:
        clustered.server.move_keys(slot, owner, target)
    keys = [server.command("CLUSTER", "COUNTKEYSINSLOT", slot) for server in (owner, target)]

    with pytest.raises(Unavailable) as trouble:
        clustered.connect().lock(name).acquire(timeout=0)
    assert trouble.value.reason == "moving"
    assert [server.command("CLUSTER", "COUNTKEYSINSLOT", slot) for server in (owner, target)] == keys
    time.sleep(5)  # longer than its ttl: it is renewed
    assert not held.lost
    clustered.server.move_keys(slot, owner, target)
    clustered.server.end_move(slot, owner, target)

    held.release()
    mine = waiting.result()
    assert mine.fence > held.fence
    mine.release()
    assert clustered.kinds("lost") == []


@pytest.mark.parametrize("moved", [False, True], ids=["before its keys move", "after its keys moved"])
def test_a_name_without_waiters_is_served_while_its_slot_moves(clustered, moved):
    """An unfinished move may stay so for days. The record alone decides, on whichever server it is."""
    client, other = clustered.connect(), clustered.connect()
    name = NAMES[1]
    slot = slot_of(name)
    held = client.lock(name, ttl=3).acquire(timeout=5)
    target = elsewhere(clustered.server, slot)
    owner = clustered.server.begin_move(slot, target)
    if moved:
        clustered.server.move_keys(slot, owner, target)

    fences = [held.fence]
    for _ in range(3):
        assert other.lock(name).try_acquire() is None
        held.release()
        held = client.lock(name, ttl=3).acquire(timeout=5)
        fences.append(held.fence)
    time.sleep(4)  # longer than its ttl: it is renewed
    assert not held.lost
    assert other.lock(name).try_acquire() is None
    clustered.server.move_keys(slot, owner, target)
    clustered.server.end_move(slot, owner, target)

    assert other.lock(name).try_acquire() is None
    held.release()
    last = other.lock(name).acquire(timeout=5)
    assert sorted({*fences, last.fence}) == [*fences, last.fence]
    last.release()
    assert clustered.kinds("lost") == []


def test_an_offer_is_not_confirmed_while_its_slot_moves(clustered):
    """A confirmation needs more keys than the record. The waiter retries, and nothing was changed."""
    client, name = clustered.connect(), NAMES[2]
    transport, slot = client._client.keeper._transport, slot_of(name)
    first, second = (Acquire(name, f"offered-{number}", "owner", 20_000, wait=True) for number in range(2))
    assert [type(answer) for answer in run(transport.apply_all((first, second)))] == [Granted, Busy]
    target = elsewhere(clustered.server, slot)
    owner = clustered.server.server_of_slot(slot)
    run(transport.apply_all([ReleaseLease(name, first.token)]))
    clustered.server.begin_move(slot, target)

    (answer,) = run(transport.apply_all([second], SYSTEM.now_ns() + NS // 5))

    assert isinstance(answer, Unavailable)
    assert answer.reason == "moving"
    clustered.server.move_keys(slot, owner, target)
    clustered.server.end_move(slot, owner, target)
    run(transport.apply_all([Undo(name, second.token)]))
    run(transport.close())


def test_a_waiter_that_blocks_on_the_server_follows_its_slot(clustered):
    """The server ends the blocking command with a redirect; the waiter keeps its place and is served there."""
    client, other = clustered.connect(), clustered.connect()
    name = NAMES[1]
    held = client.lock(name, ttl=30).acquire(timeout=5)
    waiting = clustered.start(lambda: other.lock(name, ttl=30).acquire(timeout=30))
    clustered.until_queued(client, name, 1)

    clustered.server.move_slot(slot_of(name), elsewhere(clustered.server, slot_of(name)))
    assert len(client.show(name).waiters) == 1
    held.release()

    mine = waiting.result()
    assert mine.fence > held.fence
    mine.release()


@pytest.mark.acceptance("A3-24")
def test_all_keys_of_a_name_are_in_one_slot(clustered):
    """For every name: a script that touched two slots would not be one atomic step."""
    client, other = clustered.connect(), clustered.connect()
    for name in ("plain", "{1}", "}{", "100%", "a}b", "{}", "é", "日本語"):
        held = client.lock(name, ttl=20).acquire(timeout=5)
        waiting = clustered.start(lambda name=name: other.lock(name, ttl=20).acquire(timeout=20))
        clustered.until_queued(client, name, 1)
        owner, slot = clustered.server.server_of(name), slot_of(name)
        assert owner.command("CLUSTER", "COUNTKEYSINSLOT", slot) >= 4
        client.break_lease(name, "that is all")
        with suppress(LeaseLost):
            held.release()
        waiting.result().release()
        keys = owner.command("CLUSTER", "GETKEYSINSLOT", slot, 100)
        assert {owner.command("CLUSTER", "KEYSLOT", key) for key in keys} == {slot}


def test_the_keeper_sends_one_batch_to_each_server(clustered, monkeypatch):
    """However many leases: three servers, three exchanges, and the answers come in the order of the commands."""
    client = clustered.connect()
    held = [client.lock(f"batch/{number}", ttl=30).acquire(timeout=5) for number in range(60)]
    transport, told = client._client.keeper._transport, []
    send_all = transport._send_all

    async def counted(connections, commands, count, limit_s):
        told.append((connections.node.url, count))
        return await send_all(connections, commands, count, limit_s)

    monkeypatch.setattr(transport, "_send_all", counted)
    for server in clustered.server.servers:
        server.command("SCRIPT", "FLUSH")  # also where nobody knows the script: once more each, and no more
    wrong = Renew(held[7].name, "not-the-token", 30_000)
    asked = [Renew(lease.name, lease.token, 30_000) for lease in held]
    answers = run(transport.apply_all([*asked[:7], wrong, *asked[8:]]))

    assert [type(answer).__name__ for answer in answers] == ["Renewed"] * 7 + ["NotHeld"] + ["Renewed"] * 52
    assert len(told) == 6
    told.clear()
    run(transport.apply_all(asked))
    assert len(told) == len({url for url, _ in told}) == 3
    assert sum(count for _, count in told) == 60
    for lease in held:
        lease.release()


@lengthy
@pytest.mark.acceptance("A1-23", "A1-24")
def test_one_subscription_follows_the_cluster(clustered):
    """Wake-ups cross the cluster, so one is enough; after failovers there is still one, and none after the close."""
    client, other = clustered.connect(), clustered.connect()
    cluster, channel = clustered.server, other._client.engine.packer.channel

    def subscribed():
        return [server for server in cluster.servers if channel.encode() in server.command("PUBSUB", "CHANNELS")]

    def handed(name):
        held = client.lock(name, ttl=30).acquire(timeout=20)
        waiting = clustered.start(lambda: other.lock(name, ttl=30).acquire(timeout=30))
        clustered.until_queued(client, name, 1)
        eventually(lambda: len(subscribed()) == 1, 20, "one subscription")
        began = time.monotonic()
        held.release()
        waiting.result().release()
        return time.monotonic() - began

    handed("first")
    for _ in range(3):
        cluster.failover(subscribed()[0] if subscribed()[0] in cluster.masters() else cluster.masters()[0])
        assert handed("later") < 5
    assert len(subscribed()) == 1


def test_the_error_names_servers_that_redirect_to_each_other(clustered):
    """Each says that the other has the slot, and that may last: no lease is granted, and the error gives the reason."""
    server, name = clustered.server, "never used"
    slot = slot_of(name)
    owner = server.server_of_slot(slot)
    other = elsewhere(server, slot)
    ids = [node.command("CLUSTER", "MYID").decode() for node in (owner, other)]
    client = clustered.connect()
    once = client.once("never used")
    for node, has in ((owner, ids[1]), (other, ids[0])):
        node.command("CLUSTER", "SETSLOT", slot, "NODE", has)

    for use in (lambda: client.lock(name).acquire(timeout=0), lambda: client.show(name)):
        with pytest.raises(Unavailable) as trouble:
            use()
        assert trouble.value.reason == "moving"
        assert "MOVED" in trouble.value.detail
        assert trouble.value.detail.endswith("its servers do not agree on the owner of that slot")

    assert not once.seen("in another slot")
    for node in (owner, other):
        node.command("CLUSTER", "SETSLOT", slot, "NODE", ids[0])
    server.wait_stable()
    client.lock(name).acquire(timeout=10).release()


def test_a_topology_may_be_refreshed_by_hand(grouped):
    """Without the call, the same happens at the first error."""
    client = grouped.connect()
    client.lock("x").acquire(timeout=5).release()
    grouped.server.failover(grouped.server.server_of("x"))

    client.refresh_topology()

    client.lock("x").acquire(timeout=5).release()
    assert grouped.kinds("unavailable") == []


@pytest.mark.acceptance("A1-26")
def test_a_cluster_whose_servers_disagree_is_not_adopted(clustered):
    """A third of it is silent: the error says so, and the client keeps the map that it had."""
    client = clustered.connect()
    client.lock("x").acquire(timeout=5).release()
    topology = client._client.engine.topology
    known, version = list(topology._slots), topology.version
    master = clustered.server.server_of("x")
    for server in (*clustered.server.replicas_of(master), master):
        server.freeze()
    running = [server for server in clustered.server.masters() if server is not master]
    eventually(lambda: b"cluster_state:fail" in running[0].command("CLUSTER", "INFO"), 20, "a cluster that is down")

    with pytest.raises(Unavailable) as trouble:
        client.refresh_topology()

    assert trouble.value.reason == "moving"
    assert (list(topology._slots), topology.version) == (known, version)


def test_a_closed_client_refuses_to_refresh_its_topology(grouped):
    """It has no connections any more."""
    from holdfast import Closed

    client = grouped.connect()
    client.close()

    with pytest.raises(Closed):
        client.refresh_topology()


@pytest.mark.parametrize("moved", [False, True], ids=["before its keys move", "after its keys moved"])
def test_a_moving_slot_costs_no_lease_in_another(clustered, moved):
    """A permit cannot be renewed until its slot has arrived; a lock of the same batch gets its answer at once."""
    client, server = clustered.connect(), clustered.server
    name = NAMES[2]
    slot = slot_of(name)
    seat = client.semaphore(name, permits=2, ttl=3).acquire(timeout=5)
    held = client.lock(NAMES[3], ttl=3).acquire(timeout=5)
    target = elsewhere(server, slot)
    owner = server.begin_move(slot, target)
    if moved:
        server.move_keys(slot, owner, target)

    # Longer than both ttls; and looked at all the while, because whoever looks is told.
    with pytest.raises(TimeoutError):
        eventually(lambda: held.lost, 4.5)

    assert seat.lost
    held.release()
    server.move_keys(slot, owner, target)
    server.end_move(slot, owner, target)
    client.semaphore(name, permits=2, ttl=3).acquire(timeout=10).release()
