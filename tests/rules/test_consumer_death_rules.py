"""Rules for dead consumers.

They stay dead, new messages take the blame, and a take-over does not wait for the grace.
"""

import pytest
from queue_harness import GRACE_MS, INTERVAL_MS, TTL_MS, QueueHarness

from holdfast.commands import NotHeld
from holdfast.commands.queue import (
    ACK,
    BATCH_MAX,
    COSTLY_BATCH_MAX,
    DEAD,
    DELAYED,
    HELD,
    RETRY,
    ConsumerHeartbeat,
    Join,
    Leave,
    ListDeadLetters,
    ListKeys,
    MessageOutcome,
    NotTakenOver,
    TakeOver,
)
from holdfast.rules.queue.state import ATTEMPTS_USED_UP, BLAME_WINDOWS_PER_TTL
from holdfast.rules.result import Wakeup


def take_over(harness, token, key="k", *, attempts_max=3, dead_max=0, gone=()):
    return harness.answer_to(token[0], TakeOver("q", token, key, attempts_max, dead_max), gone=gone)


def one(answer):
    (delivery,) = answer.deliveries
    return delivery


def all_is_refused(harness, token):
    client = token[0]
    words = (
        Join("q", token, "", token, TTL_MS),
        ConsumerHeartbeat("q", token, TTL_MS),
        Leave("q", token),
        TakeOver("q", token, "k", 3),
    )
    assert all(isinstance(harness.answer_to(client, word), NotHeld) for word in words)
    assert isinstance(harness.receive(token), NotHeld)


# Dead consumers.


def test_a_consumer_that_is_reclaimed_in_steps_does_not_come_back():
    """Others have some of its messages by now: every command of it is refused, and the rest follows."""
    harness = QueueHarness()
    harness.join("a1", "b1")
    some = COSTLY_BATCH_MAX - 1  # the consumer counts as one message
    for at in range(some + 2):
        harness.publish(str(at), key=f"k{at}")
    entries = [each.entry for each in harness.receive("b1", 2 * some).deliveries]
    assert [each.requeued for each in harness.advance(TTL_MS + INTERVAL_MS, "a1") if each.requeued] == [some]

    all_is_refused(harness, "b1")
    assert harness.record("b1", *(MessageOutcome(entry, ACK) for entry in entries[-2:])).lost == tuple(entries[-2:])
    assert harness.answer_to("a", ListKeys("q", "b1", 9)).keys == (f"k{some}", f"k{some + 1}")
    assert (harness.consistent_counts().held, harness.consistent_counts().consumers) == (2, 2)
    assert (harness.reclaim(after_ms=INTERVAL_MS).requeued, harness.consistent_counts().consumers) == (2, 1)
    assert isinstance(harness.answer_to("b", ConsumerHeartbeat("q", "b1", TTL_MS)), NotHeld)


def test_the_blame_of_the_first_step_holds_for_the_rest():
    """The last message is alone with the dead consumer only because the others were reclaimed before.

    It takes no blame.
    """
    harness = QueueHarness()
    harness.join("a1", "b1")
    harness.publish("1", key="k")
    harness.publish("2", key="l")
    harness.receive("b1")
    harness.now_us += TTL_MS * 1000
    assert one(take_over(harness, "a1")).message.id == "1"
    harness.join("a1")
    harness.reclaim(after_ms=GRACE_MS)

    (rest,) = harness.receive("a1").deliveries
    assert (rest.message.id, rest.message.attempts, rest.message.crashes) == ("2", 0, 1)


# The blame window.


def keeper(harness, *old, new=()):
    """A consumer that has held `old` for long, has just received `new`, and sends no heartbeat any more."""
    harness.join("b1", keeps_messages=True)
    for name in old:
        harness.publish(name, key=name)
    assert len(harness.received_ids("b1")) == len(old)
    harness.advance(2 * TTL_MS, "a1", "b1")
    for name in new:
        harness.publish(name, key=name)
    assert len(harness.received_ids("b1")) == len(new)
    harness.advance(TTL_MS + 2 * INTERVAL_MS, "a1")
    return {each.message.id: each.message for each in harness.receive("a1", BATCH_MAX, quarantine_max=True).deliveries}


def test_only_a_new_message_of_a_consumer_that_keeps_messages_takes_the_blame():
    """All but the newest have proved harmless."""
    harness = QueueHarness()
    harness.join("a1")
    back = keeper(harness, "1", "2", "3", new=["new"])

    assert {name: (each.attempts, each.crashes) for name, each in back.items()} == {
        "1": (0, 0),
        "2": (0, 0),
        "3": (0, 0),
        "new": (1, 0),
    }
    assert {each.last_consumer for each in back.values()} == {"b1"}


