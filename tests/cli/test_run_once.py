"""`run --once`: done by one, skipped by all others; and whatever is no success leaves the way free."""

import json
import subprocess

from cli_tool import HOLDFAST, eventually, together
from terminals import Terminal

WINDOW = ("--once", "60")


def runs(tool):
    """How often the program of this test has run."""
    book = tool.folder / "runs"
    return len(book.read_text().splitlines()) if book.exists() else 0


def once(tool, *options, code=0, **how):
    """`run --once` with a program that writes a line and ends so."""
    program = f"echo ran >> {tool.folder}/runs; exit {code}"
    return tool.start("run", "nightly", *WINDOW, *options, "--", "sh", "-c", program, **how)


@together
def test_what_succeeded_is_not_run_again_and_that_is_no_failure(tool):
    """Code 0 and not a word, for cron; a program is told who did it, and when."""
    assert once(tool, "--label", "host 1").end().code == 0
    quiet = once(tool).end()
    told = once(tool, "--json").end()

    assert (quiet.code, quiet.out, quiet.err, runs(tool)) == (0, b"", b"", 1)
    said = json.loads(told.err)
    assert (told.code, said["outcome"], said["started"], said["code"]) == (0, "done before", False, 0)
    assert "host 1" in said["by"]
    assert said["at"].endswith("Z")


def test_on_a_terminal_it_is_said_who_has_done_it(local):
    """A person who sees nothing happen wants to know why."""
    assert once(local, "--label", "host 1").end().code == 0
    with Terminal(*HOLDFAST, "run", "nightly", *WINDOW, "--", "true", env=local.environ) as terminal:
        terminal.until("'nightly' has been done by .*host 1.*: not run again")
        assert terminal.rest() == 0


@together
def test_hosts_that_start_it_together_run_it_once(tool):
    """Those that come while it runs wait, and find it done: a lease alone would let them run it one after the other."""
    started = [once(tool, "--label", f"host {number}") for number in range(5)]

    assert [run.end().code for run in started] == [0] * 5
    assert runs(tool) == 1


@together
def test_a_failure_clears_the_way_for_the_next_one(tool):
    """A code of its own, a signal, a bound: none is a success, so the next one runs it."""
    assert once(tool, code=3).end().code == 3
    killed = tool("run", "nightly", *WINDOW, "--", "sh", "-c", "kill -9 $$")
    bounded = tool("run", "nightly", *WINDOW, "--max-hold", "0.2", "--ttl", "2", "--", "sleep", "60")
    assert (killed.code, bounded.code) == (128 + 9, 124)
    assert once(tool).end().code == 0
    assert once(tool).end().code == 0
    assert runs(tool) == 2


@together
def test_a_lease_that_was_broken_leaves_no_note(tool):
    """Somebody else may have been at work beside it."""
    run = tool.start("run", "nightly", *WINDOW, "--ttl", "2", "--", "sleep", "60")
    client = tool.client()
    eventually(lambda: client.show("nightly").holder, what="a holder")
    client.break_lease("nightly", "for the test")

    assert run.end().code == 79
    assert once(tool).end().code == 0
    assert runs(tool) == 1


@together
def test_a_success_that_could_not_be_noted_is_no_secret(tool):
    """The engine went away while the program ran: its code stands, and the next one may run it again."""
    program = ("sh", "-c", f"echo ran >> {tool.folder}/runs; echo ready; read line")
    words = ("run", "nightly", *WINDOW, "--ttl", "2", "--json", "--", *program)
    run = tool.start(*words, stdin=subprocess.PIPE)
    assert run.process.stdout.readline() == b"ready\n"
    with tool.place.unusable():
        run.process.stdin.write(b"\n")
        run.end()
        told = json.loads(run.err)
        assert (run.code, told["outcome"], told["given_back"]) == (0, "ended", False)
        assert "may not be remembered" in told["error"]
    assert once(tool).end().code == 0
    assert runs(tool) == 2


@together
def test_whoever_does_not_say_once_is_kept_apart_from_who_does(tool):
    """It is one lease: busy for both. Without --once a program runs whatever was done before."""
    client = tool.client()
    with client.lock("nightly"):
        busy = tool("run", "nightly", *WINDOW, "--timeout", "0", "--json", "--", "true")
    assert (busy.code, json.loads(busy.err)["outcome"]) == (75, "busy")
    assert once(tool).end().code == 0
    assert tool("run", "nightly", "--", "sh", "-c", f"echo ran >> {tool.folder}/runs").code == 0
    assert runs(tool) == 2


@together
def test_the_note_is_that_of_once_in_python(tool):
    """So a program can ask for it, and let it be done again."""
    client = tool.client()
    assert tool("run", "webhooks/42", *WINDOW, "--", "true").code == 0
    webhooks = client.once("webhooks")
    assert webhooks.seen("42")
    with webhooks.first("42") as first:
        assert not first
    webhooks.forget("42")
    webhooks.call("42", object, timeout=0)
    told = tool("run", "webhooks/42", *WINDOW, "--json", "--", "false")
    assert (told.code, json.loads(told.err)["by"]) == (0, None)


@together
def test_a_success_is_remembered_for_its_window_and_no_longer(tool):
    """On the engine's clock, from the end of the program."""
    nightly = tool.client().once("nightly")
    for _ in range(2):
        program = ("sh", "-c", f"echo ran >> {tool.folder}/runs")
        assert tool("run", "nightly/report", "--once", "1.5", "--", *program).code == 0
        eventually(lambda: not nightly.seen("report"), what="an end of the window")
    assert runs(tool) == 2


def test_a_window_that_cannot_be_is_bad_usage(local, tmp_path):
    """Before anything is started; an engine that keeps no notes says so."""
    for window in ("0", "-1", "nan", "99999999", "soon"):
        assert local.inside("run", "nightly", f"--once={window}", "--", "true").code == 64
    refused = local("run", "nightly", *WINDOW, "--url", f"file://{tmp_path}", "--", "true")
    assert (refused.code, b"notes" in refused.err) == (64, True)
