"""Closing a client loses nothing and leaks nothing."""

import logging
import threading
import time
from datetime import timedelta

import pytest

import holdfast
from holdfast import Closed, InvalidConfig, LeaseLost, Unavailable
from holdfast.commands import Acquire, ReleaseLease, Undo
from holdfast.testing import eventually
from holdfast.testing.conformance.faces import descriptors, threads_of_holdfast, together, until_waiters, waiting_labels


@pytest.mark.acceptance("A0-16", "G-10")
def test_close_waits_for_the_release_of_a_held_lease(face):
    """`close()` waits for running work and refuses new work; afterwards nothing is left."""
    client, other = face.connect(), face.connect()
    leader = client.leader("y")
    with client.lock("x") as lease:
        closing = face.start(lambda: (client.close(), time.monotonic()))
        eventually(lambda: client._client.state == "closing")
        with pytest.raises(Closed):
            client.lock("z").acquire()
        time.sleep(0.1)
        assert not closing.done()
        lease.check()
        left_at = time.monotonic()

    left, closed_at = closing.result()

    assert left == ()
    assert left_at < closed_at < left_at + 1
    assert other.show("x").holder is None
    for use in (
        client.lock("x").acquire,
        client.lock("x").try_acquire,
        client.lock("x").__enter__,
        lambda: client.show("x"),
        lambda: client.break_lease("x", "by hand"),
        leader.current,
        leader.candidates,
        leader.__enter__,
    ):
        with pytest.raises(Closed):
            use()


@pytest.mark.acceptance("A0-17", "G-10")
def test_close_withdraws_waiting_acquires_at_once(face):
    """A waiter gets `Closed` and leaves the waiting line; a release during the close grants it nothing."""
    holder, other = face.connect(), face.connect()
    lease, busy = holder.lock("x").acquire(), other.lock("y").acquire()
    waiting = [face.start(lambda: other.lock("x").acquire()) for _ in range(3)]
    until_waiters(holder, "x", 3)
    began = time.monotonic()
    closing = face.start(other.close)

    assert [type(each.error()) for each in waiting] == [Closed] * 3
    assert time.monotonic() - began < 1
    eventually(lambda: waiting_labels(holder, "x") == [])
    lease.release()
    assert holder.show("x").holder is None
    assert not closing.done()  # it waits for the holder of "y"
    busy.release()
    assert closing.result() == ()


@pytest.mark.capability("limits")
def test_close_ends_a_wait_for_a_rate_limit(face):
    """A caller that waits for a rate limit holds nothing, and gets `Closed` at once."""
    client = face.connect()
    limit = client.limit("1/minute", name="calls")
    assert limit.hit("ann").allowed
    waiting = face.start(lambda: limit.wait("ann", timeout=120))
    eventually(lambda: client._client._wakers, what="the caller waits")
    assert client.close() == ()
    assert isinstance(waiting.error(2), Closed)


def test_hooks_run_at_the_beginning_of_close(face, caplog):
    """A hook stops what holds leases, so `close()` need not wait; the error of one hook stops no other."""
    client = face.connect()
    lease = client.lock("x").acquire()
    calls = []
    client.on_closing(lambda: calls.append("first"))
    client.on_closing(lambda: 1 / 0)
    client.on_closing(lambda: (calls.append("last"), stop.set()))
    stop = threading.Event()
    face.start(lambda: (stop.wait(20), lease.release()))
    began = time.monotonic()

    with caplog.at_level(logging.ERROR, logger="holdfast"):
        assert client.close() == ()
        assert client.close() == ()

    assert time.monotonic() - began < 1
    assert calls == ["first", "last"]
    assert "ZeroDivisionError" in caplog.text
    with pytest.raises(InvalidConfig):
        face.connect().on_closing("not callable")


