"""The law of consumers that are taken for dead: they stay so, what was new is to blame, and others may ask for more."""

import pytest
from queue_harness import GRACE_MS, INTERVAL_MS, TTL_MS, Table

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
from holdfast.rules.queue.state import ATTEMPTS_USED_UP, PROBATIONS_PER_TTL
from holdfast.rules.result import Wakeup


def over(table, token, key="k", *, attempts_max=3, dead_max=0, gone=()):
    return table.ask(token[0], TakeOver("q", token, key, attempts_max, dead_max), gone=gone)


def one(answer):
    (delivery,) = answer.deliveries
    return delivery


def all_is_refused(table, token):
    client = token[0]
    words = (
        Join("q", token, "", token, TTL_MS),
        ConsumerHeartbeat("q", token, TTL_MS),
        Leave("q", token),
        TakeOver("q", token, "k", 3),
    )
    assert all(isinstance(table.ask(client, word), NotHeld) for word in words)
    assert isinstance(table.take(token), NotHeld)


# Falls.


def test_a_consumer_that_was_taken_for_dead_in_parts_does_not_come_back_between_two():
    """Some of what it had is with others by now: it is told so, whatever it says, and the rest follows."""
    table = Table()
    table.join("a1", "b1")
    some = COSTLY_BATCH_MAX - 1  # and the consumer itself
    for at in range(some + 2):
        table.publish(str(at), key=f"k{at}")
    entries = [each.entry for each in table.take("b1", 2 * some).deliveries]
    assert [each.requeued for each in table.lives(TTL_MS + INTERVAL_MS, "a1") if each.requeued] == [some]

    all_is_refused(table, "b1")
    assert table.conclude("b1", *(MessageOutcome(entry, ACK) for entry in entries[-2:])).lost == tuple(entries[-2:])
    assert table.ask("a", ListKeys("q", "b1", 9)).keys == (f"k{some}", f"k{some + 1}")
    assert (table.sound().held, table.sound().consumers) == (2, 2)
    assert (table.reap(after_ms=INTERVAL_MS).requeued, table.sound().consumers) == (2, 1)
    assert isinstance(table.ask("b", ConsumerHeartbeat("q", "b1", TTL_MS)), NotHeld)


def test_what_is_known_of_a_fall_is_known_when_the_rest_comes():
    """The last one is alone with the dead only because the others were moved before: it is not to blame."""
    table = Table()
    table.join("a1", "b1")
    table.publish("1", key="k")
    table.publish("2", key="l")
    table.take("b1")
    table.now_us += TTL_MS * 1000
    assert one(over(table, "a1")).message.id == "1"
    table.join("a1")
    table.reap(after_ms=GRACE_MS)

    (rest,) = table.take("a1").deliveries
    assert (rest.message.id, rest.message.attempts, rest.message.crashes) == ("2", 0, 1)


# Trials.


def keeper(table, *old, new=()):
    """A consumer that has had these for long, and has just taken those, and is never heard of again."""
    table.join("b1", keeps_messages=True)
    for name in old:
        table.publish(name, key=name)
    assert len(table.taken("b1")) == len(old)
    table.lives(2 * TTL_MS, "a1", "b1")
    for name in new:
        table.publish(name, key=name)
    assert len(table.taken("b1")) == len(new)
    table.lives(TTL_MS + 2 * INTERVAL_MS, "a1")
    return {each.message.id: each.message for each in table.take("a1", BATCH_MAX, quarantine_max=True).deliveries}


def test_of_a_consumer_that_keeps_messages_only_what_was_new_is_to_blame():
    """All but the newest have shown that they kill nobody."""
    table = Table()
    table.join("a1")
    back = keeper(table, "1", "2", "3", new=["new"])

    assert {name: (each.attempts, each.crashes) for name, each in back.items()} == {
        "1": (0, 0),
        "2": (0, 0),
        "3": (0, 0),
        "new": (1, 0),
    }
    assert {each.last_consumer for each in back.values()} == {"b1"}


def test_of_several_new_ones_none_is_to_blame_alone():
    """Each has one crash in its company; the old ones have none."""
    table = Table()
    table.join("a1")
    back = keeper(table, "1", "2", new=["x", "y"])

    assert {name: (each.attempts, each.crashes) for name, each in back.items()} == {
        "1": (0, 0),
        "2": (0, 0),
        "x": (0, 1),
        "y": (0, 1),
    }


