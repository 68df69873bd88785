"""Waiting for a condition, with a bound.

A test never sleeps for a guessed time. It waits for the condition that it needs, and the error names the condition that
never became true.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_POLL_SECONDS = 0.002

T = TypeVar("T")


def eventually(condition: Callable[[], T], timeout: float | None = 5.0, what: str = "the condition") -> T:
    """Return the first true result of `condition`; raise `TimeoutError` with `what` if none comes within `timeout`."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while not (answer := condition()):
        if deadline is not None and time.monotonic() >= deadline:
            raise TimeoutError(f"{what}: not within {timeout} s")
        time.sleep(_POLL_SECONDS)
    return answer
