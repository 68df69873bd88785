"""The tool as people use it: a process of its own, on a SQLite file and on a real server."""

import pytest
from cli_tool import Places, Tool

from holdfast.testing.servers import available

KINDS = ["sqlite", *(["valkey"] if "valkey" in available() else sorted(available())[:1])]


@pytest.fixture(scope="session")
def _places(tmp_path_factory):
    places = Places(tmp_path_factory.mktemp("places"))
    yield places
    places.close()


@pytest.fixture(params=KINDS)
def place(request, _places):
    """Where the leases of this test live: a new file, or a server of this session that has been emptied."""
    yield from _places.lend(request.param)


@pytest.fixture
def embedded(_places):
    """A SQLite file: for what does not depend on the engine."""
    yield from _places.lend("sqlite")


@pytest.fixture
def tool(place, tmp_path):
    """`holdfast` on the command line, with HOLDFAST_URL set; whatever it started is ended with the test."""
    with Tool(place.url, tmp_path) as tool:
        yield tool


@pytest.fixture
def local(embedded, tmp_path):
    """The same on a SQLite file."""
    with Tool(embedded.url, tmp_path) as tool:
        yield tool
