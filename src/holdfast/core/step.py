"""Finish an operation without an event loop."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(operation: Coroutine[Any, Any, T]) -> T:
    """Finish `operation` now, on this thread.

    It must sit on a blocking form, which blocks inside its awaits instead of suspending; so one step is always enough.
    A second step would need an event loop: that is a bug in an engine, never in user code.
    """
    try:
        operation.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    operation.close()
    raise RuntimeError("a blocking form suspended")
