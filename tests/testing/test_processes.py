"""Workers: real processes, real signals, nothing left behind."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from holdfast.testing import WorkerProcess, WorkerProcesses, eventually, kernel, ready

CLIENTS = Path(__file__).with_name("clients.py")


def sizes(*paths):
    return [path.stat().st_size for path in paths]


def descriptors():
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def state_of(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


def test_a_frozen_worker_does_nothing_in_any_thread_until_thawed(holdfast_workers, tmp_path):
    """A test that freezes a holder must be sure that not one more write comes."""
    worker = holdfast_workers.start(f"{CLIENTS}:beat", path=tmp_path / "beat", threads=4).wait_ready()
    files = [tmp_path / f"beat.{number}" for number in range(4)]
    eventually(lambda: all(path.exists() for path in files) and all(sizes(*files)))

    worker.freeze()
    states = kernel.states(worker.pid)
    before = sizes(*files)
    time.sleep(0.05)
    after = sizes(*files)
    worker.thaw()

    assert states == ["T"] * 5
    assert after == before
    assert worker.alive
    eventually(lambda: all(now > then for now, then in zip(sizes(*files), before, strict=True)))


def test_freezing_reaches_grandchildren(holdfast_workers, tmp_path):
    """A holder that runs a program is frozen together with the program."""
    worker = holdfast_workers.start(f"{CLIENTS}:beat_in_grandchild", path=str(tmp_path / "beat"))
    grandchild = int(worker.read_line())

    worker.freeze()

    assert state_of(grandchild) == "T"


def test_killing_reaches_all_grandchildren_before_it_returns(holdfast_workers):
    """Otherwise a killed worker's programs would go on writing into the next test."""
    worker = holdfast_workers.start(f"{CLIENTS}:fork_many", count=60)
    grandchildren = worker.read_line().split()

    code = worker.kill()

    assert code == -signal.SIGKILL
    assert {state_of(pid) for pid in grandchildren} <= {"Z", "X", "gone"}


def test_a_frozen_worker_can_be_killed(holdfast_workers):
    """A test that fails while a worker is frozen must still be able to clean up."""
    worker = holdfast_workers.start(f"{CLIENTS}:wait_forever").wait_ready()
    worker.freeze()

    assert worker.kill() == -signal.SIGKILL
    assert worker.kill() == -signal.SIGKILL
    assert not worker.alive


