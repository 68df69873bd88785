"""Whoever can renew keeps its lease: which losses are accused, and which are explained."""

from __future__ import annotations

import pytest

from chaos.checks import losses, unexplained_losses
from chaos.rounds import WORKLOADS, named
from holdfast.testing import Event

S = 1_000_000_000


def event(at_s, kind, worker="w0", **fields):
    return Event(**{"at_ns": int(at_s * S), "worker": worker, "pid": 1, "kind": kind, "name": "campaign", **fields})


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
def test_a_loss_is_explained_only_by_what_struck_its_holder_within_the_ttl(injected, accused):
    """A client that never renews loses every long section, with nothing broken."""
    assert bool(unexplained_losses([*LOST, *injected], ttl_s=1)) is accused


def test_a_loss_counts_from_when_the_lease_was_no_longer_trusted():
    """A section that does not look at its lease writes the loss down at its end, long after what caused it."""
    late = [LOST[0], event(10, "lost", fence=1, token="t", detail="expired", until_ns=5 * S)]

    assert not unexplained_losses([*late, *fault(4, 4.9, "freeze", "w0")], ttl_s=1)
    assert unexplained_losses([*late, *fault(9, 9.8, "freeze", "w0")], ttl_s=1)


def test_a_very_short_ttl_is_not_judged():
    """A busy machine loses it in steps that nobody writes down; the same loss of a longer one is accused."""
    assert unexplained_losses(LOST, ttl_s=0.6) == []
    assert unexplained_losses(LOST, ttl_s=1)


def test_where_half_of_the_ttl_was_left_to_renew_in_nothing_is_lost():
    """Two faults at one time take that time once."""
    short = [*fault(6, 8, "freeze", "w0"), *fault(6, 8, "frozen server", "")]

    assert losses([*LOST, *short], ttl_s=5)
    assert not losses([*LOST, *short, *fault(8, 9, "half-open", "w0")], ttl_s=5)


@pytest.mark.parametrize("work", WORKLOADS)
def test_every_round_lasts_for_several_ttls(work):
    """Or a lease that is never renewed would outlast it."""
    round_ = named(1, f"memory/blocking/{work}/1")

    assert round_.seconds >= 3 * round_.ttl
    assert round_.calm_s > round_.ttl + 1.5
