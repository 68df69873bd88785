"""A file, a client of this process, and children that obey."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import holdfast

CHILDREN = Path(__file__).with_name("children.py")


class Child:
    """A process that obeys: `ask` waits for its answer, `order` does not."""

    def __init__(self, worker):
        self.worker = worker
        self.pid = worker.pid

    def order(self, do, **details):
        self.worker.tell(json.dumps({"do": do, **details}))

    def answer(self, timeout=10.0):
        return json.loads(self.worker.read_line(timeout))

    def ask(self, do, within=10.0, **details):
        self.order(do, **details)
        return self.answer(within)


@pytest.fixture
def path(tmp_path):
    """Where the leases of this test live."""
    return tmp_path / "hf.db"


@pytest.fixture
def url(path):
    return f"sqlite://{path}"


@pytest.fixture
def connect(url):
    """Clients of this process, closed at the end."""
    clients = []

    def connect(**options):
        clients.append(holdfast.connect(url, **options))
        return clients[-1]

    yield connect
    for client in clients:
        client.close(timeout=0)


@pytest.fixture
def start(holdfast_workers):
    """A child that runs a function of `children.py`."""
    return lambda function, **arguments: holdfast_workers.start(f"{CHILDREN}:{function}", **arguments)


@pytest.fixture
def child(start, url):
    """A child that obeys orders, connected to the same file."""
    return lambda **options: Child(start("serve", url=url, **options).wait_ready())
