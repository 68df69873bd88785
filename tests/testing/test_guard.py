"""The guarded file: a resource that a fence protects."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from holdfast.errors import Fenced
from holdfast.testing import GuardedFile, Stored

CLIENTS = Path(__file__).with_name("clients.py")


def one_more(value):
    return value + 1


@pytest.fixture
def resource(tmp_path):
    return GuardedFile(tmp_path / "counter.json")


def test_a_new_file_holds_its_initial_value(resource):
    """A test need not create the file first."""
    assert resource.read() == Stored(0, 0, "")


def test_a_newer_fence_is_accepted(resource):
    """The newest holder may write, and its fence is stored."""
    resource.write(5, "t5", one_more)

    assert resource.write(9, "t9", one_more) == 2
    assert resource.read() == Stored(2, 9, "t9")


def test_the_holder_may_write_again(resource):
    """One lease covers many writes."""
    resource.write(5, "t5", one_more)

    assert resource.write(5, "t5", one_more) == 2


@pytest.mark.parametrize(("fence", "token"), [(4, "t4"), (4, "t5"), (5, "other")])
def test_an_old_fence_or_a_foreign_token_is_refused_and_changes_nothing(resource, fence, token):
    """After a split two holders may have the same fence: then the token decides."""
    resource.write(5, "t5", one_more)

    with pytest.raises(Fenced) as refusal:
        resource.write(fence, token, one_more)

    assert (refusal.value.fence, refusal.value.newest) == (fence, 5)
    assert resource.read() == Stored(1, 5, "t5")


def test_a_guarded_read_shuts_out_older_holders(resource):
    """A holder that has read must be able to rely on the value."""
    resource.write(5, "t5", one_more)

    assert resource.guarded_read(6, "t6") == 1
    with pytest.raises(Fenced):
        resource.write(5, "t5", one_more)
    with pytest.raises(Fenced):
        resource.guarded_read(5, "t5")


def test_an_unguarded_write_compares_no_fence(resource):
    """It exists to show the mistake."""
    resource.write(5, "t5", one_more)

    assert resource.unguarded_write(lambda _: -1) == -1
    assert resource.read() == Stored(-1, 5, "t5")


def test_a_change_that_fails_changes_nothing(resource):
    """The next writer finds the file unlocked."""
    resource.write(5, "t5", one_more)

    with pytest.raises(ZeroDivisionError):
        resource.write(6, "t6", lambda value: value // 0)

    assert resource.write(5, "t5", one_more) == 2


def test_no_concurrent_guarded_write_is_lost(resource, holdfast_workers):
    """Read, compare, change and store are one step, whatever other processes write."""
    workers = [
        holdfast_workers.start(f"{CLIENTS}:count_guarded", path=resource.path, fence=1, token="t", times=300)
        for _ in range(3)
    ]

    assert [worker.wait() for worker in workers] == [0, 0, 0]
    assert resource.read().value == 900


def test_a_killed_writer_leaves_a_whole_file(resource, holdfast_workers):
    """The content is the old or the new one, and no writer waits for the dead one."""
    rng = random.Random(3)
    newest = 0
    for _ in range(6):
        worker = holdfast_workers.start(f"{CLIENTS}:rewrite_guarded", path=resource.path).wait_ready()
        time.sleep(rng.uniform(0.005, 0.03))
        worker.kill()

        stored = resource.read()
        assert stored.value == [stored.fence] * 2000 or stored == Stored(0, 0, "")
        assert stored.fence >= newest
        newest = stored.fence
    assert newest > 0
