"""What pages of a queue say together: told by pages that no server has to make."""

from queue_harness import Table

from holdfast.commands.queue import HELD, READY, REJECT, MessageOutcome
from holdfast.commands.queue_admin import CONSUMERS, LANES, MESSAGES, RECHECK, CheckConsistency, ConsistencyPage
from holdfast.rules.queue.consistency import check_pages

NUMBERS = [f"{1_700_000_000_000_000 + n}" for n in range(9)]
NOTHING = ConsistencyPage("0", (), ())


def stored(*entries):
    return ConsistencyPage("0", tuple(word for entry in entries for word in (entry, f"id {entry}")), ())


def played(pages, most=3):
    """A walk to its end, with these pages for its questions by part and place; else there is nothing."""
    asked, walking = [], check_pages("q", most)
    question = next(walking)
    try:
        while True:
            asked.append(question)
            found = pages.get((question.part, question.at), pages.get(question.part, NOTHING))
            question = walking.send(found(question) if callable(found) else found)
    except StopIteration as end:
        return end.value, asked


def still_there(question):
    return ConsistencyPage("0", tuple(word for entry in question.candidates[::2] for word in (entry, "", "")), ())


def test_an_empty_queue_is_sound():
    """Nothing is wrong with nothing."""
    assert played({})[0] == (0, ())


def test_whoever_is_stored_and_seen_nowhere_is_lost_only_if_it_is_still_stored():
    """Most that are not seen are done meanwhile."""
    pages = {MESSAGES: stored(*NUMBERS[:3])}
    gone = ConsistencyPage("0", ("",) * 9, ())

    assert played({**pages, RECHECK: still_there})[0].faults == ("3 messages are in no place",)
    assert played({**pages, RECHECK: gone})[0].faults == ()


def test_those_who_were_seen_nowhere_are_looked_for_a_second_time():
    """Another server that has taken over may have put back what was taken: it is in its lane again."""
    entry, looks = NUMBERS[0], []

    def lane(_):
        looks.append(1)
        return ConsistencyPage("1", (entry,), ()) if len(looks) > 1 else ConsistencyPage("0", (), ())

    pages = {MESSAGES: stored(entry), LANES: ConsistencyPage("0", ("",), ()), READY: lane, RECHECK: still_there}
    assert played(pages)[0] == (1, ())
    assert len(looks) == 2


def test_suspects_come_in_parts_and_an_answer_may_be_about_fewer():
    """Large messages make a short answer: the rest is asked for again."""
    entries = [f"{1_700_000_000_000_000 + n}" for n in range(250)]

    def some(question):
        assert len(question.candidates) <= 200
        return ConsistencyPage("0", still_there(question).values[: 3 * 40], ())

    told, asked = played({MESSAGES: stored(*entries), RECHECK: some})
    assert told.faults == ("250 messages are in no place",)
    assert sum(question.part == RECHECK for question in asked) == 14


def test_a_lane_that_has_shrunk_from_its_end_is_read_again():
    """What was not read yet has moved up to where was read before: an empty page is no end."""
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
    assert [question.at for question in asked if question.part == READY] == ["1", "2", "1"]


def test_whoever_sees_all_at_one_instant_tells_every_kind_of_fault():
    """The rule that all engines are compared with: an audit that cannot find anything proves nothing."""

    def told(spoil):
        table = Table()
        table.join("a1", "a2")
        table.publish("one", "two", "dies")
        table.taken("a1", 1)
        [*_, dies] = table.take("a2", 2).deliveries
        table.conclude("a2", MessageOutcome(dies.entry, REJECT))
        assert table.sound().dead == 1
        spoil(table.state)
        return table.ask("a", CheckConsistency("q")).faults

    def twice(state):
        [held] = state.list_held("a1", 1)
        state.add_ready("", held.message)

    assert told(twice) == ("message one is in 2 places",)
    assert told(lambda state: state.remove_consumer("a1")) == ("1 messages are held by an unknown consumer",)
    assert told(lambda state: state._dead_order.clear()) == ("1 dead letters, 0 of them in order",)
