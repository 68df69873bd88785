"""No server, a server that dies, a server that is back: exclusion fails closed, and in time."""

import asyncio
import logging
import socket
import subprocess
import sys
import time

import pytest
from redis_faces import Place

from holdfast import Unavailable, aio
from holdfast.testing import eventually
from tests.support.proxy import Proxy, named

CONNECT_S = 1.0
SLACK_S = 1.0


@pytest.fixture
def free_port():
    """A port without a server."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.fixture
def full_backlog():
    """A port where the kernel drops every new connection, because the backlog of the listening socket is full."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        guests = [socket.socket() for _ in range(4)]
        for guest in guests:
            guest.setblocking(False)
            guest.connect_ex(address)
        time.sleep(0.05)
        yield address[1]
        for guest in guests:
            guest.close()


@pytest.mark.acceptance("A0-5", "C-1", "G-3")
@pytest.mark.parametrize(
    ("port", "timeout"), [("free_port", 0), ("free_port", 5), ("free_port", None), ("full_backlog", None)]
)
def test_without_a_server_every_acquire_fails_within_the_connect_timeout(slow, request, caplog, port, timeout):
    """No second lock domain and no silent wait: each try raises `Unavailable`, and nothing is started."""
    client = slow.connect(f"redis://127.0.0.1:{request.getfixturevalue(port)}")
    ran = []

    tries = 3 if port == "free_port" else 1
    for _ in range(tries):
        began = time.monotonic()
        with caplog.at_level(logging.DEBUG, "holdfast"), pytest.raises(Unavailable) as trouble:
            ran.append(client.lock("x").acquire(timeout=timeout))
        assert time.monotonic() - began < CONNECT_S + SLACK_S

    assert ran == []
    assert (trouble.value.engine, trouble.value.reason) == ("redis", "unreachable")
    assert trouble.value.retryable
    # One by one for each time, and none for an undo: nothing was ever sent.
    assert slow.kinds() == ["unavailable"] * tries
    levels = [record.levelname for record in caplog.records if "unavailable 'x'" in record.message]
    assert levels == ["WARNING", *["DEBUG"] * (tries - 1)]  # one outage


@pytest.mark.acceptance("A0-5")
def test_a_decorated_function_does_not_run_without_its_lease(one_server, free_port):
    """The work does not run at all."""
    import holdfast

    ran = []
    with holdfast.connect(f"redis://127.0.0.1:{free_port}") as client, pytest.raises(Unavailable):
        client.lock("x")(lambda: ran.append(1))()

    assert ran == []


@pytest.mark.acceptance("A0-6")
def test_a_waiter_gets_its_lease_after_the_server_was_restarted(new_server, place_on):
    """The server is back before the deadline, so the acquire succeeds; no client holds the leases that it forgot."""
    server = new_server()
    place = place_on(server)
    holder, waiter = place.connect(), place.connect()
    held = holder.lock("x", ttl=3).acquire()
    waiting = place.start(lambda: waiter.lock("x").acquire(timeout=20))
    place.until_queued(holder, "x", 1)

    server.kill()
    time.sleep(0.5)
    assert not waiting.done()
    server.start()

    lease = waiting.result()
    assert lease.fence > held.fence
    eventually(lambda: held.lost, timeout=10)
    lease.release()


@pytest.mark.acceptance("A0-6")
def test_an_acquire_survives_a_server_that_dies_before_its_reply(new_server, place_on):
    """The command was sent, its outcome is unknown, and its reply never comes."""
    server = new_server()
    place = place_on(server)
    client = place.connect()
    client.lock("y").acquire().release()
    server.freeze()
    asking = place.start(lambda: client.lock("x").acquire(timeout=20))
    time.sleep(0.2)

    server.kill()
    time.sleep(0.2)
    server.start()

    asking.result().release()
    assert "unavailable" in place.kinds()


@pytest.mark.acceptance("A0-5")
def test_a_frozen_server_is_unavailable_and_its_grants_are_undone(new_server, place_on):
    """The server was reached and then fell silent: `timeout=0` has the wire timeout, and a possible grant is undone."""
    server = new_server()
    place = place_on(server)
    client = place.connect()
    client.lock("y").acquire().release()
    server.freeze()
    began = time.monotonic()

    with pytest.raises(Unavailable) as trouble:
        client.lock("x").acquire(timeout=0)

    assert time.monotonic() - began < 2 * 2 + SLACK_S
    assert trouble.value.retryable
    server.thaw()
    place.until("undone")
    client.lock("x").acquire(timeout=0).release()


