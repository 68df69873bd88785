"""Fixtures for pytest: clients, engines, worker processes, pause points and a history.

The fixtures clean up what a test started, however the test ends: processes, servers, files, armed pause points. A test
run that uses no fixture of this plugin pays nothing for it: this module imports no other module of Holdfast before
that. The wheel `holdfast` alone is enough for clients and `holdfast_engine`; the others need `holdfast-conformance`.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, cast

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from holdfast.aio import Holdfast as AsyncHoldfast
    from holdfast.blocking import Holdfast
    from holdfast.testing.history import History
    from holdfast.testing.pause_points import PausePoints
    from holdfast.testing.processes import WorkerProcesses
    from holdfast.testing.servers import Server


ENGINES = ("memory", "sqlite", "file", "redis")


@dataclass(frozen=True, slots=True)
class EngineUnderTest:
    """An engine for one test: `engine` is its name, `url` an empty place, `server` the server of `redis`."""

    engine: str
    url: str
    server: Server | None = None


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options of the conformance suite, `holdfast.testing.conformance`."""
    group = parser.getgroup("holdfast", "laws of Holdfast: pytest --pyargs holdfast.testing.conformance")
    group.addoption(
        "--holdfast-url",
        action="append",
        default=[],
        metavar="URL",
        help="run the laws on this engine; {unique} and {folder} in the URL are fresh for every test; repeatable",
    )
    group.addoption(
        "--holdfast-unusable-url",
        action="append",
        default=[],
        metavar="URL",
        help="a URL of a place that the engine cannot use, for the laws about such places; repeatable",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker, for projects that refuse unknown markers, and the fixture for pytest-asyncio."""
    config.addinivalue_line("markers", "holdfast_engines(*engines): the engines of holdfast_engine; all without it")
    if config.pluginmanager.hasplugin("asyncio"):  # it is loaded already, so the import is free
        import pytest_asyncio

        fixtures = ModuleType("holdfast_asyncio_fixtures")
        setattr(fixtures, _ASYNCIO, pytest_asyncio.fixture(_new_connect(), name=_ASYNCIO))
        config.pluginmanager.register(fixtures)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that uses `holdfast_engine` once on each engine, or on each that its marker names."""
    if "holdfast_engine" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("holdfast_engines")
        metafunc.parametrize("holdfast_engine", marker.args if marker else ENGINES, indirect=True)


@pytest.fixture
def holdfast_url() -> str:
    """The URL of the client fixtures: by default an empty memory engine. A project may override this fixture."""
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def holdfast_client(holdfast_url: str) -> Iterator[Holdfast]:
    """A client of the blocking face, closed after the test."""
    from holdfast import connect

    client = connect(holdfast_url)
    yield client
    client.close(0)


def _new_connect() -> Callable[[str], AsyncIterator[AsyncHoldfast]]:
    """Return a new function for each plugin that runs coroutines: each marks its own, and runs it in its own loop."""

    async def client(holdfast_url: str) -> AsyncIterator[AsyncHoldfast]:
        import asyncio

        from holdfast.aio import connect

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pytest.fail("holdfast_aio_client needs asyncio: the fixture anyio_backend must return 'asyncio'")
        client = await connect(holdfast_url)
        yield client
        await client.close(0)

    return client


_ANYIO, _ASYNCIO = "_holdfast_anyio_client", "_holdfast_asyncio_client"
_anyio_client = pytest.fixture(_new_connect(), name=_ANYIO)


@pytest.fixture
def holdfast_aio_client(request: pytest.FixtureRequest) -> AsyncHoldfast:
    """A client of the asyncio face in the event loop of the test, closed after the test."""
    if "anyio_backend" in request.fixturenames:
        return cast("AsyncHoldfast", request.getfixturevalue(_ANYIO))
    if request.node.get_closest_marker("asyncio"):
        return cast("AsyncHoldfast", request.getfixturevalue(_ASYNCIO))
    pytest.fail(
        "holdfast_aio_client needs an event loop: write the test as `async def`, and mark it with @pytest.mark.anyio "
        "(pip install anyio) or @pytest.mark.asyncio (pip install pytest-asyncio)",
        pytrace=False,
    )


@pytest.fixture
def holdfast_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EngineUnderTest]:
    """An empty engine for this test: `.engine`, `.url`, and on Redis `.server`, which a test may freeze or kill."""
    name = request.param
    folder = tmp_path / "engine"
    folder.mkdir()
    if name == "redis":
        from holdfast.testing import servers

        kind = next(iter(servers.available()), None)
        if kind is None:
            pytest.skip(servers.missing())
        with servers.Server(kind, appendonly=True) as server:
            yield EngineUnderTest(name, server.url, server)
        return
    urls = {
        "memory": f"memory://{folder.parent.name}",
        "sqlite": f"sqlite://{folder}/leases.db",
        "file": f"file://{folder}",
    }
    if name not in urls:
        raise pytest.UsageError(f"there is no engine {name!r} for tests; there are {', '.join(ENGINES)}")
    yield EngineUnderTest(name, urls[name])


@pytest.fixture
def holdfast_history(tmp_path: Path) -> Iterator[History]:
    """A history file of this test: `.path` for its workers, `.recorder(worker)`, `.read()`."""
    from holdfast.testing import History

    with History(tmp_path / "history.jsonl") as history:
        yield history


@pytest.fixture
def holdfast_workers() -> Iterator[WorkerProcesses]:
    """The worker processes of this test: `.start("package.module:function", **arguments)`."""
    from holdfast.testing import WorkerProcesses

    with WorkerProcesses() as workers:
        yield workers


@pytest.fixture
def holdfast_pauses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PausePoints]:
    """Pause points for the children of this test; points armed in this process are disarmed at its end."""
    from holdfast import failpoints
    from holdfast.testing import PausePoints

    points = PausePoints(tmp_path / "pauses")
    for variable, directory in points.env.items():
        monkeypatch.setenv(variable, directory)
    yield points
    failpoints.disarm_all()
