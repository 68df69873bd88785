"""Each checker finds a client with a deliberate mistake, in real processes, and passes a correct one."""

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
def start_obedient(holdfast_workers, holdfast_history, tmp_path):
    """Start a worker that applies commands to the lease."""

    def start_obedient(worker, function="obey", **habits):
        started = holdfast_workers.start(
            f"{CLIENTS}:{function}",
            lease=tmp_path / "lease.json",
            history=holdfast_history.path,
            worker=worker,
            **habits,
        )
        return started.wait_ready()

    return start_obedient


def ask(worker, command):
    worker.send_line(command)
    return worker.read_line()


def freeze_past(worker, ttl):
    worker.freeze()
    time.sleep(ttl)


def late_release(start_obedient, *, checks_token):
    """A sleeps past its ttl and then releases the lease, which B holds by now; then C requests it."""
    a, b, c = (start_obedient(worker, checks_token=checks_token) for worker in "abc")
    assert ask(a, "acquire 0.1") == "granted"
    freeze_past(a, 0.1)
    assert ask(b, "acquire 30") == "granted"
    a.thaw()
    ask(a, "release")
    return ask(c, "acquire 30")


def test_a_release_that_frees_anothers_lease_is_caught(start_obedient, holdfast_history):
    """The oldest mistake of lock files: delete the file, whichever process wrote it."""
    answer = late_release(start_obedient, checks_token=False)

    assert answer == "granted"
    [violation] = check(holdfast_history.read())
    assert violation.checker == "overlapping_holders"
    assert [event.worker for event in violation.events] == ["b", "c"]


def test_a_release_that_compares_tokens_passes(start_obedient, holdfast_history):
    """The same steps, with the check in place."""
    answer = late_release(start_obedient, checks_token=True)

    assert answer == "busy"
    assert_holds(holdfast_history.read())


def acquire_twice_at_the_point(start_obedient, pauses, *, fence_inside):
    """A has its grant and is stopped before it has its fence; B comes after A's ttl."""
    pauses.arm(POINT)
    a = start_obedient("a", fence_inside=fence_inside)
    a.send_line("acquire 0.1")
    pauses.wait_reached(POINT)
    freeze_past(a, 0.1)
    pauses.disarm(POINT)
    b = start_obedient("b", fence_inside=fence_inside)
    assert ask(b, "acquire 30") == "granted"
    pauses.go(POINT)
    a.thaw()
    assert a.read_line() == "granted"


def test_a_fence_apart_from_its_grant_is_caught(start_obedient, holdfast_pauses, holdfast_history):
    """Two steps, with a pause between them: the same number goes to two holders."""
    acquire_twice_at_the_point(start_obedient, holdfast_pauses, fence_inside=False)

    [violation] = check(holdfast_history.read(), fences_grow)
    assert {event.worker for event in violation.events} == {"a", "b"}
    assert {event.fence for event in violation.events} == {1}


def test_a_fence_given_with_its_grant_passes(start_obedient, holdfast_pauses, holdfast_history):
    """The same steps at once; that A learns of its older fence last is no mistake."""
    acquire_twice_at_the_point(start_obedient, holdfast_pauses, fence_inside=True)

    history = holdfast_history.read()
    assert [event.fence for event in history if event.kind == "granted"] == [2, 1]
    assert_holds(history)


def late_write(start_obedient, *, guarded):
    """A reads, sleeps past its ttl while B counts, and writes what it computed before."""
    a, b = (start_obedient(worker, guarded=guarded) for worker in "ab")
    assert ask(a, "acquire 0.1") == "granted"
    ask(a, "look")
    freeze_past(a, 0.1)
    assert ask(b, "acquire 30") == "granted"
    ask(b, "look")
    ask(b, "write")
    a.thaw()
    return ask(a, "write")


def test_a_late_write_to_an_unguarded_resource_is_caught(start_obedient, holdfast_history):
    """No lock alone can stop this write: its holder trusted the lease when it began."""
    answer = late_write(start_obedient, guarded=False)

    assert answer == "accepted"
    history = holdfast_history.read()
    assert [violation.checker for violation in check(history)] == [
        "guarded_writes_never_go_down",
        "lost_updates",
    ]
    assert overlapping_holders(history) == []


def test_a_late_write_to_a_guarded_resource_is_refused_and_passes(start_obedient, holdfast_history, tmp_path):
    """The same steps, with a resource that compares fences."""
    answer = late_write(start_obedient, guarded=True)

    assert answer == "fenced"
    final = GuardedFile(tmp_path / "resource.json").read().value
    assert final == 1
    assert_holds(holdfast_history.read())
    assert_holds(holdfast_history.read(), partial(lost_updates, final={"orders": final}))


def write_between_read_and_write(start_obedient, *, reads_guarded):
    """A wakes up past its ttl and writes after B has read, but before B has written."""
    a, b = (start_obedient(worker, reads_guarded=reads_guarded) for worker in "ab")
    assert ask(a, "acquire 0.1") == "granted"
    ask(a, "look")
    freeze_past(a, 0.1)
    assert ask(b, "acquire 30") == "granted"
    ask(b, "look")
    a.thaw()
    return ask(a, "write"), ask(b, "write")


def test_a_guard_that_does_not_know_of_the_reader_loses_an_update(start_obedient, holdfast_history):
    """No fence ever fell, and still B overwrote an acknowledged write of A."""
    answers = write_between_read_and_write(start_obedient, reads_guarded=False)

    assert answers == ("accepted", "accepted")
    assert [violation.checker for violation in check(holdfast_history.read())] == ["lost_updates"]


def test_a_guarded_read_shuts_out_the_older_writer(start_obedient, holdfast_history):
    """The same steps, with a reader that stores its fence before it reads."""
    answers = write_between_read_and_write(start_obedient, reads_guarded=True)

    assert answers == ("fenced", "accepted")
    assert_holds(holdfast_history.read())


def freezes_and_kills(start_obedient, history, *, seconds, enough=lambda: False, **habits):
    """Workers count under a short lease; at random one is frozen past its ttl, or killed and replaced."""
    rng = random.Random(11)
    parent = history.recorder("parent")
    running = [start_obedient(f"w{number}", "count_under_lease", ttl=0.02, **habits) for number in range(3)]
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
            running[victim] = start_obedient(f"w{victim}", "count_under_lease", ttl=0.02, **habits)
    for victim, worker in enumerate(running):
        parent.died(f"w{victim}", worker.pid, "at the end")
        worker.kill()
    return history.read()


def test_a_correct_client_passes_under_freezes_and_kills(start_obedient, holdfast_history, tmp_path):
    """No false alarm, however the processes are stopped, and every acknowledged update is there."""
    history = freezes_and_kills(start_obedient, holdfast_history, seconds=1.5)

    final = GuardedFile(tmp_path / "resource.json").read().value
    assert final > 20
    assert_holds(history)
    assert_holds(history, partial(lost_updates, final={"orders": final}))


def test_an_unguarded_client_is_caught_under_the_same_faults(start_obedient, holdfast_history):
    """The faults are strong enough to show the mistake, so that the passing test above means something."""

    def caught():
        return check(holdfast_history.read(), guarded_writes_never_go_down, lost_updates)

    freezes_and_kills(start_obedient, holdfast_history, seconds=20, enough=caught, guarded=False)

    assert caught()
