"""Read-write locks: many readers or one writer, and no writer starves."""

import threading
import time

import pytest

from holdfast import InvalidConfig, LeaseLost, NotAcquired
from holdfast.commands import READ, RWLOCK, Borrow, Extend
from holdfast.testing import eventually
from holdfast.testing.conformance.faces import together

pytestmark = pytest.mark.capability("pools")


def until_waiting(rw, count):
    eventually(lambda: rw.stats().waiting == count, what=f"{count} waiters")


@pytest.mark.large
def test_many_readers_share_and_a_writer_is_alone(face):
    """Readers share the lock, a writer does not, and neither enters while the other holds it."""
    rw, other = face.connect().rwlock("index"), face.connect().rwlock("index")
    readers = [rw.read().acquire(), rw.read().acquire(), other.read().acquire(timeout=0)]
    assert rw.stats().lent == 3
    with pytest.raises(NotAcquired) as refusal:
        other.write().acquire(timeout=0)
    assert (refusal.value.name, refusal.value.reason) == ("index", "busy")
    for lease in readers:
        lease.release()

    with rw.write() as lease:
        assert (lease.mode, lease.name) == ("write", "index")
        assert other.read().try_acquire() is None
        assert other.write().try_acquire() is None
    other.read().acquire(timeout=0).release()


def test_the_fence_of_a_writer_exceeds_all_before_it(face):
    """A guarded resource compares the fences of writers; those of readers lie in between."""
    rw = face.connect().rwlock("index")
    fences = []
    for _ in range(3):
        with rw.read() as lease:
            fences.append(lease.fence)
        with rw.write() as lease:
            fences.append(lease.fence)
    assert fences == sorted(set(fences))


def test_no_reader_overtakes_a_waiting_writer(face):
    """Otherwise a writer would starve; after it, all waiting readers enter together."""
    rw, other = face.connect().rwlock("index"), face.connect().rwlock("index")
    reading = rw.read().acquire()
    order, inside, together_ = [], threading.Barrier(2, timeout=20), []

    def write():
        with other.write():
            order.append("writer")

    def read():
        with other.read():
            order.append("reader")
            together_.append(inside.wait())

    writer = face.start(write)
    until_waiting(rw, 1)
    readers = []
    for count in (2, 3):
        readers.append(face.start(read))
        until_waiting(rw, count)
    assert rw.read().try_acquire() is None
    reading.release()
    for running in (writer, *readers):
        running.result()
    assert order == ["writer", "reader", "reader"]
    assert sorted(together_) == [0, 1]


@together
@pytest.mark.finding("L4")
def test_readers_enter_at_once_when_the_writer_before_them_gives_up(face):
    """The readers wait only for that writer: the step that ends its wait serves them too."""
    rw, other = face.connect().rwlock("index"), face.connect().rwlock("index")
    reading = rw.read().acquire()
    entered = []

    def write():
        with pytest.raises(NotAcquired):
            other.write().acquire(timeout=2)
        return time.monotonic()

    def read(client):
        with client.read():
            entered.append(time.monotonic())

    writer = face.start(write)
    until_waiting(rw, 1)
    readers = [face.start(read, each) for each in (rw, other)]
    until_waiting(rw, 3)
    gave_up = writer.result()
    for each in readers:
        each.result()
    assert max(entered) - gave_up < 0.5
    reading.release()


@together
def test_readers_and_writers_never_meet(face):
    """With six threads of two clients each writer is alone, and no update is lost."""
    clients = [face.connect(), face.connect()]
    state = {"value": 0, "readers": 0, "writer": False}
    guard, met = threading.Lock(), []

    def work(number):
        rw = clients[number % 2].rwlock("index", timeout=60)
        for turn in range(12):
            if (turn + number) % 3 == 0:
                with rw.write():
                    seen = state["value"]
                    with guard:
                        met.append(state["readers"] or state["writer"])
                        state["writer"] = True
                    time.sleep(0.001)
                    state["value"] = seen + 1
                    state["writer"] = False
            else:
                with rw.read():
                    with guard:
                        met.append(state["writer"])
                        state["readers"] += 1
                    time.sleep(0.0005)
                    with guard:
                        state["readers"] -= 1

    running = [face.start(work, number) for number in range(6)]
    for each in running:
        each.result(60)
    assert not any(met)
    assert state["value"] == 24


@together
def test_a_dead_reader_keeps_a_writer_out_for_its_ttl_and_no_longer(face):
    """A reader has a lease like any other."""
    rw, peer = face.connect().rwlock("index"), face.peer()
    peer.say(Borrow("index", "dead", "", 600, False, tag=READ, share_ppm=1, kind=RWLOCK))
    began = time.monotonic()
    with rw.write():
        assert time.monotonic() - began >= 0.5


@together
def test_a_reader_that_cannot_renew_learns_of_the_loss(face):
    """A writer may have changed the data meanwhile."""
    client = face.connect()
    wire = face.wire(client)
    with pytest.raises(LeaseLost), client.rwlock("index", ttl=0.5).read() as lease:
        wire.fail(Extend)
        assert lease.lost.wait(10)


@pytest.mark.parametrize("same", [True, False])
def test_a_reader_may_read_again_while_a_writer_waits(face, same):
    """The nested reader uses the same lease: in line it would stand behind the writer, which waits for it."""
    client = face.connect()
    rw = client.rwlock("index", timeout=20)
    other = rw if same else client.rwlock("index", timeout=20)
    entered, written = threading.Event(), []

    def read():
        with rw.read() as outer:
            entered.set()
            until_waiting(rw, 1)
            with other.read() as inner:
                assert inner.fence == outer.fence
            outer.check()
            assert (rw.stats().lent, written) == (1, [])

    def write():
        with client.rwlock("index", timeout=20).write():
            written.append(True)

    reading = face.start(read)
    assert entered.wait(20)
    writing = face.start(write)
    reading.result()
    writing.result()
    assert written == [True]
    assert rw.stats()[1:6] == (0, 0, 0, 0, 0)


@pytest.mark.parametrize("same", [True, False])
def test_a_reader_that_asks_to_write_is_refused_at_once(face, same):
    """Two such readers would wait for each other for ever, also through another object of the client."""
    client = face.connect()
    rw = client.rwlock("index", timeout=5)
    other = rw if same else client.rwlock("index", timeout=5)
    with client.rwlock("another").read(), rw.read():
        with pytest.raises(InvalidConfig, match="cannot become the writer"), other.write():
            pass
        with pytest.raises(InvalidConfig, match="cannot become the writer"):
            other.write().acquire(timeout=0)
    with rw.write(), pytest.raises(InvalidConfig, match="wait for itself"), other.read():
        pass
    with other.write():
        pass
    assert rw.stats()[1:6] == (0, 0, 0, 0, 0)
