"""`holdfast run` with faults: the program ends before another process can hold the lease."""

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
from cli_tool import HOLDFAST, TICKING, alive, eventually, everywhere, together

from holdfast.cli import run as run_package
from holdfast.cli.run.watcher import now_ns
from holdfast.cli.run.watcher_process import WatcherProcess
from holdfast.testing import PausePoints
from holdfast.testing.servers import missing
from tests.support.proxy import Proxy

TTL_S = 2
NS = 1_000_000_000


def last_tick(tool, fence):
    """Return the time of the last tick of the program with this fence."""
    return tool.ticks()[fence][-1]


@together
def test_a_killed_parent_does_not_free_the_lease_while_the_program_runs(tool):
    """The embedded engine sees a death at once, but the lease must outlive the parent. The watcher sends TERM first."""
    run = tool.ticking("x", reaction=["slow", "0.3"], ttl=3)
    fence = tool.until_ticking()
    program, watcher = run.program, run.watcher
    rival = tool.ticking("x", seconds=0.2, ttl=3)
    eventually(lambda: tool.client().show("x").waiters, what="a rival in the waiting line")

    killed_ns = time.monotonic_ns()
    run.send(signal.SIGKILL)
    assert rival.end().code == 0

    assert tool.assert_never_two() == 2
    assert last_tick(tool, fence) > killed_ns + 0.25 * NS, "the program had no grace"
    assert last_tick(tool, fence) < killed_ns + 2 * NS, "TERM came late"
    eventually(lambda: not alive(program) and not alive(watcher), what="the end of both")


@together
def test_a_program_that_outlives_parent_and_watcher_keeps_the_lease_for_its_ttl(tool):
    """With both killed, nothing can end the program. The engine must not count its holder as dead before the ttl."""
    run = tool.ticking("x", ttl=4)
    tool.until_ticking()
    watcher, program = run.watcher, run.program
    rival = tool.ticking("x", seconds=0.1, ttl=4)
    eventually(lambda: tool.client().show("x").waiters, what="a rival in the waiting line")

    run.send(signal.SIGSTOP)  # otherwise the parent would start another watcher
    os.kill(watcher, signal.SIGKILL)
    run.send(signal.SIGKILL)
    time.sleep(0.5)
    assert len(tool.ticks()) == 1, "the rival got the lease of a running program"
    os.kill(program, signal.SIGTERM)

    assert rival.end().code == 0
    assert tool.assert_never_two() == 2


def test_a_frozen_parent_does_not_keep_the_program_alive(tools):
    """Without renewals, TERM comes a grace before the deadline and KILL before it, whatever the program does."""

    def freeze(case):
        tool, reaction = case
        run = tool.ticking("x", reaction=reaction, ttl=TTL_S)
        fence = tool.until_ticking()
        rival = tool.ticking("x", seconds=0.2, ttl=TTL_S)
        eventually(lambda: tool.client().show("x").waiters, what="a rival in the waiting line")

        frozen_ns = time.monotonic_ns()
        run.send(signal.SIGSTOP)
        assert rival.end().code == 0
        run.send(signal.SIGCONT)
        run.end()

        assert tool.assert_never_two() == 2
        assert last_tick(tool, fence) < frozen_ns + TTL_S * NS
        assert run.code == 79
        assert b"was lost (expired)" in run.err
        assert f"signal {9 if reaction else 15}".encode() in run.err

    everywhere(freeze, [(tools[0], []), (tools[-1], ["stubborn"])])


@together
def test_a_run_inside_a_run_ends_before_the_lease_of_the_outer_one(tool):
    """The inner program is in its own group, which the outer watcher does not reach; the inner watcher ends it."""
    inner = [*HOLDFAST, "run", "y", "--ttl", "30", "--", *TICKING, str(tool.log), "60", "stubborn"]
    outer = tool.start("run", "x", "--ttl", str(TTL_S), "--", *inner)
    fence = tool.until_ticking()

    frozen_ns = time.monotonic_ns()
    outer.send(signal.SIGSTOP)
    program = int(tool.log.read_text().split()[2])
    eventually(lambda: not alive(program), what="the end of the inner program")
    outer.send(signal.SIGCONT)

    assert outer.end().code == 79
    assert last_tick(tool, fence) < frozen_ns + TTL_S * NS


@together
def test_a_killed_watcher_is_replaced(tool):
    """The program has no watcher only for a moment: a parent frozen later does not keep it alive."""
    run = tool.ticking("x", reaction=["stubborn"], ttl=TTL_S)
    fence = tool.until_ticking()
    first = run.watcher
    os.kill(first, signal.SIGKILL)
    eventually(lambda: run.children()["watcher"] not in (None, first), what="another watcher")
    assert alive(run.program)

    frozen_ns = time.monotonic_ns()
    run.send(signal.SIGSTOP)
    rival = tool.ticking("x", seconds=0.2, ttl=TTL_S).end()
    run.send(signal.SIGCONT)

    assert (rival.code, run.end().code) == (0, 79)
    assert last_tick(tool, fence) < frozen_ns + TTL_S * NS
    assert tool.assert_never_two() == 2


