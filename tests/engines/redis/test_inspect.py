"""The keys on the server, and the ways to connect."""

import asyncio
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis
import valkey
from redis.crc import key_slot
from redis.sentinel import Sentinel
from redis_faces import paired

import holdfast
from holdfast import InvalidConfig, Unavailable, aio
from holdfast.testing import eventually
from holdfast.testing.servers import certificates
from tests.support.tls_front import tls_kind

SOURCE = Path(holdfast.__file__).parents[1]


def keys_of(server):
    return {key: server.command("PTTL", key) for key in server.command("KEYS", "hf2:*")}


@pytest.mark.acceptance("A0-3", "G-10")
def test_a_held_lease_is_one_record_and_a_release_leaves_one_that_expires(place):
    """The record has its token and an expiry; the last fence stays for `fence_memory`."""
    client = place.connect(fence_memory=2)
    lease = client.lock("x", ttl=10).acquire()

    held = keys_of(place.server)
    record = place.server.command("GET", "hf2:{x}")
    lease.release()
    left = keys_of(place.server)

    assert list(held) == list(left) == [b"hf2:{x}"]
    assert 0 < held[b"hf2:{x}"] <= 10_000 + 2_000
    assert lease.token.encode() in record
    assert 0 < left[b"hf2:{x}"] <= 2_000


@pytest.mark.acceptance("A0-3")
def test_waiters_are_stored_in_documented_keys_that_expire(place):
    """The waiting line, the waiters and the heartbeats share the record's slot, and expire soon after it."""
    client, other = place.connect(), place.connect()
    held = client.lock("x", ttl=10).acquire()
    waiting = place.start(lambda: other.lock("x").acquire(timeout=20))
    place.until_queued(client, "x", 1)

    keys = keys_of(place.server)
    held.release()
    waiting.result().release()

    assert set(keys) == {b"hf2:{x}", b"hf2:{x}:line", b"hf2:{x}:waiters", b"hf2:{x}:heartbeats"}
    assert 0 < keys[b"hf2:{x}"] <= 10_000 + 60_000
    assert all(0 < ms <= 2 * (10_000 + 60_000) for ms in keys.values())
    assert set(keys_of(place.server)) == {b"hf2:{x}"}


@pytest.mark.acceptance("A0-3")
def test_after_fence_memory_nothing_is_left_of_a_name(sync):
    """No key stays for a name that is no longer used."""
    client = sync.connect(fence_memory=1)
    with client.lock("x") as first:
        pass

    eventually(lambda: sync.server.command("KEYS", "hf2:*") == [], 5, "the name to be forgotten")

    with client.lock("x") as second:
        assert second.fence > first.fence


@pytest.mark.acceptance("C-13", "A4-11")
@pytest.mark.parametrize("name", ["a:b", "{", "}", "{}", "a}b{c", "%7D", "spaces and\nlines", "名前", "x" * 512, "*?["])
def test_all_keys_of_a_name_share_one_slot_whatever_the_name(sync, name):
    """One step touches one slot, and no name collides with the keys of another."""
    client, other = sync.connect(), sync.connect()
    held = client.lock(name).acquire()
    waiting = sync.start(lambda: other.lock(name).acquire(timeout=20))
    sync.until_queued(client, name, 1)

    slots = {key_slot(key) for key in keys_of(sync.server)}
    held.release()
    waiting.result().release()

    assert len(slots) == 1


@pytest.mark.acceptance("C-13")
def test_no_two_names_share_a_key(sync):
    """Escaping keeps different names different."""
    client = sync.connect()
    names = ["}", "%7D", "%257D", "{", "1", "1}:line", "1:line", "{1}", "hf2:{1}"]
    leases = [client.lock(name).acquire(timeout=0) for name in names]

    assert len(keys_of(sync.server)) == len(names)

    for lease in leases:
        lease.release()


@pytest.mark.acceptance("A0-24", "C-23")
@pytest.mark.parametrize("hidden", ["redis", "hiredis"])
def test_without_a_client_library_only_redis_fails_with_one_clear_error(tmp_path, hidden):
    """The core needs no package; the error of a missing extra names the `pip install` line."""
    program = f"""
import sys
sys.modules[{hidden!r}] = None
import holdfast, holdfast.aio
for url in ("memory://", "sqlite://{tmp_path}/x.db"):
    with holdfast.connect(url) as client, client.lock("x") as lease:
        print(lease.fence > 0)
for url in ("redis://localhost", "rediss://localhost", "valkey://localhost", "unix:///x"):
    try:
        holdfast.connect(url)
    except holdfast.InvalidConfig as error:
        print(error)
"""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip

    lines = run.stdout.splitlines()
    assert lines[:2] == ["True", "True"]
    assert len(lines) == 6
    assert all(f"{hidden} is not installed: pip install 'holdfast[redis]'" in line for line in lines[2:])


