"""A shared directory, clients of this process, and children that obey."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import holdfast
from holdfast.testing import PausePoints

CHILDREN = Path(__file__).with_name("file_children.py")


class Child:
    """A process that does what it is told, and answers."""

    def __init__(self, worker):
        self.worker = worker

    def say(self, do, **order):
        self.worker.send_line(json.dumps({"do": do, **order}))

    def answer(self, timeout=20):
        return json.loads(self.worker.read_line(timeout))

    def ask(self, do, **order):
        self.say(do, **order)
        return self.answer()


@pytest.fixture
def shared(tmp_path):
    """The directory that everybody shares."""
    folder = tmp_path / "shared"
    folder.mkdir()
    return folder


@pytest.fixture
def url(shared):
    return f"file://{shared}"


@pytest.fixture
def sheets(shared):
    """The numbers of the sheets that there are of a name."""
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
    """A child that runs a function of `file_children.py`."""
    return lambda function, env=None, **arguments: holdfast_workers.start(
        f"{CHILDREN}:{function}", env=env, **arguments
    )


@pytest.fixture
def child(start, url):
    """A child that obeys orders in the same directory."""
    return lambda env=None, place=None, **options: Child(
        start("serve", env=env, url=place or url, **options).wait_ready()
    )


@pytest.fixture
def points(tmp_path):
    return PausePoints(tmp_path / "points")
