"""Rules of queues, each case with plain commands and a clock that the test moves."""

from queue_harness import INTERVAL_MS, TTL_MS, QueueHarness

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


def test_messages_are_delivered_in_the_order_of_publication():
    """A queue is first in, first out, as long as nothing fails."""
    harness = QueueHarness()
    harness.join("a1", "b1")
    harness.publish("1", "2", "3")

    assert harness.received_ids("a1", 2) == ["1", "2"]
    assert harness.received_ids("b1", 2) == ["3"]


def test_messages_published_before_the_first_consumer_are_delivered():
    """Producers need not wait for consumers."""
    harness = QueueHarness()
    harness.publish("early")
    harness.join("a1")

    assert harness.received_ids("a1") == ["early"]


def test_a_resent_publish_publishes_nothing_and_gets_the_same_answer():
    """The first answer may have been lost."""
    harness = QueueHarness()
    command = Publish("q", "call", (NewMessage("1", b""), NewMessage("2", b"")))
    first = harness.answer_to("p", command)

    assert harness.answer_to("p", command, after_ms=RESULT_MEMORY_MS - 1) == first
    assert harness.consistent_counts().ready == 2


def test_a_dedup_key_returns_the_first_id_until_its_window_ends():
    """Two producers of one message publish it once; also if both are in one call."""
    harness = QueueHarness()
    first = harness.publish("1", dedup_key="k", dedup_ms=1000).answer
    second = harness.publish("2", dedup_key="k", dedup_ms=1000).answer
    harness.now_us += 1_000_000
    third = harness.publish("3", "4", dedup_key="k", dedup_ms=1000).answer

    assert (first.ids, second.ids, third.ids) == (("1",), ("1",), ("3", "3"))
    assert harness.consistent_counts().ready == 2


def test_a_bounded_queue_accepts_all_messages_of_a_call_or_none():
    """Ready, delayed and held messages count; nothing is trimmed."""
    harness = QueueHarness()
    harness.join("a1")
    harness.publish("1", bound=3)
    harness.publish("2", delay_ms=1000, bound=3)
    entry = harness.receive("a1", 1).deliveries[0].entry

    assert harness.publish("3", "4", bound=3).answer == PublishRefused(2)
    assert harness.publish("3", bound=3).answer.ids == ("3",)
    harness.record("a1", MessageOutcome(entry, ACK))
    assert harness.publish("4", bound=3).answer.ids == ("4",)


def test_a_duplicate_fits_into_a_full_queue():
    """It is not published, so it needs no room."""
    harness = QueueHarness()
    harness.publish("1", dedup_key="k", dedup_ms=1000, bound=1)
    harness.publish("other")

    assert harness.publish("2", dedup_key="k", dedup_ms=1000, bound=1).answer.ids == ("1",)


def test_a_delayed_message_is_received_when_its_delay_ends_and_not_before():
    """The receive itself makes it ready: no background job is needed."""
    harness = QueueHarness()
    harness.join("a1")
    harness.publish("later", delay_ms=1500)
    answer = harness.receive("a1", wait=True)

    assert (answer.deliveries, answer.next_ms) == ((), 1500)
    harness.now_us += 1_499_000
    assert harness.received_ids("a1") == []
    harness.now_us += 1_000
    assert harness.received_ids("a1") == ["later"]


def test_a_publish_wakes_as_many_consumers_as_it_has_messages():
    """The longest waiting first; none is woken for nothing, and none twice."""
    harness = QueueHarness()
    harness.join("a1", "b1", "c1")
    for place, token in enumerate(("a1", "b1", "c1")):
        assert harness.receive(token, wait=True).position == place

    assert harness.publish("1", "2").wakeups == [Wakeup("a", "a1"), Wakeup("b", "b1")]
    assert harness.publish("3", "4").wakeups == [Wakeup("c", "c1")]
    assert harness.publish("5").wakeups == []


