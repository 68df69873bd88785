"""Fixtures with real LanceDB directories, guarded in each of the three lock domains."""

import pytest
from store_kit import SCHEMA, Loop

from holdfast.contrib import lancedb
from holdfast.testing.servers import Server, available

DOMAINS = ("embedded", "file", "redis")


@pytest.fixture(scope="session")
def lease_server():
    with Server(next(iter(available()))) as server:
        yield server


@pytest.fixture
def memory(tmp_path):
    """Return the directory, which exists before the store is opened."""
    path = tmp_path / "memory"
    path.mkdir()
    return path


@pytest.fixture
def locking(request, tmp_path):
    """Return a function that makes a configuration for the domain, with further settings of the lock."""

    def configured(domain, **more):
        if domain == "redis":
            more.setdefault("url", f"{request.getfixturevalue('lease_server').url}?namespace={tmp_path.name[-40:]}")
            more.setdefault("timeout", 60)  # on a busy machine the turn of a writer may come late
        return {"locking": {"mode": domain, **more}}

    return configured


@pytest.fixture(params=DOMAINS)
def domain(request):
    return request.param


@pytest.fixture
def opened(memory, locking):
    """Return a function that opens a store; the fixture closes open stores at the end."""
    stores = []

    def open_store(config="embedded", directory=memory, table="memories", schema=SCHEMA, **more):
        config = locking(config) if isinstance(config, str) else config
        stores.append(lancedb.open_store(directory, table, config, schema=schema, **more))
        return stores[-1]

    yield open_store
    for store in stores:
        store.close()


@pytest.fixture
def loop():
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture(params=["blocking", "asyncio"])
def store(request, opened, loop, memory, locking):
    """Open a store with an empty table, through both faces."""
    if request.param == "blocking":
        yield opened()
        return
    store = loop.open_store(memory, "memories", locking("embedded"), schema=SCHEMA)
    yield store
    store.close()
