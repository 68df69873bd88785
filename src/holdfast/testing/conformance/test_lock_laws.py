"""Leases may change threads; a reentrant lock counts per thread or task; a decorator builds names from arguments."""

import logging

import pytest

from holdfast import Deadlock, InvalidConfig, InvalidName, LeaseLost, NotAcquired
from holdfast.commands import Acquire, ReleaseLease, Renew
from holdfast.testing import eventually
from holdfast.testing.conformance.faces import together


def test_a_lease_may_be_released_by_another_thread_or_task(face):
    """A lease is an object that threads may hand on."""
    client = face.connect()
    lease = face.start(lambda: client.lock("x").acquire()).result()
    lease.check()

    face.start(lease.release).result()

    assert client.show("x").holder is None
    assert not lease.lost
    with pytest.raises(LeaseLost) as over:
        lease.check()
    assert over.value.reason == "released"


def test_a_lease_can_be_used_as_a_block(face):
    """A lease that was acquired first and entered later is released at the end of its block."""
    client = face.connect()
    with client.lock("x").acquire() as lease:
        assert client.show("x").fence == lease.fence

    assert client.show("x").holder is None


def test_a_lock_is_not_reentrant_unless_asked(face):
    """A thread or task that waits for its own block would wait for ever: it gets an error at once."""
    client = face.connect()
    lock = client.lock("x", timeout=60)
    with lock as lease:
        assert lock.try_acquire() is None
        with pytest.raises(NotAcquired):
            lock.acquire(timeout=0)
        for wait in (lock.acquire, lock.__enter__, client.lock("x").acquire, client.lock_many(["x", "y"]).acquire):
            with pytest.raises(Deadlock, match="reentrant=True") as refusal:
                wait()
            assert (refusal.value.fence, refusal.value.retryable) == (lease.fence, False)
        lease.check()
        eventually(lambda: client.show("x").waiters == ())

    assert client.show("x").holder is None
    assert client.show("y").holder is None


@together
def test_a_wait_for_another_block_of_this_process_is_no_deadlock(face):
    """Another thread or task ends its block by itself; after 5 s the log says that this process holds the lease."""
    client, lines = face.connect(), []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("holdfast").addHandler(handler)
    name = f"slow {face.unique}"
    with client.lock(name):
        waiting = face.start(lambda: client.lock(name).acquire(timeout=30))
        eventually(lambda: any(name in line and "this process itself holds it" in line for line in lines), 15)
        assert not waiting.done()
    waiting.result().release()
    logging.getLogger("holdfast").removeHandler(handler)


def test_a_reentrant_lock_counts_and_the_engine_sees_one_lease(face):
    """The inner block uses the lease of the outer one; only the outer block releases it."""
    client = face.connect()
    wire = face.wire(client)
    lock = client.lock("x", reentrant=True, timeout=0)
    with lock as outer:
        for _ in range(2):
            with lock as inner:
                assert (inner.token, inner.fence) == (outer.token, outer.fence)
            outer.check()
            assert client.show("x").fence == outer.fence
        with pytest.raises(ZeroDivisionError), lock, lock:
            raise ZeroDivisionError
        outer.check()

    assert len(wire.commands(Acquire)) == len(wire.commands(ReleaseLease)) == 1
    assert client.show("x").holder is None


def test_a_reentrant_lock_lets_no_other_thread_or_task_in(face):
    """The lock counts blocks per thread or task, not in total."""
    client = face.connect()
    lock = client.lock("x", reentrant=True, timeout=0)

    def enter():
        with lock as lease:
            return lease.fence

    with lock as outer:
        assert isinstance(face.start(enter).error(), NotAcquired)
        outer.check()

    assert face.start(enter).result() > outer.fence


@together
def test_a_lost_reentrant_lock_cannot_be_entered_again(face):
    """Never enter unlocked: after a loss, no nested block can be entered."""
    client, other = face.connect(), face.connect()
    lock = client.lock("x", ttl=0.6, reentrant=True, timeout=0)
    ran = []
    with pytest.raises(LeaseLost), lock as lease:
        other.break_lease("x", "by hand")
        assert lease.lost.wait(5)
        with pytest.raises(LeaseLost), lock:
            ran.append("inside")

    assert ran == []


def test_a_decorated_function_takes_its_name_from_its_arguments(face):
    """Each value has its own lease; positional, keyword and default arguments are equal."""
    client = face.connect()
    held = []

    def report(day, kind="daily", *, number=1):
        held.append([name for name in names if client.show(name).holder is not None])
        return (day, kind, number)

    names = ["report/mon/daily/1", "report/tue/daily/1", "report/tue/weekly/7"]
    decorated = client.lock("report/{day}/{kind}/{number}")(report)

    assert decorated("mon") == ("mon", "daily", 1)
    assert decorated(day="tue") == ("tue", "daily", 1)
    assert decorated("tue", kind="weekly", number=7) == ("tue", "weekly", 7)
    assert held == [[name] for name in names]
    assert decorated.__name__ == "report"


def test_decorated_functions_of_one_name_exclude_each_other(face):
    """Two calls with the same argument run one after the other; a refused one never runs."""
    client = face.connect()
    inside = []
    locked = client.lock("account/{number}", timeout=0)

    def transfer(number):
        inside.append(number)
        if len(inside) == 1:
            with pytest.raises(NotAcquired):
                decorated(number)
            decorated(number + 1)

    decorated = locked(transfer)
    decorated(1)

    assert inside == [1, 2]


