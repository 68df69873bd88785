"""Fixtures for pytest: engines, processes, faults, pause points and a history.

The rule: what a test started is gone when it ends, however it ends: processes, servers, files, armed points. Whoever
does not use a fixture pays nothing for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast import failpoints
from holdfast.testing.history import History
from holdfast.testing.points import PausePoints
from holdfast.testing.processes import Workers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.testing.faults import Faults
    from holdfast.testing.places import Place

ENGINES = ("memory", "sqlite", "file", "redis")


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known, also where unknown ones are refused."""
    config.addinivalue_line("markers", "holdfast_engines(*engines): where holdfast_engine is to be; all without it")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for an engine runs once on each: on all, or on those that it names with the marker."""
    if "holdfast_engine" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("holdfast_engines")
        metafunc.parametrize("holdfast_engine", marker.args if marker else ENGINES, indirect=True)


@pytest.fixture
def holdfast_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A fresh place for leases: `.url(worker)`, `.engine`; on Redis also `.server` and `.link(worker)`."""
    from holdfast.testing.places import open_place  # noqa: PLC0415 - only for tests that break servers

    try:
        place = open_place(request.param, tmp_path / "engine")
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    with place:
        yield place


@pytest.fixture
def holdfast_faults(request: pytest.FixtureRequest, holdfast_history: History) -> Faults:
    """Breaks workers, links, clocks and the engine of this test, and writes that into its history."""
    from holdfast.testing.faults import Faults  # noqa: PLC0415 - as above

    place = request.getfixturevalue("holdfast_engine") if "holdfast_engine" in request.fixturenames else None
    return Faults(holdfast_history.recorder("faults"), place)


@pytest.fixture
def holdfast_history(tmp_path: Path) -> Iterator[History]:
    """A history file of this test: `.path` for its workers, `.recorder(worker)`, `.read()`."""
    with History(tmp_path / "history.jsonl") as history:
        yield history


@pytest.fixture
def holdfast_workers() -> Iterator[Workers]:
    """The workers of this test: `.start("package.module:function", **arguments)`."""
    with Workers() as workers:
        yield workers


@pytest.fixture
def holdfast_pauses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PausePoints]:
    """Pause points for the children of this test; points armed in this process are disarmed at its end."""
    points = PausePoints(tmp_path / "pauses")
    for variable, directory in points.env.items():
        monkeypatch.setenv(variable, directory)
    yield points
    failpoints.disarm_all()
