"""A waiting thread blocks on the server, with the confirming acquire already queued behind the block."""

import contextlib
import os
import threading
import time

import pytest
from redis_faces import ACQUIRES, calls_of

import holdfast
from holdfast import Closed, LeaseLost, testing
from holdfast.commands import Acquire, Busy, Granted, ReleaseLease
from holdfast.engines.redis import listener as ear
from holdfast.engines.redis import transport_blocking
from holdfast.engines.redis.connection_blocking import RedisConnection
from holdfast.testing import eventually
from tests.support.proxy import named

TTL_S = 30
FROZEN_TTL_S = 3
# An unconfirmed offer, plus the delay of a busy machine.
SOON_S = 1.0 + 2.0


def blocked(server):
    """Return how many clients block on the server."""
    return int(server.command("INFO", "clients").split(b"blocked_clients:")[1].split(b"\r\n")[0])


def wait_for_ever(url, name, ttl=TTL_S):
    """Run in a worker process: wait for a lease."""
    client = holdfast.connect(url)
    testing.send_line("waiting")
    client.lock(name, ttl=ttl).acquire()
    testing.send_line("got it")


def test_a_hand_over_costs_a_waiting_thread_no_round_trip_after_the_offer(sync):
    """The acquire was sent before, so the next reply is the lease."""
    proxy = sync.proxy()
    holder, client = sync.connect(), sync.connect(proxy.url)
    first = holder.lock("x", ttl=TTL_S).acquire()
    waiting = sync.start(lambda: client.lock("x", ttl=TTL_S).acquire())
    eventually(lambda: blocked(sync.server) == 1)
    sent = proxy.count()

    first.release()
    second = waiting.result()

    assert proxy.count() == sent
    assert (proxy.count(ACQUIRES), proxy.count(named("BLPOP"))) == (2, 1)
    assert second.fence > first.fence
    second.release()
    assert proxy.count(calls_of(ReleaseLease)) == 1


@pytest.mark.parametrize(("ttl", "timeout"), [(30, None), (30, 20), (30, 5), (30, 2), (30, 1), (3600, 600), (0.6, 5)])
def test_a_waiter_wakes_up_at_once_with_any_ttl_and_timeout(sync, ttl, timeout):
    """The waiter blocks or listens, as it announced to the server."""
    holder, client = sync.connect(), sync.connect()
    first = holder.lock("x", ttl=TTL_S).acquire()
    waiting = sync.start(lambda: (client.lock("x", ttl=ttl).acquire(timeout=timeout), time.monotonic()))
    sync.until_queued(holder, "x", 1)
    time.sleep(0.3)

    released = time.monotonic()
    first.release()
    second, got = waiting.result()

    assert got - released < 0.6  # a missed offer expires after a second
    assert second.remaining() > ttl / 2
    second.release()


def test_a_dead_waiter_does_not_get_the_lease(sync, holdfast_workers):
    """Its connection ends with the process, and so does the queued acquire."""
    client = sync.connect()
    first = client.lock("x", ttl=TTL_S).acquire()
    dead = holdfast_workers.start(f"{__file__}:wait_for_ever", url=sync.server.url, name="x")
    eventually(lambda: blocked(sync.server) == 1)
    waiting = sync.start(lambda: client.lock("x", ttl=TTL_S).acquire())
    sync.until_queued(client, "x", 2)
    dead.kill()

    began = time.monotonic()
    first.release()
    second = waiting.result()

    assert time.monotonic() - began < SOON_S
    second.release()
    sync.server.command("FLUSHALL")  # the dead waiter would stay until its heartbeat expires


def test_a_frozen_waiter_keeps_the_lease_for_its_ttl_and_no_longer(sync, holdfast_workers):
    """The server runs the queued confirmation, as if the waiter froze a moment after the grant."""
    client = sync.connect()
    first = client.lock("x", ttl=TTL_S).acquire()
    frozen = holdfast_workers.start(f"{__file__}:wait_for_ever", url=sync.server.url, name="x", ttl=FROZEN_TTL_S)
    eventually(lambda: blocked(sync.server) == 1)
    waiting = sync.start(lambda: client.lock("x", ttl=TTL_S).acquire())
    sync.until_queued(client, "x", 2)
    frozen.freeze()

    began = time.monotonic()
    first.release()
    second = waiting.result()

    assert time.monotonic() - began < FROZEN_TTL_S + SOON_S
    second.release()


def test_a_long_wait_returns_its_connection_and_listens(sync):
    """A waiter blocks on the server for a moment only: a wait of hours must not hold a connection."""
    client = sync.connect()
    first = client.lock("x", ttl=TTL_S).acquire()
    waiting = sync.start(lambda: client.lock("x", ttl=0.6).acquire())
    eventually(lambda: blocked(sync.server) == 1)

    eventually(lambda: blocked(sync.server) == 0 and sync.server.command("PUBSUB", "CHANNELS", "hf2:wake:*"))
    first.release()

    began = time.monotonic()
    waiting.result().release()
    assert time.monotonic() - began < SOON_S


