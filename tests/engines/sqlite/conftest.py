"""A file, clients of this process, and child processes that run orders."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlite_child import Child

import holdfast

CHILDREN = Path(__file__).with_name("sqlite_children.py")


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
    """Start a child that runs a function of `sqlite_children.py`."""
    return lambda function, **arguments: holdfast_workers.start(f"{CHILDREN}:{function}", **arguments)


@pytest.fixture
def child(start, url):
    """Start a child that runs orders, connected to the same file."""
    return lambda **options: Child(start("serve", url=url, **options).wait_ready())