def test_expired_or_dead_consumers_are_not_woken():
    """The wake-up would be lost, and the message would wait for the next recheck of another consumer."""
    harness = QueueHarness()
    harness.join("a1", ttl_ms=1000)
    harness.join("b1", "c1")
    for token in ("a1", "b1", "c1"):
        harness.receive(token, wait=True)
    harness.now_us += 1_000_000

    assert harness.apply("p", Publish("q", "x", (NewMessage("1", b""),)), gone={"b"}).wakeups == [Wakeup("c", "c1")]


def test_a_receive_that_leaves_messages_wakes_other_consumers():
    """Messages that became ready together are not left to one consumer."""
    harness = QueueHarness()
    harness.join("a1", "b1")
    harness.publish("1", "2", delay_ms=1000)
    harness.receive("a1", wait=True)
    harness.receive("b1", wait=True)
    harness.now_us += 1_000_000

    dealt = harness.apply("a", Receive("q", "a1", 1))
    assert [each.message.id for each in dealt.answer.deliveries] == ["1"]
    assert dealt.wakeups == [Wakeup("b", "b1")]


def test_fences_of_deliveries_only_grow():
    """Also within one receive, and from one delivery of a message to its next."""
    harness = QueueHarness()
    harness.join("a1")
    harness.publish("1", "2", "3")
    first = harness.receive("a1").deliveries
    harness.record("a1", *(MessageOutcome(each.entry, RELEASE) for each in first))
    fences = [each.fence for each in (*first, *harness.receive("a1").deliveries)]

    assert len(fences) == 6
    assert fences == sorted(set(fences))


def test_messages_of_a_lost_answer_are_delivered_again():
    """This consumer holds them, and it lives: no other consumer would ever find them."""
    harness = QueueHarness()
    harness.join("a1")
    harness.publish("1", "2", "3")
    known = harness.receive("a1", 1).deliveries[0].entry
    lost = harness.receive("a1", 1).deliveries[0]

    again = harness.receive("a1", 5, known_entries=(known,)).deliveries
    assert [each.entry for each in again] == [lost.entry]
    assert again[0].fence == lost.fence  # the consumer has not seen it
    assert harness.received_ids("a1", 5, known_entries=(known, lost.entry)) == ["3"]


def test_each_outcome_has_its_effect_and_no_other():
    """An ack deletes; a retry uses an attempt; a release does not; a reject keeps the message with its reason."""
    harness = QueueHarness()
    harness.join("a1")
    harness.publish("done", "failed", "unused", "bad", "kept")
    at = {each.message.id: each.entry for each in harness.receive("a1").deliveries}
    answer = harness.record(
        "a1",
        MessageOutcome(at["done"], ACK),
        MessageOutcome(at["failed"], RETRY, error="oh"),
        MessageOutcome(at["unused"], RELEASE),
        MessageOutcome(at["bad"], REJECT, reason="no use", error="trace"),
        MessageOutcome(at["kept"], VERIFY),
    )

    assert answer.lost == ()
    again = {each.message.id: each.message for each in harness.receive("a1").deliveries}
    assert {one: (each.attempts, each.last_error, each.last_consumer) for one, each in again.items()} == {
        "failed": (1, "oh", "a1"),
        "unused": (0, "", ""),
    }
    (letter,) = harness.answer_to("a", ListDeadLetters("q", "", 10)).dead_letters
    assert (letter.reason, letter.message.id, letter.message.attempts, letter.message.last_error) == (
        "no use",
        "bad",
        1,
        "trace",
    )
    assert (harness.consistent_counts().held, harness.consistent_counts().dead) == (3, 1)


def test_a_retry_waits_for_its_delay():
    """The client decides the backoff; the engine's clock keeps it."""
    harness = QueueHarness()
    harness.join("a1")
    harness.publish("1")
    entry = harness.receive("a1").deliveries[0].entry
    harness.record("a1", MessageOutcome(entry, RETRY, delay_ms=700))

    assert harness.received_ids("a1") == []
    harness.now_us += 700_000
    assert harness.received_ids("a1") == ["1"]


