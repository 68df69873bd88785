"""What is told of an end that the engine heard of late or never, of what is no lock, and how often it is logged."""

import logging
import time

import pytest

from holdfast import BudgetExceeded, LeaseLost, NotAcquired, RateLimited
from holdfast.commands import FinishOnce, Release, Renew
from holdfast.testing import eventually
from holdfast.testing.conformance.faces import together
from holdfast.types import RegistryEntry


def told(events, name):
    return [event.kind for event in events if event.name == name and event.kind not in ("renewed", "renewed_late")]


@together
def test_an_end_that_the_engine_never_hears_of_is_told_as_given_up(face):
    """After its ttl nothing is owed any more: whoever looks for a lease that nobody gave back finds out why."""
    events = []
    client = face.connect(observer=events.append)
    wire = face.wire(client)
    lease = client.lock("x", ttl=1).acquire()
    wire.fail(Release)
    lease.release()
    eventually(lambda: "delivery_abandoned" in told(events, "x"), 15)
    wire.heal()

    ends = [event for event in events if event.kind in ("delivery_abandoned", "released", "lost")]
    assert [(event.kind, event.name, event.fence) for event in ends] == [("delivery_abandoned", "x", lease.fence)]
    assert "as the law demands" in ends[0].detail


@together
def test_a_client_that_closes_says_what_it_still_owed(face):
    """The keeper tries once more and ends: what the engine did not hear of is not passed over."""
    events = []
    client = face.connect(observer=events.append)
    wire = face.wire(client)
    lease = client.lock("x", ttl=60).acquire()
    wire.fail(Release)
    lease.release()
    client.close(0)

    assert told(events, "x")[-1] == "delivery_abandoned"


@together
def test_a_loss_is_told_once_although_the_engine_is_told_of_its_end(face):
    """A lease that ran out here is given back to the engine all the same; that is no second end."""
    events = []
    client, other = face.connect(observer=events.append), face.connect()
    wire = face.wire(client)
    lease = client.lock("x", ttl=0.3).acquire()
    wire.fail(Renew)
    eventually(lambda: lease.lost, 10)
    with pytest.raises(LeaseLost):
        lease.release()
    wire.heal()
    other.lock("x", timeout=5).acquire().release()
    eventually(client._client.keeper.idle, 10)

    assert [kind for kind in told(events, "x") if kind in ("lost", "released", "delivery_abandoned")] == ["lost"]


def test_thousands_of_failures_are_told_each_and_logged_once_a_second(face, caplog):
    """A log that drowns its reader hides the outage; a figure that leaves some out hides its size."""
    events = []
    client = face.connect(observer=events.append)
    wire = face.wire(client)
    leases = [client.lock(f"x/{number}", ttl=0.8).acquire() for number in range(20)]
    began = time.monotonic()
    with caplog.at_level(logging.WARNING, "holdfast"):
        wire.fail(Renew)
        eventually(lambda: all(lease.lost for lease in leases), 20)
    wire.heal()
    seconds = time.monotonic() - began
    failures = [event for event in events if event.kind == "renewal_failed"]
    lines = [record.getMessage() for record in caplog.records if "renewal_failed" in record.getMessage()]
    for lease in leases:
        with pytest.raises(LeaseLost):
            lease.release()

    assert {event.name for event in failures} == {f"x/{number}" for number in range(20)}
    assert 1 <= len(lines) <= 1 + seconds
    assert len(failures) > len(lines)


@pytest.mark.capability("once")
def test_work_that_is_done_once_is_told_like_a_lease_and_a_repetition_as_such(face):
    """Granted and released by the first one; the others find it done, and nothing is held."""
    events = []
    payments = face.connect(observer=events.append).once("payments")
    payments.call("42", lambda: 1)
    payments.call("42", lambda: 2)

    assert told(events, "payments/42") == ["granted", "released", "duplicate"]
    granted, released = events[0], events[1]
    assert granted.fence == released.fence
    assert granted.seconds >= 0


@pytest.mark.capability("once")
@together
def test_a_success_that_the_engine_hears_of_late_is_told_as_released(face):
    """The note goes with the release, however late: the second caller finds it."""
    events = []
    client = face.connect(observer=events.append)
    wire = face.wire(client)
    payments = client.once("payments")

    def work():
        wire.fail(FinishOnce)
        return 1

    assert payments.call("42", work) == 1
    wire.heal()
    eventually(lambda: told(events, "payments/42")[-1] == "released", 10)
    assert payments.seen("42")


@pytest.mark.capability("pools")
def test_an_item_is_told_with_the_name_of_its_pool(face):
    """`alice` alone says nothing, and figures are counted by what stands first."""
    events = []
    client = face.connect(observer=events.append)
    pool = client.pool("channels", timeout=0)
    pool.set_items(["alice"])
    with pool.borrow(), pytest.raises(NotAcquired):
        pool.borrow()
    with client.semaphore("gpu", permits=2):
        pass

    assert told(events, "channels/alice") == ["granted", "released"]
    assert told(events, "channels") == ["refused"]
    assert told(events, "gpu") == ["granted", "released"]
    pool.set_items([])


@pytest.mark.capability("registry")
def test_a_key_that_somebody_owns_is_told_as_refused(face):
    """Nobody waits for a key; how often it was asked for in vain is seen all the same."""
    events = []
    ours, theirs = face.connect(), face.connect(observer=events.append)
    with ours.registry("conversations").claim("42"):
        assert isinstance(theirs.registry("conversations").claim("42"), RegistryEntry)

    (refused,) = events
    assert (refused.kind, refused.name) == ("refused", "conversations/42")
    assert refused.detail.startswith("held by ")


@pytest.mark.capability("limits", "budgets")
def test_what_a_limit_refuses_is_told_once_for_each_caller(face):
    """A hit, a wait in vain, a budget; not a look, and not each try of somebody who waits."""
    events = []
    client = face.connect(observer=events.append)
    limiter = client.limit("2/hour", name="logins")
    assert [bool(limiter.hit("ann")) for _ in range(4)] == [True, True, False, False]
    assert not limiter.peek("ann")
    with pytest.raises(RateLimited):
        limiter.wait("ann", timeout=0.2)
    with pytest.raises(BudgetExceeded):
        client.budget("fees", limit=1).reserve("ann", 2)
    smooth = client.limit("20/second", name="searches", method="gcra")
    assert smooth.hit("ann", cost=20)
    assert smooth.wait("ann", timeout=10)  # it was refused meanwhile, and that was no last word

    assert [(event.kind, event.name) for event in events] == [("rate_limited", "logins/ann")] * 3 + [
        ("rate_limited", "fees/ann")
    ]
    assert all(0 < event.seconds <= 3600 for event in events[:3])
