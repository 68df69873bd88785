"""The promise of a real server: read live, required when a client connects, checked while leases are held."""

import pytest
from redis_faces import paired

from holdfast import InvalidConfig, PromiseNotKept, Unavailable
from holdfast.clock import NS
from holdfast.core import promise as promise_watch
from holdfast.engines.redis.server_info import facts_from
from holdfast.testing import eventually
from holdfast.testing.ports import Port
from holdfast.testing.servers import available, missing


@pytest.fixture
def often(monkeypatch):
    """The keeper reads the promise every quarter of a second."""
    monkeypatch.setattr(promise_watch, "CHECK_EVERY_NS", NS // 4)


def changes(place):
    return [event.detail for event in place.events.copy() if event.kind == "promise_changed"]


@paired
def test_the_promise_follows_the_settings_of_the_server(server, new_server, place_on):
    """An operator changes one setting after another: each promise follows."""
    server = new_server(server.kind, appendonly=True)
    client = place_on(server).connect()

    def after(*setting):
        server.command("CONFIG", "SET", *setting)
        promise = client.promise()
        return promise.level, promise.fences_grow

    assert client.promise().level == "survives client faults"
    assert after("appendfsync", "always") == ("survives restart", True)
    assert after("appendfsync", "everysec") == ("survives client faults", True)
    assert after("appendfsync", "always") == ("survives restart", True)
    assert after("no-appendfsync-on-rewrite", "yes") == ("survives client faults", True)
    assert "set no-appendfsync-on-rewrite no" in client.promise().changes
    assert after("no-appendfsync-on-rewrite", "no") == ("survives restart", True)
    assert after("maxmemory", "100mb") == ("survives restart", True)
    assert after("maxmemory-policy", "volatile-ttl") == ("efficiency only", True)
    assert after("maxmemory-policy", "noeviction") == ("survives restart", True)
    assert after("appendonly", "no") == ("survives client faults", True)
    facts = client.promise().as_dict()["facts"]
    assert facts["role"] == "primary"
    assert facts["appendfsync"] == "always"
    assert facts["server"].split()[0] == ("valkey" if server.kind == "valkey" else "redis")


@pytest.mark.parametrize("face", ["blocking"])
def test_replicas_are_seen_from_both_ends(new_server, place_on):
    """With replicas, another server may answer tomorrow; a replica itself cannot store leases."""
    primary, replica = new_server(arguments=("--repl-diskless-sync-delay", "0")), new_server()
    place = place_on(primary)
    client, mistaken = place.connect(), place.connect(replica.url)
    assert client.promise().fences_grow

    replica.command("REPLICAOF", "127.0.0.1", str(primary.port))

    eventually(lambda: client.promise().as_dict()["facts"]["replicas"] == 1, 20)
    promise = client.promise()
    assert (promise.level, promise.fences_grow) == ("survives client faults", False)
    assert 'confirm="replicas"' in str(promise)
    assert "min-replicas-to-write 1" in str(promise)
    assert mistaken.promise().level == "efficiency only"
    primary.command("CONFIG", "SET", "min-replicas-to-write", "1")
    assert "min-replicas-to-write 1" not in str(client.promise())
    replica.command("REPLICAOF", "NO", "ONE")


@pytest.mark.parametrize("face", ["blocking"])
def test_a_node_of_a_cluster_is_recognised(new_server, place_on):
    """Another node may have its slots tomorrow."""
    kind = next((kind for kind in ("valkey", "redis") if kind in available()), None)
    if kind is None:
        pytest.skip(missing("valkey"))  # or a new redis: an older one takes no port for the cluster's own talk
    with Port() as bus:
        node = new_server(kind, arguments=("--cluster-enabled", "yes", "--cluster-port", str(bus.number)))
        promise = place_on(node).connect().promise()

    assert promise.as_dict()["facts"]["cluster"] is True
    assert (promise.level, promise.fences_grow) == ("survives client faults", False)


@paired
def test_facts_that_the_user_may_not_read_are_not_seen(server, new_server, place_on):
    """Managed services hide CONFIG: the promise assumes the weaker value, and lists what it could not read."""
    server = new_server(server.kind, appendonly=True, arguments=("--appendfsync", "always"))
    place = place_on(server)

    def promise(*rights):
        server.command("ACL", "SETUSER", "app", "reset", "on", ">pw", "~hf2:*", "resetchannels", "&hf2:wake:*", *rights)
        return place.connect(f"redis://app:pw@127.0.0.1:{server.port}").promise()

    whole, no_config, nothing = promise("+@all"), promise("+@all", "-config"), promise("+@all", "-config", "-info")

    assert (whole.level, whole.unseen) == ("survives restart", ())
    assert no_config.level == "survives client faults"
    assert any("CONFIG GET appendfsync" in what for what in no_config.unseen)
    assert "appendfsync not seen" in str(no_config)
    assert nothing.level == "efficiency only"
    assert not nothing.fences_grow
    assert any(what.startswith("INFO") for what in nothing.unseen)


def test_a_setting_with_an_empty_reply_is_not_seen():
    """Some services hide a setting with an empty list. Without no-appendfsync-on-rewrite, flushes are not certain."""
    hidden = facts_from(["role:master\r\naof_enabled:1\r\n", [], [], []])
    partly = facts_from(["role:master\r\naof_enabled:1\r\n", ["appendfsync", "always"], [], ["", "0"]])

    assert [what.partition(":")[0] for what in hidden.unseen] == [
        "CONFIG GET appendfsync",
        "CONFIG GET no-appendfsync-on-rewrite",
        "CONFIG GET min-replicas-to-write",
    ]
    assert (partly.appendfsync, partly.unseen) == (None, ("CONFIG GET no-appendfsync-on-rewrite: nothing",))


@paired
def test_a_client_refuses_a_server_without_the_required_promise(server, new_server, place_on):
    """Before the first lease; the error says what is missing, why, and what to change. No connection stays open."""
    server = new_server(server.kind, appendonly=True)
    place = place_on(server)

    with pytest.raises(PromiseNotKept) as refusal:
        place.connect(require=("hosts", "survives restart", "fifo"))

    assert refusal.value.missing == ("survives restart",)
    assert not refusal.value.retryable
    for words in ("survives restart", "a power cut forgets the last ones", "set appendfsync always"):
        assert words in str(refusal.value)
    server.command("CONFIG", "SET", "appendfsync", "always")
    place.connect(require=("hosts", "survives restart", "fences grow")).lock("x").acquire().release()
    with pytest.raises(PromiseNotKept) as refusal:
        place.connect(require="survives failover")
    assert refusal.value.promise.level == "survives restart"


def test_a_requirement_needs_a_server_that_answers(place_on, new_server):
    """An unreachable server promises nothing; an unknown requirement is refused before the first connection."""
    place = place_on(new_server())

    with pytest.raises(Unavailable):
        place.connect("redis://127.0.0.1:1", require="hosts")
    with pytest.raises(InvalidConfig):
        place.connect("redis://127.0.0.1:1", require="always")


@pytest.mark.parametrize("face", ["blocking"])
@pytest.mark.usefixtures("often")
def test_a_promise_that_changes_while_leases_are_held_is_an_event(server, new_server, place_on):
    """An operator turns eviction on and off again: both are events, with the direction and the cause."""
    server = new_server(server.kind, arguments=("--maxmemory", "100mb"))
    place = place_on(server)
    client = place.connect()
    lease = client.lock("x", ttl=5).acquire()
    eventually(lambda: client._client.keeper.promise_watch.last is not None, 10, "a first look")

    server.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    eventually(lambda: len(changes(place)) == 1, 10)
    server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    eventually(lambda: len(changes(place)) == 2, 10)

    weaker, stronger = changes(place)
    assert weaker.startswith("weaker: survives client faults -> efficiency only")
    assert "maxmemory policy noeviction -> allkeys-lru" in weaker
    assert stronger.startswith("stronger: efficiency only -> survives client faults")
    lease.release()
    assert place.kinds("lost") == []


@pytest.mark.parametrize("face", ["blocking"])
@pytest.mark.usefixtures("often")
def test_a_lost_replica_is_an_event(new_server, place_on):
    """The keeper compares with the promise that the caller has read; a replica that has gone stays known."""
    primary, replica = new_server(arguments=("--repl-diskless-sync-delay", "0")), new_server()
    replica.command("REPLICAOF", "127.0.0.1", str(primary.port))
    eventually(lambda: b"master_link_status:up" in replica.command("INFO", "replication"), 20)
    place = place_on(primary)
    client = place.connect()
    assert client.promise().as_dict()["facts"]["replicas"] == 1
    lease = client.lock("x", ttl=5).acquire()

    replica.kill()

    eventually(lambda: changes(place), 10)
    assert "replicas 1 -> 0" in changes(place)[0]
    assert client.promise().as_dict()["facts"]["known"] == 1
    assert not client.promise().fences_grow
    lease.release()
