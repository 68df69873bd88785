"""`holdfast run` on bad days: whatever is killed or frozen, the program ends before anybody else may hold the lease."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from cli_tool import BEATING, HOLDFAST, alive, eventually, everywhere, together

from holdfast.cli import run as run_package
from holdfast.cli.run.guard import Guard
from holdfast.cli.run.watcher import now_ns
from holdfast.testing import PausePoints
from holdfast.testing.servers import missing
from tests.support.proxy import Proxy

TTL_S = 2
NS = 1_000_000_000


def last_beat(tool, fence):
    return tool.beats()[fence][-1]


@together
def test_a_killed_parent_frees_nothing_while_the_program_runs(tool):
    """The embedded engine sees a death at once: here it must not be fooled. The watcher ends the program politely."""
    run = tool.beating("x", manner=["slow", "0.3"], ttl=3)
    fence = tool.until_beating()
    program, watcher = run.program, run.watcher
    rival = tool.beating("x", seconds=0.2, ttl=3)
    eventually(lambda: tool.client().show("x").waiters, what="a rival in the queue")

    killed_ns = time.monotonic_ns()
    run.send(signal.SIGKILL)
    assert rival.end().code == 0

    assert tool.assert_never_two() == 2
    assert last_beat(tool, fence) > killed_ns + 0.25 * NS, "it had no time to settle"
    assert last_beat(tool, fence) < killed_ns + 2 * NS, "it was not told at once"
    eventually(lambda: not alive(program) and not alive(watcher), what="an end of both")


@together
def test_a_program_that_outlives_parent_and_watcher_keeps_the_lease_for_its_ttl(tool):
    """Both killed: nobody can end the program any more. Its lease is not taken for a dead one's before the ttl."""
    run = tool.beating("x", ttl=4)
    tool.until_beating()
    watcher, program = run.watcher, run.program
    rival = tool.beating("x", seconds=0.1, ttl=4)
    eventually(lambda: tool.client().show("x").waiters, what="a rival in the queue")

    run.send(signal.SIGSTOP)  # or it would start another watcher
    os.kill(watcher, signal.SIGKILL)
    run.send(signal.SIGKILL)
    time.sleep(0.5)
    assert len(tool.beats()) == 1, "somebody took the lease of a program that runs"
    os.kill(program, signal.SIGTERM)

    assert rival.end().code == 0
    assert tool.assert_never_two() == 2


def test_a_frozen_parent_does_not_keep_the_program_alive(tools):
    """Nobody renews: TERM at the deadline less the grace, KILL before the deadline, whatever the program thinks."""

    def freeze(case):
        tool, manner = case
        run = tool.beating("x", manner=manner, ttl=TTL_S)
        fence = tool.until_beating()
        rival = tool.beating("x", seconds=0.2, ttl=TTL_S)
        eventually(lambda: tool.client().show("x").waiters, what="a rival in the queue")

        frozen_ns = time.monotonic_ns()
        run.send(signal.SIGSTOP)
        assert rival.end().code == 0
        run.send(signal.SIGCONT)
        run.end()

        assert tool.assert_never_two() == 2
        assert last_beat(tool, fence) < frozen_ns + TTL_S * NS
        assert run.code == 79
        assert b"was lost (expired)" in run.err
        assert f"signal {9 if manner else 15}".encode() in run.err

    everywhere(freeze, [(tools[0], []), (tools[-1], ["deaf"])])


@together
def test_a_run_inside_a_run_ends_before_the_lease_of_the_outer_one(tool):
    """The inner program is in a group of its own, where the outer watcher does not reach it; the inner watcher does."""
    inner = [*HOLDFAST, "run", "y", "--ttl", "30", "--", *BEATING, str(tool.book), "60", "deaf"]
    outer = tool.start("run", "x", "--ttl", str(TTL_S), "--", *inner)
    fence = tool.until_beating()

    frozen_ns = time.monotonic_ns()
    outer.send(signal.SIGSTOP)
    program = int(tool.book.read_text().split()[2])
    eventually(lambda: not alive(program), what="an end of the inner program")
    outer.send(signal.SIGCONT)

    assert outer.end().code == 79
    assert last_beat(tool, fence) < frozen_ns + TTL_S * NS


@together
def test_a_killed_watcher_is_replaced(tool):
    """The program is never without one for long: a parent frozen later does not keep it alive."""
    run = tool.beating("x", manner=["deaf"], ttl=TTL_S)
    fence = tool.until_beating()
    first = run.watcher
    os.kill(first, signal.SIGKILL)
    eventually(lambda: run.children()["watcher"] not in (None, first), what="another watcher")
    assert alive(run.program)

    frozen_ns = time.monotonic_ns()
    run.send(signal.SIGSTOP)
    rival = tool.beating("x", seconds=0.2, ttl=TTL_S).end()
    run.send(signal.SIGCONT)

    assert (rival.code, run.end().code) == (0, 79)
    assert last_beat(tool, fence) < frozen_ns + TTL_S * NS
    assert tool.assert_never_two() == 2


