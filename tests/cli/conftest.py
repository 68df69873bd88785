"""Fixtures: the tool as a process of its own, on a SQLite file and on a real server."""

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


@pytest.fixture(params=["sqlite", "file", *KINDS[1:]])
def every_tool(request, _places, tmp_path):
    """`holdfast` on every engine that processes share, also on a shared directory."""
    with contextmanager(_places.lend)(request.param) as place, Tool(place, tmp_path) as tool:
        yield tool


@pytest.fixture(params=KINDS)
def place(request, _places):
    """The engine of this test: a new file, or an emptied server of this session."""
    yield from _places.lend(request.param)


@pytest.fixture
def embedded(_places):
    """A SQLite file, for tests that do not depend on the engine."""
    yield from _places.lend("sqlite")


@pytest.fixture
def tool(place, tmp_path):
    """`holdfast` on the command line, with HOLDFAST_URL set; its processes end with the test."""
    with Tool(place, tmp_path) as tool:
        yield tool


@pytest.fixture
def tools(_places, tmp_path):
    """One tool for every engine, for laws that run on all of them at the same time: see `together`."""
    with ExitStack() as open_:
        places = [open_.enter_context(contextmanager(_places.lend)(kind)) for kind in KINDS]
        yield [open_.enter_context(Tool(place, tmp_path / place.kind)) for place in places]


@pytest.fixture
def local(embedded, tmp_path):
    """`holdfast` on a SQLite file."""
    with Tool(embedded, tmp_path) as tool:
        yield tool
