"""What may become of a message, as people say it: by a method, or by the error that leaves its work."""

from __future__ import annotations

import random
from typing import NamedTuple

from holdfast.clock import Seconds, duration_ms, timeout_ns
from holdfast.commands.queue import ACK, REJECT, RELEASE, RETRY, MessageOutcome
from holdfast.errors import InvalidConfig
from holdfast.names import is_unicode
from holdfast.rules.queue.state import ATTEMPTS_USED_UP

REASON_MAX = 500
ERROR_MAX = 2000
_NO_REASON = "another attempt was asked for"


class Retry(Exception):
    """Raised by the work on a message: try it again, after this delay; without one, by the queue's backoff."""

    def __init__(self, delay: Seconds | None = None, reason: str = "") -> None:
        super().__init__(delay, reason)
        if delay is not None:
            duration_ms(delay, setting="delay")  # refused where it is said
        self.delay = delay
        self.reason = reason


class Reject(Exception):
    """Raised by the work on a message: there is no use in trying again, so it becomes a dead letter."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Release(Exception):
    """Raised by the work on a message: give it back as if it had not been tried; others may have it."""

    def __init__(self, delay: Seconds = 0) -> None:
        super().__init__(delay)
        duration_ms(delay, setting="delay")
        self.delay = delay


class Backoff(NamedTuple):
    """How long to wait before another attempt: `first` seconds, then each time `factor` as long, up to `most`.

    Each delay is changed by chance, by up to this part of it, so that what failed together does not come back together.
    """

    first: float = 1.0
    factor: float = 2.0
    most: float = 300.0
    jitter: float = 0.2

    def delay_ms(self, attempt: int) -> int:
        """Before the attempt that follows this one."""
        try:
            span_s = min(self.most, self.first * self.factor ** (attempt - 1))
        except OverflowError:
            span_s = self.most
        return round(1000 * span_s * (1 + self.jitter * random.uniform(-1, 1)))  # noqa: S311 - no secret


BACKOFF = Backoff()


def checked_backoff(value: object) -> Backoff:
    numbers = isinstance(value, Backoff) and all(
        isinstance(each, int | float) and not isinstance(each, bool) for each in value
    )
    if not isinstance(value, Backoff) or not numbers:
        raise InvalidConfig("backoff", value, "it must be a holdfast.Backoff of numbers")
    if not 0 <= value.first <= value.most or value.factor < 1 or not 0 <= value.jitter <= 1:
        rule = "it must have 0 <= first <= most, factor >= 1 and 0 <= jitter <= 1"
        raise InvalidConfig("backoff", value, rule)
    timeout_ns(value.most, setting="backoff")
    return value


def checked_reason(reason: object) -> str:
    if not isinstance(reason, str) or not 0 < len(reason) <= REASON_MAX or not is_unicode(reason):
        rule = f"it must be text of 1 to {REASON_MAX} characters without lone surrogates, for people to read"
        raise InvalidConfig("reason", reason, rule)
    return reason


def retried(entry: str, attempt: int, most: int, delay_ms: int, error: str) -> MessageOutcome:
    """One more attempt has failed. The last one makes it a dead letter."""
    if attempt >= most:
        return MessageOutcome(entry, REJECT, 0, ATTEMPTS_USED_UP, error)
    return MessageOutcome(entry, RETRY, delay_ms, "", error)


def by_error(entry: str, attempt: int, most: int, backoff: Backoff, error: BaseException | None) -> MessageOutcome:
    """What the end of the work says. An interruption says nothing about the message: it is given back."""
    if error is None:
        return MessageOutcome(entry, ACK)
    if isinstance(error, Retry):
        delay_ms = backoff.delay_ms(attempt) if error.delay is None else duration_ms(error.delay, setting="delay")
        return retried(entry, attempt, most, delay_ms, readable(error.reason or _behind(error) or _NO_REASON))
    if isinstance(error, Reject):
        behind = _behind(error)
        why = "" if behind is None else readable(behind)
        return MessageOutcome(entry, REJECT, 0, readable(error.reason)[:REASON_MAX], why)
    if isinstance(error, Release):
        return MessageOutcome(entry, RELEASE, duration_ms(error.delay, setting="delay"))
    if isinstance(error, Exception):
        return retried(entry, attempt, most, backoff.delay_ms(attempt), readable(error))
    return MessageOutcome(entry, RELEASE)


def _behind(word: BaseException) -> BaseException | None:
    """The error that the word was said for, as Python itself would show it."""
    return word.__cause__ or (None if word.__suppress_context__ else word.__context__)


def readable(error: object) -> str:
    """An error as a dead letter keeps it: short enough, and text that every engine can keep."""
    try:
        text = repr(error) if isinstance(error, BaseException) else str(error)
    except Exception as failure:  # it is the application's, and must not keep its message from being settled
        text = f"{type(error).__name__} (it cannot be shown: {type(failure).__name__})"
    return text.encode(errors="replace").decode()[:ERROR_MAX]
