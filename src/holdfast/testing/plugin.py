"""Fixtures for pytest.

The rule: what a test started is gone when it ends, however it ends: processes, files, armed points.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast import pauses
from holdfast.testing.history import History
from holdfast.testing.points import PausePoints
from holdfast.testing.processes import Workers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


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
    pauses.disarm_all()
