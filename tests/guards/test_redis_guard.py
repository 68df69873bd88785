"""Guarded keys: one script, one slot, the caller's client; a resent call is applied once."""

import asyncio

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import asyncio as aioredis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from holdfast import Fenced, InvalidConfig, InvalidName
from holdfast.aio import guards as aio_guards
from holdfast.clock import SYSTEM
from holdfast.guards import RedisGuard, Stamp
from holdfast.rules.guard import UNSEEN, accepts, fence_max
from tests.support.clusters import Cluster
from tests.support.proxy import Proxy, named

FENCE_MAX = fence_max(SYSTEM.wall_us())

FIVE, SIX = Stamp(5, "of five"), Stamp(6, "of six")
STAMPS = [Stamp(fence, token) for fence in (1, 2, 3, FENCE_MAX - 1, FENCE_MAX) for token in "ab"]


@pytest.fixture
def client(server):
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        yield client


@given(stamps=st.lists(st.sampled_from(STAMPS), min_size=1, max_size=12))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_script_and_the_rule_answer_alike(client, stamps):
    """The rule is written twice, so a test compares admission, state and effect."""
    client.flushall()
    guard, newest, applied = RedisGuard(client, "k"), UNSEEN, 0
    for stamp in stamps:
        if accepts(newest, stamp):
            newest, applied = stamp, applied + 1
            assert guard.run(stamp, ("INCR", "k")) == [applied]
        else:
            with pytest.raises(Fenced) as refusal:
                guard.run(stamp, ("INCR", "k"))
            assert (refusal.value.name, refusal.value.fence, refusal.value.newest) == ("k", stamp.fence, newest.fence)
        assert guard.newest() == newest
    assert client.get("k") == str(applied)


def test_each_method_does_what_the_command_of_its_name_does(client):
    """Values, hashes and other commands run in one step with the check."""
    guard = RedisGuard(client, "order:42")

    guard.set(FIVE, "paid")
    assert client.get("order:42") == "paid"
    assert guard.delete(FIVE) is True
    assert guard.delete(FIVE) is False
    assert guard.hset(FIVE, {"state": "paid", "amount": 7, "rate": 0.5}) == 3
    assert guard.hset(FIVE, {"state": "sent", "by": b""}) == 1
    assert guard.hdel(FIVE, "by", "rate", "nothing") == 2
    assert client.hgetall("order:42") == {"state": "sent", "amount": "7"}
    answers = guard.run(
        FIVE, ("RPUSH", "{order:42}:log", "a", "b"), ("LRANGE", "{order:42}:log", 0, -1), keys=["{order:42}:log"]
    )
    assert answers == [2, ["a", "b"]]
    assert guard.run(FIVE, ("GET", "order:42:none"), ("EXPIRE", "order:42", 60)) == [None, 1]


def test_every_method_refuses_an_old_fence(client):
    """No method bypasses the check."""
    guard = RedisGuard(client, "k")
    guard.hset(SIX, {"field": "new"})

    calls = [
        lambda: guard.set(FIVE, "old"),
        lambda: guard.delete(FIVE),
        lambda: guard.hset(FIVE, {"field": "old"}),
        lambda: guard.hdel(FIVE, "field"),
        lambda: guard.admit(FIVE),
        lambda: guard.run(FIVE, ("DEL", "k")),
    ]
    for call in calls:
        with pytest.raises(Fenced):
            call()

    assert client.hgetall("k") == {"field": "new"}


def test_a_deleted_key_keeps_its_fence(client):
    """A late writer must not restore a removed key."""
    guard = RedisGuard(client, "k")
    guard.set(SIX, "new")
    guard.delete(SIX)

    with pytest.raises(Fenced):
        guard.set(FIVE, "old")

    assert client.exists("k") == 0


def test_a_failed_command_still_excludes_older_holders(client):
    """As in a transaction of the server, earlier commands stay, so the newer holder must be recorded."""
    guard = RedisGuard(client, "k")
    guard.set(FIVE, "text")

    with pytest.raises(redis.ResponseError):
        guard.run(SIX, ("APPEND", "k", "!"), ("INCR", "k"), ("APPEND", "k", "?"))

    assert client.get("k") == "text!"
    assert guard.newest() == SIX
    with pytest.raises(Fenced):
        guard.set(FIVE, "old")