def test_several_new_messages_take_no_blame():
    """Each has one crash in its record; the old ones have none."""
    harness = QueueHarness()
    harness.join("a1")
    back = keeper(harness, "1", "2", new=["x", "y"])

    assert {name: (each.attempts, each.crashes) for name, each in back.items()} == {
        "1": (0, 0),
        "2": (0, 0),
        "x": (0, 1),
        "y": (0, 1),
    }


def test_a_message_past_its_blame_window_leaves_the_quarantine():
    """Whatever crashes it had before: it has run for hours since."""
    harness = QueueHarness()
    harness.join("a1", "c1")
    harness.publish("1", key="1")
    harness.publish("plain")
    harness.received_ids("c1")
    harness.advance(TTL_MS + INTERVAL_MS, "a1")
    harness.join("d1", keeps_messages=True)
    assert {each.message.crashes for each in harness.receive("d1").deliveries} == {1}
    harness.advance(2 * TTL_MS, "a1", "d1")
    harness.advance(TTL_MS + 2 * INTERVAL_MS, "a1")

    assert {each.message.crashes for each in harness.receive("a1").deliveries} == {0}


@pytest.mark.parametrize(("early_us", "attempts"), [(1, 0), (0, 1)])
def test_the_blame_window_begins_a_part_of_the_ttl_before_the_last_heartbeat(early_us, attempts):
    """By the engine's clock, to the microsecond."""
    harness = QueueHarness()
    harness.join("b1", keeps_messages=True)
    harness.publish("1", key="1")
    harness.receive("b1")
    harness.now_us += TTL_MS * 1000 // BLAME_WINDOWS_PER_TTL + early_us
    harness.answer_to("b", ConsumerHeartbeat("q", "b1", TTL_MS))
    harness.now_us += (TTL_MS + GRACE_MS) * 1000
    harness.reclaim()
    harness.join("a1")

    assert [each.message.attempts for each in harness.receive("a1").deliveries] == [attempts]


def test_every_message_of_an_ordinary_consumer_is_in_its_blame_window():
    """However long it has held a message: one that is alone with it takes the blame."""
    harness = QueueHarness()
    harness.join("a1", "b1")
    harness.publish("1")
    harness.receive("b1")
    harness.advance(10 * TTL_MS, "a1", "b1")
    harness.advance(TTL_MS + INTERVAL_MS, "a1")

    assert [each.message.attempts for each in harness.receive("a1").deliveries] == [1]


# Take-overs.


def test_a_ready_message_is_taken_over_from_any_place_in_its_lane():
    """The others of the lane keep their order; no attempt is used."""
    harness = QueueHarness()
    harness.join("a1")
    for key in "xky":
        harness.publish(key, key=key)
    given = one(take_over(harness, "a1"))

    assert (given.message.id, given.message.attempts, given.quarantined) == ("k", 0, False)
    assert harness.received_ids("a1") == ["x", "y"]
    assert (harness.consistent_counts().held, dict(harness.consistent_counts().counts)["received"]) == (3, 3)
    assert harness.record("a1", MessageOutcome(given.entry, ACK, keyed=True)).lost == ()


def test_a_live_consumers_message_is_not_taken_over():
    """However slow it is. The answer names its holder."""
    harness = QueueHarness()
    harness.join("a1", "b1")
    harness.publish("1", key="k")
    had = one(harness.receive("b1"))
    harness.now_us += TTL_MS * 1000 - 1

    assert take_over(harness, "a1") == NotTakenOver(HELD, "b1", had.fence)
    assert harness.consistent_counts().consumers == 2


def test_an_expired_consumer_loses_the_message_and_is_declared_dead():
    """There is no grace: it knows by its own clock that it can trust nothing."""
    harness = QueueHarness()
    harness.join("a1", "b1")
    harness.publish("1", "2", key="k")
    had = one(harness.receive("b1"))
    harness.now_us += TTL_MS * 1000
    given = one(take_over(harness, "a1"))

    assert (given.message.id, given.message.attempts, given.message.last_consumer) == ("1", 1, "b1")
    assert given.fence > had.fence
    assert given.entry != had.entry
    all_is_refused(harness, "b1")
    assert harness.record("b1", MessageOutcome(had.entry, ACK)).lost == (had.entry,)
    assert dict(harness.consistent_counts().counts)["crashed"] == 1
    harness.record("a1", MessageOutcome(given.entry, ACK, keyed=True))
    assert harness.received_ids("a1") == ["2"]


def test_a_consumer_whose_process_ended_loses_the_message_at_once():
    """An engine with proof of death need not wait for a ttl."""
    harness = QueueHarness()
    harness.join("a1", "b1")
    harness.publish("1", key="k")
    had = one(harness.receive("b1"))

    assert take_over(harness, "a1", gone={"c"}) == NotTakenOver(HELD, "b1", had.fence)
    assert one(take_over(harness, "a1", gone={"b"})).message.id == "1"
    assert harness.reclaim(gone={"b"}).consumers == 1
    assert harness.consistent_counts().held == 1


