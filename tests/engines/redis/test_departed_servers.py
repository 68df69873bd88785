"""A URL may name servers that have left the cluster and still answer."""

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
    """Return a cluster, a server that has left it, and a URL that names that server first."""
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
    """Refresh the slot map several times, in different orders of servers; return the results."""
    topology = client._client.engine.topology
    for _ in range(times):
        topology._looked_s = 0.0  # otherwise a refresh so soon is skipped
        topology.refresh(1.0)
        yield topology.servers()


def test_a_departed_server_does_not_disturb_the_cluster(left):
    """The departed server is alone and reports a broken cluster; no server of the cluster knows it."""
    _, _, url = left
    with holdfast.connect(url) as client:
        client.refresh_topology()  # before the client has a slot map
        client.lock("x").acquire(timeout=5).release()
        client.refresh_topology()


def test_a_departed_server_takes_no_slot_with_it(left):
    """A client that trusted it would drop all connections."""
    cluster, _, url = left
    events = []
    with holdfast.connect(url, observer=events.append) as client:
        client.lock("x").acquire(timeout=5).release()
        seen = set(looks(client))

    assert seen == {tuple(sorted(f"redis://127.0.0.1:{server.port}" for server in cluster.masters()))}
    assert "engine_restarted" not in [event.kind for event in events]


def test_a_refresh_under_a_short_deadline_ignores_a_departed_server(left):
    """Under a short deadline the client has the answer of the departed server only, and must not use it."""
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


def test_a_server_of_another_cluster_is_not_followed(left):
    """In the other cluster everything is free; a client stays with its cluster while a server of it answers."""
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
                newcomer.refresh_topology()  # it cannot know which of the two is meant
            assert trouble.value.reason == "moving"
        finally:
            gone.command("CLUSTER", "RESET", "HARD")


def test_servers_without_an_address_are_found_at_the_known_host(place_in):
    """Behind NAT the servers know only their ports, and redirections name no host."""
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


def test_many_silent_servers_do_not_delay_the_error():
    """If a large cluster is cut off, the client must not wait for each server in turn."""
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
def test_a_server_without_a_cluster_is_skipped(left, face, loop):
    """The client asks the next server; if all refuse, it raises."""
    from redis_faces import Place

    cluster, _, _ = left
    with Server(KIND) as plain:
        place = Place(cluster, face, loop)
        for _ in range(8):  # in any order of servers
            client = place.connect(through(plain, cluster.masters()[0]))
            client.lock("x").acquire(timeout=5).release()
        client.refresh_topology()
        with pytest.raises(Unavailable) as trouble:
            place.connect(through(plain)).lock("x").acquire(timeout=5)
        assert (trouble.value.reason, trouble.value.retryable) == ("other topology", False)
        place.close()


def test_a_migration_target_without_slots_uses_one_connection(left, place_in):
    """A master without slots is in no slot map, and a half-done migration may stay."""
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