def test_outcomes_of_finished_or_foreign_entries_are_lost():
    """Each delivery has a new entry, and only its consumer may record an outcome for it."""
    harness = QueueHarness()
    harness.join("a1", "b1")
    harness.publish("1")
    entry = harness.receive("a1").deliveries[0].entry

    assert harness.record("b1", MessageOutcome(entry, ACK)).lost == (entry,)
    assert harness.record("a1", MessageOutcome(entry, RETRY)).lost == ()
    assert harness.record("a1", MessageOutcome(entry, ACK)).lost == (entry,)
    assert harness.consistent_counts().ready == 1


def test_a_leave_requeues_all_messages_and_uses_no_attempt():
    """Shutdown loses nothing; other consumers are woken at once."""
    harness = QueueHarness()
    harness.join("a1", "b1")
    harness.publish("1", "2")
    harness.receive("a1")
    harness.receive("b1", wait=True)
    dealt = harness.apply("a", Leave("q", "a1"))

    assert dealt == (Released(), [Wakeup("b", "b1")])
    assert [(each.message.id, each.message.attempts) for each in harness.receive("b1").deliveries] == [
        ("1", 0),
        ("2", 0),
    ]
    assert isinstance(harness.receive("a1"), NotHeld)


def test_dead_letters_beyond_the_cap_are_dropped_and_counted():
    """The oldest go first; a counter shows how many."""
    harness = QueueHarness()
    harness.join("a1")
    harness.publish("1", "2", "3")
    for each in harness.receive("a1").deliveries:
        harness.record("a1", MessageOutcome(each.entry, REJECT, reason="r"), dead_max=2)

    assert [each.message.id for each in harness.answer_to("a", ListDeadLetters("q", "", 10)).dead_letters] == ["2", "3"]
    assert dict(harness.consistent_counts().counts)["evicted"] == 1


def test_dead_letters_are_listed_in_pages_redriven_and_purged():
    """A redriven message is no dead letter any more, and a rejected one is no message."""
    harness = QueueHarness()
    harness.join("a1")
    harness.publish("1", "2", "3")
    harness.record("a1", *(MessageOutcome(each.entry, REJECT, reason="r") for each in harness.receive("a1").deliveries))
    page = harness.answer_to("a", ListDeadLetters("q", "", 2))

    assert [each.message.id for each in page.dead_letters] == ["1", "2"]
    assert [each.message.id for each in harness.answer_to("a", ListDeadLetters("q", page.last, 2)).dead_letters] == [
        "3"
    ]
    assert harness.answer_to("a", Redrive("q", ("1", "nothing"))).ids == ("1",)
    assert harness.answer_to("a", Redrive("q", ("2",), reset=False)).ids == ("2",)
    assert harness.answer_to("a", Purge("q", ("3", "3"))).ids == ("3",)
    assert [(each.message.id, each.message.attempts) for each in harness.receive("a1").deliveries] == [
        ("1", 0),
        ("2", 1),
    ]
    assert harness.consistent_counts().dead == 0


def test_a_dead_consumers_messages_are_requeued_after_its_ttl_and_the_grace():
    """Not before; and a live consumer keeps its messages, however long it works."""
    harness = QueueHarness()
    harness.join("a1", "b1")
    harness.publish("1", "2", "3")
    harness.received_ids("a1", 1)
    harness.received_ids("b1", 2)
    early = harness.advance(TTL_MS, "a1")

    assert [each.consumers for each in early] == [0] * len(early)
    assert sum(each.requeued for each in harness.advance(INTERVAL_MS, "a1")) == 2
    assert harness.received_ids("a1") == ["2", "3"]
    assert sum(each.consumers for each in harness.advance(10 * TTL_MS, "a1")) == 0


def test_one_check_serves_all_clients_until_the_next_is_due():
    """A hundred workers cost one check per interval."""
    harness = QueueHarness()
    harness.join("a1")
    first, second = harness.reclaim(), harness.reclaim(after_ms=INTERVAL_MS - 1)

    assert (first.checked, second.checked, second.next_ms) == (True, False, 1)
    assert harness.reclaim(after_ms=1).checked


