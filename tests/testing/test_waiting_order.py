"""The checkers of waiting lines, on small histories made by hand: what they report, and what they must not report."""

from __future__ import annotations

import pytest

from holdfast.testing import HistoryEvent
from tests.support.waiting_order import Bounds, idle_with_waiters, overtakes

S = 1_000_000_000
PIDS = {"a": 1, "b": 2, "c": 3, "stage": 9}


def event(at_s, worker, kind, name="x", **fields):
    return HistoryEvent(at_ns=int(at_s * S), worker=worker, pid=PIDS[worker], kind=kind, name=name, **fields)


def fault(since_s, until_s, kind, target=""):
    return [
        event(since_s, "stage", "fault", name=target, value=int(since_s * 1000), detail=kind),
        event(until_s, "stage", "healed", name=target, value=int(since_s * 1000), detail=kind),
    ]


def granted(at_s, worker, until_s, token=None):
    return event(at_s, worker, "granted", fence=int(at_s * 1000), token=token or worker, until_ns=int(until_s * S))


HELD_THEN_FREE = [
    granted(1, "a", until_s=30),
    event(2, "b", "requested"),
    event(2.1, "b", "waiting"),
    event(5, "a", "released", token="a"),
]


def test_a_name_that_is_free_while_a_worker_waits_is_reported():
    """The waiter misses the release: no worker holds the name, and the waiter is not granted."""
    history = [*HELD_THEN_FREE, granted(15, "b", until_s=20)]

    [violation] = idle_with_waiters(history, Bounds(ttl_s=1))

    assert "free for 10.0 s while b waited" in violation.sentence
    assert [shown.kind for shown in violation.events] == ["granted", "released", "requested", "granted"]


def test_a_name_is_not_taken_while_its_next_holder_still_waits():
    """A grant records when it was requested: the time since then is waiting, not holding."""
    late = event(15, "b", "granted", fence=15, token="b", since_ns=2 * S, until_ns=20 * S)

    [violation] = idle_with_waiters([*HELD_THEN_FREE, late], Bounds(ttl_s=1))

    assert "free for 10.0 s while b waited" in violation.sentence


def test_a_waiter_that_is_still_not_granted_is_reported_while_it_waits():
    """A history may be checked before its end."""
    assert idle_with_waiters(HELD_THEN_FREE, Bounds(ttl_s=1), now_ns=6 * S) == []
    assert len(idle_with_waiters(HELD_THEN_FREE, Bounds(ttl_s=1), now_ns=9 * S)) == 1


def test_waiting_for_a_holder_is_no_idleness():
    """The name is held all the time, however long that is."""
    history = [granted(1, "a", until_s=90), event(2, "b", "requested"), event(80, "a", "released", token="a")]

    assert idle_with_waiters([*history, granted(80.1, "b", until_s=99)], Bounds(ttl_s=1)) == []


@pytest.mark.parametrize(
    ("excuse", "accused"),
    [
        ([], True),
        (fault(5, 14, "frozen server"), False),
        (fault(5, 14, "freeze", "b"), False),
        (fault(5, 14, "freeze", "c"), True),
        (fault(5, 5.1, "cut", "c"), True),
    ],
    ids=["no fault", "all workers affected", "the waiter affected", "another frozen", "another cut off"],
)
def test_only_a_fault_that_affects_the_waiter_excuses_a_delay(excuse, accused):
    """A fault somewhere else is no excuse for ten idle seconds."""
    history = [*HELD_THEN_FREE, *excuse, granted(15, "b", until_s=20)]

    assert bool(idle_with_waiters(history, Bounds(ttl_s=1))) is accused


def test_a_fault_that_may_leave_a_lease_behind_costs_one_ttl_and_no_more():
    """Another waiter had been granted the lease when it was frozen: the lease expires, and then the next is granted."""
    frozen = fault(4.9, 6, "freeze", "c")

    assert idle_with_waiters([*HELD_THEN_FREE, *frozen, granted(9, "b", until_s=20)], Bounds(ttl_s=3)) == []
    assert idle_with_waiters([*HELD_THEN_FREE, *frozen, granted(10, "b", until_s=20)], Bounds(ttl_s=3))


def test_a_worker_that_recovers_has_a_moment_and_not_a_whole_ttl():
    """It reads its answer, or resends: only a dead worker leaves a lease until the end of its ttl."""
    bounds = Bounds(ttl_s=60)
    frozen = fault(4.9, 6, "freeze", "c")

    assert idle_with_waiters([*HELD_THEN_FREE, *frozen, granted(10, "b", until_s=20)], bounds) == []
    assert idle_with_waiters([*HELD_THEN_FREE, *frozen, granted(11, "b", until_s=20)], bounds)
    died = event(4.9, "c", "died", name="")
    assert idle_with_waiters([*HELD_THEN_FREE, died, granted(60, "b", until_s=70)], bounds) == []


