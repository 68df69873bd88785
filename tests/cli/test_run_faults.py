"""`holdfast run` on bad days: whatever is killed or frozen, the program ends before anybody else may hold the lease."""

import json
import os
import random
import signal
import threading
import time

import pytest
from cli_tool import alive

from holdfast.testing import eventually

TTL_S = 2
NS = 1_000_000_000


def last_beat(tool, fence):
    return tool.beats()[fence][-1]


def test_a_killed_parent_frees_nothing_while_the_program_runs(tool):
    """The embedded engine sees a death at once: here it must not be fooled. The watcher ends the program politely."""
    run = tool.beating("x", manner=["slow", "0.3"], ttl=8)
    fence = tool.until_beating()
    program, watcher = run.program, run.watcher
    rival = tool.beating("x", seconds=0.2, ttl=8)
    eventually(lambda: tool.client().show("x").waiters, what="a rival in the queue")

    killed_ns = time.monotonic_ns()
    run.send(signal.SIGKILL)
    assert rival.end().code == 0

    assert tool.assert_never_two() == 2
    assert last_beat(tool, fence) > killed_ns + 0.25 * NS, "it had no time to settle"
    assert last_beat(tool, fence) < killed_ns + 2 * NS, "it was not told at once"
    eventually(lambda: not alive(program) and not alive(watcher), what="an end of both")


def test_a_program_that_outlives_parent_and_watcher_keeps_the_lease_for_its_ttl(tool):
    """Both killed: nobody can end the program any more. Its lease is not taken for a dead one's before the ttl."""
    run = tool.beating("x", seconds=2.5, ttl=3)
    fence = tool.until_beating()
    watcher, began_ns = run.watcher, tool.beats()[fence][0]
    rival = tool.beating("x", seconds=0.1, ttl=3)
    eventually(lambda: tool.client().show("x").waiters, what="a rival in the queue")

    os.kill(run.pid, signal.SIGSTOP)
    os.kill(watcher, signal.SIGKILL)
    run.send(signal.SIGKILL)
    assert rival.end().code == 0

    assert tool.beats()[max(tool.beats())][0] > began_ns + 1 * NS
    assert tool.assert_never_two() == 2


@pytest.mark.parametrize("manner", [[], ["deaf"]], ids=["polite", "deaf"])
def test_a_frozen_parent_does_not_keep_the_program_alive(tool, manner):
    """Nobody renews: TERM at the deadline less the grace, KILL before the deadline, whatever the program thinks."""
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


def test_a_frozen_watcher_is_not_needed_when_the_parent_is_well(tool):
    """It harms nothing while frozen, nothing when it wakes, and does not outlive the program."""
    run = tool.beating("x", seconds=2.5 * TTL_S, ttl=TTL_S)
    tool.until_beating()
    watcher = run.watcher
    os.kill(watcher, signal.SIGSTOP)
    time.sleep(1.2 * TTL_S)
    os.kill(watcher, signal.SIGCONT)
    time.sleep(0.2)
    os.kill(watcher, signal.SIGSTOP)

    assert run.end().code == 0
    assert not alive(watcher)


@pytest.mark.parametrize("manner", [[], ["deaf"]], ids=["watched", "unwatched-and-deaf"])
def test_an_engine_that_is_gone_ends_the_program_in_time(tool, place, manner):
    """Renewals fail until the deadline: the program ends before it, with or without a working watcher."""
    run = tool.beating("x", "--json", manner=manner, ttl=TTL_S)
    fence = tool.until_beating()
    if manner:
        os.kill(run.watcher, signal.SIGSTOP)
    gone_ns = time.monotonic_ns()
    with place.unusable():
        eventually(lambda: not alive(run.children()["program"] or 0), 10, "an end of the program")
        assert last_beat(tool, fence) < gone_ns + TTL_S * NS
    run.end()
    warning, told = run.err.splitlines()

    assert run.code == 79
    assert b"cannot be renewed just now" in warning
    assert json.loads(told)["outcome"] == "lost"
    assert json.loads(told)["program"] == 128 + (9 if manner else 15)


def test_a_broken_lease_ends_the_program_within_a_second_of_hearing(tool):
    """The holder reads why; a program that does not listen is killed. The next one has it under a larger fence."""
    run = tool.beating("x", manner=["deaf"], ttl=TTL_S)
    fence = tool.until_beating()

    done = tool("break", "x", "--reason", "by hand, for the test", "--yes")
    broken_ns = time.monotonic_ns()
    run.end()

    assert (done.code, run.code) == (0, 79)
    assert b"broken): by hand, for the test" in run.err
    # It hears of it when it renews, a third of the ttl later at most.
    assert last_beat(tool, fence) < broken_ns + (TTL_S / 3 + 1 + 0.3) * NS
    assert tool.client().show("x").fence > fence


def test_faults_at_random_never_let_two_programs_run(tool):
    """Parents and watchers are killed and frozen at any moment, also while they start; the history shows no overlap."""
    chance = random.Random()
    trouble = []

    def rival(seed):
        luck = random.Random(seed)
        for _ in range(3):
            run = tool.beating(
                "x", "--timeout", "20", seconds=luck.uniform(0.05, 1.0), manner=luck.choice([[], ["deaf"]])
            )
            try:
                hurt(run, luck)
                run.end()
            except Exception as error:
                trouble.append((seed, error))
                return

    def hurt(run, luck):
        what = luck.choice(["kill parent", "freeze parent", "kill watcher", "freeze watcher", "nothing"])
        deadline = time.monotonic() + luck.uniform(0, 1.5)
        while time.monotonic() < deadline and run.process.poll() is None:
            time.sleep(0.005)
        action, whom = what.split() if what != "nothing" else ("", "")
        pid = run.children()["watcher"] if whom == "watcher" else run.pid
        if not action or pid is None or run.process.poll() is not None:
            return
        os.kill(pid, signal.SIGKILL if action == "kill" else signal.SIGSTOP)
        if action == "freeze":
            time.sleep(luck.uniform(0.1, 1.3 * TTL_S))
            if run.process.poll() is None or whom == "parent":
                os.kill(pid, signal.SIGCONT)

    seeds = [chance.randrange(10**6) for _ in range(4)]
    print("seeds", seeds)
    rivals = [threading.Thread(target=rival, args=(seed,)) for seed in seeds]
    for thread in rivals:
        thread.start()
    for thread in rivals:
        thread.join(60)

    assert trouble == []
    assert tool.assert_never_two() >= 4
    eventually(lambda: tool.client().show("x").owner is None, 10, "a free name")
