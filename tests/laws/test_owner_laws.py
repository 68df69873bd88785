"""Owners: one holder per key, for hours; told of what they lose, and cheap however much they own."""

import os
import sys
import threading
import time

import pytest
from law_faces import together
from law_faults import Fault, Interrupted
from owner_steps import TTL_S, added, open_sessions, sessions

import holdfast
from holdfast import (
    Added,
    Backoff,
    Closed,
    Ended,
    InvalidConfig,
    InvalidName,
    LeaseLost,
    Lost,
    NotOwner,
)
from holdfast.commands.queues import RELEASE, Beat, Conclude, Leave, Outcome, Take
from holdfast.testing import eventually

pytestmark = pytest.mark.carried("queues")

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
        assert first.works[one.key].fence == one.fence
        assert sorted(each.label for each in queue.consumers()) == ["pod-a", "pod-b"]
        assert all(each.remaining <= TTL_S for each in queue.consumers())
        assert 0 < one.remaining() <= TTL_S
        for work in (one, two):
            work.check()
            work.done()
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
        first.done()
        (second,) = added(owner, 1)
        assert (second.info, second.key) == ("second", "chat")
        assert second.fence > first.fence
        with pytest.raises(NotOwner, match="settled before"):
            first.done()
        second.done()
        assert owner.works == {}
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
        work.fail("no answer")
        (work,) = added(owner, 1)
        assert work.attempt == 2
        work.fail("no answer again")
        assert owner.next(0.1) is None
    (letter,) = queue.dlq.list()
    assert (letter.reason, letter.attempts, letter.error) == ("attempts used up", 2, "no answer again")


@together
def test_an_owner_that_was_taken_for_dead_is_told_of_all_that_it_lost(face):
    """And comes back by itself; whatever it still says of what it had is refused, as somebody else has it."""
    client = face.connect()
    queue, other = sessions(client), sessions(face.connect())
    wire = face.wire(client)
    with queue.owner("slow") as owner:
        open_sessions(queue, 3)
        works = added(owner, 3)
        with other.owner("heir") as heir:
            wire.fail(Beat)
            taken = {work.key: work for work in added(heir, 3)}
            wire.heal()
            lost = [owner.next(20) for _ in range(3)]
            assert all(isinstance(event, Lost) for event in lost)
            assert {event.work.key for event in lost} == {work.key for work in works}
            for work in works:
                assert work.lost
                assert work.remaining() == 0
                assert taken[work.key].fence > work.fence
                with pytest.raises(LeaseLost):
                    work.check()
                with pytest.raises(LeaseLost):
                    work.done()
            assert owner.owned == 0
            for work in taken.values():
                work.check()
                work.release()
            back = added(owner, 1) if owner.owned == 0 else []
            assert all(work.fence > taken[work.key].fence for work in back)


def test_what_the_engine_has_forgotten_is_lost_though_its_owner_lives(face):
    """After a failover a take may be undone: who still believes in it is told, and does not go on."""
    queue = sessions(face.connect())
    peer = face.peer()
    with queue.owner() as owner:
        open_sessions(queue, 2)
        first, second = added(owner, 2)
        token, entry = first._lease.token, first._entry
        assert peer.say(Conclude("sessions", token, (Outcome(entry, RELEASE, 60_000),))).lost == ()
        owner._posts[0]._unsure = True
        event = owner.next(20)
        assert isinstance(event, Lost)
        assert event.work.key == first.key
        with pytest.raises(LeaseLost):
            first.check()
        second.check()
        assert owner.owned == 1


def test_an_interruption_while_something_is_buried_leaves_nothing_unseen(face):
    """What came with it is told afterwards: else it would be owned, for hours, by somebody who does not know."""
    client = face.connect()
    queue = sessions(client)
    client.queue("sessions", codec="bytes").publish(b"{no json", key="bad")
    open_sessions(queue, 2)
    wire = face.wire(client)
    with queue.owner() as owner:
        wire._faults.append(Fault(Conclude, 1, applied=False, hangs=False, error=Interrupted()))
        with pytest.raises(Interrupted):
            owner.next(5)
        assert sorted(work.key for work in added(owner, 2)) == ["chat-0", "chat-1"]
        assert owner.next(0) is None
        assert owner.owned == 2
    assert [letter.reason for letter in queue.dlq.list()] == ["unreadable"]
    assert queue.check()


