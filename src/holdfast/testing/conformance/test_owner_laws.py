"""Owners: one holder per key, for hours, and as many as it may have."""

import sys
import threading

import pytest

import holdfast
from holdfast import Assigned, AssignmentLost, Backoff, InvalidConfig, InvalidName, NotOwner
from holdfast.testing.conformance.owner_steps import TTL_S, added, open_sessions, sessions

pytestmark = pytest.mark.capability("queues")

NOW = Backoff(0, 1, 0, 0)


@pytest.mark.acceptance("A1-1")
@pytest.mark.large
def test_what_comes_at_once_is_spread_over_all_owners(face):
    """Each stream has one owner, who knows what was sent about it; its lease is no longer than the ttl."""
    queue, other = (sessions(face.connect()) for _ in range(2))
    with queue.owner("pod-a") as first, other.owner("pod-b") as second:
        open_sessions(queue, 2)
        (one,), (two,) = added(first, 1), added(second, 1)
        assert {one.key: one.info, two.key: two.info} == {"chat-0": {"user": 0}, "chat-1": {"user": 1}}
        assert first.owned == second.owned == 1
        assert first.assignments[one.key].fence == one.fence
        assert sorted(each.label for each in queue.consumers()) == ["pod-a", "pod-b"]
        assert all(each.remaining <= TTL_S for each in queue.consumers())
        assert 0 < one.remaining() <= TTL_S
        for work in (one, two):
            work.check()
            work.ack()
    assert queue.stats()[1:7] == (0, 0, 0, 0, 0, 0)
    assert queue.check()


@pytest.mark.large
def test_a_key_that_is_done_is_free_in_the_same_step(face):
    """The next that was sent for it comes with a larger fence; what was done cannot be done again."""
    queue = sessions(face.connect())
    with queue.owner() as owner:
        queue.publish("first", key="chat")
        queue.publish("second", key="chat")
        (first,) = added(owner, 1)
        assert owner.next(0) is None
        first.ack()
        (second,) = added(owner, 1)
        assert (second.info, second.key) == ("second", "chat")
        assert second.fence > first.fence
        with pytest.raises(NotOwner, match="finished already"):
            first.ack()
        second.ack()
        assert owner.assignments == {}
    assert queue.stats().counts["acked"] == 2


@pytest.mark.acceptance("A1-20")
def test_what_is_handed_back_uses_no_attempt_and_what_fails_does(face):
    """Also when an owner leaves with everything that it has; the last failure is a dead letter."""
    queue = sessions(face.connect(), max_attempts=2, backoff=NOW)
    with queue.owner() as owner:
        queue.publish("x", key="chat")
        (work,) = added(owner, 1)
        work.release()
        (work,) = added(owner, 1)
    with queue.owner() as owner:
        (work,) = added(owner, 1)
        assert work.attempt == 1
        work.retry(reason="no answer")
        (work,) = added(owner, 1)
        assert work.attempt == 2
        work.retry(reason="no answer again")
        assert owner.next(0.1) is None
    (letter,) = queue.dlq.list()
    assert (letter.reason, letter.attempts, letter.error) == ("attempts used up", 2, "no answer again")


def test_works_may_end_while_it_is_asked_whether_any_is_new():
    """By other threads, at any moment."""
    before = sys.getswitchinterval()
    with holdfast.connect("memory://many-hands") as client, client.queue("sessions").owner() as owner:
        (consumer,) = owner._core.consumers
        consumer.held = dict.fromkeys(map(str, range(3)))
        over = threading.Event()

        def others():
            while not over.is_set():
                consumer.held.pop("x", None)
                consumer.held["x"] = None
                consumer.pending.pop("x", None)
                consumer.pending["x"] = 0

        thread = threading.Thread(target=others)
        sys.setswitchinterval(1e-6)
        try:
            thread.start()
            consumer.unsure = True
            for _ in range(20_000):
                assert consumer.known_entries(1)
        finally:
            over.set()
            thread.join()
            sys.setswitchinterval(before)
            consumer.held = {}