@together
def test_a_frozen_watcher_is_not_needed_when_the_parent_is_well(tool):
    """It harms nothing while frozen, nothing when it wakes, and does not outlive the program."""
    run = tool.beating("x", seconds=2.5, ttl=1)
    tool.until_beating()
    watcher = run.watcher
    os.kill(watcher, signal.SIGSTOP)
    time.sleep(1.5)  # longer than the ttl: what it knows when it wakes is old
    os.kill(watcher, signal.SIGCONT)
    time.sleep(0.2)
    os.kill(watcher, signal.SIGSTOP)

    assert run.end().code == 0
    assert not alive(watcher)


@together
def test_an_engine_that_is_gone_ends_the_program_in_time(tool):
    """Renewals fail until the deadline: the program ends before it, also one that is deaf and has no watcher."""
    watched = tool.beating("x", "--json", ttl=TTL_S)
    unwatched = tool.beating("y", "--json", manner=["deaf"], ttl=TTL_S)
    tool.until_beating(2)
    os.kill(unwatched.watcher, signal.SIGSTOP)
    programs = [watched.program, unwatched.program]

    with tool.place.unusable():
        gone_ns = time.monotonic_ns()
        eventually(lambda: not any(alive(program) for program in programs), what="an end of the programs")
        assert all(moments[-1] < gone_ns + TTL_S * NS for moments in tool.beats().values())

    for run, number in ((watched, signal.SIGTERM), (unwatched, signal.SIGKILL)):
        told = json.loads(run.end().err.splitlines()[-1])
        assert run.code == 79
        assert (told["outcome"], told["program"], told["signal"]) == ("lost", None, number)


@together
def test_a_broken_lease_ends_the_program_within_a_second_of_hearing(tool):
    """The holder reads why; a program that does not listen is killed. The next one has it under a larger fence."""
    run = tool.beating("x", "--grace", "2", manner=["slow", "60"], ttl=4)
    fence = tool.until_beating()

    done = tool("break", "x", "--reason", "by hand, for the test", "--yes")
    run.end()

    assert (done.code, run.code) == (0, 79)
    assert b"broken): by hand, for the test" in run.err
    heard_ns = int(tool.book.with_name("beats.term").read_text())
    assert last_beat(tool, fence) < heard_ns + 1.2 * NS
    assert tool.client().show("x").fence > fence


@together
def test_a_parent_that_wakes_too_late_starts_nothing(tool):
    """Frozen after the grant and before the program: the lease it had is somebody else's by then."""
    pauses = PausePoints(tool.folder / "pauses")
    pauses.arm("run.granted")
    late = tool.beating("x", env=pauses.env)
    pauses.wait_reached("run.granted")
    late.send(signal.SIGSTOP)
    pauses.go("run.granted")
    rival = tool.beating("x", seconds=0.2).end()
    late.send(signal.SIGCONT)

    assert (rival.code, late.end().code) == (0, 79)
    assert b"was lost (expired)" in late.err
    assert b"the program was not started" in late.err
    assert tool.assert_never_two() == 1


def test_a_program_that_cannot_be_watched_any_more_is_ended(local):
    """What was promised cannot be kept by the parent alone; it is said once. Nobody tries for ever, or without pause.

    The watchers are real, and end as they would where there is no memory for them.
    """
    file, begun = local.folder / "watcher.py", local.folder / "begun"
    file.write_text(Path(run_package.__file__).with_name("watcher.py").read_text())
    (local.folder / "sitecustomize.py").write_text(f"from holdfast.cli.run import guard; guard._FILE = {str(file)!r}")
    run = local.beating("x", manner=["slow", "0.5"], env={"PYTHONPATH": str(local.folder)}, ttl=20)
    local.until_beating()
    file.write_text(f"import time; print(time.monotonic(), file=open({str(begun)!r}, 'a'))")
    os.kill(run.watcher, signal.SIGKILL)
    run.end()

    assert run.code == 79
    assert run.err.count(b"died before they were ready; the program is ended") == 1
    moments = [float(moment) for moment in begun.read_text().split()]
    assert len(moments) == 5
    assert moments[4] - moments[3] > 0.7, "they were started one after the other without a pause"
    assert local.client().show("x").holder is None


def test_a_machine_without_room_for_another_watcher_is_told(local):
    """The system may have no process left to give, for a moment or for good: the reason is told."""
    (local.folder / "sitecustomize.py").write_text("""
import subprocess
from holdfast.cli.run import guard

def fail(*_, **__):
    raise BlockingIOError(11, "no more processes")

started = guard.Guard.start

def start(*words):
    started(*words)
    subprocess.Popen = fail

guard.Guard.start = start
""")
    run = local.beating("x", manner=["slow", "0.5"], env={"PYTHONPATH": str(local.folder)}, ttl=20)
    local.until_beating()
    os.kill(run.watcher, signal.SIGKILL)
    run.end()

    assert run.code == 79
    assert run.err.count(b"no more processes; the program is ended") == 1


