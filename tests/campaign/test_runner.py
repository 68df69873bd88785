"""The stage: whom a fault finds when it aims at a role."""

from __future__ import annotations

import pytest

from chaos.rounds import Round
from chaos.runner import RoundRunner
from chaos.schedule import HOLDER, WAITER


class Alive:
    """A worker that is there, and does nothing."""

    alive = True


@pytest.fixture
def stage(tmp_path):
    stage = RoundRunner(Round(1, "sqlite", "blocking", "counter"), tmp_path)
    stage.workers = dict.fromkeys(("w0", "w1", "w2"), Alive)
    yield stage
    stage._close()


def tell(stage, worker, kind):
    stage._history.recorder(worker).record(kind, "campaign")
    stage._follow()


def test_a_fault_for_the_holder_finds_the_last_that_was_granted(stage):
    """One that was frozen still believes that it holds; whoever came after it does."""
    tell(stage, "w0", "granted")
    assert stage._aim(HOLDER) == "w0"

    tell(stage, "w2", "granted")
    assert stage._aim(HOLDER) == "w2"

    tell(stage, "w2", "released")
    assert stage._aim(HOLDER) == "w0"


def test_a_fault_for_a_waiter_finds_the_one_that_is_next(stage):
    """What is offered is offered to it."""
    tell(stage, "w2", "requested")
    tell(stage, "w1", "requested")
    tell(stage, "w2", "waiting")

    assert stage._aim(WAITER) == "w2"
    assert stage._aim("w1") == "w1"


def test_nobody_is_struck_twice_at_a_time(stage):
    """Two faults on one worker would be one that nobody can tell apart."""
    tell(stage, "w2", "requested")
    stage._busy = {"w2", "w0"}
    assert stage._aim(WAITER) == "w1"

    stage._busy.add("w1")
    assert stage._aim(WAITER) is None
