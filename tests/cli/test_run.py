"""`holdfast run`: a program under a lease, without faults. test_run_faults.py has the faults."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time

from cli_tool import HOLDFAST, TICKING, alive, eventually, everywhere, together

SHOW = "import os, sys; sys.stdout.write(repr(dict(os.environ)) + chr(10) + ascii(sys.argv))"


@together
def test_the_program_runs_under_the_lease_and_run_returns_its_exit_code(tool):
    """A script sees the program's output and code; the lease is held meanwhile and free afterwards."""
    command = "sleep 0.2; echo out; echo err >&2; exit 3"
    run = tool.start("run", "x", "--label", "me", "--", "sh", "-c", command)
    other = tool.client()
    eventually(lambda: other.show("x").holder is not None, what="a holder")
    assert other.show("x").holder.label == "me"
    assert other.show("x").holder.pid == run.pid

    run.end()

    assert (run.code, run.out, run.err) == (3, b"out\n", b"err\n")
    assert other.show("x").holder is None


@together
def test_name_fence_and_deadline_are_in_the_environment(tool):
    """A program needs the fence for its writes, and the deadline to know how long it has."""
    before = time.time()
    done = tool("run", "x", "--ttl", "20", "--", sys.executable, "-c", SHOW)
    environ = eval(done.out.splitlines()[0])

    assert environ["HOLDFAST_NAME"] == "x"
    assert int(environ["HOLDFAST_FENCE"]) == tool.client().show("x").fence
    assert re.fullmatch(r"[0-9a-f]{32}", environ["HOLDFAST_TOKEN"])
    assert environ["HOLDFAST_TTL"] == "20"
    assert before + 10 < float(environ["HOLDFAST_DEADLINE"]) <= time.time() + 19


def test_arguments_and_streams_pass_byte_by_byte(local):
    """An argument that is not valid text and a stream of bytes arrive unchanged."""
    odd = b"\xff\xfe \x01\n\xc3\x28"
    (local.folder / "open").write_bytes(bytes(range(256)))
    with (local.folder / "open").open("rb") as file:
        script = f'cat; printf "%s" "$1"; cat /proc/self/fd/{file.fileno()} >&2'
        command = ["run", "x", "--", "sh", "-c", script, "sh", odd]
        run = local.start(*command, stdin=subprocess.PIPE, pass_fds=(file.fileno(),))
    out, err = run.process.communicate(odd * 1000)

    assert run.process.returncode == 0
    assert out == odd * 1000 + odd
    assert err == bytes(range(256))


def test_a_plain_locale_is_not_changed_for_the_program(local):
    """Cron starts programs without a locale; the locale that Python sets for itself must not reach them."""
    plain = {"LANG": "", "LC_ALL": "", "LC_CTYPE": ""}
    environ = {key: value for key, value in local.environ.items() if key not in plain}
    process = subprocess.run([*HOLDFAST, "run", "x", "--", "env"], env=environ, capture_output=True, check=True)

    assert b"LC_CTYPE" not in process.stdout
    assert b"HOLDFAST_FENCE" in process.stdout


def test_signals_are_forwarded_and_run_reports_the_signal_that_ended_the_program(local):
    """A supervisor of `run` (systemd, cron, a shell) supervises the program."""
    numbers = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT]

    def forward(number):
        run = local.start("run", f"x/{number}", "--", "sh", "-c", "echo ready; exec sleep 60")
        assert run.process.stdout.readline() == b"ready\n"
        program = run.program
        run.send(number)
        assert run.end().code == 128 + number
        assert not alive(program)
        assert local.client().show(f"x/{number}").holder is None

    everywhere(forward, numbers)


def test_a_signal_that_the_program_handles_does_not_end_it(local):
    """`run` forwards the signal and ignores it: only the program knows what USR1 means to it."""
    script = 'trap "echo caught; exit 7" USR1; echo ready; while :; do sleep 0.05; done'
    run = local.start("run", "x", "--", "sh", "-c", script)
    assert run.process.stdout.readline() == b"ready\n"
    run.send(signal.SIGUSR1)

    assert run.end().code == 7
    assert run.out == b"caught\n"


def test_the_program_leads_a_group_of_its_own(local):
    """A signal for the group of the parent does not reach the program twice."""
    done = local("run", "x", "--", sys.executable, "-c", "import os; print(os.getpid(), os.getpgid(0), os.getsid(0))")
    pid, group, session = done.out.split()

    assert pid == group
    assert group != session


def test_closed_streams_change_nothing(local):
    """Without standard streams, or with a closed pipe, the program runs, and `run` returns its code."""
    script = f"{' '.join(HOLDFAST)} run x -- sh -c 'exit 6' <&- >&- 2>&-"
    closed = subprocess.run(["/bin/sh", "-c", script], env=local.environ, check=False)
    reads, writes = os.pipe()
    os.close(reads)
    unread = local("run", "x", "--json", "--", "sh", "-c", "exit 6", stderr=writes)
    os.close(writes)

    assert (closed.returncode, unread.code) == (6, 6)


