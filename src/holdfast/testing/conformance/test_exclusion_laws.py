"""One holder at a time, under a fence that only grows."""

import time

import pytest

from holdfast import Fenced, LeaseLost, NotAcquired
from holdfast.commands import Acquire
from holdfast.testing import GuardedFile, assert_holds, eventually
from holdfast.testing.conformance.faces import together, waiting_labels

pytestmark = pytest.mark.large

ODD_NAMES = [
    "a",
    "a/b",
    "a/b/",
    "A",
    " ",
    "line\nbreak",
    "100%",
    'it\'s "quoted"',
    "back\\slash",
    "../up",
    "sqlite_master",
    "{1}",
    "é",
    "e\u0301",
    "日本語",
    "🦀",
    "n" * 512,
]


@pytest.mark.acceptance("G-1")
def test_there_are_never_two_holders_and_no_update_is_lost(face, holdfast_history):
    """The promise itself: a counter that only the lock protects counts every increment of six threads."""
    clients = [face.connect(label=f"client {number}") for number in range(3)]
    counter = {"value": 0}

    def increment(client, worker):
        recorder = holdfast_history.recorder(worker)
        for _ in range(8):
            asked_ns = time.monotonic_ns()
            with client.lock("counter", ttl=5) as lease:
                facts = {"fence": lease.fence, "token": lease.token}
                until_ns = time.monotonic_ns() + int(lease.remaining() * 1e9)
                recorder.record("granted", "counter", since_ns=asked_ns, until_ns=until_ns, **facts)
                seen = counter["value"]
                time.sleep(0.0005)
                counter["value"] = seen + 1
                recorder.record("write", "counter", value=seen + 1, accepted=True, **facts)
                recorder.record("released", "counter", **facts)

    running = [
        face.start(increment, client, f"{number}-{client._client.holder.label}")
        for client in clients
        for number in range(2)
    ]
    for each in running:
        each.result()

    assert counter["value"] == 48
    assert_holds(holdfast_history.read())


@pytest.mark.acceptance("G-1")
@together
def test_fences_grow_after_every_kind_of_end(face):
    """After a release, an expiry and a break, the next holder has a larger fence, which a resource compares."""
    client, peer = face.connect(), face.peer()
    fences = []
    for _ in range(3):
        with client.lock("x") as lease:
            fences.append(lease.fence)
    fences.append(peer.say(Acquire("x", "dies", "", 200, wait=False)).fence)
    with client.lock("x", timeout=5) as lease:
        fences.append(lease.fence)
    peer.say(Acquire("x", "broken", "", 30_000, wait=False))
    fences.append(client.show("x").fence)
    client.break_lease("x", "by hand")
    with client.lock("x", timeout=0) as lease:
        fences.append(lease.fence)

    assert fences == sorted(set(fences))
    assert len(fences) == 7
    assert max(fences) < 2**53


@pytest.mark.acceptance("G-1")
def test_an_older_holder_cannot_write_past_its_successor(face, tmp_path):
    """The fence protects the resource from a holder that does not know of its loss yet."""
    client, other = face.connect(), face.connect()
    guarded = GuardedFile(tmp_path / "guarded.json", initial="")
    old = client.lock("x", ttl=0.6).acquire()
    other.break_lease("x", "taken over")
    with other.lock("x", timeout=0) as new:
        guarded.write(new.fence, new.token, lambda _: "new")

        with pytest.raises(Fenced):
            guarded.write(old.fence, old.token, lambda _: "old")

    assert guarded.read().value == "new"
    assert old.lost.wait(5)


@pytest.mark.acceptance("A0-4", "C-8")
@together
def test_a_block_is_never_entered_with_an_ended_lease(face):
    """A released or lost lease protects nothing: another process may hold the name."""
    client, ran = face.connect(), []
    ended, lost = client.lock("x").acquire(), client.lock("y", ttl=3).acquire()
    with ended:
        ended.check()
    client.break_lease("y", reason="test")
    with client.lock("x"):
        for lease in (ended, ended):
            with pytest.raises(LeaseLost) as refusal, lease:
                ran.append("never")
            assert (refusal.value.name, refusal.value.reason) == ("x", "released")
    assert lost.lost.wait(20)
    with pytest.raises(LeaseLost) as refusal, lost:
        ran.append("never")
    assert refusal.value.reason == "broken"
    assert ran == []


