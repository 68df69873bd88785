"""The observer gets every event that matters; without a usable engine, exclusion fails closed."""

import logging
import subprocess
import sys
import time

import pytest

from holdfast import InvalidConfig, LeaseLost, NotAcquired, Unavailable
from holdfast.commands import Acquire, Break, Show
from holdfast.observer import KINDS
from holdfast.testing import eventually
from holdfast.testing.conformance.faces import together, until_waiters

SECRET = "hunter2-and-no-other"


def kinds(events, name="x"):
    return [event.kind for event in events if event.name == name]


@together
def test_the_events_of_a_lease_come_in_order(face):
    """The events are granted, renewed, released, with the name, the fence and the seconds."""
    events = []
    client = face.connect(observer=events.append)
    with client.lock("x", ttl=0.6) as lease:
        eventually(lambda: "renewed" in kinds(events))

    granted, *renewed, released = events
    assert (granted.kind, released.kind) == ("granted", "released")
    assert {event.kind for event in renewed} <= {"renewed", "renewed_late"}
    assert {event.fence for event in events} == {lease.fence}
    assert 0 <= granted.seconds < 0.5
    assert 0.1 < released.seconds < 2
    assert all(0 < event.seconds < 0.6 for event in renewed)


def test_a_wait_and_a_refusal_are_events(face):
    """The events show which client waited for which holder, and for how long."""
    events = []
    holder, other = face.connect(label="holder"), face.connect(observer=events.append)
    with holder.lock("x") as lease:
        with pytest.raises(NotAcquired):
            other.lock("x").acquire(timeout=0.1)
        assert kinds(events) == ["waiting", "refused"]
        waited, refused = events
        assert waited.fence == refused.fence == lease.fence
        assert "holder" in waited.detail
        assert "holder" in refused.detail
        assert refused.seconds >= 0.1
        waiting = face.start(lambda: other.lock("x").acquire())
        until_waiters(holder, "x", 1)
    waiting.result().release()

    assert kinds(events)[2:] == ["waiting", "granted", "released"]


def test_a_loss_event_has_its_reason(face):
    """`lost` once, and never `released` after it."""
    events = []
    holder, other = face.connect(observer=events.append), face.connect()
    with pytest.raises(LeaseLost), holder.lock("x") as lease:
        other.break_lease("x", "by hand")

    assert kinds(events) == ["granted", "lost"]
    assert events[1].fence == lease.fence
    assert events[1].detail == "broken by hand"


def test_an_interrupted_wait_is_an_undone_event(face):
    """The undo of an acquire without a caller is visible."""
    events = []
    holder, other = face.connect(), face.connect(observer=events.append)
    wire = face.wire(other)
    with holder.lock("x"):
        waiting = face.start(lambda: other.lock("x").acquire())
        until_waiters(holder, "x", 1)
        wire.interrupt()
        assert waiting.error() is not None
        eventually(lambda: kinds(events) == ["waiting", "undone"])


@pytest.mark.finding("S12")
def test_events_carry_no_payload(face):
    """Events contain names and numbers only, never a holder's info, a result or an error of the work."""
    events = []
    client = face.connect(observer=events.append, info={"password": SECRET})
    other = face.connect(observer=events.append, info={"password": SECRET})
    with client.lock("x"), pytest.raises(NotAcquired):
        other.lock("x").acquire(timeout=0.05)
    with pytest.raises(ValueError, match=SECRET), client.lock("x"):
        raise ValueError(SECRET)
    client.lock("x")(lambda: SECRET)()
    with pytest.raises(LeaseLost), client.lock("x"):
        other.break_lease("x", "by hand")
        raise ValueError(SECRET)

    assert {event.kind for event in events} >= {"granted", "waiting", "refused", "released", "lost"}
    assert {event.kind for event in events} <= set(KINDS)
    assert SECRET not in repr(events)


@pytest.mark.finding("S12")
def test_an_observer_that_raises_harms_nothing(face, caplog):
    """An error of the observer changes nothing about the lease."""

    def observer(event):
        raise ZeroDivisionError(event.kind)

    client, other = face.connect(observer=observer), face.connect()
    with client.lock("x", ttl=0.3) as lease:
        time.sleep(0.35)
        lease.check()
        assert client.lock("x").try_acquire() is None

    assert other.show("x").holder is None
    assert "the observer failed on granted" in caplog.text


