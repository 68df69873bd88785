"""The law of queues, where every case can be shown by hand-moved time and plain commands."""

from queue_harness import INTERVAL_MS, TTL_MS, Table

from holdfast.commands import NotHeld, Released
from holdfast.commands.queue import (
    ACK,
    BATCH_MAX,
    COSTLY_BATCH_MAX,
    REJECT,
    RELEASE,
    RETRY,
    VERIFY,
    ConsumerHeartbeat,
    Leave,
    ListDeadLetters,
    MessageOutcome,
    NewMessage,
    Publish,
    PublishRefused,
    Purge,
    Receive,
    Redrive,
)
from holdfast.rules.queue.messages import DRAIN_US, RESULT_MEMORY_MS
from holdfast.rules.queue.state import ATTEMPTS_USED_UP
from holdfast.rules.result import Wakeup


def test_messages_come_in_the_order_in_which_they_were_sent():
    """A queue is first in, first out, as long as nothing fails."""
    table = Table()
    table.join("a1", "b1")
    table.publish("1", "2", "3")

    assert table.taken("a1", 2) == ["1", "2"]
    assert table.taken("b1", 2) == ["3"]


def test_what_was_sent_before_anybody_came_is_delivered():
    """Producers need not wait for consumers."""
    table = Table()
    table.publish("early")
    table.join("a1")

    assert table.taken("a1") == ["early"]


def test_a_copy_of_a_publish_sends_nothing_and_answers_the_same():
    """The first answer may have been lost."""
    table = Table()
    command = Publish("q", "call", (NewMessage("1", b""), NewMessage("2", b"")))
    first = table.ask("p", command)

    assert table.ask("p", command, after_ms=RESULT_MEMORY_MS - 1) == first
    assert table.sound().ready == 2


def test_a_dedup_key_answers_the_first_id_until_its_window_ends():
    """Two publishers of one thing send it once; also when both are in one call."""
    table = Table()
    first = table.publish("1", dedup_key="k", dedup_ms=1000).answer
    second = table.publish("2", dedup_key="k", dedup_ms=1000).answer
    table.now_us += 1_000_000
    third = table.publish("3", "4", dedup_key="k", dedup_ms=1000).answer

    assert (first.ids, second.ids, third.ids) == (("1",), ("1",), ("3", "3"))
    assert table.sound().ready == 2


def test_a_bounded_queue_refuses_all_or_takes_all():
    """What waits, is delayed or is with somebody counts; nothing is trimmed."""
    table = Table()
    table.join("a1")
    table.publish("1", bound=3)
    table.publish("2", delay_ms=1000, bound=3)
    entry = table.take("a1", 1).deliveries[0].entry

    assert table.publish("3", "4", bound=3).answer == PublishRefused(2)
    assert table.publish("3", bound=3).answer.ids == ("3",)
    table.conclude("a1", MessageOutcome(entry, ACK))
    assert table.publish("4", bound=3).answer.ids == ("4",)


def test_a_repeated_message_fits_into_a_full_queue():
    """It is not sent, so it needs no room."""
    table = Table()
    table.publish("1", dedup_key="k", dedup_ms=1000, bound=1)
    table.publish("other")

    assert table.publish("2", dedup_key="k", dedup_ms=1000, bound=1).answer.ids == ("1",)


def test_a_delayed_message_is_taken_when_its_delay_is_over_and_not_before():
    """The take itself brings it in: nobody has to run for it."""
    table = Table()
    table.join("a1")
    table.publish("later", delay_ms=1500)
    answer = table.take("a1", wait=True)

    assert (answer.deliveries, answer.next_ms) == ((), 1500)
    table.now_us += 1_499_000
    assert table.taken("a1") == []
    table.now_us += 1_000
    assert table.taken("a1") == ["later"]


