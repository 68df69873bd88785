"""Fixtures: a build directory, and two engines that guard it, files and a real server."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast.testing import PausePoints
from holdfast.testing.servers import Server, available, missing

CHILDREN = Path(__file__).with_name("build_children.py")


@pytest.fixture(scope="session")
def server():
    if "valkey" not in available():
        pytest.skip(missing("valkey"))
    with Server("valkey") as server:
        yield server


@pytest.fixture(params=["file", "redis"])
def url(request, tmp_path):
    """Return the URL of the engine; the tests run on both."""
    if request.param == "file":
        (tmp_path / "leases").mkdir()
        return f"file://{tmp_path}/leases"
    return f"{request.getfixturevalue('server').url}?namespace={tmp_path.name[-40:]}"


@pytest.fixture
def store(tmp_path):
    folder = tmp_path / "store"
    folder.mkdir()
    return folder


@pytest.fixture
def start(holdfast_workers, store):
    """Return a function that starts a builder process."""
    return lambda url, env=None, **arguments: holdfast_workers.start(
        f"{CHILDREN}:build", env=env, url=url, store=str(store), **arguments
    )


@pytest.fixture
def connect():
    clients = []

    def connect(url, **options):
        clients.append(holdfast.connect(url, **options))
        return clients[-1]

    yield connect
    for client in clients:
        client.close(timeout=0)


@pytest.fixture
def points(tmp_path):
    return PausePoints(tmp_path / "points")
