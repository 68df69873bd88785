"""In a terminal: keys reach the program, Ctrl-C and Ctrl-Z work as without us, and `watch` is a live picture."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from cli_tool import HOLDFAST, comm_of, eventually
from terminals import Terminal

# Says when it is told to end, and when it began, on the clock of its test.
POLITE = """
import signal, sys, time
def end(*_):
    open(sys.argv[1], "w").write(str(time.monotonic()))
    print("politely", flush=True)
    sys.exit()
signal.signal(15, end)
print("ready", flush=True)
signal.pause()
"""
ASK = "import sys; print('tty', sys.stdin.isatty(), sys.stdout.isatty()); print('got', input('name? '))"


def test_a_program_in_a_terminal_reads_keys_and_is_interrupted_by_them(local):
    """It is in the foreground: it can ask, and Ctrl-C is for it. Its code tells so."""
    with Terminal(*HOLDFAST, "run", "x", "--", sys.executable, "-c", ASK, env=local.environ) as terminal:
        terminal.until("tty True True")
        terminal.until(r"name\? ")
        terminal.type("ann\n")
        terminal.until("got ann")
        assert terminal.rest() == 0

    with Terminal(*HOLDFAST, "run", "x", "--", "sh", "-c", "echo ready; exec sleep 60", env=local.environ) as terminal:
        terminal.until("ready")
        terminal.type("\x03")
        assert terminal.rest() == 130
    assert local.client().show("x").holder is None


@contextmanager
def at_a_shell(tool):
    """A shell with job control in a terminal, which has shown its prompt."""
    environ = {**tool.environ, "PS1": "$ ", "HISTFILE": "/dev/null"}
    with Terminal("bash", "--norc", "--noprofile", "-i", env=environ) as shell:
        shell.until(r"\$ ")
        yield shell


def test_ctrl_z_stops_the_job_and_fg_wakes_it(local):
    """A shell with job control sees one job: stopped, and awake again, with its lease if it was not too long."""
    with at_a_shell(local) as shell:
        shell.type(f"{' '.join(HOLDFAST)} run x --ttl 20 -- sh -c 'echo ready; read line; echo got $line'\n")
        shell.until(r"[\r\n]ready")
        shell.type("\x1a")
        shell.until("Stopped")
        shell.until(r"\$ ")
        shell.type("fg\n")
        shell.until("fg")
        shell.type("hello\n")
        shell.until("got hello")
        shell.type("echo code $?\n")
        shell.until("code 0")
        shell.type("exit\n")
        assert shell.rest() == 0


def test_a_pager_beside_the_program_has_the_keys(local):
    """In a pipeline the neighbours are in our group: were the foreground lent, they would be stopped at the first key.

    What keys tell the job reaches the program all the same.
    """
    holdfast = " ".join(HOLDFAST)
    pager = "sh -c 'read line; echo shown $line; read key < /dev/tty; echo key $key; cat'"
    client = local.client()
    with at_a_shell(local) as shell:
        shell.type(f"{holdfast} run x --ttl 20 -- sh -c 'echo one; sleep 60' | {pager}\n")
        shell.until(r"[\r\n]shown one")
        shell.type("q\n")
        shell.until(r"[\r\n]key q")
        shell.type("\x03")
        shell.until(r"\$ ")
        shell.type("echo code ${PIPESTATUS[0]}\n")
        shell.until("code 130")
        shell.type(f"cat | {holdfast} run x --ttl 20 -- cat\n")
        shell.until(r"run x .*\n")
        # A key that comes while the shell changes the terminal's mode is lost, with us or without.
        owner = eventually(lambda: client.show("x").holder, what="a holder")
        eventually(lambda: child_called(owner.pid, "cat"), what="a program that has begun")
        shell.type("hello\n")
        shell.until(r"(?s)hello.*hello")  # the key's echo, which may come before the prompt, and the program's answer
        shell.type("\x04")
        shell.until(r"\$ ")
        shell.type("exit\n")
        assert shell.rest() == 0
    assert local.client().show("x").holder is None


def child_called(pid, comm):
    """The child that is by now this program; before, it is one of several Pythons."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return next((int(child) for child in children if comm_of(child) == comm), None)