def test_an_invalid_fence_record_admits_no_holder(client):
    """Another program overwrote it; a guess would let late writers in."""
    guard = RedisGuard(client, "k")
    client.hset(guard.stamp_key, "fence", "many")

    with pytest.raises(redis.ResponseError):
        guard.set(FIVE, "x")

    assert client.exists("k") == 0


def test_a_call_whose_reply_was_lost_is_sent_again_and_applied_once(server):
    """redis-py resends by itself; the counter must count once and return the lost answer."""
    with Proxy("127.0.0.1", server.port) as proxy:
        retry = Retry(NoBackoff(), 3)
        with redis.Redis.from_url(proxy.url, retry=retry, retry_on_error=[redis.ConnectionError]) as client:
            guard = RedisGuard(client, "k")
            guard.set(FIVE, 10)
            proxy.drop_reply(when=named("EVALSHA"))

            answers = guard.run(FIVE, ("INCR", "k"), ("SET", "k:2", "x"), ("GET", "none"), ("KEYS", "k*"))

            assert len(proxy.dropped) == 1
            assert (answers[0], answers[1], answers[2]) == (11, b"OK", None)
            assert sorted(answers[3]) == [b"k", b"k:2"]
            assert client.get("k") == b"11"
            assert guard.run(FIVE, ("INCR", "k")) == [12]


def test_an_awaited_call_whose_reply_was_lost_is_applied_once_too(server):
    """The asyncio client uses the same script."""

    async def story(url):
        retry = AsyncRetry(NoBackoff(), 3)
        client = aioredis.Redis.from_url(url, retry=retry, retry_on_error=[redis.ConnectionError])
        async with client:
            guard = aio_guards.RedisGuard(client, "k")
            await guard.set(FIVE, 10)
            proxy.drop_reply(when=named("EVALSHA"))
            assert await guard.run(FIVE, ("INCR", "k")) == [11]
            assert len(proxy.dropped) == 1
            assert await client.get("k") == b"11"
            assert await guard.delete(SIX) is True
            assert await guard.hset(SIX, {"a": 1, "b": 2}) == 2
            assert await guard.hdel(SIX, "a") == 1
            with pytest.raises(Fenced):
                await guard.run(FIVE, ("DEL", "k"))

    with Proxy("127.0.0.1", server.port) as proxy:
        asyncio.run(story(proxy.url))


def test_a_full_server_refuses_the_fence_and_the_write(client, server):
    """Nothing is half done, and the holder is not admitted."""
    guard = RedisGuard(client, "k")
    guard.set(FIVE, "old")
    server.command("CONFIG", "SET", "maxmemory", 1)
    try:
        with pytest.raises(redis.OutOfMemoryError):
            guard.set(SIX, "new")
        with pytest.raises(Fenced):
            guard.set(Stamp(4, "t"), "late")
    finally:
        server.command("CONFIG", "SET", "maxmemory", 0)

    assert (client.get("k"), guard.newest()) == ("old", FIVE)


def test_clients_of_valkey_are_accepted(server):
    """Both libraries have the same calls."""
    valkey = pytest.importorskip("valkey", reason="the client library is not here: install the wheel valkey")

    async def awaited():
        async with valkey.asyncio.Valkey.from_url(server.url) as client:
            await aio_guards.RedisGuard(client, "k").set(SIX, "newer")

    with valkey.Valkey.from_url(server.url) as client:
        guard = RedisGuard(client, "k")
        guard.set(FIVE, "new")
        with pytest.raises(Fenced):
            guard.set(Stamp(4, "t"), "late")
        asyncio.run(awaited())
        with pytest.raises(Fenced):
            guard.set(FIVE, "late")
        assert client.get("k") == b"newer"


def test_a_server_without_the_script_gets_it_again(client, server):
    """This happens after a restart or SCRIPT FLUSH."""
    guard = RedisGuard(client, "k")
    guard.set(FIVE, 1)
    server.command("SCRIPT", "FLUSH")

    guard.set(FIVE, 2)

    assert client.get("k") == "2"


@pytest.mark.parametrize("key", ["plain", "a:b", "{tag}:x", "x{tag}", "open{", "{", "x{}y", "a{b", "{}{tag}", "ä"])
def test_the_fence_record_is_in_the_slot_of_its_key(client, key):
    """Otherwise a cluster could not compare and write in one step."""
    try:
        guard = RedisGuard(client, key)
    except InvalidName:
        assert "}" in key
        assert key in {"x{}y", "{}{tag}"}
        return

    assert guard.stamp_key != key
    assert crc_slot(guard.stamp_key) == crc_slot(key)


