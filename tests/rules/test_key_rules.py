"""The law of messages that share a key, of a fair share, and of what a consumer is told that it has lost."""

import pytest
from queue_harness import INTERVAL_MS, TTL_MS, Table

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


def behind(table):
    return [each.message.id for each in table.ask("a", Peek("q", BEHIND, 100)).messages]


def entry_of(table, token, **options):
    (delivery,) = table.take(token, **options).deliveries
    return delivery.entry


def test_of_one_key_one_message_is_out_at_a_time_and_in_the_order_of_sending():
    """Whoever else asks gets nothing of that key; other keys, and messages without one, go on."""
    table = Table()
    table.join("a1", "b1")
    table.publish("1", "2", "3", key="k")
    table.publish("other", key="l")
    table.publish("plain")

    first, *others = table.take("a1").deliveries
    assert [each.message.id for each in (first, *others)] == ["1", "other", "plain"]
    assert (table.taken("b1"), behind(table), table.sound().behind) == ([], ["2", "3"], 2)
    table.conclude("a1", MessageOutcome(first.entry, ACK, keyed=True))
    assert (table.taken("b1"), behind(table)) == (["2"], ["3"])


@pytest.mark.parametrize("kind", [ACK, REJECT])
def test_the_next_of_a_key_is_ready_when_the_one_before_is_done_or_dead(kind):
    """It is gone for good, so that nobody waits for it; and whoever waits for messages is rung."""
    table = Table()
    table.join("a1", "b1")
    table.publish("1", "2", key="k")
    entry = entry_of(table, "a1")
    table.take("b1", wait=True)
    outcome = MessageOutcome(entry, kind, reason="r", keyed=True)
    dealt = table.say("a", table.concluding("a1", outcome))

    assert dealt.wakeups == [Wakeup("b", "b1")]
    assert table.taken("b1") == ["2"]
    assert table.sound().behind == 0


@pytest.mark.parametrize("outcome", [(RETRY, 0), (RETRY, 700), (RELEASE, 0), (RELEASE, 700), (VERIFY, 0)])
def test_the_next_of_a_key_waits_while_the_one_before_is_tried_again(outcome):
    """Else a message that fails once would be overtaken by all that were sent after it."""
    table = Table()
    table.join("a1", "b1")
    table.publish("1", "2", key="k")
    kind, delay_ms = outcome
    entry = entry_of(table, "a1")
    table.conclude("a1", MessageOutcome(entry, kind, delay_ms, keyed=True))

    expected = [] if delay_ms or kind == VERIFY else ["1"]
    assert table.taken("b1") == expected
    table.now_us += delay_ms * 1000
    assert table.taken("b1") == (["1"] if delay_ms else [])
    assert (behind(table), table.sound().behind) == (["2"], 1)


def test_the_next_of_a_key_waits_while_the_one_before_comes_back_from_the_dead_or_the_leaving():
    """A consumer's end is no end of its messages."""
    table = Table()
    table.join("a1", "b1", "c1")
    table.publish("1", "2", key="k")
    table.taken("b1")
    table.ask("b", Leave("q", "b1"))
    assert table.taken("c1") == ["1"]
    table.lives(TTL_MS + INTERVAL_MS, "a1")

    assert table.taken("a1") == ["1"]
    assert behind(table) == ["2"]
    table.sound()


def test_a_message_whose_turn_comes_goes_to_its_own_lane():
    """Priority is of messages; order is of keys: an urgent one overtakes no other of its key."""
    table = Table()
    table.join("a1")
    table.publish("slow", key="k", lane="low")
    table.publish("urgent", key="k", lane="high")
    table.publish("plain")

    assert table.taken("a1", lanes=("high",)) == []
    entry = entry_of(table, "a1", count=1, lanes=("low",))
    table.conclude("a1", MessageOutcome(entry, ACK, keyed=True))
    assert table.taken("a1", 1, lanes=("high", "")) == ["urgent"]


def test_who_stands_behind_counts_in_a_bounded_queue_and_rings_nobody():
    """It is a message like any other, and there is nothing to be had of it yet."""
    table = Table()
    table.join("a1")
    table.take("a1", wait=True)
    assert table.publish("1", key="k", bound=2).wakeups == [Wakeup("a", "a1")]
    table.take("a1", 0, wait=True)

    assert table.publish("2", key="k", bound=2).wakeups == []
    assert table.publish("3", key="k", bound=2).answer == PublishRefused(2)
    assert table.publish("4", bound=2).answer == PublishRefused(2)


def test_messages_of_one_call_stand_behind_each_other():
    """Also if others of the call have another key or none; a copy of the call changes nothing."""
    table = Table()
    table.join("a1")
    drafts = tuple(NewMessage(name, b"", key=key) for name, key in (("1", "k"), ("2", ""), ("3", "k"), ("4", "l")))
    for _ in range(2):
        table.ask("p", Publish("q", "call", drafts))

    assert table.taken("a1") == ["1", "2", "4"]
    assert behind(table) == ["3"]


