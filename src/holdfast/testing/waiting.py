"""Waiting for something to become true, with an end.

The rule: a test never sleeps for a guessed time; it waits for what it needs and says what it waited
for when that never came.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_POLL_SECONDS = 0.002

T = TypeVar("T")


def eventually(condition: Callable[[], T], timeout: float | None = 5.0, what: str = "the condition") -> T:
    """Return the first true answer of `condition`; raise `TimeoutError` if none comes in time."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while not (answer := condition()):
        if deadline is not None and time.monotonic() >= deadline:
            raise TimeoutError(f"{what}: not within {timeout} s")
        time.sleep(_POLL_SECONDS)
    return answer
