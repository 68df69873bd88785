"""Pause points cost nothing when off, and stop exactly at their place when on."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from holdfast import failpoints

CLIENTS = Path(__file__).with_name("clients.py")


@pytest.fixture(autouse=True)
def _leave_nothing_armed():
    yield
    failpoints.disarm_all()


def test_an_unarmed_point_reads_one_boolean(monkeypatch):
    """Points are in hot code, so that an unarmed one must not even look up its name."""
    monkeypatch.setattr(failpoints, "_reach", lambda name: pytest.fail(f"looked for {name}"))

    failpoints.point("anywhere")


def test_an_armed_point_calls_back_each_time_and_only_its_own(monkeypatch):
    """A test stops exactly the step that it names."""
    calls = []
    failpoints.arm("here", lambda: calls.append("here"))

    failpoints.point("there")
    failpoints.point("here")
    failpoints.point("here")

    assert calls == ["here", "here"]


def test_a_disarmed_point_is_free_again(monkeypatch):
    """The last disarm turns the switch off; an earlier one leaves the others armed."""
    calls = []
    failpoints.arm("a", lambda: calls.append("a"))
    failpoints.arm("b", lambda: calls.append("b"))
    failpoints.disarm("a")
    failpoints.disarm("never armed")

    failpoints.point("a")
    failpoints.point("b")
    failpoints.disarm("b")
    monkeypatch.setattr(failpoints, "_reach", lambda name: pytest.fail(f"looked for {name}"))
    failpoints.point("b")

    assert calls == ["b"]


def test_an_error_of_the_callback_reaches_the_caller():
    """A test can make a step fail, not only wait."""

    def fail():
        raise ConnectionResetError

    failpoints.arm("here", fail)

    with pytest.raises(ConnectionResetError):
        failpoints.point("here")


def test_a_child_stops_at_an_armed_point_until_it_may_go(holdfast_workers, holdfast_pauses, tmp_path):
    """Two processes are brought into one exact order, without a sleep."""
    holdfast_pauses.arm("step.two")
    worker = holdfast_workers.start(f"{CLIENTS}:pass_point", name="step.two", mark=tmp_path / "mark")

    pid = holdfast_pauses.wait_reached("step.two")
    with pytest.raises(TimeoutError):
        worker.wait_ready().read_line(timeout=0.05)
    marked_before = (tmp_path / "mark").exists()
    holdfast_pauses.go("step.two")

    assert (pid, marked_before) == (worker.pid, False)
    assert worker.read_line() == "passed"


def test_a_child_killed_at_a_point_never_does_what_comes_after(holdfast_workers, holdfast_pauses, tmp_path):
    """This is how a crash between two steps is tested."""
    holdfast_pauses.arm("step.two")
    worker = holdfast_workers.start(f"{CLIENTS}:pass_point", name="step.two", mark=tmp_path / "mark")

    holdfast_pauses.wait_reached("step.two")
    code = worker.kill()
    holdfast_pauses.go("step.two")

    assert code == -signal.SIGKILL
    assert not (tmp_path / "mark").exists()


def test_a_point_without_its_file_does_not_stop_a_child(holdfast_workers, holdfast_pauses, tmp_path):
    """The directory alone arms nothing: only a named point waits."""
    holdfast_pauses.arm("step.three")
    holdfast_pauses.arm("step.two")
    holdfast_pauses.disarm("step.two")
    worker = holdfast_workers.start(f"{CLIENTS}:pass_point", name="step.two", mark=tmp_path / "mark")

    assert worker.wait_ready().read_line() == "passed"


def test_one_child_can_be_left_out(holdfast_workers, holdfast_pauses, tmp_path):
    """An empty variable turns the points off for one worker, while the others stop."""
    holdfast_pauses.arm("step.two")
    worker = holdfast_workers.start(
        f"{CLIENTS}:pass_point", env={failpoints.VARIABLE: ""}, name="step.two", mark=tmp_path / "mark"
    )

    assert worker.wait_ready().read_line() == "passed"


def test_arming_again_stops_the_next_child_too(holdfast_workers, holdfast_pauses, tmp_path):
    """Files of an earlier round must not let the next child pass."""
    for number in range(2):
        holdfast_pauses.arm("step.two")
        mark = tmp_path / f"mark{number}"
        worker = holdfast_workers.start(f"{CLIENTS}:pass_point", name="step.two", mark=mark)

        assert holdfast_pauses.wait_reached("step.two") == worker.pid
        assert not mark.exists()
        holdfast_pauses.go("step.two")
        assert worker.wait_ready().read_line() == "passed"
