"""The lines of the log: an operator reads them at night, without the documentation."""

import pytest

from holdfast.clock import NS
from holdfast.commands.queue import Reclaimed
from holdfast.core.keeper.heartbeats import reclaim_shown
from holdfast.observer import OutageLog, emit

LINES = [
    (("lost", "x", 7, 1.23456789, "expired"), "holdfast: lost 'x' fence=7 seconds=1.235: expired"),
    (("abandoned", "x", 7), "holdfast: abandoned 'x' fence=7"),
    (("reclaimed", "jobs", None, None, "1 consumer"), "holdfast: reclaimed 'jobs': 1 consumer"),
    (("engine_restarted", "", None, None, "a before, b now"), "holdfast: engine_restarted: a before, b now"),
    (("clock_jumped", "", None, -3.0), "holdfast: clock_jumped seconds=-3.000"),
    (("unavailable", "x", None, None, "away", 3), "holdfast: unavailable 'x': away (and 2 more like it)"),
]


@pytest.mark.parametrize(("event", "line"), LINES)
def test_a_log_line_shows_what_is_known_without_gaps(caplog, event, line):
    """An event of no lease shows no empty name, and seconds have three decimals."""
    emit(None, *event)
    assert [record.getMessage() for record in caplog.records] == [line]


def test_a_count_of_one_is_singular():
    """The line about reclaimed consumers reads as a sentence."""
    assert (
        reclaim_shown(Reclaimed(checked=True, postponed=False, consumers=1, requeued=1, dead_lettered=0, next_ms=0))
        == "1 consumer, 1 message ready again, 0 dead"
    )
    assert (
        reclaim_shown(Reclaimed(checked=True, postponed=False, consumers=2, requeued=0, dead_lettered=1, next_ms=0))
        == "2 consumers, 0 messages ready again, 1 dead"
    )


def test_an_outage_has_one_warning_a_minute_with_the_number_of_failures():
    """Each kind of failure has its own outage, which is over if nothing has failed for a while."""
    outages = OutageLog()
    lines = [outages.count("unavailable", second * NS) for second in range(150)]

    assert [(at, line) for at, line in enumerate(lines) if line] == [(0, 1), (60, 60), (120, 60)]
    assert outages.count("renewal_failed", 0) == 1
    assert outages.over(150 * NS) == ["holdfast: renewal_failed: over after 0.0 s and 1 failures"]
    assert outages.over(152 * NS) == ["holdfast: unavailable: over after 149.0 s and 150 failures"]
    assert not outages.open
    assert outages.count("unavailable", 153 * NS) == 1