def test_a_check_that_comes_much_too_late_is_postponed():
    """The engine may have been away: then no heartbeat could arrive, and no consumer is dead for that."""
    harness = QueueHarness()
    harness.join("a1", "b1")
    harness.publish("1", "2")
    harness.received_ids("a1", 1)
    harness.received_ids("b1", 1)
    harness.reclaim()
    late = harness.reclaim(after_ms=5 * TTL_MS)

    assert (late.postponed, late.consumers, late.next_ms) == (True, 0, TTL_MS)
    harness.answer_to("a", ConsumerHeartbeat("q", "a1", TTL_MS))
    after = harness.reclaim(after_ms=TTL_MS - 1)
    assert not after.checked
    harness.answer_to("a", ConsumerHeartbeat("q", "a1", TTL_MS))
    assert (harness.reclaim(after_ms=1).consumers, harness.received_ids("a1")) == (1, ["2"])


def test_a_check_after_the_clock_went_back_is_postponed():
    """After a failover another server answers, and its clock is behind."""
    harness = QueueHarness()
    harness.join("a1")
    harness.reclaim()

    assert harness.reclaim(after_ms=-5000).postponed


def test_a_late_heartbeat_before_a_check_saves_the_session():
    """A heartbeat, a receive or an outcome: the consumer still holds its messages."""
    harness = QueueHarness()
    harness.join("a1")
    harness.publish("1", "2")
    entry = harness.receive("a1", 1).deliveries[0].entry
    harness.now_us += 2 * TTL_MS * 1000

    assert harness.record("a1", MessageOutcome(entry, ACK)).lost == ()
    assert harness.received_ids("a1") == ["2"]
    harness.reclaim()
    assert harness.consistent_counts().held == 1


def test_a_consumer_with_proof_of_death_is_reclaimed_at_any_time():
    """An engine that sees processes end needs no ttl, and postpones nothing."""
    harness = QueueHarness()
    harness.join("a1", "b1")
    harness.publish("1")
    harness.received_ids("b1")
    harness.reclaim()

    assert harness.reclaim(after_ms=1, gone={"b"}).requeued == 1


def test_a_message_alone_with_a_dead_consumer_loses_an_attempt_each_time():
    """After as many deaths as there are attempts it is a dead letter, with that number."""
    harness = QueueHarness()
    harness.join("a1")
    harness.publish("1")
    for time in range(3):
        token = f"b{time}"
        harness.join(token)
        assert harness.received_ids(token) == ["1"]
        harness.advance(TTL_MS + INTERVAL_MS, "a1")

    (letter,) = harness.answer_to("a", ListDeadLetters("q", "", 10)).dead_letters
    assert (letter.reason, letter.message.attempts, letter.message.first_consumer, letter.message.last_consumer) == (
        ATTEMPTS_USED_UP,
        3,
        "b0",
        "b2",
    )
    assert harness.consistent_counts()[:4] == (0, 0, 0, 0)


def test_neighbours_of_a_poison_message_lose_no_attempt():
    """After the second death all are in quarantine, and each is delivered alone.

    Only the poison message becomes a dead letter.
    """
    harness = QueueHarness()
    harness.join("a1")
    harness.publish("poison", "1", "2")
    for time in range(2):
        harness.join(f"b{time}")
        assert len(harness.received_ids(f"b{time}")) == 3
        harness.advance(TTL_MS + INTERVAL_MS, "a1")

    assert harness.consistent_counts()[:2] == (0, 3)
    assert harness.received_ids("a1") == []
    for time in range(20):
        token = f"c{time}"
        harness.join(token)
        got = harness.receive(token, quarantine_max=True).deliveries
        if not got:
            break
        (alone,) = got
        assert alone.quarantined
        if alone.message.id == "poison":
            harness.advance(TTL_MS + INTERVAL_MS, "a1")
        else:
            assert alone.message.attempts == 0
            harness.record(token, MessageOutcome(alone.entry, ACK))
    (letter,) = harness.answer_to("a", ListDeadLetters("q", "", 10)).dead_letters
    assert (letter.message.id, letter.message.attempts) == ("poison", 3)
    assert harness.consistent_counts()[:4] == (0, 0, 0, 0)


