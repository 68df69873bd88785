"""Semaphores: a fixed number of numbered permits, each with its own lease."""

import time

import pytest

from holdfast import InvalidConfig, LeaseLost, NotAcquired
from holdfast.commands import SEMAPHORE, Borrow, Extend
from holdfast.testing import eventually
from holdfast.testing.conformance.faces import together

pytestmark = pytest.mark.capability("pools")


def until_waiting(semaphore, count):
    eventually(lambda: semaphore.stats().waiting == count, what=f"{count} waiters")


@pytest.mark.large
def test_each_holder_has_its_own_permit_and_no_more_enter(face):
    """A permit has a number, for a resource per permit, and a fence that only grows."""
    gpu = face.connect().semaphore("gpu", permits=3)
    permits = [gpu.acquire() for _ in range(3)]
    assert sorted(permit.number for permit in permits) == [1, 2, 3]
    assert len({permit.fence for permit in permits}) == 3
    assert {permit.name for permit in permits} == {"gpu"}
    assert gpu.try_acquire() is None
    with pytest.raises(NotAcquired) as refusal:
        gpu.acquire(timeout=0)
    assert (refusal.value.name, refusal.value.reason) == ("gpu", "all busy")
    assert "the first permit stays held for another" in str(refusal.value)
    waiting = face.start(gpu.acquire)
    until_waiting(gpu, 1)
    permits[1].release()
    successor = waiting.result()
    assert (successor.number, successor.fence > permits[1].fence) == (permits[1].number, True)
    for permit in (permits[0], permits[2], successor):
        permit.release()


def test_a_semaphore_is_entered_like_a_lock(face):
    """It works as a block, as a decorator with a name from arguments, and nested if it is reentrant."""
    client = face.connect()
    with client.semaphore("gpu", 1) as permit:
        permit.check()
        assert client.semaphore("gpu", 1).try_acquire() is None

    inside = []

    @client.semaphore("gpu/{host}", 2)
    def work(host):
        inside.append(client.semaphore(f"gpu/{host}", 2).stats().lent)

    work("a")
    assert inside == [1]
    again = client.semaphore("again", 1, reentrant=True)
    with again as outer, again as inner:
        assert outer.fence == inner.fence


@together
def test_the_permit_of_a_dead_holder_is_free_after_its_ttl(face):
    """Without leases, a crash would lose a permit for ever."""
    gpu, peer = face.connect().semaphore("gpu", 1), face.peer()
    peer.say(Borrow("gpu", "dead", "", 600, False, permits=1, kind=SEMAPHORE))
    began = time.monotonic()
    with gpu:
        assert time.monotonic() - began >= 0.5


@together
def test_a_permit_that_cannot_be_renewed_is_lost(face):
    """The block raises `LeaseLost`, as for every lease."""
    client = face.connect()
    wire = face.wire(client)
    with pytest.raises(LeaseLost), client.semaphore("gpu", 2, ttl=0.5) as permit:
        wire.fail(Extend)
        assert permit.lost.wait(10)


def test_another_number_of_permits_is_refused_until_a_resize(face):
    """Two programs with different numbers would each seem right, so the second gets an error at once."""
    client = face.connect()
    four, two = client.semaphore("gpu", 4), client.semaphore("gpu", 2)
    permits = [four.acquire() for _ in range(4)]
    with pytest.raises(InvalidConfig) as refusal:
        two.acquire()
    assert refusal.value.setting == "permits"

    two.resize(2)
    assert (two.permits, two.stats().size, two.stats().lent) == (2, 2, 4)
    for permit in permits:
        permit.check()
        permit.release()
    assert two.stats()[1:6] == (2, 0, 0, 2, 0)
    with two, two:
        assert two.try_acquire() is None
    two.resize(3)
    with two, two, two:
        assert two.try_acquire() is None


def test_more_permits_let_waiters_in(face):
    """A new permit goes to a waiter."""
    client = face.connect()
    gpu, other = client.semaphore("gpu", 1), client.semaphore("gpu", 1)
    permit = gpu.acquire()
    waiting = face.start(other.acquire)
    until_waiting(gpu, 1)
    gpu.resize(2)
    second = waiting.result()
    assert {permit.number, second.number} == {1, 2}
    permit.release()
    second.release()


@pytest.mark.parametrize("permits", [0, -1, 1.5, "two", True, None, 10**6])
def test_an_invalid_number_of_permits_is_refused(face, permits):
    """The refusal comes before any command."""
    with pytest.raises(InvalidConfig) as refusal:
        face.connect().semaphore("gpu", permits)
    assert refusal.value.setting == "permits"
