"""The checkers, on small histories made by hand: what they report, and what they must not report."""

from __future__ import annotations

from functools import partial

import pytest

from holdfast.testing import (
    HistoryEvent,
    assert_holds,
    check,
    fences_grow,
    guarded_writes_never_go_down,
    leaks,
    lost_appends,
    lost_updates,
    observers_see_fences_grow,
    overlapping_holders,
)


def event(at_ns, worker, kind, name="orders", **fields):
    pids = {"a": 1, "b": 2, "c": 3}
    return HistoryEvent(at_ns=at_ns, worker=worker, pid=pids[worker], kind=kind, name=name, **fields)


def death(at_ns, worker):
    return event(at_ns, worker, "died", name="")


def write(at_ns, worker, **fields):
    return event(at_ns, worker, "write", **{"accepted": True, **fields})


@pytest.mark.parametrize(
    "end",
    [
        event(20, "a", "released"),
        event(20, "a", "released", token="ta"),
        event(20, "a", "lost", token="ta"),
        death(20, "a"),
    ],
    ids=["released", "released by token", "lost", "died"],
)
def test_a_span_that_ended_overlaps_with_none(end):
    """Release, loss and death each end a span, whatever time was left."""
    history = [event(10, "a", "granted", token="ta", until_ns=90), end, event(30, "b", "granted", token="tb")]

    assert overlapping_holders(history) == []


@pytest.mark.parametrize(
    "no_end",
    [
        event(20, "a", "released", token="another"),
        event(20, "a", "released", name="invoices"),
        event(20, "c", "released", token="ta"),
        event(20, "a", "refused", token="another"),
        death(20, "c"),
    ],
    ids=["another token", "another name", "another worker", "no end at all", "another's death"],
)
def test_only_its_own_end_ends_a_span(no_end):
    """Otherwise unrelated events would hide an overlap."""
    history = [
        event(10, "a", "granted", token="ta", until_ns=90),
        no_end,
        event(30, "b", "granted", token="tb"),
    ]

    [violation] = overlapping_holders(history)
    assert violation.events == (history[0], history[2])


def test_two_holders_at_one_instant_are_an_overlap():
    """Exclusion is the first promise of a lock."""
    history = [
        event(10, "a", "granted", until_ns=50),
        event(20, "b", "granted", until_ns=90),
        event(40, "a", "released"),
    ]

    [violation] = overlapping_holders(history)
    assert violation.checker == "overlapping_holders"
    assert "b (pid 2) holds 'orders' while a (pid 1) still holds it" in str(violation)


def test_a_span_ends_at_its_trusted_deadline():
    """A frozen holder that wakes up late has held nothing since its deadline."""
    history = [
        event(10, "a", "granted", until_ns=50),
        event(51, "b", "granted", until_ns=90),
        event(60, "a", "lost"),
    ]

    assert overlapping_holders(history) == []


def test_a_grant_learned_after_its_deadline_opens_no_span():
    """A worker that was frozen until its ttl was over reads its answer, and knows that it is stale."""
    history = [
        event(10, "b", "granted", until_ns=90),
        event(20, "a", "granted", until_ns=15),
    ]

    assert overlapping_holders(history) == []


def test_a_renewal_extends_a_span():
    """A longer span may overlap with the next one."""
    history = [
        event(10, "a", "granted", token="ta", until_ns=50),
        event(40, "a", "renewed", token="ta", until_ns=80),
        event(60, "b", "granted", token="tb", until_ns=90),
    ]

    [violation] = overlapping_holders(history)
    assert violation.events == tuple(history)


def test_a_renewal_after_the_deadline_opens_a_new_span():
    """In between any worker may have held the name: only the time after the renewal can overlap."""
    between = event(60, "b", "granted", token="tb", until_ns=65)
    renewal = event(70, "a", "renewed", token="ta", until_ns=99)
    after = event(80, "c", "granted", token="tc", until_ns=90)
    history = [event(10, "a", "granted", token="ta", until_ns=50), between, renewal, after]

    [violation] = overlapping_holders(history)
    assert violation.events == (renewal, after)


def test_a_repeated_answer_opens_no_second_span():
    """A resent acquire does not overlap with itself."""
    history = [
        event(10, "a", "granted", token="ta", fence=1, until_ns=50),
        event(20, "a", "granted", token="ta", fence=1, until_ns=60),
    ]

    assert check(history) == []


