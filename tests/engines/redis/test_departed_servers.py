"""A URL outlives the servers that it names: one that has left the cluster answers still, and is not of it any more."""

import socket
import time
from contextlib import ExitStack, suppress

import pytest

import holdfast
from holdfast import Unavailable
from holdfast.testing import eventually
from holdfast.testing.servers import Server, available
from tests.support.clusters import Cluster, slot_of

KIND = next(iter(available()), "valkey")


@pytest.fixture(scope="module")
def left():
    """A cluster, one server that has left it for good, and a URL that names that one first."""
    with Cluster(KIND) as cluster:
        gone = cluster.replicas_of(cluster.masters()[0])[0]
        name = gone.command("CLUSTER", "MYID").decode()
        gone.command("CLUSTER", "RESET", "HARD")
        rest = [server for server in cluster.servers if server is not gone]
        for server in rest:
            server.command("CLUSTER", "FORGET", name)
        yield cluster, gone, through(gone, *rest[:2])


def through(*servers):
    return "redis+cluster://" + ",".join(f"{server.host}:{server.port}" for server in servers)


def looks(client, times=12):
    """Who answers, by as many looks around as that; each asks the servers in another order."""
    topology = client._client.engine.topology
    for _ in range(times):
        topology._looked_s = 0.0  # else a look that follows so soon is none
        topology.refresh(1.0)
        yield topology.servers()


def test_a_cluster_is_settled_whatever_a_server_says_that_has_left_it(left):
    """It finds itself alone, and the cluster down. Nobody of the cluster knows it, and it knows nobody."""
    _, _, url = left
    with holdfast.connect(url) as client:
        client.refresh_topology()  # before anything is known
        client.lock("x").acquire(timeout=5).release()
        client.refresh_topology()


def test_a_server_that_has_left_takes_no_slot_with_it(left):
    """Whoever asked it would believe that nobody owns anything, leave all connections, and begin anew."""
    cluster, _, url = left
    events = []
    with holdfast.connect(url, observer=events.append) as client:
        client.lock("x").acquire(timeout=5).release()
        seen = set(looks(client))

    assert seen == {tuple(sorted(f"redis://127.0.0.1:{server.port}" for server in cluster.masters()))}
    assert "engine_restarted" not in [event.kind for event in events]


def test_a_look_without_time_for_all_believes_no_stranger(left):
    """Whoever asks in a hurry has heard of the one that left, and not of those who are still to be asked."""
    cluster, gone, url = left
    silent = [server for server in cluster.servers if server not in (*cluster.masters(), gone)]
    with holdfast.connect(url) as client, ExitStack() as frozen:
        client.lock("x").acquire(timeout=5).release()
        topology = client._client.engine.topology
        before = topology.servers()
        for server in silent:
            server.freeze()
            frozen.callback(server.thaw)
        for _ in range(40):
            topology._looked_s, topology._doubted = 0.0, {}
            with suppress(Unavailable):
                topology.refresh(0.01)
            assert topology.servers() == before


def test_a_server_that_has_a_cluster_of_its_own_by_now_is_not_followed(left):
    """There everything is free. Whoever knows its cluster stays in it, for as long as anybody of it answers."""
    _, gone, url = left
    with holdfast.connect(url) as client:
        client.lock("x").acquire(timeout=5).release()
        gone.command("CLUSTER", "ADDSLOTS", *range(16384))
        try:
            eventually(lambda: b"cluster_state:ok" in gone.command("CLUSTER", "INFO"), 20, "a cluster of one")
            assert all(f"redis://127.0.0.1:{gone.port}" not in servers for servers in looks(client))
            client.refresh_topology()
            client.lock("x").acquire(timeout=5).release()
            assert gone.command("DBSIZE") == 0
            with holdfast.connect(url) as newcomer, pytest.raises(Unavailable) as trouble:
                newcomer.refresh_topology()  # it cannot tell which of the two is meant
            assert trouble.value.reason == "moving"
        finally:
            gone.command("CLUSTER", "RESET", "HARD")


