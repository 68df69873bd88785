"""The demonstration ends in time, its history is checked, and the check can fail."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.demo.summary import violations_in
from holdfast.demo.worker import LOCK
from holdfast.testing import HistoryEvent, eventually

LONGEST_S = 30
DEMO = [sys.executable, "-m", "holdfast.demo"]
TOOL = [sys.executable, "-m", "holdfast", "demo"]
CHECKERS = {"overlapping_holders", "fences_grow", "guarded_writes_never_go_down", "lost_updates",
            "observers_see_fences_grow", "leaks"}  # fmt: skip


class Run:
    """One run of the demonstration, as a user starts it."""

    def __init__(self, *arguments, start=DEMO, stdout=subprocess.PIPE, env=None):
        self.began = time.monotonic()
        kept = {key: value for key, value in os.environ.items() if key != "HOLDFAST_URL"}
        self.process = subprocess.Popen(
            [*start, *arguments],
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            env={**kept, **(env or {})},
            start_new_session=True,
        )

    def finish(self):
        """Wait for its end."""
        self.out, self.err = self.process.communicate(timeout=LONGEST_S)
        self.seconds = time.monotonic() - self.began
        return self


@pytest.fixture(scope="module")
def runs():
    """Start all at the same time, since each takes a dozen seconds. Two of them start as `holdfast demo`."""
    terminal, screen = pty.openpty()
    both = {
        "guarded": Run("--json", start=TOOL),
        "unguarded": Run("--json", "--without-guard"),
        "terminal": Run(stdout=screen, env={"TERM": "xterm", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}),
        "lines": Run(start=TOOL),
    }
    os.close(screen)
    try:
        shown = drained(terminal)
        finished = {name: run.finish() for name, run in both.items()}
        finished["terminal"].out = shown
        yield finished
    finally:
        os.close(terminal)
        for run in both.values():
            run.process.kill()
            run.process.wait()


def drained(terminal):
    """Return all output of a terminal until its last writer has ended."""
    shown = b""
    until = time.monotonic() + LONGEST_S
    ready = select.poll()  # select() knows no descriptor beyond 1,023
    ready.register(terminal, select.POLLIN)
    while time.monotonic() < until and ready.poll(LONGEST_S * 1000):
        try:
            shown += os.read(terminal, 65536)
        except OSError:
            break
    return shown.decode()


def processes_that_mention(text):
    """Return the pids of processes with the text in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if text.encode() in command:
                found.append(int(entry.name))
    return found


def test_the_demonstration_shows_every_fault_and_no_violation(runs):
    """The run has a death and a freeze, takes under half a minute, and violates no promise."""
    run = runs["guarded"]
    summary = json.loads(run.out)

    assert (run.process.returncode, run.err) == (0, "")
    assert run.seconds < LONGEST_S
    assert (summary["killed"], summary["frozen"], summary["violations"]) == (1, 1, 0)
    assert summary["refused"] >= 1
    assert summary["lost"] >= 1
    assert set(summary["checked"]) == CHECKERS
    assert summary["counter"] - summary["accepted"] in {0, 1}
    assert summary["takeover_after_kill_ms"] < 2000
    assert 1500 < summary["takeover_after_freeze_ms"] < 5000


def test_without_the_guard_the_violation_is_reported(runs):
    """A check that cannot fail proves nothing: without the fence at the resource an update is lost."""
    run = runs["unguarded"]
    summary = json.loads(run.out)

    assert run.process.returncode == 1
    assert summary["refused"] == 0
    assert summary["violations"] > 0
    assert any(line.startswith("guarded_writes_never_go_down") for line in summary["report"])
    assert any(line.startswith("lost_updates") for line in summary["report"])


def test_a_terminal_gets_a_table_without_colour_if_no_color_is_set(runs):
    """The table is redrawn in its place, and the terminal is restored."""
    run = runs["terminal"]

    assert run.process.returncode == 0
    assert "\x1b[?25l" in run.out
    assert run.out.count("\x1b[?25h") == 1
    assert "▒" in run.out
    assert "was refused: Fenced" in run.out
    assert "LeaseLost" in run.out
    assert "\x1b[3" not in run.out.replace("\x1b[?", "")
    assert " 0  violations" in run.out


def test_a_pipe_gets_plain_lines_of_events(runs):
    """A log needs lines, not pictures."""
    run = runs["lines"]

    assert run.process.returncode == 0
    assert "5 processes, 1 lock" in run.out
    assert "\x1b" not in run.out
    for part in ("was killed (SIGKILL)", "was frozen (SIGSTOP)", "after the kill", "Fenced", "LeaseLost"):
        assert part in run.out
    assert all(len(line) <= 80 for line in run.out.splitlines())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "terminated"])
def test_an_interrupted_demonstration_leaves_no_process(tmp_path, number):
    """After Ctrl-C or TERM no worker continues."""
    run = Run("--url", f"sqlite://{tmp_path}/leases.db")
    eventually(lambda: len(processes_that_mention(str(tmp_path))) >= 6, 10, "the workers to run")

    run.process.send_signal(number)
    run.finish()

    assert run.process.returncode == 130
    assert processes_that_mention(str(tmp_path)) == []
    assert "Traceback" not in run.err


def test_an_engine_of_process_scope_is_refused():
    """Five processes that share nothing would show nothing."""
    run = Run("--url", "memory://").finish()

    assert run.process.returncode == 1
    assert "one process" in run.err


def event(kind, worker, at_ms, **facts):
    """Return an event of a history."""
    return HistoryEvent(at_ns=at_ms * 1_000_000, pid=1, worker=worker, kind=kind, name=LOCK, **facts)


def test_a_frozen_claim_ends_with_the_trusted_deadline():
    """A frozen holder cannot record its end: its claim ends at its trusted deadline, and not before."""
    frozen = event("granted", "ann", 0, fence=1, token="a", until_ns=1_900_000_000)
    successor = event("granted", "bob", 2000, fence=2, token="b")
    woken = event("lost", "ann", 3000, fence=1, token="a")

    assert violations_in([frozen, successor, woken], counter=0) == []
    (overlap,) = violations_in([frozen, replace(successor, at_ns=1_800_000_000), woken], counter=0)
    assert overlap.checker == "overlapping_holders"


def test_the_last_value_of_the_counter_is_part_of_the_check():
    """An accepted update that is missing from the counter was lost."""
    first = event("write", "ann", 1, fence=1, token="a", value=1, accepted=True)
    second = event("write", "ann", 2, fence=1, token="a", value=2, accepted=True)

    assert violations_in([first, second], counter=2) == []
    assert [each.checker for each in violations_in([first, second], counter=1)] == ["lost_updates"]
