"""Semaphores: so many at once and no more, each on a numbered seat with a lease of its own."""

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
def test_as_many_as_there_are_permits_are_inside_each_on_its_own_seat(face):
    """A seat has a number, for what there is one of per seat, and a fence that only grows."""
    gpu = face.connect().semaphore("gpu", permits=3)
    seats = [gpu.acquire() for _ in range(3)]
    assert sorted(seat.number for seat in seats) == [1, 2, 3]
    assert len({seat.fence for seat in seats}) == 3
    assert {seat.name for seat in seats} == {"gpu"}
    assert gpu.try_acquire() is None
    with pytest.raises(NotAcquired) as told:
        gpu.acquire(timeout=0)
    assert (told.value.name, told.value.reason) == ("gpu", "all busy")
    waiting = face.start(gpu.acquire)
    until_waiting(gpu, 1)
    seats[1].release()
    heir = waiting.result()
    assert (heir.number, heir.fence > seats[1].fence) == (seats[1].number, True)
    for seat in (seats[0], seats[2], heir):
        seat.release()


def test_a_semaphore_is_entered_like_a_lock(face):
    """As a block, as a decorator with a name made of arguments, and again by whoever is inside if it is reentrant."""
    client = face.connect()
    with client.semaphore("gpu", 1) as seat:
        seat.check()
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
def test_a_seat_of_the_dead_comes_back_after_its_ttl(face):
    """One permit less for ever is what leases are there to prevent."""
    gpu, peer = face.connect().semaphore("gpu", 1), face.peer()
    peer.say(Borrow("gpu", "dead", "", 600, False, permits=1, kind=SEMAPHORE))
    began = time.monotonic()
    with gpu:
        assert time.monotonic() - began >= 0.5


@together
def test_a_seat_that_cannot_be_renewed_is_lost_and_told(face):
    """As for every lease: the block ends in the loss."""
    client = face.connect()
    wire = face.wire(client)
    with pytest.raises(LeaseLost), client.semaphore("gpu", 2, ttl=0.5) as seat:
        wire.fail(Extend)
        assert seat.lost.wait(10)


def test_who_names_another_number_of_permits_is_refused_until_it_is_changed_for_all(face):
    """Two programs that do not agree would each be right by themselves; so it is told at once."""
    client = face.connect()
    four, two = client.semaphore("gpu", 4), client.semaphore("gpu", 2)
    seats = [four.acquire() for _ in range(4)]
    with pytest.raises(InvalidConfig) as told:
        two.acquire()
    assert told.value.setting == "permits"

    two.resize(2)
    assert (two.permits, two.stats().size, two.stats().lent) == (2, 2, 4)
    for seat in seats:
        seat.check()
        seat.release()
    assert two.stats()[1:6] == (2, 0, 0, 2, 0)
    with two, two:
        assert two.try_acquire() is None
    two.resize(3)
    with two, two, two:
        assert two.try_acquire() is None


def test_more_permits_let_waiters_in(face):
    """A seat that is new goes to whoever waits."""
    client = face.connect()
    gpu, other = client.semaphore("gpu", 1), client.semaphore("gpu", 1)
    seat = gpu.acquire()
    waiting = face.start(other.acquire)
    until_waiting(gpu, 1)
    gpu.resize(2)
    second = waiting.result()
    assert {seat.number, second.number} == {1, 2}
    seat.release()
    second.release()


@pytest.mark.parametrize("permits", [0, -1, 1.5, "two", True, None, 10**6])
def test_a_number_of_permits_that_is_none_is_refused(face, permits):
    """Before anything is sent."""
    with pytest.raises(InvalidConfig) as told:
        face.connect().semaphore("gpu", permits)
    assert told.value.setting == "permits"
