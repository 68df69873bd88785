"""The proxy: its faults, what it forwards unchanged, and its counts."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from holdfast.testing import eventually
from holdfast.testing.resp import RespParser, pack
from holdfast.testing.servers import Server, available, missing
from tests.support.proxy import Proxy, named, script

pytestmark = pytest.mark.skipif(not available(), reason=missing())


@pytest.fixture(scope="module")
def server():
    with Server(min(available())) as server:
        yield server


@pytest.fixture
def proxy(server):
    server.command("FLUSHALL")
    before = threading.active_count()
    with Proxy("127.0.0.1", server.port) as proxy:
        yield proxy
    assert threading.active_count() == before


class Caller:
    """A plain client without retries."""

    def __init__(self, proxy, timeout=5.0):
        self.link = socket.create_connection(("127.0.0.1", proxy.port), timeout)
        self._messages = RespParser()
        self._came = []

    def send(self, *commands):
        self.link.sendall(b"".join(pack(*command) for command in commands))

    def read(self):
        while not self._came:
            data = self.link.recv(65536)
            if not data:
                raise ConnectionError("closed")
            self._came += self._messages.feed(data)
        return self._came.pop(0).value

    def ask(self, *words):
        self.send(words)
        return self.read()


@pytest.fixture
def caller(proxy):
    callers = []

    def connect(timeout=5.0):
        callers.append(Caller(proxy, timeout))
        return callers[-1]

    yield connect
    for one in callers:
        one.link.close()


def test_bytes_without_a_fault_are_forwarded_unchanged(proxy, caller):
    """Any size, any bytes, in order."""
    one = caller()
    big = bytes(range(256)) * 4000

    assert one.ask("SET", "x", big) == b"OK"
    assert one.ask("GET", "x") == big
    assert one.ask("GET", "nothing") is None


def test_a_dropped_reply_belongs_to_a_command_that_was_applied(proxy, caller, server):
    """A lost reply means: applied, and the client does not know."""
    one = caller()
    one.ask("SET", "n", 0)
    proxy.drop_reply(2)

    assert one.ask("INCR", "n") == 1
    with pytest.raises(ConnectionError):
        one.ask("INCR", "n")

    assert server.command("GET", "n") == b"2"
    assert proxy.dropped == [2]
    assert caller().ask("INCR", "n") == 3


def test_a_swallowed_command_is_never_applied_and_its_connection_stays(proxy, caller, server):
    """No later command of that connection arrives either: bytes keep their order."""
    one = caller(timeout=0.2)
    one.ask("SET", "n", 0)
    proxy.swallow()

    with pytest.raises(TimeoutError):
        one.ask("INCR", "n")
    with pytest.raises(TimeoutError):
        one.ask("INCR", "n")

    assert server.command("GET", "n") == b"0"
    assert caller().ask("INCR", "n") == 1


def test_a_fault_affects_only_the_commands_that_it_names(proxy, caller):
    """By the name of the command, and scripts by hash or by text."""
    one, two = caller(), caller()
    sha = one.ask("SCRIPT", "LOAD", "return 7").decode()
    proxy.drop_reply(when=named("incr"))
    proxy.drop_reply(2, when=script(sha))

    assert one.ask("SET", "n", 1) == b"OK"
    assert one.ask("EVALSHA", sha, 0) == 7
    with pytest.raises(ConnectionError):
        one.ask("Incr", "n")
    with pytest.raises(ConnectionError):
        two.ask("EVAL", "return 7", 0)


def test_replies_are_matched_to_a_pipeline_by_order(proxy, caller, server):
    """The third reply of five is dropped: the client reads two."""
    one = caller()
    proxy.drop_reply(3)
    one.send(*[("INCR", "n")] * 5)

    assert [one.read(), one.read()] == [1, 2]
    with pytest.raises(ConnectionError):
        one.read()
    assert proxy.dropped == [3]


def test_a_delayed_command_arrives_late(proxy, caller):
    """`delay(0)` ends the delay."""
    one = caller()
    one.ask("PING")
    proxy.delay(0.1, when=named("GET"))
    began = time.monotonic()

    one.ask("PING")
    quick = time.monotonic() - began
    one.ask("GET", "x")
    slow = time.monotonic() - began
    proxy.delay(0)
    one.ask("GET", "x")

    assert quick < 0.1 <= slow


def test_a_delayed_answer_is_that_of_a_command_long_applied(proxy, caller, server):
    """The server's ttl begins when it applies the command, and the client learns of it later."""
    one = caller()
    one.ask("PING")
    proxy.delay_answers(0.5)
    began = time.monotonic()

    one.send(("SET", "early", "1"))
    eventually(lambda: server.command("EXISTS", "early") == 1, 5)
    applied = time.monotonic() - began
    one.read()
    heard = time.monotonic() - began

    assert applied < 0.5 <= heard
    proxy.delay_answers(0)
    began = time.monotonic()
    one.ask("PING")
    assert time.monotonic() - began < 0.5


