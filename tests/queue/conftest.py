"""A real server, clients that are closed at the end, and child processes that are ended."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast import HoldfastError
from holdfast.testing import WorkerProcesses, eventually
from holdfast.testing.servers import Server, available, missing

CHILDREN = Path(__file__).with_name("queue_children.py")


@pytest.fixture(scope="module")
def server():
    if "valkey" not in available():
        pytest.skip(missing("valkey"))
    with Server("valkey") as server:
        yield server


@pytest.fixture(params=["redis", "sqlite"])
def url(request, tmp_path):
    """A location of its own on a server and in a file; the suite runs on both."""
    if request.param == "sqlite":
        return f"sqlite://{tmp_path}/jobs.db"
    return f"{request.getfixturevalue('server').url}?namespace={tmp_path.name[-40:]}"


@pytest.fixture
def client(url):
    with holdfast.connect(url) as client:
        yield client


@pytest.fixture
def start(url, tmp_path):
    """Start a process that runs a function of `queue_children`, or of another file, with a journal of its own."""
    with WorkerProcesses() as workers:

        def begin(function, children=CHILDREN, env=None, **arguments):
            arguments = {"url": url, "journal": str(tmp_path / "journal"), **arguments}
            return workers.start(f"{children}:{function}", env=env, **arguments)

        yield begin


@pytest.fixture
def journal(tmp_path):
    """Return the whole lines of the journal, as lists of words. A reader may see the first part of a line's write."""
    path = tmp_path / "journal"
    path.touch()
    return lambda word: [line.split() for line in path.read_text().split("\n")[:-1] if line.startswith(f"{word} ")]


@pytest.fixture
def freeze(client):
    """Freeze a process, but not while it holds the file's gate: all others would wait for it."""

    def frozen(process):
        def others_go_on():
            process.freeze()
            try:
                with client.lock("anybody there", ttl=1, timeout=0.5):
                    return True
            except HoldfastError:
                process.thaw()
                return False

        eventually(others_go_on, 60, "a moment to freeze it")

    return frozen