def test_two_tokens_in_one_process_are_an_overlap():
    """Two threads exclude each other, too."""
    history = [
        event(10, "a", "granted", token="t1", until_ns=50),
        event(20, "a", "granted", token="t2", until_ns=60),
    ]

    assert len(overlapping_holders(history)) == 1


def test_a_grant_between_the_record_of_a_death_and_the_death_opens_no_span():
    """The death is recorded before the kill, and there is time between the two."""
    history = [
        death(10, "a"),
        event(11, "a", "granted", until_ns=90),
        event(20, "b", "granted", until_ns=90),
    ]

    assert overlapping_holders(history) == []


def test_a_long_span_is_compared_with_every_later_one():
    """A span may overlap with more than its neighbour in time."""
    history = [
        event(10, "a", "granted", until_ns=90),
        event(20, "b", "granted", until_ns=30),
        event(40, "c", "granted", until_ns=50),
    ]

    assert [violation.events[-1].worker for violation in overlapping_holders(history)] == ["b", "c"]


def test_names_do_not_disturb_each_other():
    """Everything is per name: spans, fences, guards and counters."""
    history = [
        event(10, "a", "granted", fence=9, until_ns=50),
        event(20, "b", "granted", name="invoices", fence=1, until_ns=50),
        write(30, "a", fence=9, value=5),
        write(40, "b", name="invoices", fence=1, value=1),
    ]

    assert check(history) == []


def test_a_fence_given_twice_is_found():
    """A resource cannot distinguish two holders with one fence."""
    history = [
        event(10, "a", "granted", fence=7, token="ta"),
        event(20, "b", "granted", fence=8, token="tb"),
        event(30, "c", "granted", fence=7, token="tc"),
    ]

    twice, down = fences_grow(history)
    assert twice.events == (history[0], history[2])
    assert down.events == (history[1], history[2])


def test_without_a_token_no_grant_is_a_repeated_answer():
    """A missing token must not turn two grants into one."""
    history = [event(10, "a", "granted", fence=7), event(20, "a", "granted", fence=7)]

    assert len(fences_grow(history)) == 1


def test_a_fence_that_falls_is_found():
    """The newer holder would be refused, and the older one accepted."""
    history = [
        event(10, "a", "granted", fence=7, token="ta"),
        event(20, "b", "granted", fence=6, token="tb"),
    ]

    [violation] = fences_grow(history)
    assert violation.sentence == "'orders' was granted with fence 6 after fence 7"


def test_an_answer_read_late_is_no_fall():
    """A worker frozen between the grant and the answer learns of an old fence after a newer one."""
    history = [
        event(20, "b", "granted", fence=8, token="tb", since_ns=15),
        event(90, "a", "granted", fence=7, token="ta", since_ns=10),
    ]

    assert fences_grow(history) == []


def test_a_command_sent_after_the_newer_answer_is_a_fall():
    """Late reading does not excuse a command that was sent late."""
    history = [
        event(20, "b", "granted", fence=8, token="tb", since_ns=15),
        event(90, "a", "granted", fence=7, token="ta", since_ns=21),
    ]

    assert len(fences_grow(history)) == 1


def test_a_guard_that_accepts_an_older_fence_is_found():
    """This is the write that a fence exists to refuse."""
    history = [
        write(10, "a", fence=1, token="ta"),
        write(20, "b", fence=2, token="tb"),
        write(30, "b", fence=2, token="tb"),
        write(40, "a", fence=1, token="ta"),
    ]

    [violation] = guarded_writes_never_go_down(history)
    assert (violation.events[0].fence, violation.events[1]) == (2, history[3])


def test_a_guard_that_accepts_one_fence_from_two_tokens_is_found():
    """After a split two primaries may give the same number."""
    history = [write(10, "a", fence=1, token="ta"), write(20, "b", fence=1, token="tb")]

    [violation] = guarded_writes_never_go_down(history)
    assert violation.events == tuple(history)


def test_a_refused_write_is_the_guard_at_work():
    """Only what was accepted can be wrong."""
    history = [
        write(10, "b", fence=2, token="tb", value=1),
        write(20, "a", fence=1, token="ta", value=1, accepted=False),
    ]

    assert check(history) == []


def test_two_writes_of_one_value_are_a_lost_update():
    """Both counted from the same value, so one of them is gone."""
    history = [write(10, "a", value=1), write(20, "b", value=2), write(30, "a", value=2)]

    [violation] = lost_updates(history)
    assert violation.events == (history[1], history[2])


