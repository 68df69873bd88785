"""Owners: one owner per key, for hours, up to its limit of keys."""

import sys
import threading

import pytest

import holdfast
from holdfast import Assigned, AssignmentLost, Backoff, InvalidConfig, InvalidName, NotOwner
from holdfast.testing.conformance.ownership_steps import TTL_S, added, open_sessions, sessions

pytestmark = pytest.mark.capability("queues")

NOW = Backoff(0, 1, 0, 0)


@pytest.mark.acceptance("A1-1")
@pytest.mark.large
def test_keys_that_come_together_are_spread_over_all_owners(face):
    """Each stream has one owner, which has the published body; its lease is no longer than the ttl."""
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
def test_an_acked_key_is_free_in_the_same_step(face):
    """The next message of the key comes with a larger fence; a second ack is refused."""
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
        with pytest.raises(NotOwner, match=r"message .* was already acked"):
            first.ack()
        second.ack()
        assert owner.assignments == {}
    assert queue.stats().counts["acked"] == 2


@pytest.mark.acceptance("A1-20")
def test_a_release_uses_no_attempt_and_a_retry_does(face):
    """Also when an owner leaves with all its keys; the last failure makes a dead letter."""
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
    (dead_letter,) = queue.dlq.list()
    assert (dead_letter.reason, dead_letter.attempts, dead_letter.error) == ("attempts used up", 2, "no answer again")


def test_assignments_may_end_while_known_entries_are_collected():
    """In other threads, at any moment."""
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
            consumer.answer_may_be_lost = True
            for _ in range(20_000):
                assert consumer.known_entries(1)
        finally:
            over.set()
            thread.join()
            sys.setswitchinterval(before)
            consumer.held = {}


def test_an_owner_holds_no_more_than_its_limit_and_takes_more_when_there_is_room(face):
    """So a slow reader holds as much as it can handle, and others get the rest."""
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


def test_owner_events_are_equal_only_if_their_kind_and_content_are(face):
    """`Assigned` and `AssignmentLost` of one assignment are not equal."""
    queue = sessions(face.connect())
    open_sessions(queue, 1)
    with queue.owner() as owner:
        (work,) = added(owner, 1)
        assert Assigned(work) == Assigned(work)
        assert Assigned(work) != AssignmentLost(work)


def test_run_calls_a_function_with_the_same_events(face):
    """One function for all events, until the last one."""
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


def test_an_owner_of_all_partitions_is_one_owner(face):
    """One reader gets the events of every partition; a claim goes to the partition of its key."""
    whole = sessions(face.connect()).partitioned(3)
    for number in range(12):
        whole.publish(number, key=f"chat-{number}")
    with whole.owner() as owner:
        claimed = owner.claim("chat-7")
        assignments = [claimed, *added(owner, 11)]
        assert sorted(work.info for work in assignments) == list(range(12))
        assert whole.stats().in_flight == owner.owned == 12
        assert len({work.queue for work in assignments}) > 1
        whole.publish("late", key="chat-99")
        (late,) = added(owner, 1)
        for work in (*assignments, late):
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
def test_bad_owner_options_are_refused_before_anything_is_sent(face, options, error, says):
    """With the rule that they break."""
    queue = sessions(face.connect())
    with pytest.raises(error, match=says):
        queue.owner(**options)
    with pytest.raises(InvalidConfig, match="parts"):
        queue.partitioned(0)
    with queue.owner() as owner, pytest.raises(InvalidName):
        owner.claim("")
    with pytest.raises(RuntimeError, match="inside its `with` block"):
        queue.owner().next()


def test_an_owner_without_a_name_has_the_name_of_its_pod(face, monkeypatch):
    """For people to read: two owners of one name are still two."""
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
