"""Sentinel and Cluster in the campaign: servers are replaced, and one known limit covers what that may cost."""

from __future__ import annotations

import pytest

from chaos.checks import check_events, checkers_for
from chaos.known_limits import FAILOVERS
from chaos.rounds import Round
from chaos.runs import run_round
from holdfast.testing import HistoryEvent, servers

S = 1_000_000_000
SEED = 20
ROUNDS = [
    Round(SEED, "sentinel", "asyncio", "counter", seconds=5, kinds=("primary killed",), ttl_s=6.0, calm_s=3.0),
    Round(SEED, "cluster", "blocking", "list", seconds=5, kinds=("failover", "freeze"), calm_s=3.0),
]
SENTINEL = Round(1, "sentinel", "blocking", "counter")
PIDS = {"w0": 1, "w1": 2, "stage": 9}


def event(at_s, worker, kind, fence=None, **fields):
    facts = {"name": "campaign", "fence": fence, "token": fence and f"{worker}{fence}", **fields}
    return HistoryEvent(at_ns=int(at_s * S), worker=worker, pid=PIDS[worker], kind=kind, **facts)


def window(since_s, until_s, kind):
    return [
        event(at_s, "stage", what, name="", value=1, detail=kind)
        for at_s, what in ((since_s, "fault"), (until_s, "healed"))
    ]


def judged(fences, injected):
    overlap = [
        event(1, "w0", "granted", fence=fences[0], until_ns=9 * S),
        event(4, "w1", "granted", fence=fences[1], until_ns=9 * S),
    ]
    suite = checkers_for(SENTINEL, counter=None, appended=None, now_ns=None)
    return check_events(SENTINEL, sorted([*overlap, *injected], key=lambda each: each.at_ns), suite)


@pytest.mark.parametrize("kind", FAILOVERS)
def test_a_second_holder_is_expected_of_a_failover_and_of_nothing_else(kind):
    """It counts as the limit if the history has the failover, and as a violation if not."""
    assert judged((10, 20), window(2, 3, kind)).expected == {f"failover ({kind})": 1}
    assert "X1 overlapping_holders" in judged((10, 20), []).names()
    assert "X1 overlapping_holders" in judged((10, 20), window(6, 7, kind)).names()


@pytest.mark.parametrize("kind", FAILOVERS)
def test_no_failover_explains_a_fence_that_was_given_twice(kind):
    """All servers of one machine share its clock, so that fences grow through a failover."""
    assert "X3 fences_grow" in judged((20, 20), window(2, 3, kind)).names()


@pytest.mark.parametrize("round_", ROUNDS, ids=lambda round_: round_.name)
def test_every_invariant_holds_while_servers_are_replaced(round_, tmp_path):
    """A short round on real servers; the workers go on afterwards."""
    if not servers.available():
        pytest.skip(servers.missing())

    result, verdict = run_round(round_, tmp_path)

    shown = [str(one) for found in verdict.violations.values() for one in found]
    assert verdict.holds, "\n".join(shown[:20])
    assert result.injected.total() > 0
    assert sum(event.kind == "granted" for event in result.events) > 5