@pytest.mark.acceptance("A0-16", "A0-17", "G-10")
@pytest.mark.parametrize("face", ["asyncio"])
def test_closing_ends_in_time_while_the_server_is_silent(new_server, place_on):
    """A shutdown must not hang because the server hangs."""
    server = new_server()
    place = place_on(server)
    client = place.connect()
    client.lock("y").acquire().release()
    server.freeze()
    asking = place.start(lambda: client.lock("x").acquire(timeout=60))
    time.sleep(0.1)
    began = time.monotonic()

    client.close(timeout=0.1)

    assert time.monotonic() - began < 12
    assert asking.error(20) is not None
    server.thaw()


@pytest.mark.acceptance("A0-17", "G-10")
def test_a_connection_that_is_being_opened_does_not_outlive_its_client(one_server):
    """The caller was cancelled and the client closed while the connection was being opened."""

    async def scenario(proxy):
        client = await aio.connect(proxy.url)
        asking = asyncio.ensure_future(client.lock("x").acquire())
        await asyncio.sleep(0.1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await client.close(timeout=0)
        await asyncio.sleep(0.7)
        return proxy.open, len(asyncio.all_tasks())

    with Proxy("127.0.0.1", one_server.port) as proxy:
        greetings = iter([True])
        proxy.delay(0.6, when=lambda words: named("CLIENT")(words) and next(greetings, False))
        assert asyncio.run(scenario(proxy)) == (0, 1)


def test_an_observer_of_a_leader_goes_on_after_an_outage(sync):
    """It observes for ever: one failed read must not end it, because no code would start it again."""
    proxy = sync.proxy()
    watcher, client = sync.connect(proxy.url), sync.connect()
    changes = watcher.leader("x", candidate="watcher").observe(interval=0.05)
    assert next(changes) is None
    proxy.refuse()
    proxy.cut()
    seen = sync.start(lambda: next(changes))
    sync.until("unavailable")
    proxy.accept()

    with client.leader("x", candidate="new") as term:
        assert seen.result().candidate == "new"
        assert term.fence == client.show("x").fence


def test_a_short_timeout_does_not_wait_for_a_connection(face, loop):
    """A socket accepts and sends nothing: the caller waits for its own timeout, not for the connect timeout."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = Place(None, face, loop)
        client = place.connect(f"redis://127.0.0.1:{silent.getsockname()[1]}?socket_connect_timeout=30")
        began = time.monotonic()
        with pytest.raises(Unavailable) as trouble:
            client.lock("x").acquire(timeout=0.3)
        told = time.monotonic() - began
        place.close()

    assert trouble.value.reason == "unreachable"
    assert told < 5


WITHOUT_DESCRIPTORS = """
import os, resource, sys
import holdfast

resource.setrlimit(resource.RLIMIT_NOFILE, (256, 4096))
for left in (0, 1, 2, 3):
    for name in ("free", "held"):
        with holdfast.connect(sys.argv[1]) as client:
            taken = []
            try:
                while True:
                    taken.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                pass
            for _ in range(left):
                os.close(taken.pop())
            try:
                client.lock(name, ttl=1).acquire(timeout=0.7).release()
                outcome = "granted"
            except Exception as error:
                outcome = type(error).__name__
            for each in taken:
                os.close(each)
        print(left, name, outcome)
"""


def test_a_process_without_descriptors_gets_errors_of_the_library(one_server, place_in):
    """No connection or no subscription can be opened: the engine is unreachable, or wake-ups are late."""
    place = place_in(one_server)
    held = place.connect().lock("held", ttl=60).acquire()
    child = [sys.executable, "-c", WITHOUT_DESCRIPTORS, one_server.url]
    told = subprocess.run(child, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
    held.release()
    place.close()

    assert told[:4] == ["0 free Unavailable", "0 held Unavailable", "1 free Unavailable", "1 held Unavailable"]
    assert told[4:] == ["2 free granted", "2 held NotAcquired", "3 free granted", "3 held NotAcquired"]