def test_an_owner_takes_no_more_than_it_may_and_more_when_there_is_room(face):
    """So a slow reader has as much as it can carry, and others get the rest."""
    queue = sessions(face.connect())
    open_sessions(queue, 5)
    with queue.owner(most=2) as owner:
        one, _ = added(owner, 2)
        assert owner.next(0.1) is None
        assert queue.stats().ready == 3
        one.ack()
        added(owner, 1)
        assert owner.next(0.1) is None
    assert queue.stats().ready == 4


def test_what_an_owner_is_told_is_equal_only_to_the_same_news(face):
    """Of one work: that it came, and that it was lost, are not the same."""
    queue = sessions(face.connect())
    open_sessions(queue, 1)
    with queue.owner() as owner:
        (work,) = added(owner, 1)
        assert Assigned(work) == Assigned(work)
        assert Assigned(work) != AssignmentLost(work)


def test_the_same_news_comes_to_a_function(face):
    """One word for everything that happens, until it has ended."""
    queue = sessions(face.connect())
    open_sessions(queue, 2)
    seen = []
    with queue.owner() as owner:

        def handle(event):
            seen.append(type(event).__name__)
            if len(seen) == 2:
                owner.stop()

        owner.run(handle)
    assert seen == ["Assigned", "Assigned", "OwnerStopped"]


def test_owners_of_all_parts_are_one_owner(face):
    """One reader hears of every part; a claim goes where the key is."""
    whole = sessions(face.connect()).partitioned(3)
    for number in range(12):
        whole.publish(number, key=f"chat-{number}")
    with whole.owner() as owner:
        claimed = owner.claim("chat-7")
        works = [claimed, *added(owner, 11)]
        assert sorted(work.info for work in works) == list(range(12))
        assert whole.stats().in_flight == owner.owned == 12
        assert len({work.queue for work in works}) > 1
        whole.publish("late", key="chat-99")
        (late,) = added(owner, 1)
        for work in (*works, late):
            work.ack()
    assert whole.stats()[1:7] == (0, 0, 0, 0, 0, 0)
    assert whole.check()


BAD = [
    ({"most": 0}, InvalidConfig, "most"),
    ({"most": True}, InvalidConfig, "most"),
    ({"events": "please"}, InvalidConfig, "listen"),
    ({"name": ""}, InvalidConfig, "name"),
]


@pytest.mark.parametrize(("options", "error", "says"), BAD)
def test_a_bad_owner_is_refused_before_anything_is_sent(face, options, error, says):
    """With the rule that it breaks."""
    queue = sessions(face.connect())
    with pytest.raises(error, match=says):
        queue.owner(**options)
    with pytest.raises(InvalidConfig, match="parts"):
        queue.partitioned(0)
    with queue.owner() as owner, pytest.raises(InvalidName):
        owner.claim("")
    with pytest.raises(RuntimeError, match="inside its `with` block"):
        queue.owner().next()


def test_whoever_has_no_name_is_called_by_its_pod(face, monkeypatch):
    """For people: two of one name are two all the same."""
    monkeypatch.setenv("POD_IP", "10.0.0.7")
    by_ip = sessions(face.connect()).owner()
    monkeypatch.setenv("POD_NAME", "chat-7f")
    by_name, given = sessions(face.connect()).owner(), sessions(face.connect(label="mine")).owner()
    assert [owner.name for owner in (by_ip, by_name, given)] == ["10.0.0.7", "chat-7f", "mine"]
    monkeypatch.delenv("POD_NAME")
    monkeypatch.delenv("POD_IP")
    assert ":" in sessions(face.connect()).owner().name
    with by_name, sessions(face.connect(label="chat-7f")).owner() as twin:
        queue = sessions(face.connect())
        assert [each.label for each in queue.consumers()] == ["chat-7f", "chat-7f"]
        open_sessions(queue, 2)
        added(by_name, 1)
        added(twin, 1)
    assert queue.stats().ready == 2