def state_of(pid):
    """As the system tells it: T is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("streams", ["", "2> /dev/null"])
def test_ctrl_z_in_a_pipeline_stops_the_program_too(local, streams):
    """The keys stay with the neighbours, so the stop is forwarded: a program that goes on alone loses its lease.

    The terminal is there also where none of the three streams is.
    """
    holder = local.client()
    with at_a_shell(local) as shell:
        shell.type(f"yes | {' '.join(HOLDFAST)} run x --ttl 30 -- cat {streams} | cat > /dev/null\n")
        owner = eventually(lambda: holder.show("x").holder, what="a holder")
        program = eventually(lambda: child_called(owner.pid, "cat"), what="a program that has begun")
        for _ in range(3):
            shell.type("\x1a")
            shell.until("Stopped")
            shell.until(r"\$ ")
            eventually(lambda: (state_of(owner.pid), state_of(program)) == ("T", "T"), what="a job that is stopped")
            shell.type("fg\n")
            shell.until(r"fg[\r\n]+.*run x")
            # A key that comes earlier may be the shell's, which still has the terminal: where all are busy, a pipeline
            # of `yes | cat | cat` misses as many of them as one with us.
            eventually(lambda: state_of(owner.pid) in "RS" and state_of(program) in "RS", what="a job that is awake")
        shell.type("\x03")
        eventually(lambda: holder.show("x").holder is None, what="a free name")


def test_a_stop_that_comes_by_hand_stops_the_program_and_not_the_renewals(local):
    """`kill -TSTP` without a terminal: it is for the program, which has no shell to wake it; CONT does."""
    run = local.beating("x", seconds=60, ttl=1)
    fence = local.until_beating()
    program = run.program
    run.send(signal.SIGTSTP)
    eventually(lambda: state_of(program) == "T", what="a program that is stopped")
    time.sleep(1.5)  # longer than the ttl: without renewals it would be ended
    assert (state_of(program), local.client().show("x").fence) == ("T", fence)
    run.send(signal.SIGCONT)
    eventually(lambda: state_of(program) in "RS", what="a program that is awake")
    run.send(signal.SIGTERM)

    assert run.end().code == 128 + signal.SIGTERM


def test_a_job_that_stays_stopped_is_ended_before_its_lease(local):
    """Nobody renews a stopped job: the watcher wakes it to end, in time; the shell is told why when it comes back."""
    program, told = local.folder / "polite.py", local.folder / "told"
    program.write_text(POLITE)
    client = local.client()
    with at_a_shell(local) as shell:
        shell.type(f"{' '.join(HOLDFAST)} run x --ttl 3 -- {sys.executable} {program} {told}\n")
        shell.until(r"[\r\n]ready")
        shell.type("\x1a")
        shell.until("Stopped")
        stopped = time.monotonic()
        fence = client.show("x").fence
        shell.until(r"politely\r")
        with client.lock("x", timeout=20) as next_one:
            # Nobody renewed it after the stop: so it had 3 s from there at most, and the program less.
            assert float(told.read_text()) < stopped + 3
            assert next_one.fence > fence
            shell.type("fg\n")
            shell.until(r"was lost \(expired\)")
            shell.type("echo code $?\n")
            shell.until("code 79")
            next_one.check()


def test_breaking_asks_on_a_terminal_and_takes_no_for_an_answer(local):
    """Whoever is asked sees what they would break, and why it is no small thing."""
    with local.client(label="worker 7").lock("x") as lease:
        with Terminal(*HOLDFAST, "break", "x", "--reason", "stuck", env=local.environ) as terminal:
            terminal.until("worker 7")
            terminal.until("Break it?")
            terminal.type("n\n")
            terminal.until("holdfast: nothing was done")
            assert terminal.rest() == 1
        lease.check()
        assert local.client().show("x").fence == lease.fence


def test_watching_is_a_live_picture(local):
    """Like top: drawn in its place, with what has changed, until Ctrl-C."""
    client = local.client(label="worker 7")
    with Terminal(*HOLDFAST, "watch", "--interval", "0.1", env=local.environ) as terminal:
        terminal.until(re.escape("\x1b[?1049h"))
        terminal.until("0 held")
        with client.lock("orders/42"):
            terminal.until("1 held")
            terminal.until("worker 7")
        terminal.until("0 held")
        terminal.type("\x03")
        assert terminal.rest() == 0
        assert "\x1b[?1049l" in terminal.shown


def test_a_watch_that_is_ended_leaves_the_terminal_as_it_was(local):
    """TERM or HUP, by a supervisor or a closing window: the screen and the cursor come back, the code tells."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        with Terminal(*HOLDFAST, "watch", "--interval", "0.1", env=local.environ) as terminal:
            terminal.until("0 held")
            os.kill(terminal.pid, number)
            assert terminal.rest() == 128 + number
            assert "\x1b[?1049l" in terminal.shown
            assert "\x1b[?25h" in terminal.shown


