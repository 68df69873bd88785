"""The example of several servers works as documented: one server runs a conversation, and all serve it."""

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

import holdfast
from holdfast.testing import eventually
from holdfast.testing.ports import Port
from holdfast.testing.servers import Server, available

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "conversations.py"


@pytest.fixture
def servers():
    """Start three servers of the example on one Redis."""
    with Server(next(iter(available()))) as redis, Port() as one, Port() as other, Port() as third:
        ports = [one.number, other.number, third.number]
        started = [
            subprocess.Popen([sys.executable, str(EXAMPLE), redis.url, f"server {n}", str(port)])
            for n, port in enumerate(ports)
        ]
        try:
            for port in ports:
                eventually(lambda port=port: answers(port), 30, "a server that answers")
            yield redis, ports, started
        finally:
            for process in started:
                process.kill()
                process.wait()


def answers(port):
    try:
        return httpx.get(f"http://127.0.0.1:{port}/run/none").status_code == 409
    except httpx.TransportError:
        return False


def ask(port, key):
    answer = httpx.get(f"http://127.0.0.1:{port}/conversations/{key}", timeout=30)
    return answer.json()


@pytest.mark.acceptance("A4-3", "A4-10")
def test_a_conversation_runs_on_one_server_and_is_served_by_all(servers):
    """With concurrent requests it has one owner; after a kill or a stop it continues elsewhere under a larger fence."""
    redis, ports, started = servers

    with ThreadPoolExecutor(9) as clients:
        replies = list(clients.map(lambda n: ask(ports[n % 3], "42"), range(9)))
    assert len({each["server"] for each in replies}) == 1
    assert sorted(each["turns"] for each in replies) == list(range(1, 10))
    owner = int(replies[0]["server"].split()[1])

    started[owner].send_signal(signal.SIGKILL)
    started[owner].wait()
    others = [n for n in range(3) if n != owner]
    again = [ask(ports[n], "42") for n in others]
    assert len({each["server"] for each in again}) == 1
    assert again[0]["server"] != replies[0]["server"]
    assert again[0]["fence"] > replies[0]["fence"]

    second = int(again[0]["server"].split()[1])
    started[second].send_signal(signal.SIGTERM)
    started[second].wait(30)
    with holdfast.connect(redis.url) as hf:
        assert hf.registry("conversations").list() == [], "it released everything"
    (last,) = [n for n in others if n != second]
    assert ask(ports[last], "42")["fence"] > again[0]["fence"]