def test_a_counter_that_falls_is_found():
    """Even if the worker that wrote the same value before died without recording it."""
    history = [death(5, "c"), write(10, "a", value=4), write(20, "b", value=6), write(30, "a", value=5)]

    [violation] = lost_updates(history)
    assert violation.events == (history[2], history[3])


def test_a_gap_needs_a_death():
    """A worker may die between its write and the record of it, once."""
    history = [write(10, "a", value=1), write(20, "b", value=3)]

    assert [violation.events for violation in lost_updates(history)] == [tuple(history)]
    assert lost_updates([*history, death(15, "c")]) == []


@pytest.mark.parametrize(("final", "deaths", "broken"), [(2, 0, 0), (1, 0, 1), (3, 0, 1), (3, 1, 0), (1, 1, 1)])
def test_the_final_value_counts_every_acknowledged_write(final, deaths, broken):
    """Every acknowledged write is there, and every other one is of a worker that died."""
    history = [write(10, "a", value=1), write(20, "b", value=2), *[death(30, "c")] * deaths]

    assert len(lost_updates(history, final={"orders": final})) == broken


def test_a_report_shows_every_worker_event_and_time():
    """The report of a failed run at night is enough the next morning, without the machine."""
    history = [
        event(1_000_000, "a", "granted", fence=7, token="ta", until_ns=9_000_000),
        event(3_500_000, "b", "granted", fence=7, token="tb", until_ns=9_000_000, detail="after a failover"),
    ]

    with pytest.raises(AssertionError) as failure:
        assert_holds(history)

    report = str(failure.value)
    assert report.startswith("2 broken in a history of 2 events\n\noverlapping_holders: ")
    assert "fences_grow: fence 7 of 'orders' was given to a (pid 1) and to b (pid 2)\n" in report
    assert "+2.500 ms  b (pid 2)  granted 'orders' fence=7 token=tb until=+8.000 ms detail=after a failover" in report


def test_only_the_named_checkers_run():
    """A history may break an invariant that its test does not need."""
    history = [event(10, "a", "granted", until_ns=50), event(20, "b", "granted", until_ns=60)]

    assert_holds(history, fences_grow, partial(lost_updates, final={}))
    with pytest.raises(AssertionError):
        assert_holds(history, overlapping_holders)


def test_the_order_of_the_list_does_not_matter():
    """Checkers order events by their times."""
    history = [
        event(10, "a", "granted", fence=1, token="ta", until_ns=90),
        write(15, "a", fence=1, token="ta", value=1),
        event(20, "a", "released", token="ta"),
        event(30, "b", "granted", fence=2, token="tb", until_ns=90),
        write(35, "b", fence=2, token="tb", value=2),
    ]

    assert_holds(history[::-1])


def test_an_empty_history_holds():
    """Without events there is no violation."""
    assert_holds([])


def appended(at_ns, worker, element):
    return write(at_ns, worker, value=element)


def test_an_acknowledged_append_that_is_missing_at_the_end_is_found():
    """Another worker wrote a list that it had read before; the report shows the next write, too."""
    history = [appended(10, "a", 1), appended(20, "b", 2), appended(30, "c", 3)]

    [violation] = lost_appends(history, {"orders": [1, 3]})

    assert "b (pid 2) appended 2 to 'orders', and it is missing" in violation.sentence
    assert violation.events == (history[1], history[2])


def test_an_append_that_is_there_twice_is_found():
    """It was resent after a lost answer, and applied again."""
    [violation] = lost_appends([appended(10, "a", 1)], {"orders": [1, 1]})

    assert "more than once" in violation.sentence


def test_unacknowledged_appends_are_no_violation():
    """A worker that died may have written, and a refused one has not."""
    history = [appended(10, "a", 1), event(20, "b", "write", value=2, accepted=False)]

    assert lost_appends(history, {"orders": [1, 7]}) == []


def test_an_observer_that_sees_an_older_leader_again_is_found():
    """An observation takes effect between its beginning and its end; only separate ones are compared."""
    history = [
        event(10, "a", "observed", fence=5, since_ns=9),
        event(20, "b", "observed", fence=4, since_ns=11),
    ]

    assert len(observers_see_fences_grow(history)) == 1
    assert observers_see_fences_grow([history[0], event(20, "b", "observed", fence=4, since_ns=8)]) == []


def test_resources_left_after_a_close_are_found():
    """A clean worker records `leaked` with 0."""
    history = [
        event(10, "a", "leaked", name="", value=0),
        event(20, "b", "leaked", name="", value=2, detail="2 threads"),
    ]

    [violation] = leaks(history)

    assert violation.sentence == "b (pid 2) left 2 threads"
