"""Each checker catches a client that is broken on purpose, in real processes, and lets a right one pass."""

from __future__ import annotations

import random
import time
from functools import partial
from pathlib import Path

import pytest

from holdfast.testing import (
    GuardedFile,
    assert_holds,
    check,
    fences_grow,
    guarded_writes_never_go_down,
    lost_updates,
    overlapping_holders,
)

CLIENTS = Path(__file__).with_name("clients.py")
POINT = "clients.after-grant"


@pytest.fixture
def hire(holdfast_workers, holdfast_history, tmp_path):
    """Start a worker that does to the lease what it is told."""

    def hire(worker, function="obey", **habits):
        started = holdfast_workers.start(
            f"{CLIENTS}:{function}",
            lease=tmp_path / "lease.json",
            history=holdfast_history.path,
            worker=worker,
            **habits,
        )
        return started.wait_ready()

    return hire


def ask(worker, command):
    worker.send_line(command)
    return worker.read_line()


def freeze_past(worker, ttl):
    worker.freeze()
    time.sleep(ttl)


def late_release(hire, *, checks_token):
    """A sleeps past its ttl and wakes up to release what is B's by now; then C asks."""
    a, b, c = (hire(worker, checks_token=checks_token) for worker in "abc")
    assert ask(a, "acquire 0.1") == "granted"
    freeze_past(a, 0.1)
    assert ask(b, "acquire 30") == "granted"
    a.thaw()
    ask(a, "release")
    return ask(c, "acquire 30")


def test_a_release_that_frees_anothers_lease_is_caught(hire, holdfast_history):
    """The oldest mistake of lock files: delete the file, whosever it is."""
    answer = late_release(hire, checks_token=False)

    assert answer == "granted"
    [violation] = check(holdfast_history.read())
    assert violation.checker == "overlapping_holders"
    assert [event.worker for event in violation.events] == ["b", "c"]


def test_a_release_that_compares_tokens_passes(hire, holdfast_history):
    """The same story with the check in place."""
    answer = late_release(hire, checks_token=True)

    assert answer == "busy"
    assert_holds(holdfast_history.read())


def acquire_twice_at_the_point(hire, pauses, *, fence_inside):
    """A has its grant and is stopped before it knows its number; B comes after A's ttl."""
    pauses.arm(POINT)
    a = hire("a", fence_inside=fence_inside)
    a.send_line("acquire 0.1")
    pauses.wait_reached(POINT)
    freeze_past(a, 0.1)
    pauses.disarm(POINT)
    b = hire("b", fence_inside=fence_inside)
    assert ask(b, "acquire 30") == "granted"
    pauses.go(POINT)
    a.thaw()
    assert a.read_line() == "granted"


def test_a_fence_apart_from_its_grant_is_caught(hire, holdfast_pauses, holdfast_history):
    """Two steps, with a pause between them: the same number goes to two holders."""
    acquire_twice_at_the_point(hire, holdfast_pauses, fence_inside=False)

    [violation] = check(holdfast_history.read(), fences_grow)
    assert {event.worker for event in violation.events} == {"a", "b"}
    assert {event.fence for event in violation.events} == {1}


def test_a_fence_given_with_its_grant_passes(hire, holdfast_pauses, holdfast_history):
    """The same story in one step; that A learns of its older fence last is nobody's fault."""
    acquire_twice_at_the_point(hire, holdfast_pauses, fence_inside=True)

    history = holdfast_history.read()
    assert [event.fence for event in history if event.kind == "granted"] == [2, 1]
    assert_holds(history)


def late_write(hire, *, guarded):
    """A looks, sleeps past its ttl while B counts, and writes what it computed before."""
    a, b = (hire(worker, guarded=guarded) for worker in "ab")
    assert ask(a, "acquire 0.1") == "granted"
    ask(a, "look")
    freeze_past(a, 0.1)
    assert ask(b, "acquire 30") == "granted"
    ask(b, "look")
    ask(b, "write")
    a.thaw()
    return ask(a, "write")


