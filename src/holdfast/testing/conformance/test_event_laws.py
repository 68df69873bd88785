"""Events of releases that reach the engine late or never, of features other than locks, and the rate of log lines."""

import logging

import pytest

from holdfast import BudgetExceeded, LeaseLost, NotAcquired, RateLimited
from holdfast.commands import FinishOnce, Hit, ReleaseLease, Renew
from holdfast.testing import eventually
from holdfast.testing.conformance.faces import together
from holdfast.types import RegistryEntry


def kinds_of(events, name):
    return [event.kind for event in events if event.name == name and event.kind not in ("renewed", "renewed_late")]


@together
def test_an_undelivered_release_is_an_abandoned_delivery(face):
    """After the ttl the keeper drops the release, and an event explains the missing one."""
    events = []
    client = face.connect(observer=events.append)
    wire = face.wire(client)
    lease = client.lock("x", ttl=1).acquire()
    wire.fail(ReleaseLease)
    lease.release()
    eventually(lambda: "delivery_abandoned" in kinds_of(events, "x"), 15)
    wire.heal()

    ends = [event for event in events if event.kind in ("delivery_abandoned", "released", "lost")]
    assert [(event.kind, event.name, event.fence) for event in ends] == [("delivery_abandoned", "x", lease.fence)]
    assert "as the law demands" in ends[0].detail


@together
def test_a_closing_client_reports_undelivered_releases(face):
    """The keeper tries once more and ends; an event reports each undelivered release."""
    events = []
    client = face.connect(observer=events.append)
    wire = face.wire(client)
    lease = client.lock("x", ttl=60).acquire()
    wire.fail(ReleaseLease)
    lease.release()
    client.close(0)

    assert kinds_of(events, "x")[-1] == "delivery_abandoned"


@together
def test_a_loss_is_reported_once_although_a_release_follows(face):
    """A lease that expired locally is still released on the engine; that is no second end."""
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

    assert [kind for kind in kinds_of(events, "x") if kind in ("lost", "released", "delivery_abandoned")] == ["lost"]


def test_thousands_of_failures_are_events_and_one_warning_a_minute(face, caplog):
    """Too many warnings would hide the outage, and missing events would hide its size."""
    events = []
    client = face.connect(observer=events.append)
    wire = face.wire(client)
    leases = [client.lock(f"x/{number}", ttl=0.8).acquire() for number in range(20)]
    with caplog.at_level(logging.DEBUG, "holdfast"):
        wire.fail(Renew)
        eventually(lambda: all(lease.lost for lease in leases), 20)
        failures = [event for event in events if event.kind == "renewal_failed"]
    wire.heal()
    lines = [record.levelno for record in caplog.records if "renewal_failed" in record.getMessage()]
    for lease in leases:
        with pytest.raises(LeaseLost):
            lease.release()

    assert {event.name for event in failures} == {f"x/{number}" for number in range(20)}
    assert len(failures) > 20
    assert lines.count(logging.WARNING) == 1
    assert len(lines) >= len(failures)


@pytest.mark.capability("once")
def test_once_emits_the_events_of_a_lease_and_duplicates(face):
    """The first call is granted and released; the others are duplicates and hold nothing."""
    events = []
    payments = face.connect(observer=events.append).once("payments")
    payments.call("42", lambda: 1)
    payments.call("42", lambda: 2)

    assert kinds_of(events, "payments/42") == ["granted", "released", "duplicate"]
    granted, released = events[0], events[1]
    assert granted.fence == released.fence
    assert granted.seconds >= 0


@pytest.mark.capability("once")
@together
def test_a_success_that_reaches_the_engine_late_is_a_release(face):
    """The done marker comes with the release, however late, and a second caller finds it."""
    events = []
    client = face.connect(observer=events.append)
    wire = face.wire(client)
    payments = client.once("payments")

    def work():
        wire.fail(FinishOnce)
        return 1

    assert payments.call("42", work) == 1
    wire.heal()
    eventually(lambda: kinds_of(events, "payments/42")[-1] == "released", 10)
    assert payments.seen("42")


@pytest.mark.capability("pools")
def test_events_of_an_item_have_the_name_of_its_pool(face):
    """`alice` alone is unclear, and metrics count by the first part of a name."""
    events = []
    client = face.connect(observer=events.append)
    pool = client.pool("channels", timeout=0)
    pool.set_items(["alice"])
    with pool.borrow(), pytest.raises(NotAcquired):
        pool.borrow()
    with client.semaphore("gpu", permits=2):
        pass

    assert kinds_of(events, "channels/alice") == ["granted", "released"]
    assert kinds_of(events, "channels") == ["refused"]
    assert kinds_of(events, "gpu") == ["granted", "released"]
    pool.set_items([])


@pytest.mark.capability("registry")
def test_a_claim_of_an_owned_key_is_a_refused_event(face):
    """A claim does not wait, but the events still show how often it was refused."""
    events = []
    ours, theirs = face.connect(), face.connect(observer=events.append)
    with ours.registry("conversations").claim("42"):
        assert isinstance(theirs.registry("conversations").claim("42"), RegistryEntry)

    (refused,) = events
    assert (refused.kind, refused.name) == ("refused", "conversations/42")
    assert refused.detail.startswith("held by ")


@pytest.mark.capability("limits", "budgets")
def test_a_rate_limit_emits_one_event_for_each_refused_caller(face):
    """A hit, an unsuccessful wait and a budget emit it; a peek and the tries of a waiter do not."""
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
    assert smooth.wait("ann", timeout=10)  # it was refused meanwhile, which was not final

    assert [(event.kind, event.name) for event in events] == [("rate_limited", "logins/ann")] * 3 + [
        ("rate_limited", "fees/ann")
    ]
    assert all(0 < event.seconds <= 3600 for event in events[:3])


@pytest.mark.capability("limits")
@pytest.mark.finding("S11")
def test_an_outage_is_a_warning_when_it_starts_and_one_when_it_ends(face, caplog, monkeypatch):
    """A service that counts thousands of hits a second must not write as many warnings; DEBUG has every hit."""
    monkeypatch.setattr("holdfast.observer._QUIET_NS", 0)
    events = []
    client = face.connect(observer=events.append)
    wire, limit = face.wire(client), client.limit("1000/second", name="calls", on_unavailable="allow")
    with caplog.at_level(logging.DEBUG, "holdfast"):
        wire.fail(Hit)
        for _ in range(50):
            limit.hit("k")
        wire.heal()
        eventually(lambda: limit.hit("k") and "over after" in caplog.text, 20)

    failures = [event for event in events if event.kind == "unavailable"]
    records = [record for record in caplog.records if "unavailable" in record.getMessage()]
    warnings = [record.getMessage() for record in records if record.levelno == logging.WARNING]
    assert len(failures) >= 50
    assert len(records) == len(failures) + 1
    assert len(warnings) == 2
    assert "unavailable 'calls/k'" in warnings[0]
    assert f"{len(failures)} failures" in warnings[1]
