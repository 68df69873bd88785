"""In a terminal: keys reach the program, Ctrl-C and Ctrl-Z work as without us, and `watch` is a live picture."""

import re
import subprocess
import sys

from cli_tool import HOLDFAST, eventually
from terminals import Terminal

POLITE = 'import signal as s; s.signal(15, lambda *_: print("politely") or exit()); print("ready"); s.pause()'
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
    assert local.client().show("x").owner is None


def test_ctrl_z_stops_the_job_and_fg_wakes_it(local):
    """A shell with job control sees one job: stopped, and awake again, with its lease if it was not too long."""
    environ = {**local.environ, "PS1": "$ ", "HISTFILE": "/dev/null"}
    with Terminal("bash", "--norc", "--noprofile", "-i", env=environ) as shell:
        shell.until(r"\$ ")
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


def test_a_job_that_stays_stopped_is_ended_before_its_lease(local):
    """Nobody renews a stopped job: the watcher wakes it to end, in time; the shell is told why when it comes back."""
    environ = {**local.environ, "PS1": "$ ", "HISTFILE": "/dev/null"}
    with Terminal("bash", "--norc", "--noprofile", "-i", env=environ) as shell:
        shell.until(r"\$ ")
        shell.type(f"{' '.join(HOLDFAST)} run x --ttl 1.2 -- {sys.executable} -c '{POLITE}'\n")
        shell.until(r"[\r\n]ready")
        shell.type("\x1a")
        shell.until("Stopped")
        shell.until(r"politely\r")
        eventually(lambda: local.client().show("x").owner is None, what="a free name")
        shell.type("fg\n")
        shell.until(r"was lost \(expired\)")
        shell.type("echo code $?\n")
        shell.until("code 79")


def test_breaking_asks_on_a_terminal_and_takes_no_for_an_answer(local):
    """Whoever is asked sees what they would break, and why it is no small thing."""
    with local.client(label="worker 7").lock("x") as lease:
        with Terminal(*HOLDFAST, "break", "x", "--reason", "stuck", env=local.environ) as terminal:
            terminal.until("worker 7")
            terminal.until("Break it?")
            terminal.type("n\n")
            assert terminal.rest() == 130
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


def test_without_any_terminal_a_program_runs_all_the_same(local):
    """Cron and systemd have none: no session with a terminal, and nothing on standard input."""
    run = local.start(
        "run", "x", "--", "sh", "-c", "cat; (exec < /dev/tty) || echo none", stderr=subprocess.STDOUT
    ).end()

    assert run.out.splitlines()[-1] == b"none"
