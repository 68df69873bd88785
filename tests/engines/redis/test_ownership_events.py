"""Owners that receive expiry events of other owners: faster than a check, and never needed."""

import pytest
from expiry_events import SETTING, WAIT_S, subscribed

import holdfast
from holdfast import Assigned, AssignmentExpired, InvalidConfig, NotAcquired
from holdfast.commands.queue import Join, Receive
from holdfast.core.ownership import owner as owning
from holdfast.core.step import run
from holdfast.testing import eventually

TTL_S = 1.0


@pytest.fixture
def sessions(server):
    """A queue with a long grace, on a server that publishes no events yet."""
    server.command("CONFIG", "SET", SETTING, "")
    with holdfast.connect(server.url) as hf:
        queue = hf.queue("sessions", ttl=TTL_S, grace=60)
        for number in range(3):
            queue.publish(number, key=f"chat-{number}")
        yield queue
    server.command("CONFIG", "SET", SETTING, "")
    server.command("FLUSHALL")


def doomed(queue):
    """Start a pod that takes all keys, and kill it."""
    client = queue._core.client
    run(client.send(Join("sessions", "doomed", "", "doomed", 1000, keeps_messages=True, announce_expiry=True)))
    return run(client.send(Receive("sessions", "doomed", 9))).deliveries


@pytest.mark.acceptance("A1-5")
def test_every_survivor_learns_the_free_keys_and_one_gets_each(server, sessions):
    """Long before the grace is over; a claim that comes too late gets the new owner's label."""
    with holdfast.connect(server.url) as other:
        second_queue = other.queue("sessions", ttl=TTL_S, grace=60)
        with sessions.owner("a", events="configure") as first, second_queue.owner("b", events="listen") as second:
            assert len(doomed(sessions)) == 3
            heard = [{first.next(WAIT_S).key for _ in range(3)}, {second.next(WAIT_S).key for _ in range(3)}]
            assert heard == [{"chat-0", "chat-1", "chat-2"}] * 2
            work = first.claim("chat-1")
            assert work.info == 1
            with pytest.raises(NotAcquired, match="held by a"):
                second.claim("chat-1")
            assert second.claim("chat-0").fence > 0
            listening = subscribed(server)
        assert subscribed(server) == listening - 2
    assert sessions.check()


@pytest.mark.acceptance("A1-18")
def test_unread_events_are_bounded_and_dropped_ones_are_counted(server, sessions, monkeypatch):
    """Assignments are never dropped; expiries of others are only hints."""
    monkeypatch.setattr(owning, "EVENTS_MAX", 2)
    told = []
    with holdfast.connect(server.url, observer=told.append) as hf:
        queue = hf.queue("sessions", ttl=TTL_S, grace=60)
        with queue.owner("slow reader", events="configure") as owner:
            doomed(sessions)
            first = owner.next(WAIT_S)
            assert isinstance(first, AssignmentExpired)
            assert owner.dropped == 1
            eventually(lambda: "events_dropped" in [event.kind for event in told])
            dropped = [event.detail for event in told if event.kind == "events_dropped"]
            assert dropped == ["AssignmentExpired events: 1"]
            assert isinstance(owner.next(0), AssignmentExpired)
            assert owner.next(0) is None


@pytest.mark.acceptance("A1-4")
def test_without_events_dead_owners_are_found_later(server):
    """If the server publishes nothing, checks find dead owners, and an event reports that events are missing."""
    server.command("CONFIG", "SET", SETTING, "")
    told = []
    with holdfast.connect(server.url, observer=told.append) as hf:
        queue = hf.queue("sessions", ttl=TTL_S, grace=0.2)
        queue.publish(0, key="chat-0")
        assert len(doomed(queue)) == 1
        with queue.owner("a", events="listen") as owner:
            eventually(lambda: [event for event in told if event.kind == "events_missing"], WAIT_S, "a word about it")
            found = owner.next(WAIT_S)
            assert isinstance(found, Assigned)
            assert found.assignment.redelivered
    assert server.command("CONFIG", "GET", SETTING)[1] in (b"", "")
    server.command("FLUSHALL")


@pytest.mark.parametrize("url", ["memory://", "sqlite:///{folder}/x.db"])
def test_engines_without_expiry_events_refuse_to_listen(url, tmp_path):
    """Such an engine detects deaths by itself and publishes no events."""
    with holdfast.connect(url.format(folder=tmp_path)) as hf:
        owner = hf.queue("sessions").owner(events="listen")
        with pytest.raises(InvalidConfig, match="has no expiry events"), owner:
            pass
        assert hf.queue("sessions").consumers() == []