def test_a_late_write_to_an_unguarded_resource_is_caught(hire, holdfast_history):
    """No lock alone can stop this write: its owner believed the lease when it began."""
    answer = late_write(hire, guarded=False)

    assert answer == "accepted"
    history = holdfast_history.read()
    assert [violation.checker for violation in check(history)] == [
        "guarded_writes_never_go_down",
        "lost_updates",
    ]
    assert overlapping_holders(history) == []


def test_a_late_write_to_a_guarded_resource_is_refused_and_passes(hire, holdfast_history, tmp_path):
    """The same story with a resource that compares fences."""
    answer = late_write(hire, guarded=True)

    assert answer == "fenced"
    final = GuardedFile(tmp_path / "resource.json").read().value
    assert final == 1
    assert_holds(holdfast_history.read())
    assert_holds(holdfast_history.read(), partial(lost_updates, final={"orders": final}))


def write_between_look_and_write(hire, *, reads_guarded):
    """A wakes up past its ttl and writes after B has looked, but before B has written."""
    a, b = (hire(worker, reads_guarded=reads_guarded) for worker in "ab")
    assert ask(a, "acquire 0.1") == "granted"
    ask(a, "look")
    freeze_past(a, 0.1)
    assert ask(b, "acquire 30") == "granted"
    ask(b, "look")
    a.thaw()
    return ask(a, "write"), ask(b, "write")


def test_a_guard_that_did_not_hear_of_the_reader_loses_an_update(hire, holdfast_history):
    """No fence ever fell, and still B wrote over what A was told is stored."""
    answers = write_between_look_and_write(hire, reads_guarded=False)

    assert answers == ("accepted", "accepted")
    assert [violation.checker for violation in check(holdfast_history.read())] == ["lost_updates"]


def test_a_guarded_read_shuts_out_the_older_writer(hire, holdfast_history):
    """The same story with a reader that shows its fence before it looks."""
    answers = write_between_look_and_write(hire, reads_guarded=True)

    assert answers == ("fenced", "accepted")
    assert_holds(holdfast_history.read())


def storm(hire, history, *, seconds, enough=lambda: False, **habits):
    """Workers count under a short lease; at random one is frozen past its ttl, or killed and replaced."""
    rng = random.Random(11)
    parent = history.recorder("parent")
    running = [hire(f"w{number}", "count_under_lease", ttl=0.02, **habits) for number in range(3)]
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not enough():
        time.sleep(rng.uniform(0.005, 0.02))
        victim = rng.randrange(len(running))
        if rng.random() < 0.8:
            running[victim].freeze()
            time.sleep(rng.uniform(0.0, 0.04))
            running[victim].thaw()
        else:
            parent.died(f"w{victim}", running[victim].pid, "by SIGKILL")
            running[victim].kill()
            running[victim] = hire(f"w{victim}", "count_under_lease", ttl=0.02, **habits)
    for victim, worker in enumerate(running):
        parent.died(f"w{victim}", worker.pid, "at the end")
        worker.kill()
    return history.read()


def test_a_right_client_passes_in_a_storm_of_freezes_and_kills(hire, holdfast_history, tmp_path):
    """No false alarm, however the processes are stopped, and every acknowledged update is there."""
    history = storm(hire, holdfast_history, seconds=1.5)

    final = GuardedFile(tmp_path / "resource.json").read().value
    assert final > 20
    assert_holds(history)
    assert_holds(history, partial(lost_updates, final={"orders": final}))


def test_an_unguarded_client_is_caught_in_the_same_storm(hire, holdfast_history):
    """The storm is strong enough to show the mistake, so the green one above means something."""

    def caught():
        return check(holdfast_history.read(), guarded_writes_never_go_down, lost_updates)

    storm(hire, holdfast_history, seconds=20, enough=caught, guarded=False)

    assert caught()
