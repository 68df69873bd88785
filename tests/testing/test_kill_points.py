"""A piece of work is killed at each of its lines, once, and then survives."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

from holdfast.testing import send_line
from tests.support.kill_points import in_child, killed_at_every_line

STEPS = """
def work(log):
    log.write_text("one")
    log.write_text("two")
    log.write_text("three")
"""


def die(folder, step):
    """Report what the work had done when it was killed, for each kill."""
    sys.path.insert(0, folder)
    steps = importlib.import_module("deadly_steps")
    log = Path(folder) / "log"
    found = []
    for line in killed_at_every_line(lambda: steps.work(log), steps, step=step):
        found.append([line, log.read_text() if log.exists() else ""])
        log.unlink(missing_ok=True)
    send_line(json.dumps({"found": found, "end": log.read_text()}))


def fail():
    """Report the error of work that fails by itself."""
    for run in (lambda: next(killed_at_every_line(lambda: 1 / 0, json)), lambda: in_child(lambda: 1 / 0)):
        try:
            run()
        except RuntimeError as error:
            send_line(str(error))


@pytest.mark.parametrize(("step", "deaths"), [(1, [[1, ""], [2, "one"], [3, "two"]]), (2, [[1, ""], [3, "two"]])])
def test_the_work_is_killed_before_each_line_and_then_survives(holdfast_workers, tmp_path, step, deaths):
    """The lines before the kill point have run, the others have not; with `step`, at every so many lines."""
    (tmp_path / "deadly_steps.py").write_text(STEPS)
    worker = holdfast_workers.start(f"{__file__}:die", folder=str(tmp_path), step=step)

    assert json.loads(worker.read_line(20)) == {"found": deaths, "end": "three"}


def test_work_that_fails_by_itself_is_an_error(holdfast_workers):
    """Otherwise the failure would count as a kill, and show nothing."""
    worker = holdfast_workers.start(f"{__file__}:fail")

    assert "by itself, before line 1" in worker.read_line(20)
    assert worker.read_line(20) == "the work ended with 1"
