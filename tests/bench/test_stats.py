"""The figures of the benchmark, for small runs whose figures can be checked by hand."""

import pytest

from bench import candidates as known
from bench.stats import Grant, Spread, contention, jain, lags, nested_median, over_rounds, overlaps, percentile, ratios
from bench.targets import AT_LEAST, AT_MOST, Target, reaches, verdicts


def grants(*spans):
    """Return grants from `(worker, requested, granted, releasing)`."""
    return [Grant(*span) for span in spans]


FAIR = grants(("a", 0.0, 0.0, 1.0), ("b", 0.0, 1.5, 2.5), ("a", 1.0, 3.0, 4.0), ("b", 2.5, 4.5, 5.5))


def test_ratios_are_taken_round_by_round():
    """A round that was slow for all candidates must not change the ratio to the floor."""
    assert ratios([3.0, 30.0], [1.0, 10.0]) == [3.0, 3.0]


def test_a_figure_over_rounds_has_median_and_range():
    """Without the range a reader cannot tell a difference from noise."""
    found = over_rounds([{"a": 3.0, "b": 1}, {"a": 1.0}, {"a": 2.0}])

    assert found == {"a": (2.0, 1.0, 3.0)}


def test_the_range_of_a_median_includes_the_differences_between_groups():
    """Many values of two processes are still only two processes."""
    assert nested_median([[1.0] * 50, [2.0] * 50]) == Spread(1.5, 1.0, 2.0)
    assert nested_median([[3.0, 1.0, 2.0]]).median == 2.0
    assert nested_median([[1.0, 1.0], [1.0, 1.0]]) == Spread(1.0, 1.0, 1.0)


@pytest.mark.parametrize(("share", "value"), [(0.0, 1), (0.5, 2), (0.51, 3), (0.99, 4), (1.0, 4)])
def test_a_percentile_is_a_value_that_occurred(share, value):
    """The function does not interpolate between two samples."""
    assert percentile([4, 2, 1, 3], share) == value


def test_jains_index_is_one_for_equal_shares_and_least_for_one_winner():
    """From equal shares to one worker that has everything."""
    assert jain([5, 5, 5, 5]) == 1.0
    assert jain([8, 0, 0, 0]) == 0.25
    assert jain([0, 0]) == 0.0


def test_holders_one_after_the_other_do_not_overlap():
    """A correct lock has no overlaps."""
    assert overlaps(FAIR) == 0


def test_a_second_holder_is_an_overlap_even_behind_a_third():
    """A long section must not be hidden by short ones inside it."""
    found = overlaps(grants(("a", 0, 0, 10), ("b", 0, 2, 3), ("c", 0, 5, 6), ("d", 0, 11, 12)))

    assert found == 2


def test_a_contended_run_is_described_by_its_grants():
    """Rate, gaps, shares and waits of four sections of a second with half a second between them."""
    found = contention(FAIR, ["a", "b"], 0.0, 5.0)

    assert found["grants"] == 4
    assert found["grants_per_s"] == pytest.approx(0.8)
    assert found["of_ideal"] == pytest.approx(0.8)
    assert found["gap_p50_us"] == pytest.approx(0.5e6)
    assert found["to_itself"] == 0
    assert (found["least"], found["most"], found["jain"]) == (2, 2, 1.0)
    assert found["wait_max_ms"] == pytest.approx(2000)
    assert found["wait_of_fifo"] == pytest.approx(2.0)


def test_a_worker_without_grants_counts_as_the_smallest_share():
    """A starved worker is the worst share, not a missing one; its wait counts although it ended late."""
    found = contention(grants(("a", 0, 0, 1), ("a", 1, 1, 2), ("b", 0, 7, 8)), ["a", "b"], 0.0, 3.0)

    assert (found["least"], found["evenness"], found["to_itself"]) == (0, 0.0, 1.0)
    assert found["wait_max_ms"] == pytest.approx(7000)


def test_a_lag_begins_with_the_first_release_that_the_waiter_could_see():
    """Being overtaken adds to the lag; a worker that did not wait has no lag."""
    found = lags(grants(("a", 0, 0, 1), ("a", 1.1, 1.2, 2), ("b", 0.5, 2.25, 3), ("a", 5, 5, 6)))

    assert found == [1.25]


@pytest.mark.parametrize(("side", "below", "above"), [(AT_MOST, True, False), (AT_LEAST, False, True)])
def test_a_target_is_reached_from_its_own_side_only(side, below, above):
    """The limit itself counts as reached."""
    target = Target("what", "pair", None, "figure", side, 2.0)

    assert (reaches(target, 1.9), reaches(target, 2.0), reaches(target, 2.1)) == (below, True, above)


def test_a_figure_that_was_not_measured_does_not_reach_its_target():
    """A measurement in which Holdfast could not run must not look like success."""
    found = verdicts({"parts": {"pair": []}})

    assert found != []
    assert [verdict.reached for verdict in found] == [False] * len(found)


def test_a_row_with_few_streams_is_not_compared_with_a_row_with_many():
    """Both are rows of one measurement, and keeping few streams costs less."""

    def row(candidate, role, streams, times):
        figures = {"streams": Spread(streams, streams, streams), "times_one": Spread(times, times, times)}
        return {"candidate": candidate, "role": role, "wire": "tcp", "loop": "", "figures": figures}

    rows = [row(known.owning(known.OWNER, 5_000).name, known.OURS, 5_000, 1.0)]
    rows += [row(f"peer, {count}", known.PEER, count, float(count)) for count in (1, 5_000)]

    judged = verdicts({"parts": {"owner": rows}})[0]

    assert judged.peer == ("peer, 5000", 5_000.0)
    assert judged.reached
