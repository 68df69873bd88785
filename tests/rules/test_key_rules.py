"""Rules for messages that share a key, for a fair share, and for entries that a consumer has lost."""

import pytest
from queue_harness import INTERVAL_MS, TTL_MS, QueueHarness

from holdfast.commands.queue import (
    ACK,
    BATCH_MAX,
    BEHIND,
    REJECT,
    RELEASE,
    RETRY,
    VERIFY,
    Leave,
    ListDeadLetters,
    ListKeys,
    MessageOutcome,
    NewMessage,
    Publish,
    PublishRefused,
    Receive,
    Redrive,
)
from holdfast.commands.queue_admin import CheckConsistency, Peek
from holdfast.rules.queue.memory_state import key_order_faults
from holdfast.rules.result import Wakeup


def behind(harness):
    return [each.message.id for each in harness.answer_to("a", Peek("q", BEHIND, 100)).messages]


def entry_of(harness, token, **options):
    (delivery,) = harness.receive(token, **options).deliveries
    return delivery.entry


def test_messages_of_a_key_are_delivered_one_at_a_time_in_order():
    """Other consumers get nothing of that key; other keys, and messages without one, go on."""
    harness = QueueHarness()
    harness.join("a1", "b1")
    harness.publish("1", "2", "3", key="k")
    harness.publish("other", key="l")
    harness.publish("plain")

    first, *others = harness.receive("a1").deliveries
    assert [each.message.id for each in (first, *others)] == ["1", "other", "plain"]
    assert (harness.received_ids("b1"), behind(harness), harness.consistent_counts().behind) == ([], ["2", "3"], 2)
    harness.record("a1", MessageOutcome(first.entry, ACK, keyed=True))
    assert (harness.received_ids("b1"), behind(harness)) == (["2"], ["3"])


@pytest.mark.parametrize("kind", [ACK, REJECT])
def test_the_next_of_a_key_is_ready_after_an_ack_or_a_dead_letter(kind):
    """The one before is gone for good; and a waiting consumer is woken."""
    harness = QueueHarness()
    harness.join("a1", "b1")
    harness.publish("1", "2", key="k")
    entry = entry_of(harness, "a1")
    harness.receive("b1", wait=True)
    outcome = MessageOutcome(entry, kind, reason="r", keyed=True)
    dealt = harness.apply("a", harness.outcomes_command("a1", outcome))

    assert dealt.wakeups == [Wakeup("b", "b1")]
    assert harness.received_ids("b1") == ["2"]
    assert harness.consistent_counts().behind == 0


@pytest.mark.parametrize("outcome", [(RETRY, 0), (RETRY, 700), (RELEASE, 0), (RELEASE, 700), (VERIFY, 0)])
def test_the_next_of_a_key_waits_while_the_one_before_is_retried(outcome):
    """Otherwise all later messages would overtake one that failed once."""
    harness = QueueHarness()
    harness.join("a1", "b1")
    harness.publish("1", "2", key="k")
    kind, delay_ms = outcome
    entry = entry_of(harness, "a1")
    harness.record("a1", MessageOutcome(entry, kind, delay_ms, keyed=True))

    expected = [] if delay_ms or kind == VERIFY else ["1"]
    assert harness.received_ids("b1") == expected
    harness.now_us += delay_ms * 1000
    assert harness.received_ids("b1") == (["1"] if delay_ms else [])
    assert (behind(harness), harness.consistent_counts().behind) == (["2"], 1)


def test_the_next_of_a_key_waits_while_the_one_before_is_reclaimed_or_requeued():
    """The end of a consumer is not the end of its messages."""
    harness = QueueHarness()
    harness.join("a1", "b1", "c1")
    harness.publish("1", "2", key="k")
    harness.received_ids("b1")
    harness.answer_to("b", Leave("q", "b1"))
    assert harness.received_ids("c1") == ["1"]
    harness.advance(TTL_MS + INTERVAL_MS, "a1")

    assert harness.received_ids("a1") == ["1"]
    assert behind(harness) == ["2"]
    harness.consistent_counts()


def test_a_message_whose_turn_comes_goes_to_its_own_lane():
    """A message has a priority and a key has an order: an urgent message overtakes no other of its key."""
    harness = QueueHarness()
    harness.join("a1")
    harness.publish("slow", key="k", lane="low")
    harness.publish("urgent", key="k", lane="high")
    harness.publish("plain")

    assert harness.received_ids("a1", lanes=("high",)) == []
    entry = entry_of(harness, "a1", count=1, lanes=("low",))
    harness.record("a1", MessageOutcome(entry, ACK, keyed=True))
    assert harness.received_ids("a1", 1, lanes=("high", "")) == ["urgent"]


def test_a_message_behind_counts_against_the_bound_and_wakes_no_consumer():
    """It is a message like any other, and it is not ready yet."""
    harness = QueueHarness()
    harness.join("a1")
    harness.receive("a1", wait=True)
    assert harness.publish("1", key="k", bound=2).wakeups == [Wakeup("a", "a1")]
    harness.receive("a1", 0, wait=True)

    assert harness.publish("2", key="k", bound=2).wakeups == []
    assert harness.publish("3", key="k", bound=2).answer == PublishRefused(2)
    assert harness.publish("4", bound=2).answer == PublishRefused(2)


def test_messages_of_one_publish_keep_the_order_of_their_keys():
    """Also if others of the call have another key or none; a copy of the call changes nothing."""
    harness = QueueHarness()
    harness.join("a1")
    drafts = tuple(NewMessage(name, b"", key=key) for name, key in (("1", "k"), ("2", ""), ("3", "k"), ("4", "l")))
    for _ in range(2):
        harness.answer_to("p", Publish("q", "call", drafts))

    assert harness.received_ids("a1") == ["1", "2", "4"]
    assert behind(harness) == ["3"]


