"""A shared directory, clients of this process, and child processes that run orders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import holdfast
from holdfast.testing import PausePoints

CHILDREN = Path(__file__).with_name("file_children.py")


class Child:
    """A child process that runs orders and answers."""

    def __init__(self, worker):
        self.worker = worker

    def order(self, do, **details):
        self.worker.send_line(json.dumps({"do": do, **details}))

    def answer(self, timeout=20):
        return json.loads(self.worker.read_line(timeout))

    def ask(self, do, **details):
        self.order(do, **details)
        return self.answer()


@pytest.fixture
def shared(tmp_path):
    """The directory that all clients share."""
    folder = tmp_path / "shared"
    folder.mkdir()
    return folder


@pytest.fixture
def url(shared):
    return f"file://{shared}"


@pytest.fixture
def versions(shared):
    """Return the numbers of the versions of a name."""
    return lambda name="x": sorted(path.name for path in (shared / ".holdfast" / "leases" / name).glob("[0-9]*"))


@pytest.fixture
def connect(url):
    """Clients of this process, closed at the end."""
    clients = []

    def connect(place=None, **options):
        clients.append(holdfast.connect(place or url, **options))
        return clients[-1]

    yield connect
    for client in clients:
        client.close(timeout=0)


@pytest.fixture
def start(holdfast_workers):
    """Start a child that runs a function of `file_children.py`."""
    return lambda function, env=None, **arguments: holdfast_workers.start(
        f"{CHILDREN}:{function}", env=env, **arguments
    )


@pytest.fixture
def child(start, url):
    """Start a child that runs orders in the same directory."""
    return lambda env=None, place=None, **options: Child(
        start("serve", env=env, url=place or url, **options).wait_ready()
    )


@pytest.fixture
def points(tmp_path):
    return PausePoints(tmp_path / "points")