def test_a_closed_client_ends_an_owner_that_has_all_it_may(face):
    """It stands in no line, and hears of it all the same."""
    client = face.connect()
    queue = sessions(client)
    open_sessions(queue, 2)
    with queue.owner(most=1) as owner:
        added(owner, 1)
        waiting = face.start(lambda: owner.next(20))
        time.sleep(0.2)
        closing = face.start(lambda: client.close(timeout=10))
        began = time.monotonic()
        assert waiting.result() == Ended("closed")
        assert time.monotonic() - began < 5
    closing.result()


def test_works_may_end_while_it_is_asked_whether_any_is_new():
    """By other threads, at any moment."""
    before = sys.getswitchinterval()
    with holdfast.connect("memory://many-hands") as client, client.queue("sessions").owner() as owner:
        (post,) = owner._posts
        post._with = dict.fromkeys(map(str, range(3)))
        over = threading.Event()

        def others():
            while not over.is_set():
                post._with.pop("x", None)
                post._with["x"] = None
                post._owed.pop("x", None)
                post._owed["x"] = 0

        thread = threading.Thread(target=others)
        sys.setswitchinterval(1e-6)
        try:
            thread.start()
            post._unsure = True
            for _ in range(20_000):
                assert post._known(1)
        finally:
            over.set()
            thread.join()
            sys.setswitchinterval(before)
            post._with = {}


@together
def test_a_hundred_keys_cost_as_many_heartbeats_as_one(face):
    """One lease vouches for all of them."""
    client = face.connect()
    queue = sessions(client)
    wire = face.wire(client)
    with queue.owner() as owner:
        counts = []
        for count in (1, 99):
            queue.publish_many(range(count), key=lambda number, c=count: f"{c}/{number}")
            added(owner, count)
            before, began = len(wire.commands(Beat)), time.monotonic()
            while time.monotonic() - began < 2 * TTL_S:
                assert owner.next(TTL_S / 4) is None
            counts.append(len(wire.commands(Beat)) - before)
        assert owner.owned == 100
        assert 2 <= counts[1] <= counts[0] + 3


def test_what_happens_in_one_part_costs_nothing_in_the_others(face):
    """A key that ends is one command, in however many parts its owner is."""
    client = face.connect()
    whole = sessions(client, ttl=30).partitioned(8)
    open_sessions(whole, 6)
    with whole.owner() as owner:
        works = added(owner, 6)
        waiting = face.start(lambda: owner.next(20))
        eventually(lambda: whole.stats().waiting == 8, 5, "an owner that waits in all parts")
        time.sleep(0.5)  # and has opened its ears: after that it asks once more
        wire = face.wire(client)
        for work in works:
            work.done()
        open_sessions(whole, 1)
        assert isinstance(waiting.result(), Added)
        assert len(wire.commands(Conclude)) == 6
        assert len(wire.commands(Take)) <= 4


def test_whoever_has_all_it_may_passes_the_ring_on(face):
    """It was rung for what it has no room for: others need not wait until they look by themselves."""
    whole, other = (sessions(face.connect(), ttl=30).partitioned(2) for _ in range(2))
    keys = {whole.part(key).name: key for key in ("a", "b", "c", "d", "e")}
    with whole.owner(most=1) as first, other.owner() as second:
        one, two = keys.values()
        waiting = face.start(lambda: first.next(20))
        eventually(lambda: whole.stats().waiting == 2, 5, "one that waits in both parts")
        whole.publish(1, key=one)
        assert waiting.result().work.key == one
        more = face.start(lambda: first.next(20))
        heir = face.start(lambda: second.next(20))
        eventually(lambda: whole.part(two).stats().waiting == 2, 5, "two that wait")
        time.sleep(0.5)  # with their ears open
        began = time.monotonic()
        whole.publish(2, key=two)
        assert heir.result().work.key == two
        assert time.monotonic() - began < 3
        first.stop()
        assert more.result() == Ended("stopped")