@pytest.mark.acceptance("A0-24")
def test_the_core_works_without_any_package(tmp_path):
    """The test uses a Python without any package."""
    program = (
        "import holdfast\n"
        "with holdfast.connect('memory://') as hf, hf.lock('x'): pass\n"
        "try: holdfast.connect('redis://localhost')\n"
        "except holdfast.InvalidConfig as error: print(error)"
    )
    run = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env={"PYTHONPATH": str(SOURCE), "PATH": os.environ["PATH"]},
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip

    assert "pip install 'holdfast[redis]'" in run.stdout


@pytest.mark.parametrize("library", [redis.Redis, redis.asyncio.Redis], ids=["sync", "asyncio"])
def test_the_settings_of_a_users_client_are_copied(new_server, place_on, library):
    """Holdfast opens its own connections to the same server, database and user, and never uses or closes the user's."""
    server = new_server(password="pw")
    theirs = library(host="127.0.0.1", port=server.port, db=4, password="pw", client_name="theirs")
    place = place_on(server)
    client = place.connect(theirs)

    lease = client.lock("x").acquire()
    names = server.command("CLIENT", "LIST")
    keyspace = server.command("INFO", "keyspace")
    lease.release()
    client.close()

    assert b"name=holdfast" in names
    assert b"name=theirs" not in names
    assert b"db4:keys=2" in keyspace
    assert ping(theirs) is True


def ping(client):
    if isinstance(client, redis.Redis):
        try:
            return client.ping()
        finally:
            client.close()

    async def asked():
        try:
            return await client.ping()
        finally:
            await client.aclose()

    return asyncio.run(asked())


def exotic():
    class Strange:
        connection_pool = object()

    connecting = redis.Redis(redis_connect_func=print)
    return {
        "replicas of a sentinel": Sentinel([("127.0.0.1", 1)]).slave_for("x"),
        "valkey-py": valkey.Valkey(),
        "own connect function": connecting,
        "strange": Strange(),
        "number": 7,
        "bytes": b"redis://localhost",
    }


@pytest.mark.acceptance("A1-27")
@pytest.mark.parametrize(
    "kind", ["replicas of a sentinel", "valkey-py", "own connect function", "strange", "number", "bytes"]
)
def test_a_client_that_cannot_be_copied_is_refused_before_any_io(kind):
    """A guess could connect to another server."""
    with pytest.raises(InvalidConfig):
        holdfast.connect(exotic()[kind])


@pytest.mark.parametrize("scheme", ["redis", "valkey", "REDIS"])
def test_every_scheme_for_a_plain_server_leads_to_it(place, scheme):
    """Valkey has the same protocol; all schemes work."""
    client = place.connect(f"{scheme}://127.0.0.1:{place.server.port}")

    client.lock("x").acquire().release()

    assert keys_of(place.server)


@paired
def test_a_unix_socket_works(server, new_server, place_on):
    """`unix://` connects to a server on the same host, with password and database."""
    server = new_server(server.kind, unix=True, password="pw")
    place = place_on(server)
    client, other = place.connect(f"{server.url}?db=2"), place.connect(f"{server.url}?db=2")
    held = client.lock("x", ttl=1.0).acquire()
    waiting = place.start(lambda: other.lock("x").acquire(timeout=20))
    place.until_queued(client, "x", 1)
    place.until("renewed")

    held.release()

    waiting.result().release()
    assert b"db2:keys=2" in server.command("INFO", "keyspace")


@paired
def test_database_user_and_password_come_from_the_url(server, new_server, place_on):
    """The URL has the usual form, percent-encoded."""
    server = new_server(server.kind)
    server.command("ACL", "SETUSER", "ann/bob", "on", ">p@ss/word#1", "~*", "&*", "+@all")
    place = place_on(server)
    client = place.connect(f"redis://ann%2Fbob:p%40ss%2Fword%231@127.0.0.1:{server.port}/7")

    client.lock("x").acquire().release()

    assert b"db7:keys=2" in server.command("INFO", "keyspace")


