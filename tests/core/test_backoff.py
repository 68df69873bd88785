"""The delay before the next attempt: growing, bounded, and different for two messages that failed together."""

import pytest

from holdfast import Backoff


@pytest.mark.acceptance("A1-28")
def test_every_delay_lies_within_the_jitter_around_its_step():
    """1, 2, 4, then 5 seconds and no more; up to a fifth shorter or longer, and spread over that."""
    backoff = Backoff(first=1, factor=2, most=5, jitter=0.2)
    for attempt, middle_ms in enumerate((1000, 2000, 4000, 5000, 5000), 1):
        delays = [backoff.delay_ms(attempt) for _ in range(1000)]
        assert middle_ms * 0.8 <= min(delays) < middle_ms * 0.85
        assert middle_ms * 1.15 < max(delays) <= middle_ms * 1.2


@pytest.mark.acceptance("A1-28")
def test_without_jitter_a_delay_is_exact_and_bounded():
    """Also after so many attempts that the power would overflow."""
    backoff = Backoff(first=0.5, factor=10, most=300, jitter=0)

    assert [backoff.delay_ms(attempt) for attempt in (1, 2, 3, 4, 10_000)] == [500, 5000, 50_000, 300_000, 300_000]
    assert Backoff(0, 1, 0, 0).delay_ms(7) == 0
