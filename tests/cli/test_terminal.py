"""In a terminal: keys reach the program, Ctrl-C and Ctrl-Z work as without `run`, and `watch` redraws its table."""

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

# Prints when it is ready, and records when TERM arrives, on the clock of the test.
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
    """The program is in the foreground: it can read input, and Ctrl-C reaches it."""
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
    """A shell with job control in a terminal, at its prompt."""
    environ = {**tool.environ, "PS1": "$ ", "HISTFILE": "/dev/null"}
    with Terminal("bash", "--norc", "--noprofile", "-i", env=environ) as shell:
        shell.until(r"\$ ")
        yield shell


def test_ctrl_z_stops_the_job_and_fg_continues_it(local):
    """A shell with job control sees one job: stopped, then running again, with its lease after a short stop."""
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


def test_a_pager_in_the_pipeline_gets_the_keys(local):
    """The processes of a pipeline share a group: if `run` lent the foreground, a pager would stop at the first key.

    Signals from keys still reach the program.
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
        # A key typed while the shell changes the mode of the terminal is lost, with or without `run`.
        holder = eventually(lambda: client.show("x").holder, what="a holder")
        eventually(lambda: child_called(holder.pid, "cat"), what="a started program")
        shell.type("hello\n")
        shell.until(
            r"(?s)hello.*hello"
        )  # the echo of the key, which may come before the prompt, and the program's output
        shell.type("\x04")
        shell.until(r"\$ ")
        shell.type("exit\n")
        assert shell.rest() == 0
    assert local.client().show("x").holder is None


def child_called(pid, comm):
    """Return the child that has become this program; before, it is one of several Pythons."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return next((int(child) for child in children if comm_of(child) == comm), None)


def state_of(pid):
    """Return the state letter of the process; T is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("streams", ["", "2> /dev/null"])
def test_ctrl_z_in_a_pipeline_stops_the_program_too(local, streams):
    """The keys stay with the pipeline, so `run` forwards the stop: a program that continues alone loses its lease.

    This works also if none of the three streams is the terminal.
    """
    client = local.client()
    with at_a_shell(local) as shell:
        shell.type(f"yes | {' '.join(HOLDFAST)} run x --ttl 30 -- cat {streams} | cat > /dev/null\n")
        holder = eventually(lambda: client.show("x").holder, what="a holder")
        program = eventually(lambda: child_called(holder.pid, "cat"), what="a started program")
        for _ in range(3):
            shell.type("\x1a")
            shell.until("Stopped")
            shell.until(r"\$ ")
            eventually(lambda: (state_of(holder.pid), state_of(program)) == ("T", "T"), what="a stopped job")
            shell.type("fg\n")
            shell.until(r"fg[\r\n]+.*run x")
            # An earlier key may go to the shell, which still has the terminal: on a busy machine, the pipeline
            # `yes | cat | cat` misses as many keys as one with `run`.
            eventually(lambda: state_of(holder.pid) in "RS" and state_of(program) in "RS", what="a running job")
        shell.type("\x03")
        eventually(lambda: client.show("x").holder is None, what="a free name")


def test_kill_tstp_stops_the_program_and_not_the_renewals(local):
    """Without a terminal `kill -TSTP` is forwarded to the program; `kill -CONT` continues it."""
    run = local.ticking("x", seconds=60, ttl=1)
    fence = local.until_ticking()
    program = run.program
    run.send(signal.SIGTSTP)
    eventually(lambda: state_of(program) == "T", what="a stopped program")
    time.sleep(1.5)  # longer than the ttl: without renewals the program would be ended
    assert (state_of(program), local.client().show("x").fence) == ("T", fence)
    run.send(signal.SIGCONT)
    eventually(lambda: state_of(program) in "RS", what="a running program")
    run.send(signal.SIGTERM)

    assert run.end().code == 128 + signal.SIGTERM


def test_a_job_that_stays_stopped_ends_before_its_lease(local):
    """A stopped job does not renew: the watcher wakes and ends the program in time; after `fg` the shell shows why."""
    program, record = local.folder / "polite.py", local.folder / "record"
    program.write_text(POLITE)
    client = local.client()
    with at_a_shell(local) as shell:
        shell.type(f"{' '.join(HOLDFAST)} run x --ttl 3 -- {sys.executable} {program} {record}\n")
        shell.until(r"[\r\n]ready")
        shell.type("\x1a")
        shell.until("Stopped")
        stopped = time.monotonic()
        fence = client.show("x").fence
        shell.until(r"politely\r")
        with client.lock("x", timeout=20) as later:
            # There was no renewal after the stop: so the lease had 3 s at most, and the program less.
            assert float(record.read_text()) < stopped + 3
            assert later.fence > fence
            shell.type("fg\n")
            shell.until(r"was lost \(expired\)")
            shell.type("echo code $?\n")
            shell.until("code 79")
            later.check()


def test_break_asks_on_a_terminal_and_obeys_no(local):
    """The prompt shows the lease and its holder."""
    with local.client(label="worker 7").lock("x") as lease:
        with Terminal(*HOLDFAST, "break", "x", "--reason", "stuck", env=local.environ) as terminal:
            terminal.until("worker 7")
            terminal.until("Break it?")
            terminal.type("n\n")
            terminal.until("holdfast: nothing was done")
            assert terminal.rest() == 1
        lease.check()
        assert local.client().show("x").fence == lease.fence


def test_watch_redraws_its_table(local):
    """Like top, until Ctrl-C."""
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


def test_an_ended_watch_leaves_the_terminal_as_it_was(local):
    """After TERM or HUP, from a supervisor or a closing window, screen and cursor are restored."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        with Terminal(*HOLDFAST, "watch", "--interval", "0.1", env=local.environ) as terminal:
            terminal.until("0 held")
            os.kill(terminal.pid, number)
            assert terminal.rest() == 128 + number
            assert "\x1b[?1049l" in terminal.shown
            assert "\x1b[?25h" in terminal.shown