def test_a_publish_rings_as_many_as_there_are_messages():
    """Those who have waited longest; nobody is woken for nothing, and nobody twice."""
    table = Table()
    table.join("a1", "b1", "c1")
    for place, token in enumerate(("a1", "b1", "c1")):
        assert table.take(token, wait=True).position == place

    assert table.publish("1", "2").wakeups == [Wakeup("a", "a1"), Wakeup("b", "b1")]
    assert table.publish("3", "4").wakeups == [Wakeup("c", "c1")]
    assert table.publish("5").wakeups == []


def test_whoever_is_late_or_gone_is_not_rung():
    """The ring would be lost, and the message would wait for somebody's next look."""
    table = Table()
    table.join("a1", ttl_ms=1000)
    table.join("b1", "c1")
    for token in ("a1", "b1", "c1"):
        table.take(token, wait=True)
    table.now_us += 1_000_000

    assert table.say("p", Publish("q", "x", (NewMessage("1", b""),)), gone={"b"}).wakeups == [Wakeup("c", "c1")]


def test_a_take_that_leaves_something_rings_others():
    """Messages that became ready together are not left to one consumer."""
    table = Table()
    table.join("a1", "b1")
    table.publish("1", "2", delay_ms=1000)
    table.take("a1", wait=True)
    table.take("b1", wait=True)
    table.now_us += 1_000_000

    dealt = table.say("a", Receive("q", "a1", 1))
    assert [each.message.id for each in dealt.answer.deliveries] == ["1"]
    assert dealt.wakeups == [Wakeup("b", "b1")]


def test_fences_of_deliveries_only_grow():
    """Also within one take, and from one delivery of a message to its next."""
    table = Table()
    table.join("a1")
    table.publish("1", "2", "3")
    first = table.take("a1").deliveries
    table.conclude("a1", *(MessageOutcome(each.entry, RELEASE) for each in first))
    fences = [each.fence for each in (*first, *table.take("a1").deliveries)]

    assert len(fences) == 6
    assert fences == sorted(set(fences))


def test_what_was_given_in_a_lost_answer_is_given_again():
    """It is with this consumer, which lives: nobody else would ever find it."""
    table = Table()
    table.join("a1")
    table.publish("1", "2", "3")
    known = table.take("a1", 1).deliveries[0].entry
    lost = table.take("a1", 1).deliveries[0]

    again = table.take("a1", 5, known_entries=(known,)).deliveries
    assert [each.entry for each in again] == [lost.entry]
    assert again[0].fence == lost.fence  # nobody has seen it
    assert table.taken("a1", 5, known_entries=(known, lost.entry)) == ["3"]


def test_each_outcome_has_its_effect_and_no_other():
    """Done is gone; a failure counts; what was given back does not; what is dead is kept with its reason."""
    table = Table()
    table.join("a1")
    table.publish("done", "failed", "unused", "bad", "kept")
    at = {each.message.id: each.entry for each in table.take("a1").deliveries}
    answer = table.conclude(
        "a1",
        MessageOutcome(at["done"], ACK),
        MessageOutcome(at["failed"], RETRY, error="oh"),
        MessageOutcome(at["unused"], RELEASE),
        MessageOutcome(at["bad"], REJECT, reason="no use", error="trace"),
        MessageOutcome(at["kept"], VERIFY),
    )

    assert answer.lost == ()
    again = {each.message.id: each.message for each in table.take("a1").deliveries}
    assert {one: (each.attempts, each.last_error, each.last_consumer) for one, each in again.items()} == {
        "failed": (1, "oh", "a1"),
        "unused": (0, "", ""),
    }
    (letter,) = table.ask("a", ListDeadLetters("q", "", 10)).dead_letters
    assert (letter.reason, letter.message.id, letter.message.attempts, letter.message.last_error) == (
        "no use",
        "bad",
        1,
        "trace",
    )
    assert (table.sound().held, table.sound().dead) == (3, 1)


