"""Webhooks of several real servers (uvicorn) on one Redis: each delivery is handled once, and none is lost."""

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from holdfast.testing import eventually
from holdfast.testing.servers import Server, available

PROCESSES = 5
SERVER = Path(__file__).with_name("hook_server.py")


class Fleet:
    """Several servers, and the file in which they record handled events."""

    def __init__(self, url, book):
        self.book = book
        self._command = [sys.executable, str(SERVER), url, str(book)]
        self.web = httpx.Client(timeout=60)
        self.processes = [self._started() for _ in range(PROCESSES)]
        self.ports = [self._port_of(process) for process in self.processes]

    def _started(self):
        return subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)

    def _port_of(self, process):
        port = int(process.stdout.readline())
        eventually(lambda: self._answers(port), 30, "a server that answers")
        return port

    def kill(self, server):
        self.processes[server].kill()
        self.processes[server].communicate()

    def replace(self, server):
        """Start a server in place of a killed one."""
        self.processes[server] = self._started()
        self.ports[server] = self._port_of(self.processes[server])

    def _answers(self, port):
        try:
            return self.web.get(f"http://127.0.0.1:{port}/hook").status_code == 405
        except httpx.TransportError:
            return False

    def deliver(self, event, server=0):
        headers = {"X-GitHub-Event": "push", "X-GitHub-Delivery": event["id"]}
        return self.web.post(f"http://127.0.0.1:{self.ports[server]}/hook", content=json.dumps(event), headers=headers)

    def handled(self, event):
        """Return the processes that handled an event."""
        lines = self.book.read_text().splitlines() if self.book.exists() else []
        return [int(line.split()[0]) for line in lines if line.split()[1] == event["id"]]

    def close(self):
        self.web.close()
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    with Server(next(iter(available()))) as server:
        fleet = Fleet(server.url, tmp_path_factory.mktemp("fleet") / "book")
        yield fleet
        fleet.close()


@pytest.mark.acceptance("A4-12")
def test_one_of_fifty_deliveries_to_five_servers_is_handled(fleet):
    """All deliveries get 200: the others wait for the first, and are ignored."""
    event = {"id": "fifty", "takes": 0.3}

    with ThreadPoolExecutor(50) as senders:
        answers = list(senders.map(lambda n: fleet.deliver(event, n % PROCESSES), range(50)))

    assert [answer.status_code for answer in answers] == [200] * 50
    assert len(fleet.handled(event)) == 1
    bodies = [answer.json() for answer in answers]
    assert bodies.count({"handled": "fifty"}) == 1
    assert bodies.count({"status": "ignored", "reason": "duplicate"}) == 49


@pytest.mark.acceptance("A4-13")
def test_a_failed_delivery_is_handled_by_the_next_try_on_another_server(fleet):
    """A failure leaves no done marker; a success does."""
    event = {"id": "retried", "fails": 2}

    assert [fleet.deliver(event, server).status_code for server in range(5)] == [500, 500, 200, 200, 200]
    assert len(fleet.handled(event)) == 3


@pytest.mark.acceptance("A4-14")
def test_a_killed_server_blocks_its_event_for_the_lease_only(fleet):
    """The window is an hour and the lease a second: the sender's retry is handled soon, by another server."""
    event = {"id": "killed", "takes": 1.5}

    with ThreadPoolExecutor(1) as senders:
        sending = senders.submit(fleet.deliver, event, PROCESSES - 1)
        eventually(lambda: fleet.handled(event), 20, "a server at work")
        fleet.kill(-1)
        assert isinstance(sending.exception(20), httpx.TransportError)
    began = time.monotonic()
    answer = fleet.deliver(event, 0)
    waited = time.monotonic() - began
    fleet.replace(-1)

    assert (answer.status_code, answer.json()) == (200, {"handled": "killed"})
    assert waited < 20
    assert len(set(fleet.handled(event))) == 2
    assert fleet.deliver(event, 1).json()["status"] == "ignored"
