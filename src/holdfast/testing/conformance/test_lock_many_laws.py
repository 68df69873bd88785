"""`lock_many` acquires all names or none, and two callers never wait for each other."""

import time

import pytest

from holdfast import InvalidConfig, InvalidName, LeaseLost, NotAcquired
from holdfast.commands import Acquire
from holdfast.testing import eventually
from holdfast.testing.conformance.faces import together


def test_every_name_is_held_under_its_own_fence(face):
    """The group has one lease per name, each with the fence that the engine gave for that name."""
    client = face.connect()
    with client.lock_many(["b", "a", "c"]) as group:
        assert list(group.fences) == ["b", "a", "c"]
        assert group.fences == {name: client.show(name).fence for name in "bac"}
        assert group["a"].fence == client.show("a").fence
        group.check()
        assert all(client.lock(name).try_acquire() is None for name in "abc")

    assert all(client.show(name).holder is None for name in "abc")


def test_a_busy_name_leaves_none_held(face):
    """All or none: the names before the busy one are free again when `NotAcquired` is raised."""
    client, other = face.connect(), face.connect()
    with other.lock("b"):
        with pytest.raises(NotAcquired) as refusal:
            client.lock_many(["c", "b", "a"]).acquire(timeout=0.1)
        assert refusal.value.name == "b"
        assert [client.show(name).holder is None for name in "abc"] == [True, False, True]
        with other.lock("a", timeout=0) as lease:
            lease.check()


@together
def test_callers_with_the_names_in_opposite_orders_both_finish(face):
    """Two callers that lock the same names in opposite orders would deadlock if each kept its own order."""
    clients = [face.connect(), face.connect()]
    inside = []

    def work(client, names):
        for _ in range(10):
            with client.lock_many(names, timeout=30) as group:
                inside.append(group.fences["a"])

    runs = [face.start(work, *each) for each in zip(clients, (["a", "b"], ["b", "a"]), strict=True)]
    for run in runs:
        run.result()

    assert inside == sorted(set(inside))
    assert len(inside) == 20


def test_a_lost_lease_ends_the_block_with_a_loss_and_frees_the_others(face):
    """A block that lost one of its leases never ends well, and the others are given back."""
    client = face.connect()
    with pytest.raises(LeaseLost) as lost, client.lock_many(["a", "b"]) as group:
        client.break_lease("a", "for the test")
        eventually(lambda: group["a"].lost, "the loss is reported")
        with pytest.raises(LeaseLost):
            group.check()
    assert lost.value.name == "a"
    assert client.show("b").holder is None


def test_a_group_can_be_released_without_a_block(face):
    """The group that `acquire` returns is released as a whole."""
    client = face.connect()
    group = client.lock_many(["a", "b"]).acquire()
    group.release()
    assert [client.show(name).holder for name in "ab"] == [None, None]


def test_the_timeout_counts_for_all_names_together(face):
    """A caller waits for the given time, not for the given time per name."""
    client, other = face.connect(), face.connect()
    with other.lock_many(["a", "b", "c"]):
        began = time.monotonic()
        with pytest.raises(NotAcquired):
            client.lock_many(["a", "b", "c"], timeout=0.3).acquire()
        assert 0.3 <= time.monotonic() - began < 0.9


@pytest.mark.parametrize("names", [[], "text", 5, ["a", "a"], ["a", ""], ["a", 5]], ids=repr)
def test_bad_names_are_refused_before_any_command(face, names):
    """A duplicate would wait for itself for ever, and a text would lock its characters."""
    client = face.connect()
    wire = face.wire(client)
    with pytest.raises((InvalidName, InvalidConfig)) as refusal:
        client.lock_many(names)
    if names == ["a", "a"]:
        assert isinstance(refusal.value, InvalidName)
        assert "'a'" in str(refusal.value)
    assert wire.commands(Acquire) == []