def test_what_was_kept_for_long_is_under_suspicion_no_more():
    """Whatever it was near before: it has run for hours since."""
    table = Table()
    table.join("a1", "c1")
    table.publish("1", key="1")
    table.publish("plain")
    table.taken("c1")
    table.lives(TTL_MS + INTERVAL_MS, "a1")
    table.join("d1", keeps_messages=True)
    assert {each.message.crashes for each in table.take("d1").deliveries} == {1}
    table.lives(2 * TTL_MS, "a1", "d1")
    table.lives(TTL_MS + 2 * INTERVAL_MS, "a1")

    assert {each.message.crashes for each in table.take("a1").deliveries} == {0}


@pytest.mark.parametrize(("early_us", "attempts"), [(1, 0), (0, 1)])
def test_new_is_what_was_taken_a_trial_before_the_last_sign_of_life(early_us, attempts):
    """By the clock of the engine, to the microsecond."""
    table = Table()
    table.join("b1", keeps_messages=True)
    table.publish("1", key="1")
    table.take("b1")
    table.now_us += TTL_MS * 1000 // PROBATIONS_PER_TTL + early_us
    table.ask("b", ConsumerHeartbeat("q", "b1", TTL_MS))
    table.now_us += (TTL_MS + GRACE_MS) * 1000
    table.reap()
    table.join("a1")

    assert [each.message.attempts for each in table.take("a1").deliveries] == [attempts]


def test_of_a_consumer_that_keeps_nothing_for_long_everything_is_new():
    """It may have had a message for as long as it likes: one that is alone with it is to blame."""
    table = Table()
    table.join("a1", "b1")
    table.publish("1")
    table.take("b1")
    table.lives(10 * TTL_MS, "a1", "b1")
    table.lives(TTL_MS + INTERVAL_MS, "a1")

    assert [each.message.attempts for each in table.take("a1").deliveries] == [1]


# Take-overs.


def test_what_nobody_has_is_given_at_once_wherever_it_stands():
    """Others of the lane stay in their order; no attempt is used."""
    table = Table()
    table.join("a1")
    for key in "xky":
        table.publish(key, key=key)
    given = one(over(table, "a1"))

    assert (given.message.id, given.message.attempts, given.quarantined) == ("k", 0, False)
    assert table.taken("a1") == ["x", "y"]
    assert (table.sound().held, dict(table.sound().counts)["received"]) == (3, 3)
    assert table.conclude("a1", MessageOutcome(given.entry, ACK, keyed=True)).lost == ()


def test_what_a_living_consumer_has_is_not_given():
    """However slow it is. Who has it is told."""
    table = Table()
    table.join("a1", "b1")
    table.publish("1", key="k")
    had = one(table.take("b1"))
    table.now_us += TTL_MS * 1000 - 1

    assert over(table, "a1") == NotTakenOver(HELD, "b1", had.fence)
    assert table.sound().consumers == 2


def test_whose_time_is_over_loses_what_is_asked_for_and_is_dead():
    """There is no grace: it vouches for nothing, and knows that by its own clock."""
    table = Table()
    table.join("a1", "b1")
    table.publish("1", "2", key="k")
    had = one(table.take("b1"))
    table.now_us += TTL_MS * 1000
    given = one(over(table, "a1"))

    assert (given.message.id, given.message.attempts, given.message.last_consumer) == ("1", 1, "b1")
    assert given.fence > had.fence
    assert given.entry != had.entry
    all_is_refused(table, "b1")
    assert table.conclude("b1", MessageOutcome(had.entry, ACK)).lost == (had.entry,)
    assert dict(table.sound().counts)["crashed"] == 1
    table.conclude("a1", MessageOutcome(given.entry, ACK, keyed=True))
    assert table.taken("a1") == ["2"]


def test_whose_process_is_gone_loses_what_is_asked_for_at_once():
    """An engine that sees processes end need not wait for a ttl."""
    table = Table()
    table.join("a1", "b1")
    table.publish("1", key="k")
    had = one(table.take("b1"))

    assert over(table, "a1", gone={"c"}) == NotTakenOver(HELD, "b1", had.fence)
    assert one(over(table, "a1", gone={"b"})).message.id == "1"
    assert table.reap(gone={"b"}).consumers == 1
    assert table.sound().held == 1