def test_a_retry_waits_for_its_delay():
    """Backoff is decided by whoever failed; the engine's clock keeps it."""
    table = Table()
    table.join("a1")
    table.publish("1")
    entry = table.take("a1").deliveries[0].entry
    table.conclude("a1", MessageOutcome(entry, RETRY, delay_ms=700))

    assert table.taken("a1") == []
    table.now_us += 700_000
    assert table.taken("a1") == ["1"]


def test_a_settled_or_foreign_entry_is_lost_and_nothing_else_happens():
    """The entry is the fence: each delivery has a new one, and only its consumer may conclude it."""
    table = Table()
    table.join("a1", "b1")
    table.publish("1")
    entry = table.take("a1").deliveries[0].entry

    assert table.conclude("b1", MessageOutcome(entry, ACK)).lost == (entry,)
    assert table.conclude("a1", MessageOutcome(entry, RETRY)).lost == ()
    assert table.conclude("a1", MessageOutcome(entry, ACK)).lost == (entry,)
    assert table.sound().ready == 1


def test_whoever_leaves_gives_back_everything_and_uses_no_attempt():
    """Shutdown loses nothing; others are rung at once."""
    table = Table()
    table.join("a1", "b1")
    table.publish("1", "2")
    table.take("a1")
    table.take("b1", wait=True)
    dealt = table.say("a", Leave("q", "a1"))

    assert dealt == (Released(), [Wakeup("b", "b1")])
    assert [(each.message.id, each.message.attempts) for each in table.take("b1").deliveries] == [("1", 0), ("2", 0)]
    assert isinstance(table.take("a1"), NotHeld)


def test_dead_letters_beyond_the_cap_are_dropped_and_counted():
    """The oldest go first; nothing goes unnoticed."""
    table = Table()
    table.join("a1")
    table.publish("1", "2", "3")
    for each in table.take("a1").deliveries:
        table.conclude("a1", MessageOutcome(each.entry, REJECT, reason="r"), dead_max=2)

    assert [each.message.id for each in table.ask("a", ListDeadLetters("q", "", 10)).dead_letters] == ["2", "3"]
    assert dict(table.sound().counts)["evicted"] == 1


def test_dead_letters_are_listed_in_pages_redriven_and_purged():
    """A letter that is sent again is no letter any more, and the other way round."""
    table = Table()
    table.join("a1")
    table.publish("1", "2", "3")
    table.conclude("a1", *(MessageOutcome(each.entry, REJECT, reason="r") for each in table.take("a1").deliveries))
    page = table.ask("a", ListDeadLetters("q", "", 2))

    assert [each.message.id for each in page.dead_letters] == ["1", "2"]
    assert [each.message.id for each in table.ask("a", ListDeadLetters("q", page.last, 2)).dead_letters] == ["3"]
    assert table.ask("a", Redrive("q", ("1", "nothing"))).ids == ("1",)
    assert table.ask("a", Redrive("q", ("2",), reset=False)).ids == ("2",)
    assert table.ask("a", Purge("q", ("3", "3"))).ids == ("3",)
    assert [(each.message.id, each.message.attempts) for each in table.take("a1").deliveries] == [("1", 0), ("2", 1)]
    assert table.sound().dead == 0


def test_a_dead_consumers_messages_are_ready_after_its_ttl_and_the_grace():
    """Not before: and the one that lives, however long it works, is left alone."""
    table = Table()
    table.join("a1", "b1")
    table.publish("1", "2", "3")
    table.taken("a1", 1)
    table.taken("b1", 2)
    early = table.lives(TTL_MS, "a1")

    assert [each.consumers for each in early] == [0] * len(early)
    assert sum(each.requeued for each in table.lives(INTERVAL_MS, "a1")) == 2
    assert table.taken("a1") == ["2", "3"]
    assert sum(each.consumers for each in table.lives(10 * TTL_MS, "a1")) == 0