def test_servers_that_do_not_tell_their_address_are_found_where_one_was_asked(place_in):
    """Behind a translated network they know only their ports, and redirections name no host."""
    settings = ("--cluster-preferred-endpoint-type", "unknown-endpoint")
    if not {"valkey", "redis"} & available().keys():
        pytest.skip("no server here that can keep its address to itself")
    with Cluster("valkey" if "valkey" in available() else "redis", replicas=0, arguments=settings) as cluster:
        assert cluster.servers[0].command("CLUSTER", "SLOTS")[0][2][0] is None
        place = place_in(cluster)
        client = place.connect(through(cluster.servers[0]))
        name = "moved"
        client.lock(name).acquire(timeout=5).release()
        owner = cluster.server_of(name)
        cluster.move_slot(slot_of(name), next(server for server in cluster.masters() if server is not owner))

        client.lock(name).acquire(timeout=5).release()

        client.refresh_topology()
        ports = {f"redis://127.0.0.1:{server.port}" for server in cluster.servers}
        assert set(client._client.engine.topology.servers()) == ports
        place.close()


def test_however_many_servers_are_silent_the_caller_is_told_in_time():
    """A large cluster that is cut off: each would be waited for in its turn, and everybody else for the end of that."""
    with ExitStack() as closing:
        silent = [closing.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(16)]
        hosts = ",".join(f"127.0.0.1:{each.getsockname()[1]}" for each in silent)
        began = time.monotonic()
        with (
            holdfast.connect(f"redis+cluster://{hosts}?socket_timeout=0.5") as client,
            pytest.raises(Unavailable) as trouble,
        ):
            client.lock("x").acquire(timeout=0)

    assert trouble.value.reason == "unreachable"
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("face", ["blocking", "asyncio"])
def test_a_server_that_is_of_no_cluster_any_more_is_passed_over(left, face, loop):
    """It refuses, and the next one is asked. If all refuse, that is told."""
    from redis_faces import Place

    cluster, _, _ = left
    with Server(KIND) as plain:
        place = Place(cluster, face, loop)
        for _ in range(8):  # in whatever order they are asked
            client = place.connect(through(plain, cluster.masters()[0]))
            client.lock("x").acquire(timeout=5).release()
        client.refresh_topology()
        with pytest.raises(Unavailable) as trouble:
            place.connect(through(plain)).lock("x").acquire(timeout=5)
        assert (trouble.value.reason, trouble.value.retryable) == ("other topology", False)
        place.close()


def test_a_target_without_slots_is_asked_on_one_connection(left, place_in):
    """A master that is to get its first slot is in nobody's map; and a move that was left half done may stay so."""
    cluster, gone, _ = left
    place = place_in(cluster)
    client = place.connect()
    name = "moving"
    slot = slot_of(name)
    held = client.lock(name, ttl=30).acquire(timeout=5)
    owner = cluster.server_of_slot(slot)
    for server in cluster.servers:
        if server is not gone:
            gone.command("CLUSTER", "MEET", server.host, server.port)
    ids = {server: server.command("CLUSTER", "MYID").decode() for server in (owner, gone)}
    try:
        eventually(lambda: ids[gone].encode() in owner.command("CLUSTER", "NODES"), 20, "a newcomer that is known")
        eventually(lambda: b"cluster_state:ok" in gone.command("CLUSTER", "INFO"), 20, "a newcomer that knows the rest")
        gone.command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[owner])
        owner.command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[gone])
        cluster.move_keys(slot, owner, gone)

        for _ in looks(client, 10):
            assert client.lock(name).try_acquire() is None

        ours = [line for line in gone.command("CLIENT", "LIST").split(b"\n") if b" name=holdfast " in line]
        assert len(ours) == 1
    finally:
        owner.command("CLUSTER", "SETSLOT", slot, "STABLE")
        cluster.move_keys(slot, gone, owner)
        held.release()
        place.close()
        for server in cluster.servers:
            if server is not gone:
                server.command("CLUSTER", "FORGET", ids[gone])
        gone.command("CLUSTER", "RESET", "HARD")
