"""Tenants of one server: each user has the documented rights for its own namespace, and no access to the others."""

import pytest
import redis
from minimal_acl import COMMANDS, FOR_POOLS, FOR_QUEUES, FOR_REGISTRIES

import holdfast
from holdfast import Unavailable

# Without `+scan` and `+info`, whose replies name the keys and the load of all tenants.
RIGHTS = {*COMMANDS, *FOR_POOLS, *FOR_QUEUES, *FOR_REGISTRIES} - {"+scan", "+info"}


def rights_of(tenant, more=()):
    """Return the rights of docs/redis.md, limited to one namespace."""
    return (
        f"~hf2:{tenant}:*",
        f"~hf1:{tenant}:layout",
        "resetchannels",
        f"&hf2:{tenant}:wake:*",
        *sorted(RIGHTS),
        *more,
    )


@pytest.fixture
def shared(new_server):
    """A server with the users `ann` and `ben`, each with a namespace of the same name."""
    server = new_server()
    for tenant in ("ann", "ben"):
        server.command("ACL", "SETUSER", tenant, "reset", "on", ">pw", *rights_of(tenant))
    yield server
    server.command("FLUSHALL")  # items and messages stay until a program takes them


def connect(server, user, namespace):
    return holdfast.connect(f"redis://{user}:pw@127.0.0.1:{server.port}?namespace={namespace}")


def use_everything(client):
    """Leave a lease, an item, a message, a registry entry, a count and a marker of `once` in a namespace."""
    client.pool("pool").set_items(["a"])
    client.queue("jobs").publish("secret")
    client.limit("9/hour", name="logins").hit("x")
    client.once("payments", window=900).call("o1", lambda: "paid")
    return client.lock("deploy", ttl=60).acquire(timeout=0), client.registry("rooms", ttl=60).claim("42")


def contents(server, tenant):
    """Return every key of a namespace, with its value."""
    keys = sorted(server.command("KEYS", f"hf2:{tenant}:*"))
    return {key: server.command("DUMP", key) for key in keys}


def attacks(key):
    """Return the commands of a user who tries to read, change or block the keys of another tenant."""
    channel = b"hf2:ben:wake:x"
    return [
        (b"GET", key),
        (b"HGET", key, b"fence"),
        (b"LRANGE", key, b"0", b"-1"),
        (b"ZRANGE", key, b"0", b"-1"),
        (b"SET", key, b"x"),
        (b"DEL", key),
        (b"PEXPIRE", key, b"1"),
        (b"BLPOP", key, b"0"),
        (b"EVAL", b"return redis.call('del', KEYS[1])", b"1", key),
        (b"EVAL", b"return redis.call('del', ARGV[1])", b"0", key),
        (b"EVAL", b"return redis.call('publish', ARGV[1], 'x')", b"0", channel),
        (b"PUBLISH", channel, b"x"),
        (b"SCAN", b"0"),
        (b"KEYS", b"*"),
        (b"FLUSHALL",),
        (b"CONFIG", b"GET", b"*"),
        (b"ACL", b"LIST"),
        (b"MONITOR",),
    ]


def test_a_tenant_cannot_touch_the_namespace_of_another(shared):
    """Neither through the library with another namespace, nor by commands and scripts of its own."""
    with connect(shared, "ann", "ann") as ann, connect(shared, "ben", "ben") as ben:
        theirs = use_everything(ben)
        ours = use_everything(ann)
        for lease in ours:
            lease.check()

        with connect(shared, "ann", "ben") as intruder:
            for attempt in (
                lambda: intruder.lock("deploy").acquire(timeout=0),
                lambda: intruder.lock("another").acquire(timeout=0),
                lambda: intruder.break_lease("deploy", "because"),
                lambda: intruder.queue("jobs").publish("forged"),
                lambda: intruder.pool("pool").set_items([]),
                lambda: intruder.registry("rooms").owner("42"),
            ):
                with pytest.raises(Unavailable) as caught:
                    attempt()
                assert caught.value.reason == "no permission"
        before = contents(shared, "ben")
        assert len(before) >= 6
        with redis.Redis(port=shared.port, username="ann", password="pw") as raw:
            for command in (each for key in before for each in attacks(key)):
                with pytest.raises(redis.ResponseError, match=r"(?i)permission|NOPERM|ACL|not allow"):
                    raw.execute_command(*command)
            with raw.pubsub() as listening, pytest.raises(redis.ResponseError):
                listening.subscribe("hf2:ben:wake:x")
                listening.get_message(timeout=5)
        assert contents(shared, "ben") == before
        for lease in theirs:
            lease.check()
        for lease in (*theirs, *ours):
            lease.release()


@pytest.mark.parametrize("right", ["scan", "info"])
def test_the_rights_for_people_show_a_tenant_the_names_and_load_of_all(shared, right):
    """The server filters neither reply by the keys of a user: the page says to leave these rights out."""
    with connect(shared, "ben", "ben") as ben, ben.lock("deploy"):
        shared.command("ACL", "SETUSER", "ann", "reset", "on", ">pw", *rights_of("ann", (f"+{right}",)))
        with redis.Redis(port=shared.port, username="ann", password="pw") as raw:
            shown = raw.info() if right == "info" else list(raw.scan_iter(count=1000))
            assert ("connected_clients" in shown) if right == "info" else (b"hf2:ben:{deploy}" in shown)
            with pytest.raises(redis.ResponseError):
                raw.get("hf2:ben:{deploy}")


def test_a_user_without_a_namespace_has_the_rights_of_every_tenant(shared):
    """`~hf2:*` contains every namespace: on a shared server, each program needs a namespace of its own."""
    shared.command("ACL", "SETUSER", "operator", "reset", "on", ">pw", *COMMANDS, "~hf2:*", "~hf1:*", "&hf2:*")
    with connect(shared, "ben", "ben") as ben, connect(shared, "operator", "ben") as operator:
        held = ben.lock("deploy", ttl=60).acquire(timeout=0)
        assert operator.lock("deploy").try_acquire() is None
        operator.break_lease("deploy", "because")
        with pytest.raises(holdfast.LeaseLost):
            held.release()