def test_several_observers_run_side_by_side(face, caplog):
    """Each gets every event in order. The failure of one is logged, and affects neither the others nor the lease."""
    first, last = [], []

    def broken(event):
        raise ValueError(event.kind)

    client = face.connect(observer=[first.append, broken, last.append])
    with caplog.at_level(logging.ERROR, logger="holdfast"), client.lock("x"):
        pass
    eventually(lambda: kinds(last) == ["granted", "released"])

    assert first == last
    assert "broken" in caplog.text


def test_a_list_of_observers_is_checked(face):
    """The error names the whole list."""
    for observers in ([], [print, None], [[print]]):
        with pytest.raises(InvalidConfig, match="observer="):
            face.connect(observer=observers)
    events = []
    with face.connect(observer=(events.append,)).lock("x"):
        pass
    eventually(lambda: kinds(events) == ["granted", "released"])


def test_events_that_need_attention_are_warnings(face, caplog):
    """Without an observer the log still shows a loss; other events are silent by default."""
    caplog.set_level(logging.INFO, logger="holdfast")
    client, other = face.connect(), face.connect()
    with pytest.raises(LeaseLost), client.lock("x"):
        other.break_lease("x", "by hand")
    with client.lock("x"):
        pass

    ours = [record for record in caplog.records if record.name == "holdfast"]
    assert [(record.levelname, record.getMessage().split()[:2]) for record in ours] == [
        ("WARNING", ["holdfast:", "lost"])
    ]


@pytest.mark.acceptance("C-1", "G-3", "A0-5")
def test_an_unusable_engine_lets_no_client_in(face):
    """Exclusion fails closed: each call raises `Unavailable`, the work never ran, and no other lock was taken."""
    events, ran = [], []
    client = face.connect(observer=events.append)
    wire = face.wire(client)
    wire.fail()
    began = time.monotonic()

    for use in (
        client.lock("x").acquire,
        client.lock("x").try_acquire,
        lambda: client.lock("x").acquire(timeout=0),
        client.lock("x").__enter__,
        client.lock("x")(lambda: ran.append("never")),
        lambda: client.leader("x").run(lambda _: ran.append("never")),
    ):
        with pytest.raises(Unavailable) as trouble:
            use()
        assert trouble.value.retryable
    for use in (lambda: client.show("x"), lambda: client.break_lease("x", "by hand"), client.leader("x").current):
        with pytest.raises(Unavailable):
            use()

    assert ran == []
    assert time.monotonic() - began < 2
    assert kinds(events).count("unavailable") >= 6
    assert "granted" not in kinds(events)
    assert {type(command) for command in wire.commands(by="caller")} <= {Acquire, Show, Break}
    wire.heal()
    with client.lock("x", timeout=0):
        pass


@pytest.mark.acceptance("C-1", "G-3")
def test_an_unusable_location_lets_no_client_in(placed):
    """The same with a real obstacle: the client does not fall back to another location."""
    (placed.folder / "taken").mkdir()
    (placed.folder / "file").write_text("not a folder")
    ran = []

    for url in placed.place.unusable:
        with pytest.raises((Unavailable, InvalidConfig)):
            client = placed.connect(url.format(folder=placed.folder))
            with client.lock("x"):
                ran.append("never")

    assert ran == []
    assert (placed.folder / "file").read_text() == "not a folder"


@pytest.mark.parametrize("wanted", [False, True], ids=["without logging", "with logging"])
def test_a_program_without_logging_gets_nothing_on_its_stderr(wanted):
    """The program decides where warnings go, as with every library."""
    program = f"""
import logging, holdfast
if {wanted}:
    logging.basicConfig()
with holdfast.connect("memory://") as hf:
    lease = hf.lock("x").acquire()
    hf.break_lease("x", "by hand")
    try:
        lease.release()
    except holdfast.LeaseLost:
        print("logged")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout == "logged\n"
    assert ("holdfast: lost 'x'" in done.stderr) is wanted
    assert wanted or not done.stderr
