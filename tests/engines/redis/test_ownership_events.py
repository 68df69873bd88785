"""Owners that hear AssignmentExpired: faster than a look, and never needed."""

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
    """A queue whose dead are found only after a long grace, on a server that tells of nothing yet."""
    server.command("CONFIG", "SET", SETTING, "")
    with holdfast.connect(server.url) as hf:
        queue = hf.queue("sessions", ttl=TTL_S, grace=60)
        for number in range(3):
            queue.publish(number, key=f"chat-{number}")
        yield queue
    server.command("CONFIG", "SET", SETTING, "")
    server.command("FLUSHALL")


def doomed(queue):
    """A pod that takes everything, and is never heard of again."""
    client = queue._core.client
    run(client.send(Join("sessions", "doomed", "", "doomed", 1000, keeps_messages=True, announce_expiry=True)))
    return run(client.send(Receive("sessions", "doomed", 9))).deliveries


@pytest.mark.acceptance("A1-5")
def test_every_survivor_hears_which_keys_are_without_an_owner_and_one_gets_each(server, sessions):
    """Long before the grace is over; whoever claims a key too late is told who has it."""
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
def test_news_that_nobody_reads_is_bounded_and_what_is_dropped_is_counted(server, sessions, monkeypatch):
    """What is owned is never dropped; others' ends are only news."""
    monkeypatch.setattr(owning, "EVENTS_MAX", 2)
    told = []
    with holdfast.connect(server.url, observer=told.append) as hf:
        queue = hf.queue("sessions", ttl=TTL_S, grace=60)
        with queue.owner("slow reader", events="configure") as owner:
            doomed(sessions)
            first = owner.next(WAIT_S)
            assert isinstance(first, AssignmentExpired)
            assert owner.dropped == 1
            dropped = [event.detail for event in told if event.kind == "events_dropped"]
            assert dropped == ["AssignmentExpired events: 1"]
            assert isinstance(owner.next(0), AssignmentExpired)
            assert owner.next(0) is None


@pytest.mark.acceptance("A1-4")
def test_without_the_server_telling_anything_nothing_is_lost_but_time(server):
    """Whoever only listens to a server that tells nothing has its dead found by looks, and is told that it is so."""
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
def test_engines_that_see_deaths_by_themselves_refuse_to_listen(url, tmp_path):
    """There is nothing to hear, so whoever asks for it is told."""
    with holdfast.connect(url.format(folder=tmp_path)) as hf:
        owner = hf.queue("sessions").owner(events="listen")
        with pytest.raises(InvalidConfig, match="has no expiry events"), owner:
            pass
        assert hf.queue("sessions").consumers() == []