def test_watch_shows_contended_names_first_and_counts_the_rest(local):
    """With thirty lines and fifty names, names with waiters come first, and the rest is a number."""
    client = local.client()
    leases = [client.lock(f"x/{number:02}").acquire() for number in range(50)]
    waiter = local.start("run", "x/49", "--", "true")
    eventually(lambda: client.show("x/49").waiters, what="a waiter")
    with Terminal(*HOLDFAST, "watch", "--interval", "0.1", env=local.environ) as terminal:
        terminal.until("50 held, 1 waiting")
        terminal.until("x/49")
        terminal.until("x/00")
        terminal.until("… 24 more")
    for lease in leases:
        lease.release()
    assert waiter.end().code == 0


def test_watch_keeps_room_for_pools_semaphores_and_read_write_locks(local):
    """They come below the locks, however many locks there are."""
    client = local.client()
    leases = [client.lock(f"x/{number:02}").acquire() for number in range(40)]
    leases.append(client.semaphore("gpu", 4).acquire())
    with Terminal(*HOLDFAST, "watch", "--interval", "0.1", env=local.environ) as terminal:
        terminal.until("40 held, 1 items and permits taken, 0 waiting")
        terminal.until("x/00")
        terminal.until(r"gpu +semaphore +1 +4")
        terminal.until("… 17 more")
    for lease in leases:
        lease.release()


def test_a_narrow_terminal_cuts_names_and_labels_but_no_figures(local):
    """Long names and labels lose their middle; holder, age and fence stay."""
    name = "a-tenant/" + "orders/" * 12 + "the-end"
    client = local.client(label="a label that is longer than the line has room for")
    with client.lock(name) as lease, Terminal(*HOLDFAST, "ls", env=local.environ, columns=80) as terminal:
        assert terminal.rest() == 0
    titles, line = re.sub(r"\x1b\[[0-9;]*m", "", terminal.shown).splitlines()

    assert titles.split() == ["name", "holder", "label", "held", "left", "fence", "waiting"]
    assert re.match(rf"a-tenant\S*…\S*the-end +{lease.holder.host[:4]}\S*:{lease.holder.pid} ", line)
    assert line.split()[-1] == str(lease.fence)
    assert len(line) <= 80


def test_a_program_runs_without_any_terminal(local):
    """Cron and systemd have no terminal and no standard input."""
    run = local.start(
        "run", "x", "--", "sh", "-c", "cat; (exec < /dev/tty) || echo none", stderr=subprocess.STDOUT
    ).end()

    assert run.out.splitlines()[-1] == b"none"