def test_an_ignored_signal_stays_ignored(local):
    """`nohup holdfast run` continues after the terminal has closed, and so does the program."""
    run = local.ticking("x", seconds=1, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    local.until_ticking()
    run.send(signal.SIGHUP)
    os.kill(run.program, signal.SIGHUP)

    assert run.end().code == 0


@together
def test_a_busy_name_is_reported_with_its_holder_and_nothing_is_started(tool):
    """With `--timeout 0`, cron on two hosts runs one job."""
    with tool.client(label="worker 7").lock("x"):
        done = tool("run", "x", "--timeout", "0", "--", "echo", "never")
        late = tool("run", "x", "--timeout", "0.3", "--json", "--", "echo", "never")

    assert (done.code, done.out) == (75, b"")
    line = done.err.decode()
    assert line.count("\n") == 1
    assert "worker 7" in line
    assert "after 0.0" in line
    assert (late.code, late.out) == (75, b"")
    answer = json.loads(late.err)
    assert (answer["outcome"], answer["code"], answer["name"]) == ("busy", 75, "x")
    assert answer["holder"].endswith("(worker 7)")
    assert answer["holder_fence"] == tool.client().show("x").fence
    assert answer["waited"] >= 0.3
    assert 0 < answer["remaining"] <= 30
    assert "after 0.3" in answer["error"]


def test_a_missing_program_is_reported_before_the_wait(local):
    """As in a shell: 127 for a missing program, 126 for one that cannot be executed. No lease is taken."""
    plain = local.folder / "plain"
    plain.write_text("not a program")
    with local.client().lock("x"):
        absent = local("run", "x", "--", "no-such-program-anywhere")
        denied = local("run", "x", "--", str(plain))
    plain.chmod(0o700)
    plain.write_bytes(b"\x7fELF, but not really")
    not_elf = local("run", "x", "--", str(plain))

    assert (absent.code, denied.code, not_elf.code) == (127, 126, 126)
    assert os.strerror(errno.ENOENT) in absent.err.decode()
    assert os.strerror(errno.ENOEXEC) in not_elf.err.decode()
    assert local.client().show("x").holder is None


@together
def test_a_signal_ends_the_wait(tool):
    """Ctrl-C or TERM while waiting leaves no program, no waiter and no process."""
    other = tool.client()
    with other.lock("x"):
        run = tool.ticking("x")
        eventually(lambda: other.show("x").waiters, what="a waiter")
        program = run.program
        run.send(signal.SIGTERM)
        run.end()
        eventually(lambda: not other.show("x").waiters, what="an empty waiting line")

    assert run.code == 128 + signal.SIGTERM
    assert not alive(program)
    assert tool.ticks() == {}


def test_max_hold_ends_the_program(local):
    """`--max-hold` bounds the run time like `timeout`, and has its exit code."""
    polite = local.start("run", "x", "--ttl", "8", "--max-hold", "0.3", "--", "sleep", "60")
    stubborn = local.ticking("y", "--max-hold", "0.3", "--grace", "0.5", reaction=["stubborn"]).end()

    assert (polite.end().code, stubborn.code) == (124, 124)
    assert b"more than 0.3 s" in polite.err
    assert b"signal 9" in stubborn.err


def test_an_exit_code_above_128_is_not_taken_for_a_signal(local):
    """A program may end with any code. Only the system knows whether a signal ended it."""
    end = "trap 'exit 255' TERM; echo ready; sleep 60 & wait"
    people = local.start("run", "x", "--ttl", "8", "--max-hold", "0.3", "--", "sh", "-c", end).end()
    by_code = local("run", "y", "--json", "--", "sh", "-c", "exit 143")
    by_signal = local("run", "y", "--json", "--", "sh", "-c", "kill -TERM $$")

    assert (people.code, by_code.code, by_signal.code) == (124, 143, 143)
    assert b"it ended with code 255" in people.err
    assert [json.loads(run.err)["program"] for run in (by_code, by_signal)] == [143, None]
    assert [json.loads(run.err)["signal"] for run in (by_code, by_signal)] == [None, 15]


@together
def test_background_processes_of_the_program_end_before_the_lease(tool):
    """A background process in the program's group must not run without the lease; one that leaves the group may."""
    ticking = " ".join([*TICKING, str(tool.log), "60", "slow", "0.5"])
    script = f"{ticking} & while ! [ -s {tool.log} ]; do sleep 0.01; done; exit 4"
    first = tool.start("run", "x", "--", "sh", "-c", script)
    tool.until_ticking()
    second = tool.ticking("x", seconds=0.2).end()

    assert (first.end().code, second.code) == (4, 0)
    assert tool.assert_never_two() == 2


def test_with_json_the_end_is_one_object_on_standard_error(local):
    """Standard output belongs to the program."""
    done = local("run", "x", "--json", "--", "sh", "-c", "echo mine; exit 5")
    answer = json.loads(done.err)

    assert done.out == b"mine\n"
    assert done.code == 5
    assert (answer["name"], answer["outcome"], answer["code"], answer["program"]) == ("x", "ended", 5, 5)
    assert (answer["signal"], answer["started"], answer["released"]) == (None, True, True)
    assert answer["fence"] == local.client().show("x").fence
    assert answer["waited"] >= 0
    assert answer["held"] > 0


@together
def test_a_closed_pipe_ends_the_program(tool):
    """`holdfast run x -- yes | head -1`: the program dies of its broken pipe, and the lease is free."""
    pipe = subprocess.run(
        [f"{' '.join(HOLDFAST)} run x -- yes | head -n 1; echo ${{PIPESTATUS[0]}}"],
        shell=True, executable="/bin/bash", env=tool.environ, capture_output=True, timeout=20, check=True,
    )  # fmt: skip

    assert pipe.stdout == b"y\n141\n"
    assert pipe.stderr == b""
    assert tool.client().show("x").holder is None


@together
def test_two_runs_of_one_name_take_turns(tool):
    """The second run waits in the waiting line and starts its program when the first has ended."""
    runs = [tool.ticking("x", seconds=0.15) for _ in range(3)]

    assert [run.end().code for run in runs] == [0] * 3
    assert tool.assert_never_two() == 3


def test_an_engine_of_process_scope_is_refused(local):
    """No other process sees a lease in memory, so it would exclude nothing."""
    done = local("run", "x", "--url", "memory://", "--", "echo", "never")

    assert (done.code, done.out) == (64, b"")
    assert b"one process" in done.err
