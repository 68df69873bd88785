"""The runner: which worker a fault of a role affects."""

from __future__ import annotations

import pytest

from chaos.rounds import Round
from chaos.runner import RoundRunner
from chaos.schedule import HOLDER, WAITER


class Alive:
    """A worker that runs and does nothing."""

    alive = True


@pytest.fixture
def runner(tmp_path):
    runner = RoundRunner(Round(1, "sqlite", "blocking", "counter"), tmp_path)
    runner.workers = dict.fromkeys(("w0", "w1", "w2"), Alive)
    yield runner
    runner._close()


def tell(runner, worker, kind):
    runner._history.recorder(worker).record(kind, "campaign")
    runner._follow()


def test_a_fault_for_the_holder_finds_the_last_that_was_granted(runner):
    """A frozen worker still believes that it holds; its successor does hold."""
    tell(runner, "w0", "granted")
    assert runner._aim(HOLDER) == "w0"

    tell(runner, "w2", "granted")
    assert runner._aim(HOLDER) == "w2"

    tell(runner, "w2", "released")
    assert runner._aim(HOLDER) == "w0"


def test_a_fault_for_a_waiter_finds_the_one_that_is_next(runner):
    """The next waiter gets the offer."""
    tell(runner, "w2", "requested")
    tell(runner, "w1", "requested")
    tell(runner, "w2", "waiting")

    assert runner._aim(WAITER) == "w2"
    assert runner._aim("w1") == "w1"


def test_a_worker_has_one_fault_at_a_time(runner):
    """The effects of two faults on one worker could not be distinguished."""
    tell(runner, "w2", "requested")
    runner._busy = {"w2", "w0"}
    assert runner._aim(WAITER) == "w1"

    runner._busy.add("w1")
    assert runner._aim(WAITER) is None