def test_after_an_outage_nobody_is_taken_for_dead_because_somebody_asks():
    """Everybody's time is over, because nobody could be heard of. Who comes back within the amnesty has lost nothing.

    An end that is proven is one all the same.
    """
    table = Table()
    table.join("a1", "b1", "c1")
    table.publish("1", key="k")
    had = one(table.take("b1"))
    table.reap()
    table.now_us += 5 * TTL_MS * 1000

    assert over(table, "a1") == NotTakenOver(HELD, "b1", had.fence)
    assert table.reap().postponed
    table.now_us += TTL_MS * 1000 - 1
    assert over(table, "a1") == NotTakenOver(HELD, "b1", had.fence)
    assert one(over(table, "c1", gone={"b"})).message.id == "1"
    all_is_refused(table, "b1")


def test_when_the_amnesty_is_over_what_nobody_vouches_for_is_given():
    """It was given a ttl to be heard of, and was not."""
    table = Table()
    table.join("a1", "b1")
    table.publish("1", key="k")
    table.take("b1")
    table.reap()
    table.now_us += 5 * TTL_MS * 1000
    assert table.reap().postponed
    table.now_us += TTL_MS * 1000

    assert one(over(table, "a1")).message.id == "1"


def test_a_take_over_that_is_sent_again_answers_the_same():
    """Its first answer may have been lost."""
    table = Table()
    table.join("a1")
    table.publish("1", key="k")
    first = over(table, "a1")

    assert over(table, "a1") == first
    assert dict(table.sound().counts)["received"] == 1


def test_of_two_who_ask_one_is_given_and_the_other_is_told_by_whom():
    """However both came to know of it."""
    table = Table()
    table.join("a1", "b1", "c1")
    table.publish("1", key="k")
    table.take("c1")
    table.now_us += TTL_MS * 1000
    table.join("a1", "b1")
    given = one(over(table, "a1"))

    assert over(table, "b1") == NotTakenOver(HELD, "a1", given.fence)


def test_what_is_delayed_unknown_or_behind_is_not_given():
    """A delay is kept; of a key the first is asked for, and no other."""
    table = Table()
    table.join("a1", "b1")
    table.publish("1", "2", key="k")
    table.conclude("b1", MessageOutcome(one(table.take("b1")).entry, RETRY, delay_ms=500, keyed=True))

    assert over(table, "a1") == NotTakenOver(DELAYED)
    assert over(table, "a1", "nothing") == NotTakenOver("")
    assert isinstance(over(table, "nobody"), NotHeld)
    table.now_us += 500_000
    table.taken("b1", 0)
    assert one(over(table, "a1")).message.id == "1"


def test_a_take_over_of_the_last_attempt_is_a_dead_letter_and_the_next_is_ready():
    """It has killed as many as it may; whoever waits is rung for the one behind it."""
    table = Table()
    table.join("a1", "b1")
    table.publish("1", "2", key="k")
    table.take("b1")
    table.now_us += TTL_MS * 1000
    table.join("a1", "c1")
    table.take("c1", wait=True)
    dealt = table.say("a", TakeOver("q", "a1", "k", 1, 1))

    assert dealt == (NotTakenOver(DEAD), [Wakeup("c", "c1")])
    (letter,) = table.ask("a", ListDeadLetters("q", "", 10)).dead_letters
    assert (letter.reason, letter.message.id, letter.message.attempts) == (ATTEMPTS_USED_UP, "1", 1)
    assert table.taken("c1") == ["2"]
    assert table.sound().dead == 1


def test_a_take_over_obeys_the_cap_of_dead_letters():
    """The oldest goes, and is counted."""
    table = Table()
    table.join("a1")
    for name in "xy":
        table.join(f"b{name}")
        table.publish(name, key=name)
        table.take(f"b{name}")
        table.now_us += TTL_MS * 1000
        table.join("a1")
        assert over(table, "a1", name, attempts_max=1, dead_max=1) == NotTakenOver(DEAD)

    assert [each.message.id for each in table.ask("a", ListDeadLetters("q", "", 10)).dead_letters] == ["y"]
    assert dict(table.sound().counts)["evicted"] == 1


def test_a_consumer_that_takes_over_is_hungry_no_more():
    """A ring would be for nothing, and somebody else would wait for it."""
    table = Table()
    table.join("a1", "b1")
    table.take("b1", wait=True)
    table.take("a1", wait=True)
    assert table.publish("1", key="k").wakeups == [Wakeup("b", "b1")]
    assert one(over(table, "a1")).message.id == "1"

    assert table.publish("2").wakeups == []
