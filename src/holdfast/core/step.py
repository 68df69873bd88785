"""Run an operation without an event loop, and distinguish an answer from an awaitable."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from holdfast.commands import Answer

T = TypeVar("T")

# `Transport.apply` returns an answer, or an awaitable if it must wait. Every answer is a named tuple and no awaitable
# is, so `isinstance(reply, Ready)` distinguishes them, and most commands need no coroutine.
Ready = tuple  # type: ignore[type-arg] # a class, for isinstance


async def answer_of(reply: Answer | Awaitable[Answer]) -> Answer:
    """Return the answer of `Transport.apply`. The hot path repeats this line inline, to save a Python frame."""
    return reply if isinstance(reply, Ready) else await reply


def run(operation: Coroutine[Any, Any, T]) -> T:
    """Run `operation` to its end, on this thread, and return its result.

    The operation must use a blocking transport, which blocks inside its awaits instead of suspending; so one step
    always finishes it. An operation that suspends would need an event loop: that is a bug in an engine, never in user
    code.
    """
    try:
        operation.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    operation.close()
    raise RuntimeError("a blocking transport suspended")