def crc_slot(key):
    """Return the slot as redis-py computes it."""
    from redis.crc import key_slot

    return key_slot(key.encode())


def test_guarded_keys_work_in_a_cluster_through_both_clients():
    """Check and write are one script on the server of the slot."""

    async def awaited(host, port):
        client = aioredis.RedisCluster(host=host, port=port)
        try:
            guard = aio_guards.RedisGuard(client, "order:43")
            await guard.set(SIX, "new")
            with pytest.raises(Fenced):
                await guard.set(FIVE, "old")
            assert await client.get("order:43") == b"new"
            assert await guard.newest() == SIX
        finally:
            await client.aclose()

    with Cluster("valkey") as cluster:
        port = cluster.masters()[0].port
        with redis.RedisCluster(host="127.0.0.1", port=port) as client:
            for number in range(12):
                guard = RedisGuard(client, f"order:{number}")
                guard.set(SIX, "new")
                with pytest.raises(Fenced):
                    guard.set(FIVE, "old")
                assert client.get(guard.key) == b"new"
        asyncio.run(awaited("127.0.0.1", port))


@pytest.mark.parametrize(
    "command", ["SET k v", (), ("SET", "k", None), ("SET", "k", True), ("SET", "k", ["v"]), ("MSET", *range(7001))],
    ids=["text", "empty", "none", "true", "list", "too many"],
)  # fmt: skip
def test_an_invalid_command_is_refused_before_it_is_sent(command):
    """There is no server at that address, so a sent command would raise another error."""
    unreachable = redis.Redis(host="127.0.0.1", port=1)

    with pytest.raises(InvalidConfig):
        RedisGuard(unreachable, "k").run(FIVE, command)


def test_invalid_keys_fields_and_clients_are_refused_before_any_command():
    """The error comes where the mistake is made."""
    unreachable, awaited = redis.Redis(host="127.0.0.1", port=1), aioredis.Redis(host="127.0.0.1", port=1)

    for key in ("", None, b"k", 7, "a}b"):
        with pytest.raises(InvalidName):
            RedisGuard(unreachable, key)
    for keys in (["other"], ["{other}k"]):
        with pytest.raises(InvalidConfig):
            RedisGuard(unreachable, "k").run(FIVE, ("GET", "k"), keys=keys)
    for fields in ({}, None, [("a", 1)]):
        with pytest.raises(InvalidConfig):
            RedisGuard(unreachable, "k").hset(FIVE, fields)
    for client in (awaited, unreachable.pipeline(), None, "redis://localhost"):
        with pytest.raises(InvalidConfig):
            RedisGuard(client, "k")
    for client in (unreachable, awaited.pipeline(), None):
        with pytest.raises(InvalidConfig):
            aio_guards.RedisGuard(client, "k")
    with pytest.raises(redis.ConnectionError):
        RedisGuard(redis.Redis(host="127.0.0.1", port=1, retry=Retry(NoBackoff(), 0)), "k").set(FIVE, 1)


def test_a_failed_call_that_is_resent_is_not_applied_again(server, client):
    """Earlier commands were applied, and the client that lost the answer gets the same error."""
    client.set("counter", 10)
    with Proxy("127.0.0.1", server.port) as proxy:
        retry = Retry(NoBackoff(), 3)
        with redis.Redis.from_url(proxy.url, retry=retry, retry_on_error=[redis.ConnectionError]) as losing:
            guard = RedisGuard(losing, "counter")
            guard.admit(FIVE)
            proxy.drop_reply(when=named("EVALSHA"))

            with pytest.raises(redis.ResponseError, match="wrong kind of value"):
                guard.run(FIVE, ("INCR", "counter"), ("LPUSH", "counter", "x"))

        assert len(proxy.dropped) == 1
    assert client.get("counter") == "11"


def test_no_two_keys_share_a_fence_record(client):
    """`order` and `{order}` are two keys in one slot with separate fences."""
    RedisGuard(client, "order").set(SIX, "x")

    RedisGuard(client, "{order}").set(FIVE, "y")

    assert RedisGuard(client, "order").newest() == SIX
    assert RedisGuard(client, "{order}").newest() == FIVE
