"""`holdfast run`: a program under a lease, on an ordinary day. Bad days are in test_run_faults.py."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time

from cli_tool import BEATING, HOLDFAST, alive, eventually, everywhere, together

SHOW = "import os, sys; sys.stdout.write(repr(dict(os.environ)) + chr(10) + ascii(sys.argv))"


@together
def test_the_program_runs_under_the_lease_and_its_code_is_ours(tool):
    """A script sees what the program said; the lease was held meanwhile and is free afterwards."""
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
    """What a program needs to write under its fence, and to know how long it has."""
    before = time.time()
    done = tool("run", "x", "--ttl", "20", "--", sys.executable, "-c", SHOW)
    environ = eval(done.out.splitlines()[0])

    assert environ["HOLDFAST_NAME"] == "x"
    assert int(environ["HOLDFAST_FENCE"]) == tool.client().show("x").fence
    assert re.fullmatch(r"[0-9a-f]{32}", environ["HOLDFAST_TOKEN"])
    assert environ["HOLDFAST_TTL"] == "20"
    assert before + 10 < float(environ["HOLDFAST_DEADLINE"]) <= time.time() + 19


def test_arguments_and_streams_pass_byte_by_byte(local):
    """Neither an argument that is no text nor a stream of bytes is changed on its way."""
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
    """Cron starts programs without a locale; Python's own choice for itself is no concern of theirs."""
    plain = {"LANG": "", "LC_ALL": "", "LC_CTYPE": ""}
    environ = {key: value for key, value in local.environ.items() if key not in plain}
    process = subprocess.run([*HOLDFAST, "run", "x", "--", "env"], env=environ, capture_output=True, check=True)

    assert b"LC_CTYPE" not in process.stdout
    assert b"HOLDFAST_FENCE" in process.stdout


def test_signals_are_forwarded_and_the_programs_end_by_one_is_told(local):
    """Whoever manages us manages the program: systemd, cron, a shell."""
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
    """It is forwarded, not obeyed: only the program knows what USR1 means to it."""
    script = 'trap "echo heard; exit 7" USR1; echo ready; while :; do sleep 0.05; done'
    run = local.start("run", "x", "--", "sh", "-c", script)
    assert run.process.stdout.readline() == b"ready\n"
    run.send(signal.SIGUSR1)

    assert run.end().code == 7
    assert run.out == b"heard\n"


def test_the_program_leads_a_group_of_its_own(local):
    """A signal for the group of whoever started us does not reach it twice."""
    done = local("run", "x", "--", sys.executable, "-c", "import os; print(os.getpid(), os.getpgid(0), os.getsid(0))")
    pid, group, session = done.out.split()

    assert pid == group
    assert group != session


def test_streams_that_are_not_there_change_nothing(local):
    """Started without standard streams, or with nobody at their other end: the program runs, and its code is told."""
    script = f"{' '.join(HOLDFAST)} run x -- sh -c 'exit 6' <&- >&- 2>&-"
    closed = subprocess.run(["/bin/sh", "-c", script], env=local.environ, check=False)
    reads, writes = os.pipe()
    os.close(reads)
    deaf = local("run", "x", "--json", "--", "sh", "-c", "exit 6", stderr=writes)
    os.close(writes)

    assert (closed.returncode, deaf.code) == (6, 6)