@pytest.mark.parametrize("path", ["/jobs", "/1x", "/1/2", "/-1", "/²"])
def test_a_path_that_is_no_database_is_refused(path):
    """Otherwise a typo would mean database 0, and two services would not exclude each other."""
    with pytest.raises(InvalidConfig):
        holdfast.connect(f"redis://127.0.0.1:1{path}")


def test_an_unknown_option_is_refused_and_timeouts_are_used(one_server):
    """An ignored option would hide a mistake."""
    url = f"redis://127.0.0.1:{one_server.port}"
    with pytest.raises(InvalidConfig):
        holdfast.connect(f"{url}?max_connections=3")
    with pytest.raises(InvalidConfig):
        holdfast.connect(f"{url}?socket_timeout=soon")

    with holdfast.connect(f"{url}?socket_timeout=0.5&socket_connect_timeout=0.3") as client:
        assert client._client.engine.connector.wire_s == 0.5


def test_a_test_clock_is_refused(one_server):
    """The server's clock decides, so a test clock would have no effect."""
    from holdfast.testing.clock import ManualClock

    with pytest.raises(InvalidConfig):
        holdfast.connect(one_server.url, clock=ManualClock())


@pytest.fixture(scope="module")
def own_certificates(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl program to make certificates with: install openssl")
    return certificates(tmp_path_factory.mktemp("certificates"))


@paired
def test_leases_work_over_tls(place, own_certificates):
    """A proxy terminates TLS, with real handshakes, on every kind of server."""
    proxy = place.proxy(tls=own_certificates)
    client, other = place.connect(proxy.url), place.connect(proxy.url.replace("rediss", "valkeys"))
    held = client.lock("x", ttl=1.0).acquire()
    waiting = place.start(lambda: other.lock("x").acquire(timeout=20))
    place.until_queued(client, "x", 1)
    place.until("renewed")
    time.sleep(0.6)  # the client checks an idle connection before it uses it

    held.release()

    waiting.result().release()
    assert place.kinds("unavailable", "lost", "renewal_failed") == []
    proxy.drop_reply()
    client.lock("x").acquire(timeout=5).release()


def test_an_untrusted_certificate_is_refused(slow, own_certificates):
    """Without the certificate authority there is no connection."""
    proxy = slow.proxy(tls=own_certificates)
    client = slow.connect(f"rediss://localhost:{proxy.port}")

    with pytest.raises(Unavailable) as trouble:
        client.lock("x").acquire(timeout=5)

    assert trouble.value.reason == "unreachable"
    assert "certificate" in str(trouble.value)


def test_a_server_with_tls_is_reached(own_certificates, new_server, place_on):
    """The same with a server that speaks TLS itself, where one is installed."""
    server = new_server(tls_kind(), tls=own_certificates, password="pw")
    place = place_on(server)
    client, other = place.connect(), place.connect()
    held = client.lock("x", ttl=1.0).acquire()
    waiting = place.start(lambda: other.lock("x").acquire(timeout=20))
    place.until_queued(client, "x", 1)
    place.until("renewed")

    held.release()

    successor = waiting.result()
    assert successor.fence > held.fence
    successor.release()


def test_two_loops_of_one_process_have_their_own_clients(one_server):
    """A client belongs to the loop in which it was connected."""

    async def once(name):
        async with await aio.connect(one_server.url) as client, client.lock(name) as lease:
            return lease.fence

    assert asyncio.run(once("x")) < asyncio.run(once("x"))


@pytest.mark.parametrize("option", ["socket_timeout", "socket_connect_timeout"])
@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "86400"])
def test_an_impossible_timeout_is_refused_before_any_connection(option, value):
    """Zero would fail every command, and infinity would block callers on a frozen server."""
    with pytest.raises(InvalidConfig) as refusal:
        holdfast.connect(f"redis://127.0.0.1:1?{option}={value}")

    assert option in str(refusal.value)


def test_the_error_names_a_missing_database(sync):
    """The error must not send people to check the network."""
    client = sync.connect(f"{sync.server.url}/9999")

    with pytest.raises(Unavailable) as trouble:
        client.lock("x").acquire(timeout=5)

    assert trouble.value.reason == "failed"
    assert not trouble.value.retryable
    assert "database" in str(trouble.value)


def test_a_failed_handshake_hints_at_a_port_without_tls(sync):
    """A plain server waits for the rest of a command, so only silence shows the mistake."""
    client = sync.connect(f"rediss://127.0.0.1:{sync.server.port}?socket_connect_timeout=0.3")

    with pytest.raises(Unavailable) as trouble:
        client.lock("x").acquire(timeout=5)

    assert "TLS" in str(trouble.value)