@together
def test_a_frozen_watcher_is_not_needed_while_the_parent_works(tool):
    """It does no harm while frozen or when it wakes, and does not outlive the program."""
    run = tool.ticking("x", seconds=2.5, ttl=1)
    tool.until_ticking()
    watcher = run.watcher
    os.kill(watcher, signal.SIGSTOP)
    time.sleep(1.5)  # longer than the ttl: its deadline is old when it wakes
    os.kill(watcher, signal.SIGCONT)
    time.sleep(0.2)
    os.kill(watcher, signal.SIGSTOP)

    assert run.end().code == 0
    assert not alive(watcher)


@together
def test_an_unreachable_engine_ends_the_program_in_time(tool):
    """Renewals fail until the deadline: the program ends before it, also one that ignores TERM and has no watcher."""
    watched = tool.ticking("x", "--json", ttl=TTL_S)
    unwatched = tool.ticking("y", "--json", reaction=["stubborn"], ttl=TTL_S)
    tool.until_ticking(2)
    os.kill(unwatched.watcher, signal.SIGSTOP)
    programs = [watched.program, unwatched.program]

    with tool.place.unusable():
        failed_ns = time.monotonic_ns()
        eventually(lambda: not any(alive(program) for program in programs), what="the end of the programs")
        assert all(times[-1] < failed_ns + TTL_S * NS for times in tool.ticks().values())

    for run, number in ((watched, signal.SIGTERM), (unwatched, signal.SIGKILL)):
        answer = json.loads(run.end().err.splitlines()[-1])
        assert run.code == 79
        assert (answer["outcome"], answer["program"], answer["signal"]) == ("lost", None, number)


@together
def test_a_broken_lease_ends_the_program_within_a_second_of_the_news(tool):
    """The holder reads the reason; a program that ignores TERM is killed. The next lease has a larger fence."""
    run = tool.ticking("x", "--grace", "2", reaction=["slow", "60"], ttl=4)
    fence = tool.until_ticking()

    done = tool("break", "x", "--reason", "by hand, for the test", "--yes")
    run.end()

    assert (done.code, run.code) == (0, 79)
    assert b"broken): by hand, for the test" in run.err
    term_ns = int(tool.log.with_name("ticks.term").read_text())
    assert last_tick(tool, fence) < term_ns + 1.2 * NS
    assert tool.client().show("x").fence > fence


@together
def test_a_parent_that_wakes_too_late_starts_nothing(tool):
    """A parent frozen between the grant and the start of the program finds that another process has the lease."""
    pauses = PausePoints(tool.folder / "pauses")
    pauses.arm("run.granted")
    late = tool.ticking("x", env=pauses.env)
    pauses.wait_reached("run.granted")
    late.send(signal.SIGSTOP)
    pauses.go("run.granted")
    rival = tool.ticking("x", seconds=0.2).end()
    late.send(signal.SIGCONT)

    assert (rival.code, late.end().code) == (0, 79)
    assert b"was lost (expired)" in late.err
    assert b"the program was not started" in late.err
    assert tool.assert_never_two() == 1


def test_a_program_without_a_watcher_is_ended(local):
    """The parent alone cannot keep the promise; it reports that once, and restarts watchers with pauses and a limit.

    The watchers are real, and end as they would without memory.
    """
    file, starts = local.folder / "watcher.py", local.folder / "starts"
    file.write_text(Path(run_package.__file__).with_name("watcher.py").read_text())
    patch = f"from holdfast.cli.run import watcher_process; watcher_process._FILE = {str(file)!r}"
    (local.folder / "sitecustomize.py").write_text(patch)
    run = local.ticking("x", reaction=["slow", "0.5"], env={"PYTHONPATH": str(local.folder)}, ttl=20)
    local.until_ticking()
    file.write_text(f"import time; print(time.monotonic(), file=open({str(starts)!r}, 'a'))")
    os.kill(run.watcher, signal.SIGKILL)
    run.end()

    assert run.code == 79
    assert run.err.count(b"died before they were ready; the program is ended") == 1
    times = [float(each) for each in starts.read_text().split()]
    assert len(times) == 5
    assert times[4] - times[3] > 0.7, "they were started without a pause"
    assert local.client().show("x").holder is None


