"""The lines of the log: whoever reads them at night has no page beside them."""

import pytest

from holdfast.commands.queue import Reclaimed
from holdfast.core.keeper.heartbeats import reclaim_shown
from holdfast.observer import emit

LINES = [
    (("lost", "x", 7, 1.23456789, "expired"), "holdfast: lost 'x' fence=7 seconds=1.235: expired"),
    (("abandoned", "x", 7), "holdfast: abandoned 'x' fence=7"),
    (("reclaimed", "jobs", None, None, "1 consumer"), "holdfast: reaped 'jobs': 1 consumer"),
    (("engine replaced", "", None, None, "a before, b now"), "holdfast: engine replaced: a before, b now"),
    (("clock_jumped", "", None, -3.0), "holdfast: clock jumped seconds=-3.000"),
    (("unavailable", "x", None, None, "away", 3), "holdfast: unavailable 'x': away (and 2 more like it)"),
]


@pytest.mark.parametrize(("told", "line"), LINES)
def test_a_line_has_what_is_known_and_no_gaps(caplog, told, line):
    """What is of no lease shows no empty name, and nothing has nine digits behind its point."""
    emit(None, *told)
    assert [record.getMessage() for record in caplog.records] == [line]


def test_one_is_one():
    """Of what a look for the dead has found."""
    assert (
        reclaim_shown(Reclaimed(checked=True, postponed=False, consumers=1, requeued=1, dead_lettered=0, next_ms=0))
        == "1 consumer, 1 message ready again, 0 dead"
    )
    assert (
        reclaim_shown(Reclaimed(checked=True, postponed=False, consumers=2, requeued=0, dead_lettered=1, next_ms=0))
        == "2 consumers, 0 messages ready again, 1 dead"
    )