def test_many_faults_excuse_the_time_they_take_and_not_the_sum_of_their_ttls():
    """All faults ended at 6 s, and their effects a ttl later; no fault explains a delay after that."""
    many = [one for number in range(20) for one in fault(5 + number / 20, 6, "freeze", f"c{number}")]

    assert idle_with_waiters([*HELD_THEN_FREE, *many, granted(8.4, "b", until_s=20)], Bounds(ttl_s=1)) == []
    assert idle_with_waiters([*HELD_THEN_FREE, *many, granted(8.6, "b", until_s=20)], Bounds(ttl_s=1))


def test_one_worker_affected_again_and_again_leaves_one_lease_behind():
    """However often it is frozen, it had one place in the waiting line."""
    often = [one for number in range(9) for one in fault(5 + number, 5.9 + number, "freeze", "c")]

    assert idle_with_waiters([*HELD_THEN_FREE, *often, granted(7.4, "b", until_s=20)], Bounds(ttl_s=1)) == []
    assert idle_with_waiters([*HELD_THEN_FREE, *often, granted(7.6, "b", until_s=20)], Bounds(ttl_s=1))


def test_a_death_is_no_excuse_where_the_engine_sees_it():
    """SQLite detects a death by a kernel lock; a server waits for the ttl and the heartbeat."""
    died = event(4.9, "c", "died", name="")
    history = [*HELD_THEN_FREE, died, granted(12, "b", until_s=20)]

    assert idle_with_waiters(history, Bounds(ttl_s=5, deaths_are_seen=True))
    assert idle_with_waiters(history, Bounds(ttl_s=5)) == []


def line_of_two(first, second):
    """Return a history in which `c` requests while `b` is in the waiting line, and then both are granted."""
    return [
        granted(1, "a", until_s=30),
        event(2, "b", "requested"),
        event(2.1, "b", "waiting"),
        event(3, "c", "requested"),
        event(3.1, "c", "waiting"),
        event(4, "a", "released", token="a"),
        granted(4.1, first, until_s=20),
        event(5, first, "released", token=first),
        granted(5.1, second, until_s=20),
    ]


def test_a_worker_that_came_later_and_was_granted_earlier_is_reported():
    """A waiting line is first in, first out."""
    [violation] = overtakes(line_of_two("c", "b"))

    assert "c asked for 'x' after b had queued" in violation.sentence
    assert [shown.worker for shown in violation.events] == ["b", "b", "c", "c"]


def test_a_waiting_line_that_is_granted_in_order_passes():
    """The same history, with the grants in order."""
    assert overtakes(line_of_two("b", "c")) == []


def test_a_waiter_that_was_frozen_may_be_overtaken():
    """It could not have confirmed its offer."""
    assert overtakes([*line_of_two("c", "b"), *fault(3.5, 4.5, "freeze", "b")]) == []
    assert overtakes([*line_of_two("c", "b"), *fault(3.5, 4.5, "freeze", "c")])


def test_a_worker_that_was_cut_off_is_excused_until_it_can_listen_again():
    """A worker notices a silent connection late; until then the next in line may be granted."""
    silent = fault(0.1, 0.2, "half-open", "b")
    bounds = Bounds(ttl_s=1.0, recovery_s=4.0)

    assert overtakes([*line_of_two("c", "b"), *silent])
    assert overtakes([*line_of_two("c", "b"), *silent], bounds) == []
    assert overtakes([*line_of_two("c", "b"), *silent], Bounds(ttl_s=1.0, recovery_s=0.1))
    assert overtakes([*line_of_two("c", "b"), *fault(0.1, 0.2, "freeze", "b")], bounds)


def test_two_requests_at_the_same_time_have_no_order():
    """The order is unknown between the request and its place in the waiting line."""
    history = line_of_two("c", "b")
    history[3] = event(2.05, "c", "requested")

    assert overtakes(history) == []


def test_a_cut_leaves_no_lease_behind_and_so_costs_no_ttl():
    """The worker resends at once after a lost answer; only a worker that cannot send may delay the others."""
    cut = fault(4.9, 5.0, "cut", "c")

    assert idle_with_waiters([*HELD_THEN_FREE, *cut, granted(12, "b", until_s=20)], Bounds(ttl_s=5))


@pytest.mark.parametrize("kind", ["fork", "cancellation storm", "client clock"])
def test_a_fault_that_a_correct_client_does_not_notice_excuses_nothing(kind):
    """The history records it for people, also where it affected the waiter itself."""
    injected = fault(2, 14, kind, "b")

    assert idle_with_waiters([*HELD_THEN_FREE, *injected, granted(15, "b", until_s=20)], Bounds(ttl_s=1))
    assert overtakes([*line_of_two("c", "b"), *injected])


def test_a_hand_over_to_one_further_back_is_no_overtaking():
    """The holder may choose any waiter; a grant to another waiter than the chosen one is a violation."""
    history = line_of_two("c", "b")
    assert overtakes(history)

    assert overtakes([*history, event(3.9, "a", "released", token="a", detail="to c")]) == []
    assert overtakes([*history, event(3.9, "a", "released", token="a", detail="to b")])