def test_a_hook_may_close_the_client_exit_or_wait_for_a_waiter(face):
    """Waiters end before the hooks run; a hook that calls `close()` or exits leaves no client half closed."""
    client, holder = face.connect(), face.connect()
    calls = []

    def leave():
        raise SystemExit

    with holder.lock("x"):
        waiting = face.start(lambda: client.lock("x").acquire())
        until_waiters(holder, "x", 1)
        if face.kind == "blocking":
            client.on_closing(lambda: calls.append(type(waiting.error(5))))
            client.on_closing(lambda: calls.append(client.close(timeout=5)))
        client.on_closing(leave)
        client.on_closing(lambda: calls.append("last"))
        began = time.monotonic()
        assert client.close(timeout=5) == ()
        assert time.monotonic() - began < 2
    assert calls == ([Closed, (), "last"] if face.kind == "blocking" else ["last"])
    assert client._client.state == "closed"


def test_close_says_what_it_waits_for_and_what_it_abandons(face, caplog):
    """The log names the leases, so that an operator sees why a shutdown takes long."""
    client = face.connect()
    with pytest.raises(LeaseLost), client.lock("slow work", ttl=1):
        with caplog.at_level(logging.WARNING, logger="holdfast"):
            assert client.close(timeout=0.2) == ("slow work",)
        lines = [record.getMessage() for record in caplog.records]
        assert any("waits for 0.2 s at most for the release of: slow work" in line for line in lines)
        assert any("leaves these leases to expire by their ttl: slow work" in line for line in lines)


@pytest.mark.acceptance("G-10")
@together
def test_a_lease_is_never_released_under_running_work(face):
    """After its timeout, `close()` returns the held names; the holder learns of it, and the ttl ends the lease."""
    client, other = face.connect(), face.connect()
    calls = []
    with pytest.raises(LeaseLost) as loss, client.lock("x", ttl=1, on_loss=calls.append) as lease:
        began = time.monotonic()
        assert client.close(timeout=timedelta(seconds=0.2)) == ("x",)
        closed = time.monotonic()
        assert 0.2 <= closed - began < 1
        assert lease.lost
        assert lease.lost.reason == "closed"
        assert other.lock("x").try_acquire() is None

    assert (loss.value.reason, loss.value.retryable) == ("closed", False)
    assert other.lock("x").try_acquire() is None
    with other.lock("x", timeout=5):
        assert time.monotonic() - began > 0.4
    eventually(lambda: len(calls) == 1)
    assert client.close() == ("x",)


@pytest.mark.acceptance("G-10")
def test_a_waiter_gets_closed_when_the_timeout_of_close_has_passed(face):
    """The waiter gets `Closed` and leaves the waiting line, so that no other waits behind it."""
    holder, other = face.connect(), face.connect()
    lease = holder.lock("x").acquire()
    waiting = face.start(lambda: other.lock("x").acquire())
    until_waiters(holder, "x", 1)
    began = time.monotonic()

    assert other.close(timeout=0.1) == ()

    assert time.monotonic() - began < 1.5
    assert isinstance(waiting.error(), Closed)
    assert waiting_labels(holder, "x") == []
    lease.release()


def test_close_may_be_called_twice_and_by_many_threads(face):
    """Each call returns when the client is closed, with the same result."""
    client = face.connect()
    with client.lock("x"):
        closing = [face.start(client.close) for _ in range(3)]
        eventually(lambda: client._client.state == "closing")
        time.sleep(0.05)
        assert [each.done() for each in closing] == [False] * 3

    assert [each.result() for each in closing] == [()] * 3
    assert client.close() == ()
    assert client.close(timeout=0) == ()


@together
def test_closing_one_client_leaves_the_leases_of_another(face):
    """Two clients in one process share an engine: closing the first must not end the leases of the second."""
    first, second, third = face.connect(), face.connect(), face.connect()
    with first.lock("mine"):
        pass
    with second.lock("x", ttl=0.6) as lease:
        assert first.close() == ()

        for _ in range(8):
            assert third.lock("x").try_acquire() is None
            time.sleep(0.1)
        lease.check()
    third.lock("x").try_acquire().release()


@pytest.mark.acceptance("G-10", "A0-16")
def test_nothing_is_left_of_a_closed_client(face):
    """No thread, no open file and no place in a waiting line remains."""
    threads, files = threads_of_holdfast(), descriptors()
    events = []
    client, other = face.connect(observer=events.append), face.connect()
    with client.lock("x", ttl=1.5):
        waiting = face.start(lambda: other.lock("x", ttl=1.5).acquire())
        until_waiters(client, "x", 1)
        eventually(lambda: "renewed" in [event.kind for event in events], 10, "a renewal")
    waiting.result().release()

    assert client.close() == ()
    assert other.close() == ()

    assert threads_of_holdfast() <= threads
    assert descriptors() <= files  # a descriptor of another test may close at any time