def test_a_watch_shows_what_matters_most_and_says_what_it_cuts(local):
    """Thirty lines, fifty names: those that are waited for come first, and the rest is counted."""
    client = local.client()
    leases = [client.lock(f"x/{number:02}").acquire() for number in range(50)]
    waiter = local.start("run", "x/49", "--", "true")
    eventually(lambda: client.show("x/49").waiters, what="somebody who waits")
    with Terminal(*HOLDFAST, "watch", "--interval", "0.1", env=local.environ) as terminal:
        terminal.until("50 held, 1 waiting")
        terminal.until("x/49")
        terminal.until("x/00")
        terminal.until("… 24 more")
    for lease in leases:
        lease.release()
    assert waiter.end().code == 0


def test_a_watch_has_room_for_what_many_have(local):
    """Below the locks, however many those are: who waits for a seat looks for the semaphore."""
    client = local.client()
    leases = [client.lock(f"x/{number:02}").acquire() for number in range(40)]
    leases.append(client.semaphore("gpu", 4).acquire())
    with Terminal(*HOLDFAST, "watch", "--interval", "0.1", env=local.environ) as terminal:
        terminal.until("40 held, 1 taken of many, 0 waiting")
        terminal.until("x/00")
        terminal.until(r"gpu +semaphore +1 +4")
        terminal.until("… 17 more")
    for lease in leases:
        lease.release()


def test_in_a_narrow_terminal_the_figures_stay(local):
    """Long names and labels are cut in the middle; who holds it, since when, and under which fence are not."""
    name = "a-tenant/" + "orders/" * 12 + "the-end"
    client = local.client(label="a label that says more than anybody wants to read")
    with client.lock(name) as lease, Terminal(*HOLDFAST, "ls", env=local.environ, columns=80) as terminal:
        assert terminal.rest() == 0
    titles, line = re.sub(r"\x1b\[[0-9;]*m", "", terminal.shown).splitlines()

    assert titles.split() == ["name", "holder", "label", "held", "left", "fence", "waiting"]
    assert re.match(rf"a-tenant\S*…\S*the-end +{lease.holder.host[:4]}\S*:{lease.holder.pid} ", line)
    assert line.split()[-1] == str(lease.fence)
    assert len(line) <= 80


def test_without_any_terminal_a_program_runs_all_the_same(local):
    """Cron and systemd have none: no session with a terminal, and nothing on standard input."""
    run = local.start(
        "run", "x", "--", "sh", "-c", "cat; (exec < /dev/tty) || echo none", stderr=subprocess.STDOUT
    ).end()

    assert run.out.splitlines()[-1] == b"none"