def test_after_an_outage_a_take_over_declares_no_consumer_dead():
    """All sessions expired, because no heartbeat could arrive.

    A consumer that comes back in the postponed time loses nothing.

    Proof of death counts all the same.
    """
    harness = QueueHarness()
    harness.join("a1", "b1", "c1")
    harness.publish("1", key="k")
    had = one(harness.receive("b1"))
    harness.reclaim()
    harness.now_us += 5 * TTL_MS * 1000

    assert take_over(harness, "a1") == NotTakenOver(HELD, "b1", had.fence)
    assert harness.reclaim().postponed
    harness.now_us += TTL_MS * 1000 - 1
    assert take_over(harness, "a1") == NotTakenOver(HELD, "b1", had.fence)
    assert one(take_over(harness, "c1", gone={"b"})).message.id == "1"
    all_is_refused(harness, "b1")


def test_after_the_postponed_time_a_message_is_taken_over():
    """Its consumer had a ttl for a heartbeat, and sent none."""
    harness = QueueHarness()
    harness.join("a1", "b1")
    harness.publish("1", key="k")
    harness.receive("b1")
    harness.reclaim()
    harness.now_us += 5 * TTL_MS * 1000
    assert harness.reclaim().postponed
    harness.now_us += TTL_MS * 1000

    assert one(take_over(harness, "a1")).message.id == "1"


def test_a_resent_take_over_gets_the_same_answer():
    """Its first answer may have been lost."""
    harness = QueueHarness()
    harness.join("a1")
    harness.publish("1", key="k")
    first = take_over(harness, "a1")

    assert take_over(harness, "a1") == first
    assert dict(harness.consistent_counts().counts)["received"] == 1


def test_of_two_take_overs_one_succeeds_and_the_other_learns_the_holder():
    """However both came to know of the key."""
    harness = QueueHarness()
    harness.join("a1", "b1", "c1")
    harness.publish("1", key="k")
    harness.receive("c1")
    harness.now_us += TTL_MS * 1000
    harness.join("a1", "b1")
    given = one(take_over(harness, "a1"))

    assert take_over(harness, "b1") == NotTakenOver(HELD, "a1", given.fence)


def test_delayed_unknown_or_later_messages_are_not_taken_over():
    """A delay is kept; only the first message of a key can be taken over."""
    harness = QueueHarness()
    harness.join("a1", "b1")
    harness.publish("1", "2", key="k")
    harness.record("b1", MessageOutcome(one(harness.receive("b1")).entry, RETRY, delay_ms=500, keyed=True))

    assert take_over(harness, "a1") == NotTakenOver(DELAYED)
    assert take_over(harness, "a1", "nothing") == NotTakenOver("")
    assert isinstance(take_over(harness, "nobody"), NotHeld)
    harness.now_us += 500_000
    harness.received_ids("b1", 0)
    assert one(take_over(harness, "a1")).message.id == "1"


def test_a_take_over_after_the_last_attempt_makes_a_dead_letter():
    """The message has used all attempts; a waiting consumer is woken for the next one of its key."""
    harness = QueueHarness()
    harness.join("a1", "b1")
    harness.publish("1", "2", key="k")
    harness.receive("b1")
    harness.now_us += TTL_MS * 1000
    harness.join("a1", "c1")
    harness.receive("c1", wait=True)
    dealt = harness.apply("a", TakeOver("q", "a1", "k", 1, 1))

    assert dealt == (NotTakenOver(DEAD), [Wakeup("c", "c1")])
    (letter,) = harness.answer_to("a", ListDeadLetters("q", "", 10)).dead_letters
    assert (letter.reason, letter.message.id, letter.message.attempts) == (ATTEMPTS_USED_UP, "1", 1)
    assert harness.received_ids("c1") == ["2"]
    assert harness.consistent_counts().dead == 1


def test_a_take_over_obeys_the_cap_of_dead_letters():
    """The oldest is dropped, and counted."""
    harness = QueueHarness()
    harness.join("a1")
    for name in "xy":
        harness.join(f"b{name}")
        harness.publish(name, key=name)
        harness.receive(f"b{name}")
        harness.now_us += TTL_MS * 1000
        harness.join("a1")
        assert take_over(harness, "a1", name, attempts_max=1, dead_max=1) == NotTakenOver(DEAD)

    assert [each.message.id for each in harness.answer_to("a", ListDeadLetters("q", "", 10)).dead_letters] == ["y"]
    assert dict(harness.consistent_counts().counts)["evicted"] == 1


def test_a_take_over_ends_the_wait_of_its_consumer():
    """A wake-up would be wasted on it, and another consumer would wait for it."""
    harness = QueueHarness()
    harness.join("a1", "b1")
    harness.receive("b1", wait=True)
    harness.receive("a1", wait=True)
    assert harness.publish("1", key="k").wakeups == [Wakeup("b", "b1")]
    assert one(take_over(harness, "a1")).message.id == "1"

    assert harness.publish("2").wakeups == []
