"""A known limit explains a violation only if the history has its cause."""

from __future__ import annotations

import pytest

from chaos.checks import INVARIANTS, check_events, check_round, checkers_for
from chaos.known_limits import KNOWN_LIMITS, explains
from chaos.rounds import Round
from chaos.runner import RoundResult
from holdfast.testing import HistoryEvent

S = 1_000_000_000
PIDS = {"w0": 1, "w1": 2, "w2": 4, "w0.child": 3, "stage": 9}
UNGUARDED = Round(1, "sqlite", "blocking", "counter-unguarded")
GUARDED = Round(1, "sqlite", "blocking", "counter")
REDIS = Round(1, "redis", "blocking", "counter")
MEMORY = Round(1, "memory", "blocking", "counter")


def event(at_s, worker, kind, fence=None, **fields):
    token = None if fence is None else f"{worker}{fence}"
    facts = {"name": "campaign", "fence": fence, "token": token, **fields}
    return HistoryEvent(at_ns=int(at_s * S), worker=worker, pid=PIDS[worker], kind=kind, **facts)


def fault(since_s, until_s, kind, target=""):
    return [
        event(since_s, "stage", "fault", name=target, value=int(since_s * 1000), detail=kind),
        event(until_s, "stage", "healed", name=target, value=int(since_s * 1000), detail=kind),
    ]


def verdict_of(round_, events):
    return check_events(round_, events, checkers_for(round_, counter=None, appended=None, now_ns=None))


LATE_WRITE = [
    event(1, "w0", "granted", fence=10, until_ns=2 * S),
    event(4, "w1", "granted", fence=20, until_ns=9 * S),
    event(5, "w1", "write", fence=20, value=1, accepted=True),
    event(6, "w0", "write", fence=10, value=2, accepted=True),
    event(6.1, "w0", "lost", fence=10),
]
OVERLAP = [
    event(1, "w0", "granted", fence=10, until_ns=9 * S),
    event(4, "w1", "granted", fence=20, until_ns=9 * S),
]


def test_a_late_write_of_a_frozen_holder_is_expected_of_an_unguarded_resource():
    """No lock can stop it; it is counted as the known limit."""
    verdict = verdict_of(UNGUARDED, [*LATE_WRITE, *fault(1.5, 5.5, "freeze", "w0")])

    assert verdict.holds
    assert verdict.expected["late unguarded write"] == 1


@pytest.mark.parametrize(
    ("round_", "injected"),
    [(UNGUARDED, []), (UNGUARDED, fault(1.5, 5.5, "freeze", "w1")), (GUARDED, fault(1.5, 5.5, "freeze", "w0"))],
    ids=["nobody was frozen", "another was frozen", "the resource has a guard"],
)
def test_a_late_write_without_that_cause_is_a_violation(round_, injected):
    """The same write, without a fault that explains it."""
    verdict = verdict_of(round_, [*LATE_WRITE, *injected])

    assert "X4 guarded_writes_never_go_down" in verdict.names()
    assert not verdict.expected


def test_one_freeze_does_not_explain_what_others_lose_later():
    """A holder that was frozen and wrote nothing late did not cause an update that two others lost."""
    frozen = [event(1, "w0", "granted", fence=10, until_ns=2 * S), event(2.6, "w0", "lost", fence=10)]
    two = [
        event(7, "w1", "granted", fence=20, until_ns=8 * S),
        event(7.1, "w1", "write", fence=20, value=7, accepted=True),
        event(7.2, "w1", "released", fence=20),
        event(7.3, "w2", "granted", fence=21, until_ns=8 * S),
        event(7.4, "w2", "write", fence=21, value=7, accepted=True),
    ]
    history = [*frozen, *fault(1.1, 2.5, "freeze", "w0"), *two]

    assert "X5 lost_updates" in verdict_of(UNGUARDED, history).names()

    # Also if the frozen worker did write late: its write was over before the two began.
    earlier = [
        event(1.9, "w2", "granted", fence=15, until_ns=3 * S),
        event(2, "w2", "released", fence=15),
        event(2.55, "w0", "write", fence=10, value=1, accepted=True),
    ]
    assert "X5 lost_updates" in verdict_of(UNGUARDED, [*history, *earlier]).names()


@pytest.mark.parametrize(
    ("kind", "name"),
    [("restart without data", "restart without data"), ("server clock", "server clock set forward")],
)
def test_a_second_holder_is_expected_after_the_server_lost_the_first(kind, name):
    """The server lost its data or its clock jumped between the two grants."""
    verdict = verdict_of(REDIS, [*OVERLAP, *fault(2, 3, kind)])

    assert verdict.holds
    assert verdict.expected == {name: 1}


@pytest.mark.parametrize(
    "injected",
    [
        [],
        fault(2, 3, "restart"),
        fault(2, 3, "frozen server"),
        fault(5, 6, "restart without data"),
        fault(0.1, 0.3, "restart without data"),
    ],
    ids=["nothing", "a restart with its data", "a frozen server", "lost data afterwards", "lost data before"],
)
def test_a_second_holder_is_a_violation_under_any_other_fault(injected):
    """Only lost data or a jumping clock excuses it."""
    assert "X1 overlapping_holders" in verdict_of(REDIS, [*OVERLAP, *injected]).names()


def test_a_child_has_a_memory_of_its_own():
    """On the other engines parent and child share the place, and a second holder there is a violation."""
    forked = [OVERLAP[0], event(4, "w0.child", "granted", fence=20, until_ns=9 * S)]

    assert verdict_of(MEMORY, forked).expected == {"memory ends at fork": 1}
    assert "X1 overlapping_holders" in verdict_of(GUARDED, forked).names()


def test_no_limit_explains_fences_that_fall():
    """Not even lost data or a clock that was set: fences exist for these cases."""
    fallen = [event(1, "w0", "granted", fence=20), event(3, "w1", "granted", fence=10)]
    fallen[0:0] = [event(2, "w0", "released", fence=20)]

    for kind in ("restart without data", "server clock", "freeze"):
        assert "X3 fences_grow" in verdict_of(REDIS, [*fallen, *fault(0.5, 4, kind)]).names()


def test_every_limit_names_known_invariants():
    """Each has a sentence for the report, too."""
    for expectation in KNOWN_LIMITS:
        assert set(expectation.promises) < set(INVARIANTS)
        assert expectation.says


def test_a_worker_that_ends_badly_is_a_violation():
    """Errors that the runner saw count like those in the history."""
    verdict = check_round(RoundResult(GUARDED, troubles=["w0 ended with code 1"]))

    assert verdict.names() == {"X0 worker_ended"}


def test_a_limit_explains_nothing_outside_its_invariants():
    """Lost data is no excuse for a lost update."""
    [violation] = verdict_of(REDIS, OVERLAP).violations["X1"]
    lost_data = [*OVERLAP, *fault(2, 3, "restart without data")]

    assert explains(REDIS, "X1", violation, lost_data) == "restart without data"
    assert explains(REDIS, "X5", violation, lost_data) is None
