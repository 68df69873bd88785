"""Replies that no server of holdfast sends: from another program at that port, or through a broken network."""

import asyncio
import socket
import threading

import hiredis
import pytest
from cli_runner import run_tool
from fuzzing import MIB, VALUES, bounded, fuzz
from hypothesis import example, given
from hypothesis import strategies as st

import holdfast
from holdfast import HoldfastError, aio
from holdfast.cli.codes import UNAVAILABLE
from holdfast.commands import Answer
from holdfast.engines.redis import cluster, redirects, replies, server_info
from holdfast.engines.redis.connect import reply_error
from holdfast.engines.redis.connection_blocking import RedisConnection
from holdfast.engines.redis.scripts import SCRIPTS
from holdfast.errors import UnavailableReason

LINES = b"+OK|-ERR x|:1|:99999999999999999999|$3|abc|$-1|$999999999|*2|*-1|%1|,nan|_|#t|(9999||$1|-MOVED 99999 h:1"
LINES += b"|-NOSCRIPT x|-WRONGTYPE x|HTTP/1.1 400 Bad Request"
PIECES = st.sampled_from([*(line + b"\r\n" for line in LINES.split(b"|")), b"\x00", b"$1\r\n\xff\r\n", b"*1\r\n" * 200])
BYTES = st.one_of(st.lists(PIECES, max_size=6).map(b"".join), st.binary(max_size=60))
# What hiredis makes of any bytes.
REPLIES = st.recursive(
    st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.text(max_size=12), st.booleans(), st.floats()),
    lambda inner: st.lists(inner, max_size=8),
    max_leaves=16,
)


class Pair:
    """A node that leads to this process: the other end of a socket pair."""

    url, wire_s = "redis://pair", 0.2

    def open_socket(self, _limit_s):
        ours, self.theirs = socket.socketpair()
        ours.settimeout(self.wire_s)
        return ours


@fuzz(60)
@given(BYTES)
@example(b"$1000000000\r\n" + b"x" * 60_000)
@example(b"%1\r\n*1\r\n:1\r\n:1\r\n")
def test_any_bytes_are_a_reply_or_a_lost_one(sent):
    """The connection returns what the parser accepts, and is closed after anything else."""
    for call in ("send", "exchange", "read_pushed"):
        node = Pair()
        connection = RedisConnection(node)
        node.theirs.sendall(sent)
        node.theirs.shutdown(socket.SHUT_WR)
        with bounded():
            if call == "send":
                connection.send(b"PING\r\n", 0.2)
            elif call == "exchange":
                assert len(connection.exchange(b"PING\r\n", 2, 0.2)) == 2
            else:
                connection.read_pushed()
        connection.close()
        node.theirs.close()


@fuzz(120)
@given(
    st.sampled_from(sorted(SCRIPTS, key=lambda kind: kind.__name__)),
    st.one_of(REPLIES, VALUES),
    st.sampled_from(sorted(replies._REPLIES)),
    st.lists(st.one_of(REPLIES, st.integers(0, 99), st.text(max_size=3)), max_size=12),
)
@example(next(iter(SCRIPTS)), "9" * 5000, "busy", [])
def test_any_reply_is_an_answer_of_its_command_or_unavailable(kind, reply, word, rest):
    """No error of the code that reads a reply reaches the caller, and no answer has a field of another type."""
    for each in (reply, [word, *rest]):
        with bounded():
            replies.time_of(each)
            answer = replies.answered(kind, each)
            assert isinstance(answer, Answer)
            replies._check(answer)