def test_a_message_that_failed_without_a_death_leaves_the_quarantine():
    """Its consumer survived it."""
    harness = QueueHarness()
    harness.join("a1")
    harness.publish("1", "2")
    for time in range(2):
        harness.join(f"b{time}")
        harness.received_ids(f"b{time}")
        harness.advance(TTL_MS + INTERVAL_MS, "a1")
    (suspect,) = harness.receive("a1", quarantine_max=True).deliveries
    harness.record("a1", MessageOutcome(suspect.entry, RETRY))

    assert harness.received_ids("a1") == [suspect.message.id]
    assert harness.consistent_counts().quarantined == 1


def test_one_consumer_at_a_time_is_asked_to_drain():
    """A fleet that is never idle still receives messages from quarantine, and only one consumer pauses for that."""
    harness = QueueHarness()
    harness.join("a1")
    harness.publish("1", "2")
    for time in range(2):
        harness.join(f"b{time}")
        harness.received_ids(f"b{time}")
        harness.advance(TTL_MS + INTERVAL_MS, "a1")
    harness.join("c1")

    assert [harness.receive(token).drain for token in ("a1", "c1", "a1")] == [True, False, True]
    harness.now_us += DRAIN_US
    assert [harness.receive(token).drain for token in ("c1", "a1")] == [True, False]


def test_a_large_reclaim_comes_in_steps_and_blames_no_message():
    """No step is long; the message that is left for the second step was not alone."""
    harness = QueueHarness()
    harness.join("a1", "b1")
    for _ in range(2):
        harness.publish(*(f"{harness.sent}-{at}" for at in range(COSTLY_BATCH_MAX)))
    harness.received_ids("b1", COSTLY_BATCH_MAX)
    checks = harness.advance(TTL_MS + 2 * INTERVAL_MS, "a1")

    assert [each.requeued for each in checks if each.requeued] == [COSTLY_BATCH_MAX - 1, 1]  # its consumer counts, too
    harness.received_ids("a1", COSTLY_BATCH_MAX)
    assert {each.message.attempts for each in harness.receive("a1", 2 * BATCH_MAX).deliveries} == {0}


def test_nothing_is_lost_in_any_order_of_events():
    """Every message is in exactly one place after each of many random commands."""
    import random

    dice = random.Random(11)
    harness = QueueHarness()
    joined, held, sent = 0, {}, 0
    for _ in range(3000):
        deed = dice.choice(("publish", "join", "take", "take", "conclude", "conclude", "reap", "leave", "sleep"))
        token = dice.choice(list(held)) if held else None
        if deed == "publish":
            sent += 1
            harness.publish(str(sent), delay_ms=dice.choice((0, 0, 400)))
        elif deed == "join" and len(held) < 5:
            joined += 1
            harness.join(f"a{joined}")
            held[f"a{joined}"] = []
        elif deed == "take" and token:
            answer = harness.receive(token, 3, wait=dice.random() < 0.5, quarantine_max=dice.random() < 0.3)
            if isinstance(answer, NotHeld):
                del held[token]
            else:
                held[token] += [each.entry for each in answer.deliveries]
        elif deed == "conclude" and token and held[token]:
            kind = dice.choice((ACK, RETRY, RELEASE, REJECT, VERIFY))
            harness.record(token, MessageOutcome(dice.choice(held[token]), kind, dice.choice((0, 300)), "r"))
        elif deed == "reap":
            harness.reclaim(attempts_max=2)
        elif deed == "leave" and token and dice.random() < 0.2:
            harness.answer_to("a", Leave("q", token))
            del held[token]
        elif deed == "sleep":
            harness.now_us += dice.choice((100_000, 500_000, 700_000))
        now = harness.consistent_counts()
        counts = dict(now.counts)
        assert sum(now[:5]) == counts.get("published", 0) - counts.get("acked", 0)

    assert counts["crashed"] > 0
    assert counts["acked"] > 0