def test_one_look_serves_everybody_until_it_is_time_again():
    """A hundred workers cost one look per interval."""
    table = Table()
    table.join("a1")
    first, second = table.reap(), table.reap(after_ms=INTERVAL_MS - 1)

    assert (first.checked, second.checked, second.next_ms) == (True, False, 1)
    assert table.reap(after_ms=1).checked


def test_a_look_that_comes_much_too_late_gives_everybody_time_first():
    """The engine may have been away: then nobody could be heard of, and nobody is dead for that."""
    table = Table()
    table.join("a1", "b1")
    table.publish("1", "2")
    table.taken("a1", 1)
    table.taken("b1", 1)
    table.reap()
    late = table.reap(after_ms=5 * TTL_MS)

    assert (late.postponed, late.consumers, late.next_ms) == (True, 0, TTL_MS)
    table.ask("a", ConsumerHeartbeat("q", "a1", TTL_MS))
    after = table.reap(after_ms=TTL_MS - 1)
    assert not after.checked
    table.ask("a", ConsumerHeartbeat("q", "a1", TTL_MS))
    assert (table.reap(after_ms=1).consumers, table.taken("a1")) == (1, ["2"])


def test_a_clock_that_goes_back_gives_everybody_time_too():
    """Another server answers after a failover, and its clock is behind."""
    table = Table()
    table.join("a1")
    table.reap()

    assert table.reap(after_ms=-5000).postponed


def test_whoever_is_heard_of_late_but_before_a_look_has_lost_nothing():
    """By a beat, by a take, or by a conclusion: what it has is still its own."""
    table = Table()
    table.join("a1")
    table.publish("1", "2")
    entry = table.take("a1", 1).deliveries[0].entry
    table.now_us += 2 * TTL_MS * 1000

    assert table.conclude("a1", MessageOutcome(entry, ACK)).lost == ()
    assert table.taken("a1") == ["2"]
    table.reap()
    assert table.sound().held == 1


def test_whoever_is_proven_dead_is_replaced_at_any_time():
    """An engine that sees processes end needs no ttl, and no amnesty."""
    table = Table()
    table.join("a1", "b1")
    table.publish("1")
    table.taken("b1")
    table.reap()

    assert table.reap(after_ms=1, gone={"b"}).requeued == 1


def test_a_message_alone_with_a_dead_consumer_loses_an_attempt_each_time():
    """Killed as often as there are attempts, it is dead, with that number."""
    table = Table()
    table.join("a1")
    table.publish("1")
    for time in range(3):
        token = f"b{time}"
        table.join(token)
        assert table.taken(token) == ["1"]
        table.lives(TTL_MS + INTERVAL_MS, "a1")

    (letter,) = table.ask("a", ListDeadLetters("q", "", 10)).dead_letters
    assert (letter.reason, letter.message.attempts, letter.message.first_consumer, letter.message.last_consumer) == (
        ATTEMPTS_USED_UP,
        3,
        "b0",
        "b2",
    )
    assert table.sound()[:4] == (0, 0, 0, 0)


def test_innocent_neighbours_of_a_poisoned_message_lose_no_attempt():
    """By the second death all are suspects, and each is tried alone: only the poisoned one dies."""
    table = Table()
    table.join("a1")
    table.publish("poison", "1", "2")
    for time in range(2):
        table.join(f"b{time}")
        assert len(table.taken(f"b{time}")) == 3
        table.lives(TTL_MS + INTERVAL_MS, "a1")

    assert table.sound()[:2] == (0, 3)
    assert table.taken("a1") == []
    for time in range(20):
        token = f"c{time}"
        table.join(token)
        got = table.take(token, quarantine_max=True).deliveries
        if not got:
            break
        (alone,) = got
        assert alone.quarantined
        if alone.message.id == "poison":
            table.lives(TTL_MS + INTERVAL_MS, "a1")
        else:
            assert alone.message.attempts == 0
            table.conclude(token, MessageOutcome(alone.entry, ACK))
    (letter,) = table.ask("a", ListDeadLetters("q", "", 10)).dead_letters
    assert (letter.message.id, letter.message.attempts) == ("poison", 3)
    assert table.sound()[:4] == (0, 0, 0, 0)