def test_an_owner_takes_no_more_than_it_may_and_more_when_there_is_room(face):
    """So a slow reader has as much as it can carry, and others get the rest."""
    queue = sessions(face.connect())
    open_sessions(queue, 5)
    with queue.owner(most=2) as owner:
        one, _ = added(owner, 2)
        assert owner.next(0.1) is None
        assert queue.stats().ready == 3
        one.done()
        added(owner, 1)
        assert owner.next(0.1) is None
    assert queue.stats().ready == 4


def test_an_owner_of_many_leaves_in_steps_that_are_short(face):
    """A server that serves others must not stand still while one of its clients goes home."""
    client = face.connect()
    queue = sessions(client)
    queue.publish_many(range(300), key=str)
    with queue.owner() as owner:
        works = added(owner, 300)
        works[0].done()
        wire = face.wire(client)
    parts = [len(command.outcomes) for command in wire.commands(Conclude)]
    assert parts == [128, 128]
    assert len(wire.commands(Leave)) == 1
    assert queue.stats().ready == 299
    assert queue.stats().counts["released"] == 299
    assert queue.check()


def test_an_engine_that_is_away_is_waited_for_once_at_the_end_and_not_in_each_part(face):
    """Whoever stops a pod does not wait for minutes; what it had is given back when the engine can be told."""
    client = face.connect()
    whole = sessions(client, ttl=30).partitioned(4)
    open_sessions(whole, 8)
    wire = face.wire(client)
    with whole.owner() as owner:
        added(owner, 8)
        wire.fail(Leave)
        began = time.monotonic()
    assert time.monotonic() - began < 6
    wire.heal()
    eventually(lambda: whole.stats().ready == 8, 20, "everything given back")
    assert whole.stats().consumers == 0
    assert whole.check()


def test_what_an_owner_is_told_is_equal_only_to_the_same_news(face):
    """Of one work: that it came, and that it was lost, are not the same."""
    queue = sessions(face.connect())
    open_sessions(queue, 1)
    with queue.owner() as owner:
        (work,) = added(owner, 1)
        assert Added(work) == Added(work)
        assert Added(work) != Lost(work)


def test_a_forked_child_is_told_of_nothing_that_its_parent_took(tmp_path):
    """Two processes would begin the same work; and the parent's goes on."""
    with holdfast.connect(f"sqlite://{tmp_path}/x.db") as client:
        queue = sessions(client, ttl=30)
        open_sessions(queue, 2)
        with queue.owner() as owner:
            (first,) = added(owner, 1)
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    news = [owner.next(0) for _ in range(3)]
                    code = 2 if any(isinstance(event, Added) for event in news) else 0
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            first.check()
            (second,) = added(owner, 1)
            for work in (first, second):
                work.done()
    assert {first.key, second.key} == {"chat-0", "chat-1"}


@pytest.mark.acceptance("A1-19")
def test_stopping_is_told_once_and_leaves_nothing(face):
    """Before it begins, twice, and after the end: no harm; what was owned is ready for others."""
    client = face.connect()
    queue = sessions(client)
    open_sessions(queue, 2)
    owner = queue.owner()
    owner.stop()
    with owner:
        added(owner, 2)
        waiting = face.start(lambda: owner.next(20))
        owner.stop()
        owner.stop()
        assert waiting.result() == Ended("stopped")
        assert list(owner) == []
    assert owner.next(0) is None
    assert queue.consumers() == []
    assert queue.stats().ready == 2
    with pytest.raises(RuntimeError, match="inside its `with` block"):
        owner.claim("chat-0")


def test_a_closed_client_ends_its_owner(face):
    """Whoever waits for news is told why there are none."""
    client = face.connect()
    queue = sessions(client)
    with queue.owner() as owner:
        waiting = face.start(lambda: owner.next(20))
        eventually(lambda: queue.stats().waiting == 1, 5, "an owner that waits")
        closing = face.start(lambda: client.close(timeout=5))
        assert waiting.result() == Ended("closed")
        with pytest.raises((Closed, RuntimeError)):
            owner.claim("x")
    closing.result()


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
    assert seen == ["Added", "Added", "Ended"]


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
            work.done()
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
