"""A lease belongs to whoever has it; a reentrant lock counts per thread or task; a decorator names by its arguments."""

import pytest

from holdfast import InvalidConfig, InvalidName, LeaseLost, NotAcquired
from holdfast.commands import Acquire, Release
from holdfast.testing import eventually
from holdfast.testing.conformance.faces import together


def test_a_lease_may_be_released_by_another_thread_or_task(face):
    """It is a value, and may be handed on."""
    client = face.connect()
    lease = face.start(lambda: client.lock("x").acquire()).result()
    lease.check()

    face.start(lease.release).result()

    assert client.show("x").holder is None
    assert not lease.lost
    with pytest.raises(LeaseLost) as over:
        lease.check()
    assert over.value.reason == "released"


def test_a_lease_may_be_a_block_of_its_own(face):
    """Acquired first and entered later, it is released at the end of its block."""
    client = face.connect()
    with client.lock("x").acquire() as lease:
        assert client.show("x").fence == lease.fence

    assert client.show("x").holder is None


def test_a_lock_is_not_reentrant_unless_asked(face):
    """The second attempt of the same thread is refused as anybody's would be: no lease is counted silently."""
    client = face.connect()
    lock = client.lock("x", timeout=0.1)
    with lock:
        assert lock.try_acquire() is None
        with pytest.raises(NotAcquired), lock:
            pass
        assert client.show("x").holder is not None

    assert client.show("x").holder is None


def test_a_reentrant_lock_counts_and_the_engine_sees_one_lease(face):
    """The inner block is inside the outer one's lease; only the outer one gives it back."""
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

    assert len(wire.commands(Acquire)) == len(wire.commands(Release)) == 1
    assert client.show("x").holder is None


def test_a_reentrant_lock_lets_no_other_thread_or_task_in(face):
    """Being inside is counted for whoever is inside, not for the lock."""
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
def test_a_reentrant_lock_that_was_lost_lets_nobody_in_again(face):
    """Never enter unlocked: who is inside a lost lease cannot go further inside."""
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
    """Each value has its own lease; positional, by keyword and by default are the same."""
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
    """Two calls with the same argument are one after the other; the refused one never ran."""
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
    """Recursion under one name is one lease, also when the name comes from the arguments."""
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
    """The mistake is found when the program starts, not in the night when the job runs."""
    client = face.connect()
    wire = face.wire(client)

    with pytest.raises(InvalidName) as refusal:
        client.lock(template)(lambda day: day)

    assert repr(template) in str(refusal.value)
    assert wire.commands() == []


def test_a_name_that_its_arguments_spoil_is_refused_before_the_work(face):
    """What the template makes is checked as every name is."""
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
    """A coroutine function under a blocking lock would be released before it ran; so neither face takes the other's."""
    client = face.connect()

    async def awaited():
        return None

    lock, work = (client.lock("x"), awaited) if face.kind == "blocking" else (client.lock("x")._thing, print)

    with pytest.raises(InvalidConfig):
        lock(work)


def test_a_lease_that_everybody_dropped_lapses(face):
    """Nobody can release it any more; it is no longer renewed, and the name is free after the ttl."""
    events = []
    client, other = face.connect(observer=events.append), face.connect()
    leases = [client.lock("x", ttl=0.4).acquire()]

    with pytest.warns(ResourceWarning, match="dropped without a release"):
        face.drop(leases)

    with other.lock("x", timeout=5):
        pass
    assert [event.kind for event in events] == ["granted", "abandoned"]