def test_a_suspect_that_failed_without_a_death_is_none_any_more():
    """Its consumer has lived to tell."""
    table = Table()
    table.join("a1")
    table.publish("1", "2")
    for time in range(2):
        table.join(f"b{time}")
        table.taken(f"b{time}")
        table.lives(TTL_MS + INTERVAL_MS, "a1")
    (suspect,) = table.take("a1", quarantine_max=True).deliveries
    table.conclude("a1", MessageOutcome(suspect.entry, RETRY))

    assert table.taken("a1") == [suspect.message.id]
    assert table.sound().quarantined == 1


def test_one_consumer_at_a_time_is_asked_to_come_back_idle():
    """A fleet that is never idle takes suspects all the same, and only one of it pauses for that."""
    table = Table()
    table.join("a1")
    table.publish("1", "2")
    for time in range(2):
        table.join(f"b{time}")
        table.taken(f"b{time}")
        table.lives(TTL_MS + INTERVAL_MS, "a1")
    table.join("c1")

    assert [table.take(token).drain for token in ("a1", "c1", "a1")] == [True, False, True]
    table.now_us += DRAIN_US
    assert [table.take(token).drain for token in ("c1", "a1")] == [True, False]


def test_a_large_harvest_comes_a_part_at_a_time_and_blames_nobody():
    """No step is long; the one that is left for the second part was not alone."""
    table = Table()
    table.join("a1", "b1")
    for _ in range(2):
        table.publish(*(f"{table.sent}-{at}" for at in range(COSTLY_BATCH_MAX)))
    table.taken("b1", COSTLY_BATCH_MAX)
    looks = table.lives(TTL_MS + 2 * INTERVAL_MS, "a1")

    assert [each.requeued for each in looks if each.requeued] == [COSTLY_BATCH_MAX - 1, 1]  # its consumer counts, too
    table.taken("a1", COSTLY_BATCH_MAX)
    assert {each.message.attempts for each in table.take("a1", 2 * BATCH_MAX).deliveries} == {0}


def test_nothing_is_lost_in_any_order_of_events():
    """Every message is in exactly one place after each of many steps, whatever was said."""
    import random

    dice = random.Random(11)
    table = Table()
    joined, held, sent = 0, {}, 0
    for _ in range(3000):
        deed = dice.choice(("publish", "join", "take", "take", "conclude", "conclude", "reap", "leave", "sleep"))
        token = dice.choice(list(held)) if held else None
        if deed == "publish":
            sent += 1
            table.publish(str(sent), delay_ms=dice.choice((0, 0, 400)))
        elif deed == "join" and len(held) < 5:
            joined += 1
            table.join(f"a{joined}")
            held[f"a{joined}"] = []
        elif deed == "take" and token:
            answer = table.take(token, 3, wait=dice.random() < 0.5, quarantine_max=dice.random() < 0.3)
            if isinstance(answer, NotHeld):
                del held[token]
            else:
                held[token] += [each.entry for each in answer.deliveries]
        elif deed == "conclude" and token and held[token]:
            kind = dice.choice((ACK, RETRY, RELEASE, REJECT, VERIFY))
            table.conclude(token, MessageOutcome(dice.choice(held[token]), kind, dice.choice((0, 300)), "r"))
        elif deed == "reap":
            table.reap(attempts_max=2)
        elif deed == "leave" and token and dice.random() < 0.2:
            table.ask("a", Leave("q", token))
            del held[token]
        elif deed == "sleep":
            table.now_us += dice.choice((100_000, 500_000, 700_000))
        now = table.sound()
        counts = dict(now.counts)
        assert sum(now[:5]) == counts.get("published", 0) - counts.get("acked", 0)

    assert counts["crashed"] > 0
    assert counts["acked"] > 0