def test_a_redriven_message_comes_behind_all_others_of_its_key():
    """They are older by now; if there are none, it is ready."""
    harness = QueueHarness()
    harness.join("a1")
    harness.publish("bad", "1", "2", key="k")
    harness.record("a1", MessageOutcome(entry_of(harness, "a1"), REJECT, reason="r", keyed=True))
    harness.answer_to("a", Redrive("q", ("bad",)))

    order = []
    while found := harness.receive("a1").deliveries:
        (one,) = found
        order.append(one.message.id)
        kind = REJECT if one.message.id == "bad" else ACK
        harness.record("a1", MessageOutcome(one.entry, kind, reason="r", keyed=True))
    assert order == ["1", "2", "bad"]
    harness.answer_to("a", Redrive("q", ("bad",)))
    assert harness.received_ids("a1") == ["bad"]
    assert harness.answer_to("a", ListDeadLetters("q", "", 10)).dead_letters == ()


def test_the_fences_of_a_key_only_grow():
    """So a resource of that key refuses an earlier consumer."""
    harness = QueueHarness()
    harness.join("a1", "b1")
    harness.publish("1", "2", "3", key="k")
    fences = []
    for token, kind in (("a1", RELEASE), ("b1", RETRY), ("a1", ACK), ("b1", ACK), ("a1", VERIFY)):
        (one,) = harness.receive(token).deliveries
        fences.append(one.fence)
        harness.record(token, MessageOutcome(one.entry, kind, keyed=True))

    assert len(fences) == 5
    assert fences == sorted(set(fences))


def test_a_check_finds_two_heads_of_a_key_and_keys_without_a_head():
    """Whatever has happened to the queue."""
    harness = QueueHarness()
    harness.publish("1", "2", key="k")
    harness.publish("3")
    ready = harness.state._lanes[""]
    ready["1000"] = ready["1"]._replace(id="4")
    assert harness.answer_to("a", CheckConsistency("q")).faults == ("1 keys have more than one first message",)
    ready.pop("1000")
    ready.pop("1")
    assert harness.answer_to("a", CheckConsistency("q")).faults == ("1 keys have no first message",)
    assert key_order_faults({"k": 1}, ["k"]) == []


def test_a_fair_share_leaves_messages_for_every_consumer():
    """The first consumer after a quiet time does not get everything; the others are woken for the rest."""
    harness = QueueHarness()
    harness.join("a1", "b1", "c1")
    harness.receive("b1", wait=True)
    harness.publish(*(str(at) for at in range(7)))
    harness.publish("low", lane="low")

    dealt = harness.apply("a", Receive("q", "a1", 10, fair_share=True, lanes=("", "low", "")))
    assert [each.message.id for each in dealt.answer.deliveries] == ["0", "1", "2"]  # 8 for 3
    assert harness.received_ids("b1", fair_share=True) == ["3", "4"]  # 4 of its lane for 3
    assert harness.received_ids("c1", 1, fair_share=True) == ["5"]
    assert harness.received_ids("c1", fair_share=True) == ["6"]
    assert harness.received_ids("c1", fair_share=True, lanes=("", "low")) == ["low"]
    assert harness.received_ids("c1", fair_share=True) == []


def test_unseen_messages_do_not_count_against_the_share():
    """They are delivered again because an answer was lost, however many other consumers there are."""
    harness = QueueHarness()
    harness.join("a1", "b1")
    harness.publish("1", "2", "3")
    harness.receive("a1")

    assert harness.received_ids("a1", fair_share=True, known_entries=()) == ["1", "2", "3"]


def test_a_consumer_that_names_its_entries_learns_which_are_lost():
    """Reclaimed, finished and unknown ones; without `known_entries` the answer names none."""
    harness = QueueHarness()
    harness.join("a1", "b1")
    harness.publish("1", "2", "3")
    one, two, three = (each.entry for each in harness.receive("a1").deliveries)
    harness.record("a1", MessageOutcome(two, ACK))

    answer = harness.receive("a1", known_entries=(one, two, three, "no entry"))
    assert (answer.deliveries, answer.lost) == ((), (two, "no entry"))
    assert harness.receive("b1", known_entries=(one,)).lost == (one,)
    assert harness.receive("a1").lost == ()


def test_lost_entries_are_right_also_for_a_consumer_with_many_messages():
    """It holds more than it names: only entries that it does not hold are lost."""
    harness = QueueHarness()
    harness.join("a1")
    for at in range(4):
        harness.publish(*(f"{at}-{each}" for each in range(BATCH_MAX)))
        harness.receive("a1", BATCH_MAX)
    *_, last = (each.entry for each in harness.receive("a1", 4 * BATCH_MAX, known_entries=()).deliveries)
    far = str(3 * BATCH_MAX)

    answer = harness.receive("a1", 2, known_entries=(far, "no entry", last))
    assert answer.lost == ("no entry",)
    assert [each.message.id for each in answer.deliveries] == ["0-0", "0-1"]


def test_the_keys_of_a_consumer_are_listed_from_the_oldest():
    """After its expiry others know what to claim; messages without a key cannot be claimed."""
    harness = QueueHarness()
    harness.join("a1")
    for name, key in (("1", "k"), ("2", ""), ("3", "l"), ("4", "m")):
        harness.publish(name, key=key)
    harness.receive("a1")

    assert harness.answer_to("b", ListKeys("q", "a1", 100)).keys == ("k", "l", "m")
    assert harness.answer_to("b", ListKeys("q", "a1", 3)).keys == ("k", "l")
    assert harness.answer_to("b", ListKeys("q", "nobody", 3)).keys == ()