@together
def test_a_client_that_meets_its_own_lease_gets_a_note(face):
    """A program that waits for itself would wait for ever, so the error says that it met its own lease."""
    client, other = face.connect(label="one"), face.connect(label="another")
    with client.lock("x"):
        with pytest.raises(NotAcquired) as refusal, client.lock("x", timeout=0):
            pass
        assert "reentrant" in "".join(refusal.value.__notes__)
        with pytest.raises(NotAcquired) as refusal, other.lock("x", timeout=0):
            pass
        assert not hasattr(refusal.value, "__notes__")


@together
def test_a_waiter_is_refused_in_time_and_leaves_no_trace(face):
    """The error names the holder; the work never ran, and the waiting line is unchanged."""
    holder, other = face.connect(label="holder"), face.connect(label="other")
    ran = []
    with holder.lock("x", ttl=20) as lease:
        began = time.monotonic()
        with pytest.raises(NotAcquired) as refusal, other.lock("x", timeout=0.3):
            ran.append("never")
        took = time.monotonic() - began

        assert 0.3 <= took < 1.0
        assert waiting_labels(holder, "x") == []
        lease.check()
    error = refusal.value
    assert ran == []
    assert (error.name, error.reason, error.fence) == ("x", "busy", lease.fence)
    assert error.holder == str(lease.holder)
    assert "holder" in error.holder
    assert 0.3 <= error.waited <= took
    assert 0 < error.remaining <= 20
    assert error.retryable
    assert isinstance(error, TimeoutError)
    assert error.holder in str(error)


@pytest.mark.acceptance("C-8")
def test_a_timeout_of_zero_is_one_decision(face):
    """`timeout=0` and `try_acquire` send one command and never join a waiting line."""
    holder, other = face.connect(), face.connect()
    wire = face.wire(other)
    with holder.lock("x"):
        assert other.lock("x").try_acquire() is None
        with pytest.raises(NotAcquired):
            other.lock("x").acquire(timeout=0)
        with pytest.raises(NotAcquired), other.lock("x", timeout=0):
            pass

    assert [command.wait for command in wire.commands()] == [False, False, False]
    lease = other.lock("x").try_acquire()
    assert lease.remaining() > 0
    lease.release()


@pytest.mark.acceptance("C-8")
@together
def test_a_timeout_of_none_waits_until_the_grant(face):
    """Without a timeout only the grant ends the wait."""
    holder, other = face.connect(), face.connect()
    lease = holder.lock("x").acquire()
    waiting = face.start(lambda: other.lock("x", timeout=0.1).acquire(timeout=None))
    eventually(lambda: waiting_labels(holder, "x"))
    time.sleep(0.3)
    assert not waiting.done()

    lease.release()

    waiting.result(5).release()


def test_leases_of_different_names_are_independent(face):
    """A name is text and nothing else: no path, no pattern, no case, no normal form."""
    client = face.connect()

    leases = [client.lock(name, timeout=0).acquire() for name in ODD_NAMES]

    assert [client.lock(name).try_acquire() for name in ODD_NAMES] == [None] * len(ODD_NAMES)
    for name, lease in zip(ODD_NAMES, leases, strict=True):
        assert client.show(name).name == name
        assert client.show(name).fence == lease.fence
        lease.release()


def test_show_names_the_holder_the_time_and_the_waiters(face):
    """`show` changes nothing and answers the first questions of a person on call."""
    holder, other = face.connect(label="ann", info={"job": 7}), face.connect(label="bob")
    with holder.lock("x", ttl=20) as lease:
        waiting = face.start(lambda: other.lock("x").acquire())
        eventually(lambda: waiting_labels(holder, "x") == ["bob"])
        seen = other.show("x")

        assert (seen.name, seen.fence, seen.holder) == ("x", lease.fence, lease.holder)
        assert (seen.holder.label, seen.holder.info) == ("ann", {"job": 7})
        assert 0 <= seen.seconds < 5
        assert 10 < seen.remaining <= 20
    waiting.result().release()
    free = other.show("x")
    assert (free.holder, free.waiters, free.remaining) == (None, (), 0.0)
    assert free.fence > lease.fence