def test_a_limited_number_of_threads_blocks_at_once(sync):
    """The number of waiting connections is bounded; the other waiters listen, and all get their turn."""
    client, count = sync.connect(), transport_blocking._POPPING_MAX + 4
    first = client.lock("x", ttl=TTL_S).acquire()
    waiting = [sync.start(lambda: client.lock("x", ttl=TTL_S).acquire().release()) for _ in range(count)]
    sync.until_queued(client, "x", count)
    eventually(lambda: blocked(sync.server) >= transport_blocking._POPPING_MAX // 2)

    most = blocked(sync.server)
    first.release()
    for each in waiting:
        each.result()

    assert most <= transport_blocking._POPPING_MAX


def test_closing_ends_a_wait_on_the_server(sync):
    """Otherwise a blocked thread would notice the close only at its turn."""
    client = sync.connect()
    first = sync.connect().lock("x", ttl=TTL_S).acquire()
    waiting = sync.start(lambda: client.lock("x", ttl=TTL_S).acquire())
    eventually(lambda: blocked(sync.server) == 1)

    began = time.monotonic()
    client.close(timeout=0)

    assert time.monotonic() - began < SOON_S
    assert isinstance(waiting.error(), Closed)
    assert sync.connect().show("x").waiters == ()
    first.release()


def test_a_cut_connection_during_the_wait_loses_no_place(sync):
    """The queued acquire may have been applied, so the client resends it with the same token."""
    proxy = sync.proxy()
    holder, client = sync.connect(), sync.connect(proxy.url)
    first = holder.lock("x", ttl=TTL_S).acquire()
    waiting = sync.start(lambda: client.lock("x", ttl=TTL_S).acquire())
    eventually(lambda: blocked(sync.server) == 1)

    proxy.cut()
    eventually(lambda: proxy.count(ACQUIRES) >= 3)
    later = sync.start(lambda: holder.lock("x", ttl=TTL_S).acquire())
    sync.until_queued(holder, "x", 2)
    first.release()

    second = waiting.result()
    assert not later.done()
    second.release()
    later.result().release()


@pytest.mark.parametrize("right", ["-blpop", "-rpush"])
@pytest.mark.parametrize("face", ["blocking"])
def test_a_client_without_permission_to_block_listens(server, new_server, place_on, right):
    """A missing permission only makes the wake-up late."""
    strict = new_server(server.kind)
    strict.command("ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", right)
    place = place_on(strict, "blocking")
    client = place.connect(f"redis://app:pw@127.0.0.1:{strict.port}")
    first = client.lock("x", ttl=1).acquire()
    waiting = place.start(lambda: client.lock("x", ttl=1).acquire())
    place.until_queued(client, "x", 1)

    first.release()

    waiting.result().release()
    assert place.kinds("lost", "unavailable") == []


def test_a_command_costs_the_same_with_two_or_thousands_of_waiters(sync):
    """A script that read the whole line would block the server at each hand-over."""
    peer, server = sync.peer(), sync.server
    assert isinstance(peer.send(Acquire("x", "first", "", 20_000, wait=True)), Granted)

    def hand_over(token, successor):
        server.command("CONFIG", "RESETSTAT")
        peer.send(ReleaseLease("x", token))
        assert isinstance(peer.send(Acquire("x", successor, "", 20_000, wait=True)), Granted)
        lines = server.command("INFO", "commandstats").split(b"\r\n")
        calls = [line for line in lines if line.startswith(b"cmdstat_")]
        return {line.split(b":")[0]: int(line.split(b"calls=")[1].split(b",")[0]) for line in calls}

    for number in range(3):
        assert isinstance(peer.send(Acquire("x", f"t{number}", "", 20_000, wait=True)), Busy)
    few = hand_over("first", "t0")
    for number in range(3, 3000):
        peer.send(Acquire("x", f"t{number}", "", 20_000, wait=True))
    many = hand_over("t0", "t1")

    for calls in (few, many):
        calls.pop(b"cmdstat_pexpire", None)  # the expiry of the keys is set now and then
    assert many == few
    assert b"cmdstat_hmget" not in many
    server.command("FLUSHALL")


def test_a_silent_subscription_is_detected(sync, monkeypatch, caplog):
    """A silent cut leaves a connection that looks alive, and its waiters would never wake up."""
    monkeypatch.setattr(ear, "_QUIET_S", 0.2)
    proxy = sync.proxy()
    client = sync.connect(f"{proxy.url}?socket_timeout=0.3")
    first = sync.connect().lock("x", ttl=TTL_S).acquire()
    waiting = sync.start(lambda: client.lock("x", ttl=0.6).acquire())
    subscribes = named("SUBSCRIBE")
    eventually(lambda: proxy.count(subscribes) == 1)

    proxy.half_open(new=False)

    eventually(lambda: proxy.count(subscribes) >= 2, 10, "a second subscription")
    first.release()
    waiting.result().release()
    late = [record for record in caplog.records if "wake-ups are late" in record.getMessage()]
    assert len(late) == 1


def test_a_lost_reply_checks_the_subscription_at_once(sync, monkeypatch):
    """A fault of one connection often affects both, and a waiter that misses its offer loses its turn."""
    monkeypatch.setattr(ear, "_QUIET_S", 3600.0)
    proxy = sync.proxy()
    client = sync.connect(f"{proxy.url}?socket_timeout=0.3")
    first = sync.connect().lock("x", ttl=TTL_S).acquire()
    waiting = sync.start(lambda: client.lock("x", ttl=0.6).acquire())
    subscribes = named("SUBSCRIBE")
    eventually(lambda: proxy.count(subscribes) == 1)

    proxy.half_open(new=False)
    client.lock("y").acquire().release()  # one connection gets no answer, and the client uses another

    eventually(lambda: proxy.count(subscribes) >= 2, 10, "a second subscription")
    first.release()
    waiting.result().release()


def test_an_absent_server_gets_fewer_and_fewer_connections(sync, monkeypatch):
    """A hundred waiters that reconnect twenty times a second would overload a recovering server."""
    proxy = sync.proxy()
    client = sync.connect(proxy.url)
    first = sync.connect().lock("x", ttl=TTL_S).acquire()
    waiting = sync.start(lambda: client.lock("x", ttl=TTL_S).acquire())
    eventually(lambda: blocked(sync.server) == 1)
    opened, open_socket = [], client._client.engine.connector.open_socket

    def counted(*args):
        if threading.current_thread().name == "redis-test":
            opened.append(time.monotonic())
        return open_socket(*args)

    monkeypatch.setattr(client._client.engine.connector, "open_socket", counted)
    proxy.refuse()
    proxy.cut()
    time.sleep(3)
    proxy.accept()

    first.release()
    waiting.result().release()
    assert 3 <= len(opened) <= 12


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_an_unclosed_connection_closes_each_descriptor_once(sync):
    """A descriptor that is closed twice may belong to another file the second time."""
    link = RedisConnection(sync.connect()._client.engine.connector)
    inner, outer = link._socket.fileno(), link._out.fileno()

    assert inner != outer
    del link
    assert not _is_open(inner)
    assert not _is_open(outer)


def _is_open(fd):
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


@pytest.mark.parametrize("face", ["blocking"])
def test_at_maxmemory_a_waiter_keeps_its_place_and_its_turn(server, new_server, place_on):
    """A repeated acquire does not change the order, so a full server must accept it."""
    full = new_server(server.kind)
    place = place_on(full, "blocking")
    client = place.connect()
    first = client.lock("x", ttl=TTL_S).acquire()
    waiting = place.start(lambda: client.lock("x", ttl=0.6).acquire())
    eventually(lambda: blocked(full) == 1)
    full.command("CONFIG", "SET", "maxmemory", 1)

    eventually(lambda: blocked(full) == 0)  # it has sent its acquire again and listens now
    time.sleep(0.3)
    first.release()
    lease = waiting.result()

    assert lease.fence > first.fence
    assert place.kinds("unavailable", "lost") == []
    full.command("CONFIG", "SET", "maxmemory", 0)
    lease.release()


@pytest.mark.parametrize(
    "lost", [":line", ":waiters", ":heartbeats", ":line :waiters", ":line :waiters :heartbeats", ""]
)
def test_a_waiting_line_with_a_lost_key_continues(sync, lost):
    """After an eviction or deletion, places may be lost, but no waiter may hang."""
    client, other = sync.connect(), sync.connect()
    first = client.lock("x", ttl=TTL_S).acquire()

    def turn(waiter):
        with waiter.lock("x", ttl=0.6) as lease:
            return lease.fence

    waiting = [sync.start(lambda each=each: turn(each)) for each in (client, other)]
    sync.until_queued(client, "x", 2)

    sync.server.command("DEL", *(f"hf2:{{x}}{part}" for part in lost.split(" ")))
    time.sleep(0.5)  # both have sent their acquire again
    with contextlib.suppress(LeaseLost):
        first.release()

    fences = {each.result() for each in waiting}
    assert len(fences) == 2
    assert min(fences) > first.fence
    assert sync.kinds("unavailable") == []
    sync.server.command("FLUSHALL")  # the rest of a lost record would expire later