def test_cutting_ends_every_connection_at_once(proxy, caller):
    """New connections work."""
    callers = [caller() for _ in range(3)]
    for one in callers:
        one.ask("PING")

    proxy.cut()

    for one in callers:
        with pytest.raises(ConnectionError):
            one.ask("PING")
    assert caller().ask("PING") == b"PONG"
    eventually(lambda: proxy.open == 1)


def test_half_open_connections_stay_open_and_silent(proxy, caller, server):
    """New ones too, unless the test excludes them; afterwards the silent ones are cut."""
    old = caller(timeout=0.1)
    old.ask("PING")
    proxy.half_open(new=False)
    fresh = caller()
    with pytest.raises(TimeoutError):
        old.ask("SET", "x", 1)
    assert fresh.ask("PING") == b"PONG"

    proxy.half_open()
    with pytest.raises(TimeoutError):
        caller(timeout=0.1).ask("SET", "x", 1)
    assert server.command("GET", "x") is None

    proxy.accept()
    old.link.settimeout(5)
    with pytest.raises(ConnectionError):
        old.ask("PING")
    assert caller().ask("PING") == b"PONG"


def test_refusing_and_accepting_again_keeps_the_port(proxy, caller):
    """As with a server that restarts; open connections stay."""
    old = caller()
    old.ask("PING")
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        caller()
    assert old.ask("PING") == b"PONG"

    proxy.accept()

    assert caller().ask("PING") == b"PONG"
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        caller()


def test_commands_replies_and_round_trips_are_counted(proxy, caller):
    """A pipeline is one round trip of several commands."""
    one = caller()
    one.ask("PING")
    proxy.reset()

    one.ask("SET", "x", 1)
    one.send(("GET", "x"), ("GET", "x"), ("GET", "x"))
    answers = [one.read() for _ in range(3)]

    assert answers == [b"1"] * 3
    assert (proxy.requests, proxy.replies, proxy.connections) == (4, 4, 0)
    assert 2 <= proxy.round_trips <= 4
    assert proxy.count(named("GET")) == 3
    assert proxy.sent[0].words == (b"SET", b"x", b"1")
    assert proxy.bytes_up == len(pack("SET", "x", 1)) + 3 * len(pack("GET", "x"))
    assert proxy.bytes_down == len(b"+OK\r\n") + 3 * len(b"$1\r\n1\r\n")


def test_pushed_messages_are_no_replies(proxy, caller, server):
    """A subscription gets one reply and many messages; a fault must not affect the wrong one."""
    one = caller()
    assert one.ask("SUBSCRIBE", "news") == [b"subscribe", b"news", 1]
    server.command("PUBLISH", "news", "first")

    assert one.read() == [b"message", b"news", b"first"]
    assert proxy.replies == 1


def test_a_dead_server_looks_dead_through_the_proxy():
    """The proxy accepts the connection and closes it: no server is behind it."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        with Proxy("127.0.0.1", nobody.getsockname()[1]) as proxy:
            one = Caller(proxy)
            with one.link, pytest.raises(ConnectionError):
                one.ask("PING")


def test_a_fault_in_the_past_is_refused(proxy):
    """The next command is number 1."""
    with pytest.raises(ValueError, match="the next command is number 1"):
        proxy.drop_reply(0)


def test_closing_ends_delayed_and_silent_connections(server):
    """No thread and no connection is left."""
    before = threading.active_count()
    proxy = Proxy("127.0.0.1", server.port)
    proxy.delay(60)
    with socket.create_connection(("127.0.0.1", proxy.port)) as link:
        link.sendall(pack("PING"))
        eventually(lambda: proxy.requests == 1)

        proxy.close()
        proxy.close()

        assert threading.active_count() == before
        assert link.recv(10) == b""