def test_a_reentrant_decorator_may_call_itself(face):
    """Recursion under one name uses one lease, also if the name comes from the arguments."""
    client = face.connect()
    wire = face.wire(client)
    depth = []

    class Tree:
        def __format__(self, spec):
            return "oak"

    locked = client.lock("tree/{tree}", reentrant=True, timeout=0)
    if face.kind == "blocking":

        @locked
        def visit(tree, left):
            depth.append(left)
            return visit(tree, left - 1) if left else "leaf"

        assert visit(Tree(), 3) == "leaf"
    else:

        @locked._thing
        async def visit(tree, left):
            depth.append(left)
            return await visit(tree, left - 1) if left else "leaf"

        assert face.finish(visit(Tree(), 3)) == "leaf"

    assert depth == [3, 2, 1, 0]
    assert len(wire.commands(Acquire)) == 1
    eventually(lambda: client.show("tree/oak").holder is None)


@pytest.mark.parametrize("template", ["report/{hour}", "report/{0}", "report/{}", "report/{day", "report/day}"])
def test_a_template_that_cannot_be_filled_is_refused_when_decorating(face, template):
    """The program fails when it starts, not at night when the job runs."""
    client = face.connect()
    wire = face.wire(client)

    with pytest.raises(InvalidName) as refusal:
        client.lock(template)(lambda day: day)

    assert repr(template) in str(refusal.value)
    assert wire.commands() == []


def test_an_invalid_name_from_arguments_is_refused_before_the_work(face):
    """The filled template is checked like every name."""
    client = face.connect()
    wire = face.wire(client)
    ran = []
    decorated = client.lock("{day}")(lambda day: ran.append(f"ran on {day}"))

    for day in ("", "x" * 513, "a\x00b"):
        with pytest.raises(InvalidName):
            decorated(day)

    assert ran == []
    assert wire.commands() == []


def test_a_function_of_the_other_face_is_refused_when_decorating(face):
    """A blocking lock would release before a coroutine function ran, so each face refuses functions of the other."""
    client = face.connect()

    async def awaited():
        return None

    lock, work = (client.lock("x"), awaited) if face.kind == "blocking" else (client.lock("x")._thing, print)

    with pytest.raises(InvalidConfig):
        lock(work)


def test_a_lease_without_references_expires(face):
    """No code can release a dropped lease, so the keeper stops renewing it, and the name is free after the ttl."""
    events = []
    client, other = face.connect(observer=events.append), face.connect()
    leases = [client.lock("x", ttl=0.4).acquire()]

    with pytest.warns(ResourceWarning, match="dropped without a release"):
        face.drop(leases)

    with other.lock("x", timeout=5):
        pass
    assert [event.kind for event in events] == ["granted", "abandoned"]


def test_locked_says_whether_an_acquire_would_wait(face):
    """A hint with one request: it grants nothing, joins no waiting line, and takes no lease from others."""
    client, other = face.connect(), face.connect()
    lock = client.lock("x")
    assert lock.locked() is False
    with other.lock("x"):
        wire = face.wire(client)
        assert lock.locked() is True
        assert len(wire.sent) == 1
        assert client.show("x").waiters == ()
    assert lock.locked() is False


def test_an_extended_lease_lasts_as_long_as_requested(face):
    """The extension outlives a silent holder, and an older, shorter renewal does not cut it."""
    lease = face.connect().lock("x", ttl=0.5).acquire()
    lease.extend(2)
    for _ in range(3):  # the keeper sends renewals with the old ttl until it has the answer to the extension
        face.peer().say(Renew("x", lease.token, 200))
    assert lease.ttl == 2
    lease.extend(0.3)
    assert lease.ttl == 2
    assert 1 < lease.remaining() <= 2
    assert 1 < face.connect().show("x").remaining <= 2
    lease.release()
    with pytest.raises(LeaseLost):
        lease.extend(2)


def test_a_released_lease_says_that_it_was_released(face):
    """A holder that gave its lease back did not lose it; a second release changes nothing."""
    client = face.connect()
    lease = client.lock("x").acquire()
    lease.release()
    with client.lock("x"):
        lease.release()
        with pytest.raises(LeaseLost, match="was already released") as refusal:
            lease.check()
        assert "lost" not in str(refusal.value)
        assert client.show("x").holder is not None


def test_a_decorated_function_can_be_skipped_while_its_lock_is_held(face):
    """A cron job on every host: one of them runs it, and the others return at once, with an event."""
    events, runs = [], []
    client, other = face.connect(observer=events.append), face.connect()

    @client.lock("report/{day}", timeout=0, busy="skip")
    def report(day):
        runs.append(day)
        return day

    with other.lock("report/1"):
        assert report(1) is None
        assert report(2) == 2
    assert report(1) == 1
    assert runs == [2, 1]
    assert [(event.kind, event.name) for event in events if event.kind == "skipped"] == [("skipped", "report/1")]


def test_a_refusal_inside_the_work_is_never_taken_for_a_skip(face):
    """Only the decorated lock skips: `NotAcquired` of another lock is an error of the work."""
    client, other = face.connect(), face.connect()

    @client.lock("job", timeout=0, busy="skip")
    def job():
        client.lock("inner").acquire(timeout=0)

    with other.lock("inner"), pytest.raises(NotAcquired) as refusal:
        job()
    assert refusal.value.name == "inner"


def test_an_unknown_word_for_busy_is_refused(face):
    """A misspelt policy must not turn into the default."""
    with pytest.raises(InvalidConfig, match="raise or skip"):
        face.connect().lock("x", busy="ignore")
