"""The consistency check over several pages, with pages that the test makes."""

from queue_harness import QueueHarness

from holdfast.commands.queue import HELD, READY, REJECT, MessageOutcome
from holdfast.commands.queue_admin import CONSUMERS, LANES, MESSAGES, RECHECK, CheckConsistency, ConsistencyPage
from holdfast.rules.queue.consistency import check_pages

NUMBERS = [f"{1_700_000_000_000_000 + n}" for n in range(9)]
NOTHING = ConsistencyPage("0", (), ())


def stored(*entries):
    return ConsistencyPage("0", tuple(word for entry in entries for word in (entry, f"id {entry}")), ())


def played(pages, most=3):
    """Run a check to its end, with these pages for its commands by part and place; all other pages are empty."""
    asked, walking = [], check_pages("q", most)
    command = next(walking)
    try:
        while True:
            asked.append(command)
            found = pages.get((command.part, command.at), pages.get(command.part, NOTHING))
            command = walking.send(found(command) if callable(found) else found)
    except StopIteration as end:
        return end.value, asked


def still_there(command):
    return ConsistencyPage("0", tuple(word for entry in command.candidates[::2] for word in (entry, "", "")), ())


def test_an_empty_queue_is_consistent():
    """Without messages there are no faults."""
    assert played({})[0] == (0, ())


def test_a_message_in_no_place_is_a_fault_only_if_it_is_still_stored():
    """Most messages that appear in no place were acked in the meantime."""
    pages = {MESSAGES: stored(*NUMBERS[:3])}
    gone = ConsistencyPage("0", ("",) * 9, ())

    assert played({**pages, RECHECK: still_there})[0].faults == ("3 messages are in no place",)
    assert played({**pages, RECHECK: gone})[0].faults == ()


def test_messages_in_no_place_are_searched_a_second_time():
    """A failover may have put back a received message: it is in its lane again."""
    entry, checks = NUMBERS[0], []

    def lane(_):
        checks.append(1)
        return ConsistencyPage("1", (entry,), ()) if len(checks) > 1 else ConsistencyPage("0", (), ())

    pages = {MESSAGES: stored(entry), LANES: ConsistencyPage("0", ("",), ()), READY: lane, RECHECK: still_there}
    assert played(pages)[0] == (1, ())
    assert len(checks) == 2


def test_candidates_are_rechecked_in_batches_and_an_answer_may_cover_fewer():
    """Large messages make a short answer: the next command asks for the rest."""
    entries = [f"{1_700_000_000_000_000 + n}" for n in range(250)]

    def some(command):
        assert len(command.candidates) <= 200
        return ConsistencyPage("0", still_there(command).values[: 3 * 40], ())

    faults_of, asked = played({MESSAGES: stored(*entries), RECHECK: some})
    assert faults_of.faults == ("250 messages are in no place",)
    assert sum(command.part == RECHECK for command in asked) == 14


def test_a_lane_that_has_shrunk_from_its_end_is_read_again():
    """Entries that were not read yet have moved to the part that was read before: an empty page is not the end."""
    newest, newer, oldest = NUMBERS[2], NUMBERS[1], NUMBERS[0]
    ends = iter([ConsistencyPage("3", (newest, newer), ()), ConsistencyPage("1", (oldest,), ())])
    pages = {
        MESSAGES: stored(oldest, newer, newest),
        LANES: ConsistencyPage("0", ("",), ()),
        (READY, "1"): lambda _: next(ends),
        (READY, "2"): ConsistencyPage("1", (), ()),
        CONSUMERS: ConsistencyPage("0", ("t",), ()),
        HELD: ConsistencyPage("0", (newer, newest), ()),
        RECHECK: ConsistencyPage("0", ("",) * 9, ()),
    }
    _, asked = played(pages, most=2)
    assert [command.at for command in asked if command.part == READY] == ["1", "2", "1"]


def test_a_check_of_one_instant_finds_every_kind_of_fault():
    """All engines are compared with this rule: a check that cannot find anything proves nothing."""

    def faults_of(spoil):
        harness = QueueHarness()
        harness.join("a1", "a2")
        harness.publish("one", "two", "dies")
        harness.received_ids("a1", 1)
        [*_, dies] = harness.receive("a2", 2).deliveries
        harness.record("a2", MessageOutcome(dies.entry, REJECT))
        assert harness.consistent_counts().dead == 1
        spoil(harness.state)
        return harness.answer_to("a", CheckConsistency("q")).faults

    def twice(state):
        [held] = state.list_held("a1", 1)
        state.add_ready("", held.message)

    assert faults_of(twice) == ("message one is in 2 places",)
    assert faults_of(lambda state: state.remove_consumer("a1")) == ("1 messages are held by an unknown consumer",)
    assert faults_of(lambda state: state._dead_order.clear()) == ("1 dead letters, 0 of them in order",)