def test_an_ignored_signal_stays_ignored(local):
    """`nohup holdfast run` goes on after the terminal has gone, and so does the program."""
    run = local.beating("x", seconds=1, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    local.until_beating()
    run.send(signal.SIGHUP)
    os.kill(run.program, signal.SIGHUP)

    assert run.end().code == 0


@together
def test_a_busy_name_is_told_with_its_holder_and_nothing_is_started(tool):
    """`--timeout 0` is how cron on two hosts becomes one job."""
    with tool.client(label="somebody").lock("x"):
        done = tool("run", "x", "--timeout", "0", "--", "echo", "never")
        late = tool("run", "x", "--timeout", "0.3", "--json", "--", "echo", "never")

    assert (done.code, done.out) == (75, b"")
    line = done.err.decode()
    assert line.count("\n") == 1
    assert "somebody" in line
    assert "after 0.0" in line
    assert (late.code, late.out) == (75, b"")
    told = json.loads(late.err)
    assert (told["outcome"], told["code"], told["name"]) == ("busy", 75, "x")
    assert told["holder"].endswith("(somebody)")
    assert told["holder_fence"] == tool.client().show("x").fence
    assert told["waited"] >= 0.3
    assert 0 < told["remaining"] <= 30
    assert "after 0.3" in told["error"]


def test_a_program_that_is_not_there_is_told_before_anybody_waits(local):
    """As a shell would: 127 if it is not there, 126 if it cannot be executed. The lease is not touched."""
    plain = local.folder / "plain"
    plain.write_text("no program")
    with local.client().lock("x"):
        absent = local("run", "x", "--", "no-such-program-anywhere")
        denied = local("run", "x", "--", str(plain))
    plain.chmod(0o700)
    plain.write_bytes(b"\x7fELF, but not really")
    senseless = local("run", "x", "--", str(plain))

    assert (absent.code, denied.code, senseless.code) == (127, 126, 126)
    assert os.strerror(errno.ENOENT) in absent.err.decode()
    assert os.strerror(errno.ENOEXEC) in senseless.err.decode()
    assert local.client().show("x").holder is None


@together
def test_waiting_can_be_given_up(tool):
    """Ctrl-C and TERM while waiting: no program, no place in the queue, no process left."""
    other = tool.client()
    with other.lock("x"):
        run = tool.beating("x")
        eventually(lambda: other.show("x").waiters, what="a waiter")
        program = run.program
        run.send(signal.SIGTERM)
        run.end()
        eventually(lambda: not other.show("x").waiters, what="an empty queue")

    assert run.code == 128 + signal.SIGTERM
    assert not alive(program)
    assert tool.beats() == {}


def test_a_program_that_holds_too_long_is_ended(local):
    """`--max-hold` bounds the work itself, as `timeout` does, and has its code."""
    polite = local.start("run", "x", "--ttl", "8", "--max-hold", "0.3", "--", "sleep", "60")
    deaf = local.beating("y", "--max-hold", "0.3", "--grace", "0.5", manner=["deaf"]).end()

    assert (polite.end().code, deaf.code) == (124, 124)
    assert b"more than 0.3 s" in polite.err
    assert b"signal 9" in deaf.err


def test_a_code_is_not_taken_for_a_signal(local):
    """A program may end with any code, also one above 128. Only the system knows by what it ended."""
    end = "trap 'exit 255' TERM; echo ready; sleep 60 & wait"
    people = local.start("run", "x", "--ttl", "8", "--max-hold", "0.3", "--", "sh", "-c", end).end()
    by_code = local("run", "y", "--json", "--", "sh", "-c", "exit 143")
    by_signal = local("run", "y", "--json", "--", "sh", "-c", "kill -TERM $$")

    assert (people.code, by_code.code, by_signal.code) == (124, 143, 143)
    assert b"it ended with code 255" in people.err
    assert [json.loads(run.err)["program"] for run in (by_code, by_signal)] == [143, None]
    assert [json.loads(run.err)["signal"] for run in (by_code, by_signal)] == [None, 15]


@together
def test_what_the_program_leaves_in_its_group_ends_before_the_lease(tool):
    """Work in the background is work: it does not run on without the lease. What leaves the group is out of reach."""
    beat = " ".join([*BEATING, str(tool.book), "60", "slow", "0.5"])
    script = f"{beat} & while ! [ -s {tool.book} ]; do sleep 0.01; done; exit 4"
    first = tool.start("run", "x", "--", "sh", "-c", script)
    tool.until_beating()
    second = tool.beating("x", seconds=0.2).end()

    assert (first.end().code, second.code) == (4, 0)
    assert tool.assert_never_two() == 2


def test_the_end_is_told_to_programs_as_json(local):
    """One line on standard error; standard output is the program's own."""
    done = local("run", "x", "--json", "--", "sh", "-c", "echo mine; exit 5")
    told = json.loads(done.err)

    assert done.out == b"mine\n"
    assert done.code == 5
    assert (told["name"], told["outcome"], told["code"], told["program"]) == ("x", "ended", 5, 5)
    assert (told["signal"], told["started"], told["given_back"]) == (None, True, True)
    assert told["fence"] == local.client().show("x").fence
    assert told["waited"] >= 0
    assert told["held"] > 0


@together
def test_a_reader_that_has_seen_enough_ends_the_program(tool):
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
    """What it is for: whoever comes second waits, in order, and begins when the first has ended."""
    runs = [tool.beating("x", seconds=0.15) for _ in range(3)]

    assert [run.end().code for run in runs] == [0] * 3
    assert tool.assert_never_two() == 3


def test_leases_of_one_process_are_refused(local):
    """A lease in memory that nobody else sees would guard nothing."""
    done = local("run", "x", "--url", "memory://", "--", "echo", "never")

    assert (done.code, done.out) == (64, b"")
    assert b"one process" in done.err