def test_a_machine_that_cannot_start_another_watcher_is_reported(local):
    """The system may have no process left, for a moment or for good: the message has the reason."""
    (local.folder / "sitecustomize.py").write_text("""
import subprocess
from holdfast.cli.run.watcher_process import WatcherProcess

def fail(*_, **__):
    raise BlockingIOError(11, "no more processes")

original = WatcherProcess.start

def start(*arguments):
    original(*arguments)
    subprocess.Popen = fail

WatcherProcess.start = start
""")
    run = local.ticking("x", reaction=["slow", "0.5"], env={"PYTHONPATH": str(local.folder)}, ttl=20)
    local.until_ticking()
    os.kill(run.watcher, signal.SIGKILL)
    run.end()

    assert run.code == 79
    assert run.err.count(b"no more processes; the program is ended") == 1


def test_the_parent_knows_what_the_watcher_did_however_soon_the_program_died():
    """A late parent finds the program dead; without the watcher's report it would look like the program's own end."""
    program = subprocess.Popen(["sleep", "60"], start_new_session=True)
    watcher = WatcherProcess(program.pid, NS, 0, NS, None)
    try:
        watcher.start(now_ns() + 2 * NS)  # TERM is due a second after this
        os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)
    finally:
        watcher.end()
        program.kill()
        program.wait()

    assert program.returncode == -signal.SIGTERM
    assert watcher.acted()


def test_a_full_standard_error_does_not_stop_renewals(tools):
    """Standard error may be a full pipe: a remark about a short outage must not block the process."""
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
        run = tool.ticking("x", "--grace", "0.5", ttl=9, stderr=writes, env={"HOLDFAST_URL": proxy.url})
        fence = tool.until_ticking()
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


def test_a_release_that_did_not_arrive_is_reported(tools):
    """The program's exit code counts; but the next holder has to wait, and the message says how long."""

    def begin(tool, as_json):
        arguments = ["--json"] * as_json + ["--ttl", "20", "--", "sh", "-c", "echo ready; read line; exit 3"]
        run = tool.start("run", f"x/{as_json}", *arguments, stdin=subprocess.PIPE)
        assert run.process.stdout.readline() == b"ready\n"
        return run, as_json

    def ended(run, as_json):
        run.end()
        assert run.code == 3
        if as_json:
            answer = json.loads(run.err)
            assert (answer["outcome"], answer["program"], answer["released"]) == ("ended", 3, False)
        assert re.search(
            rb"the release did not reach the engine; the lease expires within 20 s: engine \w+ is unavail", run.err
        )

    def away(tool):
        runs = [begin(tool, as_json) for as_json in (False, True)]
        with tool.place.unusable():
            for run, _ in runs:
                run.process.stdin.write(b"\n")
                run.process.stdin.flush()
            for run, as_json in runs:
                ended(run, as_json)

    everywhere(away, tools)


def test_the_child_reads_the_clock_before_it_becomes_the_program(tmp_path):
    """The parent may be frozen between its last look at the clock and the start, so the child looks itself.

    A child that the watcher ended at the gate has not started either: its effects need no investigation.
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
    child.collect()
"""
    files = [tmp_path / "late", tmp_path / "early", tmp_path / "dead"]
    answer = subprocess.run([sys.executable, "-c", program, *files], capture_output=True, text=True, check=True)

    assert answer.stdout.split() == ["False", "True", "False"]
    assert [file.exists() for file in files] == [False, True, False]


def inject_fault(run, rng):
    """Kill or freeze the parent or the watcher at a random time; a frozen process is woken later."""
    action, target = rng.choice(["kill parent", "freeze parent", "kill watcher", "freeze watcher"]).split()
    until = time.monotonic() + rng.uniform(0, 1.5)
    while time.monotonic() < until and run.process.poll() is None:
        time.sleep(0.005)
    pid = run.children()["watcher"] if target == "watcher" else run.pid
    with suppress(ProcessLookupError, TypeError):  # it has ended, or there is none yet
        os.kill(pid, signal.SIGKILL if action == "kill" else signal.SIGSTOP)
        if action == "freeze":
            time.sleep(rng.uniform(0.1, 1.3 * TTL_S))
            os.kill(pid, signal.SIGCONT)


@together
def test_random_faults_never_let_two_programs_run(tool):
    """Parents and watchers are killed and frozen at any moment, also while they start; the history shows no overlap."""

    def rival(seed):
        rng = random.Random(seed)
        for _ in range(2):
            reaction = rng.choice([[], ["stubborn"]])
            run = tool.ticking("x", "--timeout", "20", seconds=rng.uniform(0.05, 1.0), reaction=reaction)
            inject_fault(run, rng)
            run.end()

    everywhere(rival, [random.randrange(10**6) for _ in range(4)])  # a failure names the seed

    assert tool.assert_never_two() >= 2
    eventually(lambda: tool.client().show("x").holder is None, what="a free name")
