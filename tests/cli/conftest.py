"""The tool as people use it: a process of its own, on a SQLite file and on a real server."""

from contextlib import ExitStack, contextmanager

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
    with Tool(place, tmp_path) as tool:
        yield tool


@pytest.fixture
def tools(_places, tmp_path):
    """One on every engine, for laws that are tried everywhere at the same time: see `together`."""
    with ExitStack() as open_:
        places = [open_.enter_context(contextmanager(_places.lend)(kind)) for kind in KINDS]
        yield [open_.enter_context(Tool(place, tmp_path / place.kind)) for place in places]


@pytest.fixture
def local(embedded, tmp_path):
    """The same on a SQLite file."""
    with Tool(embedded, tmp_path) as tool:
        yield tool
