"""The rules of rate limits: no window has more than its limit, whatever the hits."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.commands import Hit
from holdfast.rules import Moment
from holdfast.rules.limit import GRAINS, forget_at_us, hit, rates

START_US = 1_700_000_000_000_000
PASSES = st.lists(st.tuples(st.integers(0, 400_000), st.integers(1, 4)), max_size=120)


def admitted(passes, text, *, smooth=False):
    """Return the times of the admitted hits, and the last windows."""
    command, now_us, windows, found = Hit("x", rates(text), smooth, 1, take=True), START_US, None, []
    for after_us, cost in passes:
        now_us += after_us
        windows, answer = hit(windows, command._replace(cost=cost), Moment(0, now_us, ""))
        assert (answer.retry_us == 0) == answer.allowed
        if answer.allowed:
            found.append((now_us, cost))
    return found, windows


@given(PASSES, st.sampled_from(["5/second", "20/second; 30/3s", "120/s", "5/s; 150/5s"]))
def test_no_window_of_any_program_has_more_than_its_limit(passes, text):
    """This holds for every position of the window, and for single and grouped entries."""
    found, _ = admitted(passes, text)

    for count, period_us in rates(text):
        for began_us, _ in found:
            assert sum(cost for at_us, cost in found if began_us <= at_us < began_us + period_us) <= count


@given(PASSES)
def test_smoothing_never_admits_more_than_the_burst_and_the_rate(passes):
    """In any span of time it admits the burst plus the rate times its length."""
    found, _ = admitted(passes, "10/second", smooth=True)

    for at, (began_us, _) in enumerate(found):
        for end_us, _ in found[at:]:
            used = sum(cost for at_us, cost in found[at:] if at_us <= end_us)
            assert used <= 10 + (end_us - began_us) * 10 / 1_000_000 + 0.001


@given(st.lists(st.integers(0, 3_000), max_size=400))
def test_the_number_of_entries_of_a_window_is_bounded(gaps):
    """Memory does not grow with the rate."""
    _, windows = admitted([(gap_us, 1) for gap_us in gaps], "100000/second; 7/500ms")

    assert windows is None or len(windows[0].older) <= GRAINS + 1
    assert windows is None or len(windows[1].older) <= 7


def test_a_refusal_knows_to_the_microsecond_when_it_ends():
    """One microsecond earlier it is refused again; then it passes."""
    command = Hit("x", rates("2/second"), smooth=False, cost=2, take=True)
    windows, _ = hit(None, command._replace(cost=1), Moment(0, START_US, ""))
    windows, _ = hit(windows, command._replace(cost=1), Moment(0, START_US + 250_000, ""))
    refused = hit(windows, command, Moment(0, START_US + 300_000, ""))[1]

    at_us = START_US + 300_000 + refused.retry_us
    assert refused.retry_us == 950_000
    assert not hit(windows, command, Moment(0, at_us - 1, ""))[1].allowed
    assert hit(windows, command, Moment(0, at_us, ""))[1].allowed


def test_a_clock_that_is_set_back_stands_still_for_a_period_at_most():
    """A clock step admits no extra hit and blocks no caller for long."""
    command = Hit("x", rates("1/minute"), smooth=False, cost=1, take=True)
    windows, _ = hit(None, command, Moment(0, START_US, ""))

    assert not hit(windows, command, Moment(0, START_US - 30_000_000, ""))[1].allowed
    assert hit(windows, command, Moment(0, START_US - 30_000_000, ""))[1].retry_us == 60_000_000
    assert hit(windows, command, Moment(0, START_US - 60_000_001, ""))[1].allowed
    assert forget_at_us(windows, command) == START_US + 60_000_000