def test_what_the_watcher_did_is_known_however_soon_the_program_has_died():
    """A parent that comes late finds it dead; without the watcher's word it would be told as an end of its own."""
    program = subprocess.Popen(["sleep", "60"], start_new_session=True)
    guard = Guard(program.pid, NS, 0, NS, None)
    try:
        guard.start(now_ns() + 2 * NS)  # so that it is told to end a second after this
        os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)
    finally:
        guard.end()
        program.kill()
        program.wait()

    assert program.returncode == -signal.SIGTERM
    assert guard.acted()


def test_nobody_who_reads_is_no_reason_to_lose_the_lease(tools):
    """Standard error may be a pipe that is full: what there is to say about a short outage must not stop renewals."""
    tool = tools[-1]
    if tool.place.kind == "sqlite":
        pytest.skip(missing())
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    with suppress(BlockingIOError):
        while os.write(writes, b"x" * 4096):
            pass
    os.set_blocking(writes, True)
    with Proxy("127.0.0.1", tool.place.server.port) as proxy:
        run = tool.beating("x", "--grace", "0.5", ttl=9, stderr=writes, env={"HOLDFAST_URL": proxy.url})
        fence = tool.until_beating()
        proxy.refuse()
        proxy.cut()
        client = tool.client()
        eventually(lambda: client.show("x").remaining < 5.5, what="a renewal that failed")  # it was due at 6
        proxy.accept()
        eventually(lambda: client.show("x").remaining > 8, what="a renewal")
        assert client.show("x").fence == fence
        run.send(signal.SIGTERM)
        assert run.process.wait(60) == 128 + signal.SIGTERM
    os.close(reads)
    os.close(writes)


def test_a_lease_that_could_not_be_given_back_is_told(tools):
    """The work is done and its code stands; but whoever comes next has to wait, and should know for how long."""

    def begin(tool, as_json):
        words = ["--json"] * as_json + ["--ttl", "20", "--", "sh", "-c", "echo ready; read line; exit 3"]
        run = tool.start("run", f"x/{as_json}", *words, stdin=subprocess.PIPE)
        assert run.process.stdout.readline() == b"ready\n"
        return run, as_json

    def ended(run, as_json):
        run.end()
        assert run.code == 3
        if as_json:
            told = json.loads(run.err)
            assert (told["outcome"], told["program"], told["given_back"]) == ("ended", 3, False)
        assert re.search(rb"could not be given back and ends by itself, within 20 s: engine \w+ is unavail", run.err)

    def away(tool):
        runs = [begin(tool, as_json) for as_json in (False, True)]
        with tool.place.unusable():
            for run, _ in runs:
                run.process.stdin.write(b"\n")
                run.process.stdin.flush()
            for run, as_json in runs:
                ended(run, as_json)

    everywhere(away, tools)


def test_the_program_itself_looks_at_the_clock_before_it_begins(tmp_path):
    """Between our last look and its first instruction we may be frozen; so the last look is its own.

    One that the watcher has ended at the gate has not begun, either: what it did need not be found out.
    """
    program = """
import os, sys
from holdfast.cli.run.program import Program
from holdfast.cli.run.watcher import now_ns

for file, left_s in zip(sys.argv[1:], (-0.001, 60, 0)):
    child = Program(["touch", file])
    if not left_s:
        os.kill(child.pid, 15)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    print(child.begin({}, None, now_ns() + int(left_s * 1e9)))
    child.reap()
"""
    files = [tmp_path / "late", tmp_path / "early", tmp_path / "dead"]
    told = subprocess.run([sys.executable, "-c", program, *files], capture_output=True, text=True, check=True)

    assert told.stdout.split() == ["False", "True", "False"]
    assert [file.exists() for file in files] == [False, True, False]


def hurt(run, luck):
    """Kill or freeze the parent or the watcher, at some moment of its life; what was frozen is woken later."""
    action, whom = luck.choice(["kill parent", "freeze parent", "kill watcher", "freeze watcher"]).split()
    until = time.monotonic() + luck.uniform(0, 1.5)
    while time.monotonic() < until and run.process.poll() is None:
        time.sleep(0.005)
    pid = run.children()["watcher"] if whom == "watcher" else run.pid
    with suppress(ProcessLookupError, TypeError):  # it has ended, or there is none yet
        os.kill(pid, signal.SIGKILL if action == "kill" else signal.SIGSTOP)
        if action == "freeze":
            time.sleep(luck.uniform(0.1, 1.3 * TTL_S))
            os.kill(pid, signal.SIGCONT)


@together
def test_faults_at_random_never_let_two_programs_run(tool):
    """Parents and watchers are killed and frozen at any moment, also while they start; the history shows no overlap."""

    def rival(seed):
        luck = random.Random(seed)
        for _ in range(2):
            manner = luck.choice([[], ["deaf"]])
            run = tool.beating("x", "--timeout", "20", seconds=luck.uniform(0.05, 1.0), manner=manner)
            hurt(run, luck)
            run.end()

    everywhere(rival, [random.randrange(10**6) for _ in range(4)])  # the seed is told if it fails

    assert tool.assert_never_two() >= 2
    eventually(lambda: tool.client().show("x").holder is None, what="a free name")