def test_an_interrupt_is_heard_even_if_the_parent_ignores_it(holdfast_workers):
    """A shell starts background jobs with SIGINT ignored, and exec passes that on."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        worker = holdfast_workers.start(f"{CLIENTS}:wait_for_interrupt").wait_ready()
    finally:
        signal.signal(signal.SIGINT, before)

    worker.interrupt()

    assert worker.read_line() == "interrupted"
    assert worker.wait() == 0


def test_a_terminated_worker_ends_by_that_signal(holdfast_workers):
    """The exit code distinguishes SIGTERM from a kill."""
    worker = holdfast_workers.start(f"{CLIENTS}:wait_forever").wait_ready()

    worker.terminate()

    assert worker.wait() == -signal.SIGTERM


def test_the_exit_code_of_a_worker_is_its_own(holdfast_workers):
    """Programs under a lease report by their exit codes."""
    worker = holdfast_workers.start(f"{CLIENTS}:leave", code=7)

    assert worker.wait() == 7
    assert worker.output() == "goodbye\n"


def test_waiting_for_a_worker_that_stays_ends_in_time(holdfast_workers):
    """A test that hangs says less than one that fails."""
    worker = holdfast_workers.start(f"{CLIENTS}:wait_forever").wait_ready()

    with pytest.raises(TimeoutError, match="to end"):
        worker.wait(timeout=0.02)


def test_an_ended_worker_keeps_its_pid_until_it_is_closed(holdfast_workers):
    """Otherwise a late signal could hit another process with the same pid."""
    worker = holdfast_workers.start(f"{CLIENTS}:leave", code=0)
    worker.wait()

    state = state_of(worker.pid)
    worker.close()

    assert state == "Z"
    assert not Path(f"/proc/{worker.pid}").exists()


@pytest.mark.parametrize("signalling", ["freeze", "thaw", "interrupt", "terminate"])
def test_a_dead_worker_gets_no_signal(holdfast_workers, signalling):
    """A test that signals a dead worker has a mistake, and the error shows it."""
    worker = holdfast_workers.start(f"{CLIENTS}:leave", code=0)
    worker.wait()

    with pytest.raises(ProcessLookupError):
        getattr(worker, signalling)()


def test_lines_travel_both_ways_whole_and_in_order(holdfast_workers):
    """Test and worker rely on answers that cannot be cut or swapped."""
    worker = holdfast_workers.start(f"{CLIENTS}:echo")
    said = ["one", "", "two words", "ü" * 50_000]

    for line in said:
        worker.send_line(line)

    assert [worker.read_line() for _ in said] == [line.upper() for line in said]


def test_a_line_break_inside_a_line_is_refused(holdfast_workers):
    """It would arrive as two lines, and every later answer would be off by one."""
    worker = holdfast_workers.start(f"{CLIENTS}:echo")

    with pytest.raises(ValueError, match="line break"):
        worker.send_line("one\ntwo")


def test_a_crash_before_ready_is_shown_with_its_traceback(holdfast_workers):
    """Without the child's output, the cause would be unknown."""
    worker = holdfast_workers.start(f"{CLIENTS}:fail")

    with pytest.raises(EOFError, match="the cause of it all"):
        worker.wait_ready()


def test_a_line_other_than_ready_is_no_readiness(holdfast_workers):
    """A handshake that accepts any line would hide a child that is out of step."""
    worker = holdfast_workers.start(f"{CLIENTS}:echo")
    worker.send_line("not yet")

    with pytest.raises(ValueError, match="NOT YET"):
        worker.wait_ready()


def test_a_silent_worker_runs_into_the_timeout(holdfast_workers):
    """The caller chooses how long to wait."""
    worker = holdfast_workers.start(f"{CLIENTS}:wait_forever").wait_ready()

    with pytest.raises(TimeoutError):
        worker.read_line(timeout=0.02)


def test_a_function_can_be_named_by_its_module(holdfast_workers):
    """Installed code needs no path."""
    holdfast_workers.start("holdfast.testing.child_process:ready").wait_ready()


def test_readiness_makes_sense_in_a_worker_only():
    """Called elsewhere it is a mistake, and raises."""
    with pytest.raises(RuntimeError, match="not a worker"):
        ready()


def test_leaving_the_block_leaves_nothing_behind():
    """No process, no zombie, no descriptor: whatever the worker was doing."""
    before = descriptors()
    with WorkerProcesses() as workers:
        busy, frozen, ended = (
            workers.start(f"{CLIENTS}:wait_forever").wait_ready(),
            workers.start(f"{CLIENTS}:wait_forever").wait_ready(),
            workers.start(f"{CLIENTS}:leave", code=0),
        )
        frozen.freeze()
        ended.wait()

    assert descriptors() == before
    assert [Path(f"/proc/{worker.pid}").exists() for worker in (busy, frozen, ended)] == [False] * 3
    assert ended.output() == "goodbye\n"


def test_a_worker_that_cannot_start_leaves_no_descriptor(monkeypatch):
    """A failing start must not make the next test run out of descriptors."""
    before = descriptors()
    monkeypatch.setattr("sys.executable", "/nonexistent/python")

    with pytest.raises(FileNotFoundError):
        WorkerProcess("time:sleep")

    assert descriptors() == before


def test_closing_twice_changes_nothing(holdfast_workers):
    """A worker may be closed by a test and again by its fixture."""
    worker = holdfast_workers.start(f"{CLIENTS}:wait_forever").wait_ready()

    worker.close()
    worker.close()