def test_a_letter_that_is_sent_again_stands_behind_all_others_of_its_key():
    """They were sent before it, by now; if there are none, it is ready."""
    table = Table()
    table.join("a1")
    table.publish("bad", "1", "2", key="k")
    table.conclude("a1", MessageOutcome(entry_of(table, "a1"), REJECT, reason="r", keyed=True))
    table.ask("a", Redrive("q", ("bad",)))

    order = []
    while found := table.take("a1").deliveries:
        (one,) = found
        order.append(one.message.id)
        kind = REJECT if one.message.id == "bad" else ACK
        table.conclude("a1", MessageOutcome(one.entry, kind, reason="r", keyed=True))
    assert order == ["1", "2", "bad"]
    table.ask("a", Redrive("q", ("bad",)))
    assert table.taken("a1") == ["bad"]
    assert table.ask("a", ListDeadLetters("q", "", 10)).dead_letters == ()


def test_the_fences_of_a_key_only_grow():
    """So a resource that the key names refuses whoever had it before."""
    table = Table()
    table.join("a1", "b1")
    table.publish("1", "2", "3", key="k")
    fences = []
    for token, kind in (("a1", RELEASE), ("b1", RETRY), ("a1", ACK), ("b1", ACK), ("a1", VERIFY)):
        (one,) = table.take(token).deliveries
        fences.append(one.fence)
        table.conclude(token, MessageOutcome(one.entry, kind, keyed=True))

    assert len(fences) == 5
    assert fences == sorted(set(fences))


def test_an_audit_finds_two_that_come_first_and_lines_without_a_first():
    """Whatever has happened to a queue, whoever asks is told."""
    table = Table()
    table.publish("1", "2", key="k")
    table.publish("3")
    ready = table.state._lanes[""]
    ready["1000"] = ready["1"]._replace(id="4")
    assert table.ask("a", CheckConsistency("q")).faults == ("1 keys have more than one message that comes first",)
    ready.pop("1000")
    ready.pop("1")
    assert table.ask("a", CheckConsistency("q")).faults == ("1 keys have no message that comes first",)
    assert key_order_faults({"k": 1}, ["k"]) == []


def test_a_fair_share_leaves_something_for_everybody():
    """Whoever comes first after a quiet time does not get everything; the rest rings the others."""
    table = Table()
    table.join("a1", "b1", "c1")
    table.take("b1", wait=True)
    table.publish(*(str(at) for at in range(7)))
    table.publish("low", lane="low")

    dealt = table.say("a", Receive("q", "a1", 10, fair_share=True, lanes=("", "low", "")))
    assert [each.message.id for each in dealt.answer.deliveries] == ["0", "1", "2"]  # 8 for 3
    assert table.taken("b1", fair_share=True) == ["3", "4"]  # 4 of its lane for 3
    assert table.taken("c1", 1, fair_share=True) == ["5"]
    assert table.taken("c1", fair_share=True) == ["6"]
    assert table.taken("c1", fair_share=True, lanes=("", "low")) == ["low"]
    assert table.taken("c1", fair_share=True) == []


def test_what_a_consumer_has_already_is_no_matter_of_its_share():
    """It is given again because an answer was lost, however many others there are."""
    table = Table()
    table.join("a1", "b1")
    table.publish("1", "2", "3")
    table.take("a1")

    assert table.taken("a1", fair_share=True, known_entries=()) == ["1", "2", "3"]


def test_whoever_says_what_it_has_is_told_what_it_has_not():
    """What was taken from it, what is settled, and what never was; nobody who does not ask is told."""
    table = Table()
    table.join("a1", "b1")
    table.publish("1", "2", "3")
    one, two, three = (each.entry for each in table.take("a1").deliveries)
    table.conclude("a1", MessageOutcome(two, ACK))

    answer = table.take("a1", known_entries=(one, two, three, "no entry"))
    assert (answer.deliveries, answer.lost) == ((), (two, "no entry"))
    assert table.take("b1", known_entries=(one,)).lost == (one,)
    assert table.take("a1").lost == ()


def test_of_many_that_a_consumer_has_each_is_told_right():
    """More than it names: what is far behind is with it all the same, and what is not is gone."""
    table = Table()
    table.join("a1")
    for at in range(4):
        table.publish(*(f"{at}-{each}" for each in range(BATCH_MAX)))
        table.take("a1", BATCH_MAX)
    *_, last = (each.entry for each in table.take("a1", 4 * BATCH_MAX, known_entries=()).deliveries)
    far = str(3 * BATCH_MAX)

    answer = table.take("a1", 2, known_entries=(far, "no entry", last))
    assert answer.lost == ("no entry",)
    assert [each.message.id for each in answer.deliveries] == ["0-0", "0-1"]


def test_the_keys_of_a_consumer_are_listed_from_the_oldest():
    """Whoever hears of its end knows what to ask for; messages without a key cannot be asked for."""
    table = Table()
    table.join("a1")
    for name, key in (("1", "k"), ("2", ""), ("3", "l"), ("4", "m")):
        table.publish(name, key=key)
    table.take("a1")

    assert table.ask("b", ListKeys("q", "a1", 100)).keys == ("k", "l", "m")
    assert table.ask("b", ListKeys("q", "a1", 3)).keys == ("k", "l")
    assert table.ask("b", ListKeys("q", "nobody", 3)).keys == ()
