"""Fixtures: real servers, one of each kind for all tests, and empty counters for each test."""

import pytest
from guarded import KINDS, POSTGRES, opened, prepare

from holdfast.testing.servers import Server, available, missing
from tests.support import postgres


@pytest.fixture(scope="session")
def _redis():
    if not available():
        pytest.skip(missing())
    with Server(max(available())) as server:
        yield server


@pytest.fixture(scope="session")
def _postgres():
    if postgres.programs() is None:
        pytest.skip(postgres.missing())
    with postgres.Postgres() as server:
        yield server


@pytest.fixture
def server(_redis):
    """Return a server without keys."""
    _redis.command("FLUSHALL")
    return _redis


@pytest.fixture
def where(request, tmp_path):
    """Return the location of the counters; a server starts only for a kind that needs it."""
    kind = request.node.callspec.params.get("kind", "") if hasattr(request.node, "callspec") else ""
    place = {"folder": str(tmp_path)}
    if kind.startswith("redis") or "server" in request.fixturenames:
        place["redis"] = request.getfixturevalue("server").url
    if kind in POSTGRES or "_postgres" in request.fixturenames:
        server = request.getfixturevalue("_postgres")
        place |= {"postgres": server.url, "port": server.port}
    if not kind.startswith(("file", "redis")):
        prepare(place)
    return place


@pytest.fixture(params=list(KINDS))
def kind(request):
    return request.param


@pytest.fixture
def guarded(kind, where):
    """Return a counter behind each kind of guard."""
    with opened(kind, where) as guarded:
        yield guarded