def test_leaving_the_block_of_a_client_closes_it(face):
    """`with connect(...) as hf` closes the client at its end."""
    client = face.connect()
    with client:
        with client.lock("x"):
            pass
        assert "open" in repr(client._thing if hasattr(client, "_thing") else client)

    with pytest.raises(Closed):
        client.lock("x").acquire()


@together
def test_an_error_that_leaves_the_block_of_a_client_appears_soon(face):
    """The failing code may hold the lease itself, so `close()` logs its name at once and waits for one second only."""
    client, logged = face.connect(), []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: logged.append((time.monotonic(), record.getMessage()))
    name = f"failed-{face.unique}"
    logging.getLogger("holdfast").addHandler(handler)
    try:
        with pytest.raises(ValueError, match="mine"), client:
            lease = client.lock(name, ttl=20).acquire()
            raised = time.monotonic()
            raise ValueError("mine")
        seen = time.monotonic()
    finally:
        logging.getLogger("holdfast").removeHandler(handler)

    assert 1 <= seen - raised < 10
    assert lease.lost.reason == "closed"
    ((at, _),) = [each for each in logged if name in each[1] and "close() waits for 1 s at most" in each[1]]
    assert at - raised < 1


def test_a_client_that_never_did_anything_closes_at_once(face):
    """Opening and closing needs no keeper."""
    began, before = time.monotonic(), threading.enumerate()
    client = face.connect()
    new = [thread.name for thread in threading.enumerate() if thread not in before]
    assert "holdfast-keeper" not in new

    assert client.close() == ()

    assert time.monotonic() - began < 1
    assert isinstance(holdfast.Closed(), holdfast.HoldfastError)


@together
def test_closing_does_not_wait_for_an_unreachable_engine_to_undo_an_acquire(face):
    """The ttl undoes an abandoned acquire, so a client need not wait for an unreachable engine."""
    client = face.connect()
    wire = face.wire(client)
    wire.lose_reply(Acquire, reached=False)
    wire.fail(Undo)
    with pytest.raises(Unavailable), client.lock("x", timeout=0.2):
        pytest.fail("entered")

    began = time.monotonic()
    assert client.close() == ()
    took = time.monotonic() - began

    assert wire.commands(Undo)
    assert took < 15, "it waits 30 s for what is held"


@together
def test_closing_waits_until_the_engine_has_received_a_release(face):
    """The engine may be away for a moment only, and another client waits for the lease."""
    client, other = face.connect(), face.connect()
    wire = face.wire(client)
    lease = client.lock("x", ttl=60).acquire()
    wire.fail(ReleaseLease)
    lease.release()
    closing = face.start(client.close)
    time.sleep(3)
    wire.heal()

    assert closing.result() == ()
    with other.lock("x", timeout=5):
        pass


@pytest.mark.capability("queues")
@pytest.mark.finding("L2")
@together
def test_close_stops_a_worker_that_has_no_free_handler(face):
    """It starts no further handler, gives back what it has received ahead, and takes no longer than `stop()`."""
    client, other = face.connect(), face.connect()
    client.queue("jobs").publish_many(range(12))
    begun, may_end = [], threading.Event()

    def handle(message):
        begun.append(message.body)
        may_end.wait(20)

    worker = client.queue("jobs").worker(handle, concurrency=2, prefetch=4)
    running = face.start(worker.run)
    eventually(lambda: len(begun) == 2 and other.queue("jobs").stats().in_flight == 6, what="a full worker")

    closing = face.start(lambda: (client.close(), time.monotonic()))
    eventually(lambda: other.queue("jobs").stats().in_flight == 2, 5, "a release of the messages without a handler")
    at = time.monotonic()
    may_end.set()
    left, closed_at = closing.result()
    running.result()

    assert len(begun) == 2
    assert left == ()
    assert closed_at - at < 2
    now = other.queue("jobs").stats()
    assert (now.ready, now.in_flight, now.consumers, now.counts["acked"]) == (10, 0, 0, 2)
