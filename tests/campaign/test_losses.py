"""A holder that can renew keeps its lease: which losses are reported, and which are explained."""

from __future__ import annotations

import pytest

from chaos.checks import losses, unexplained_losses
from chaos.rounds import WORKLOADS, named
from holdfast.testing import HistoryEvent

S = 1_000_000_000


def event(at_s, kind, worker="w0", **fields):
    return HistoryEvent(
        **{"at_ns": int(at_s * S), "worker": worker, "pid": 1, "kind": kind, "name": "campaign", **fields}
    )


def fault(since_s, until_s, kind, target):
    facts = {"worker": "stage", "name": target, "value": int(since_s * 1000), "detail": kind}
    return [event(since_s, "fault", **facts), event(until_s, "healed", **facts)]


LOST = [event(1, "granted", fence=1, token="t"), event(10, "lost", fence=1, token="t", detail="expired")]


@pytest.mark.parametrize(
    ("injected", "accused"),
    [
        ([], True),
        (fault(9, 9.8, "freeze", "w0"), False),
        (fault(9, 9.8, "frozen server", ""), False),
        (fault(9, 9.8, "freeze", "w1"), True),
        (fault(2, 4, "freeze", "w0"), True),
        (fault(9, 9.8, "client clock", "w0"), True),
    ],
    ids=["nothing", "it was frozen", "the server was", "another was", "it was, long ago", "what harms nobody"],
)
def test_only_a_fault_of_the_holder_within_the_ttl_explains_a_loss(injected, accused):
    """A client that never renews loses its lease in every long section, without a fault."""
    assert bool(unexplained_losses([*LOST, *injected], ttl_s=1)) is accused


def test_a_loss_counts_from_when_the_lease_was_no_longer_trusted():
    """A section that does not check its lease records the loss at its end, long after the cause."""
    late = [LOST[0], event(10, "lost", fence=1, token="t", detail="expired", until_ns=5 * S)]

    assert not unexplained_losses([*late, *fault(4, 4.9, "freeze", "w0")], ttl_s=1)
    assert unexplained_losses([*late, *fault(9, 9.8, "freeze", "w0")], ttl_s=1)


def test_a_very_short_ttl_is_not_checked():
    """Stalls of a busy machine that are too short to be recorded may cost it; a longer ttl is checked."""
    assert unexplained_losses(LOST, ttl_s=0.6) == []
    assert unexplained_losses(LOST, ttl_s=1)


def test_a_loss_with_half_of_the_ttl_left_for_renewals_is_reported():
    """Two faults at one time take that time once."""
    short = [*fault(6, 8, "freeze", "w0"), *fault(6, 8, "frozen server", "")]

    assert losses([*LOST, *short], ttl_s=5)
    assert not losses([*LOST, *short, *fault(8, 9, "half-open", "w0")], ttl_s=5)


@pytest.mark.parametrize("work", WORKLOADS)
def test_every_round_lasts_for_several_ttls(work):
    """Otherwise a lease that is never renewed would outlast the round."""
    round_ = named(1, f"memory/blocking/{work}/1")

    assert round_.seconds >= 3 * round_.ttl
    assert round_.calm_s > round_.ttl + 1.5