@fuzz(150)
@given(
    st.one_of(REPLIES, st.text(max_size=30).map(lambda text: f"# x\r\nconnected_slaves:{text}\r\nslave0:{text}\r\n"))
)
@example("connected_slaves:999999999999\r\nmaxmemory:" + "9" * 5000)
@example("a:b\r\n" * (MIB // 5))
def test_any_report_of_a_server_is_read(reply):
    """The facts about a server come from texts that other versions write differently."""
    with bounded():
        info = server_info.Info(reply)
        info.replicas()
        server_info.facts_from([reply] * 4)


@fuzz(150)
@given(REPLIES)
@example([[0, 10**12, ["h", 1, "id"]]])
@example([[0, 5, ["h", "x" * 5000, "id"]]])
def test_any_map_of_slots_is_read_or_refused(reply):
    """A server that answers nonsense to CLUSTER SLOTS counts as one that does not answer."""
    node = type("Node", (), {"url": "redis://h", "place": ("h", 1)})
    with bounded():
        found = cluster._read_slot_map(node, reply)
        assert len(found.owners) == redirects.SLOTS


@fuzz(150)
@given(
    st.one_of(
        st.text(max_size=40), st.sampled_from(["MOVED 16384 h:1", "ASK 1 h:999999", "MOVED " + "9" * 5000 + " h:1"])
    )
)
def test_any_error_reply_is_a_reason(text):
    """Every error reply has a reason, and leads to no server that cannot exist."""
    with bounded():
        error = reply_error("redis://h", hiredis.ReplyError(text))
        assert error.reason in UnavailableReason
        redirected = redirects.Redirected("redis", error.reason, text)
        redirected.reply = text
        assert redirects.redirect_of(redirected).slot < redirects.SLOTS


class Nonsense:
    """A server that answers the first commands of a connection as Redis does, and every script with the same bytes."""

    def __init__(self):
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listening.getsockname()[1]}?socket_timeout=0.2"
        self.answer = b""
        self.closes = True  # the connection, after an answer to a script
        self.known = {b"CLIENT": b"+OK\r\n", b"INFO": b"$10\r\nrun_id:abc\r\n", b"GET": b"$1\r\n2\r\n"}
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                connected, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connected,), daemon=True).start()

    def _serve(self, connected):
        reader = hiredis.Reader()
        with connected:
            while data := _received(connected):
                reader.feed(data)
                while (command := reader.gets()) is not False:
                    word = command[0] if isinstance(command, list) else b""
                    answer = self.known.get(word, self.answer)
                    try:
                        connected.sendall(answer)
                    except OSError:
                        return
                    if not answer or (self.closes and word not in self.known):
                        return

    def close(self):
        self._listening.close()


def _received(connected):
    try:
        return connected.recv(65536)
    except OSError:
        return b""


@pytest.fixture(scope="module")
def nonsense():
    server = Nonsense()
    yield server
    server.close()


@pytest.mark.parametrize("face", ["blocking", "asyncio"])
@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"*1\r\n+x\r\n",
        b"$-1\r\n",
        b"*-1\r\n",
        b"%1\r\n+a\r\n:1\r\n",
        b":1\r\n:1\r\n",
    ],
)
def test_a_caller_of_a_server_that_answers_nonsense_gets_unavailable(nonsense, face, answer):
    """Only errors of the library reach the caller, through both faces."""
    nonsense.answer = answer
    seen = blocking(nonsense.url) if face == "blocking" else asyncio.run(awaited(nonsense.url))
    assert len(seen) == 2
    assert [error for error in seen if not isinstance(error, HoldfastError)] == []


@pytest.mark.parametrize("face", ["blocking", "asyncio"])
@pytest.mark.parametrize("answer", [b"*1\r\n+x\r\n", b"$4\r\njunk\r\n", b":1\r\n"])
def test_a_server_that_answers_nonsense_about_its_names_has_no_empty_list(nonsense, monkeypatch, face, answer):
    """A reply that is no answer is no damaged record of one name, which the list would leave out."""
    monkeypatch.setitem(nonsense.known, b"SCAN", b"*2\r\n$1\r\n0\r\n*1\r\n$7\r\nhf2:{x}\r\n")
    monkeypatch.setattr(nonsense, "closes", False)
    nonsense.answer = answer

    seen = blocking(nonsense.url) if face == "blocking" else asyncio.run(awaited(nonsense.url))
    listed = run_tool("ls", "--url", nonsense.url)

    expected = (holdfast.Unavailable, "corrupt", "unknown")
    assert [(type(error), error.reason, error.outcome) for error in seen] == [expected] * 2
    assert listed.returncode == UNAVAILABLE, listed.stdout
    assert "is no answer to it" in listed.stderr


def blocking(url):
    errors = []
    hf = holdfast.connect(url)
    for call in (lambda: hf.show("x"), hf.held):
        try:
            call()
        except Exception as error:
            errors.append(error)
    hf.close(0)
    return errors


async def awaited(url):
    errors = []
    hf = await aio.connect(url)
    for call in (lambda: hf.show("x"), hf.held):
        try:
            await call()
        except Exception as error:
            errors.append(error)
    await hf.close(0)
    return errors
