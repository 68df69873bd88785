"""`holdfast run --once`: one host runs the program, the others skip it; without a success the next call runs it."""

import json
import subprocess

from cli_tool import HOLDFAST, eventually, together
from terminals import Terminal

WINDOW = ("--once", "60")


def runs(tool):
    """Return how often the program of this test has run."""
    log = tool.folder / "runs"
    return len(log.read_text().splitlines()) if log.exists() else 0


def once(tool, *options, code=0, **process_options):
    """Start `run --once` with a program that writes a line and exits with the code."""
    program = f"echo ran >> {tool.folder}/runs; exit {code}"
    return tool.start("run", "nightly", *WINDOW, *options, "--", "sh", "-c", program, **process_options)


@together
def test_a_program_that_succeeded_is_not_run_again_and_that_is_no_failure(tool):
    """The code is 0 and nothing is printed, for cron; with --json a program reads which host ran it, and when."""
    assert once(tool, "--label", "host 1").end().code == 0
    quiet = once(tool).end()
    answer = once(tool, "--json").end()

    assert (quiet.code, quiet.out, quiet.err, runs(tool)) == (0, b"", b"", 1)
    earlier = json.loads(answer.err)
    assert (answer.code, earlier["outcome"], earlier["started"], earlier["code"]) == (0, "done before", False, 0)
    assert "host 1" in earlier["by"]
    assert earlier["at"].endswith("Z")


def test_on_a_terminal_the_earlier_run_is_named(local):
    """A person who sees no program start wants to know why."""
    assert once(local, "--label", "host 1").end().code == 0
    with Terminal(*HOLDFAST, "run", "nightly", *WINDOW, "--", "true", env=local.environ) as terminal:
        terminal.until("'nightly' was already done by .*host 1.*: not run again")
        assert terminal.rest() == 0


@together
def test_hosts_that_start_it_together_run_it_once(tool):
    """Hosts that start while it runs wait, and find it done: with a lease alone each of them would run it."""
    started = [once(tool, "--label", f"host {number}") for number in range(5)]

    assert [run.end().code for run in started] == [0] * 5
    assert runs(tool) == 1


@together
def test_after_a_failure_the_next_call_runs_the_program(tool):
    """An exit code, a signal or --max-hold is no success, so the next call runs the program."""
    assert once(tool, code=3).end().code == 3
    killed = tool("run", "nightly", *WINDOW, "--", "sh", "-c", "kill -9 $$")
    bounded = tool("run", "nightly", *WINDOW, "--max-hold", "0.2", "--ttl", "2", "--", "sleep", "60")
    assert (killed.code, bounded.code) == (128 + 9, 124)
    assert once(tool).end().code == 0
    assert once(tool).end().code == 0
    assert runs(tool) == 2


@together
def test_a_broken_lease_stores_no_success(tool):
    """Another process may have worked at the same time."""
    run = tool.start("run", "nightly", *WINDOW, "--ttl", "2", "--", "sleep", "60")
    client = tool.client()
    eventually(lambda: client.show("nightly").holder, what="a holder")
    client.break_lease("nightly", "for the test")

    assert run.end().code == 79
    assert once(tool).end().code == 0
    assert runs(tool) == 1


@together
def test_a_success_that_could_not_be_stored_is_reported(tool):
    """The engine failed while the program ran: its exit code counts, and the next call may run it again."""
    program = ("sh", "-c", f"echo ran >> {tool.folder}/runs; echo ready; read line")
    arguments = ("run", "nightly", *WINDOW, "--ttl", "2", "--json", "--", *program)
    run = tool.start(*arguments, stdin=subprocess.PIPE)
    assert run.process.stdout.readline() == b"ready\n"
    with tool.place.unusable():
        run.process.stdin.write(b"\n")
        run.end()
        answer = json.loads(run.err)
        assert (run.code, answer["outcome"], answer["released"]) == (0, "ended", False)
        assert "may not be stored" in answer["error"]
    assert once(tool).end().code == 0
    assert runs(tool) == 2


@together
def test_runs_with_and_without_once_exclude_each_other(tool):
    """Both take the same lease. Without --once a program runs, also if an earlier run succeeded."""
    client = tool.client()
    with client.lock("nightly"):
        busy = tool("run", "nightly", *WINDOW, "--timeout", "0", "--json", "--", "true")
    assert (busy.code, json.loads(busy.err)["outcome"]) == (75, "busy")
    assert once(tool).end().code == 0
    assert tool("run", "nightly", "--", "sh", "-c", f"echo ran >> {tool.folder}/runs").code == 0
    assert runs(tool) == 2


@together
def test_the_stored_success_is_that_of_once_in_python(tool):
    """So a Python program can read it, and forget it to allow another run."""
    client = tool.client()
    assert tool("run", "webhooks/42", *WINDOW, "--", "true").code == 0
    webhooks = client.once("webhooks")
    assert webhooks.seen("42")
    with webhooks.first("42") as claim:
        assert not claim
    webhooks.forget("42")
    webhooks.call("42", lambda: None, timeout=0)
    answer = tool("run", "webhooks/42", *WINDOW, "--json", "--", "false")
    assert (answer.code, json.loads(answer.err)["by"]) == (0, None)


@together
def test_a_success_is_remembered_for_its_window_and_no_longer(tool):
    """The window starts at the end of the program, on the engine's clock."""
    nightly = tool.client().once("nightly")
    for _ in range(2):
        program = ("sh", "-c", f"echo ran >> {tool.folder}/runs")
        assert tool("run", "nightly/report", "--once", "1.5", "--", *program).code == 0
        eventually(lambda: not nightly.seen("report"), what="an end of the window")
    assert runs(tool) == 2


def test_a_bad_window_is_bad_usage(local, tmp_path):
    """It is refused before anything is started; so is an engine without idempotency keys."""
    for window in ("0", "-1", "nan", "99999999", "soon"):
        assert local.inside("run", "nightly", f"--once={window}", "--", "true").code == 64
    refused = local("run", "nightly", *WINDOW, "--url", f"file://{tmp_path}", "--", "true")
    assert (refused.code, b"idempotency keys" in refused.err) == (64, True)
