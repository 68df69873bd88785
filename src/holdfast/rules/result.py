"""The result of a rule of pools and queues: the answer, and the waiters to wake up."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.commands import Answer


class Wakeup(NamedTuple):
    """A waiter to wake, because it has an offer or a message, or because it should send its command again."""

    client: str
    token: str


class RuleResult(NamedTuple):
    """The answer to the command, and the waiters to wake up."""

    answer: Answer
    wakeups: list[Wakeup]
