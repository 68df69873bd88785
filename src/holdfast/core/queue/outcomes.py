"""The outcome of a message: from a method call, or from the error that ends its handler or block.

`Backoff.delay_ms` in this module decides the delay of a retry; the engine redelivers the message after that delay.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from holdfast.clock import Seconds, duration_ms, seconds_of, timeout_ns
from holdfast.commands.queue import ACK, REJECT, RELEASE, RETRY, MessageOutcome
from holdfast.errors import InvalidConfig
from holdfast.interrupts import raise_if_of_signal
from holdfast.names import is_unicode
from holdfast.rules.queue.state import ATTEMPTS_USED_UP
from holdfast.text import shown_error

REASON_MAX = 500
ERROR_MAX = 2000
_NO_REASON = "the handler requested another attempt"


class Retry(Exception):
    """Raised by a handler: this attempt failed; redeliver the message for another one.

    `delay`: seconds to wait before the next attempt; `None` uses the queue's backoff. `reason`: text that is stored as
    the error of this attempt; without one, the exception that `Retry` was raised from.
    """

    def __init__(self, delay: Seconds | None = None, reason: str = "") -> None:
        super().__init__(delay, reason)
        if delay is not None:
            duration_ms(delay, setting="delay")  # refuse an invalid delay where the program passes it
        self.delay = delay
        self.reason = reason


class Reject(Exception):
    """Raised by a handler: no further attempt can succeed, so the message becomes a dead letter.

    `reason`: why, for people to read; it is stored in the dead letter.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Release(Exception):
    """Raised by a handler: give the message back for another consumer; no attempt is used.

    `delay`: seconds before it is ready again.
    """

    def __init__(self, delay: Seconds = 0) -> None:
        super().__init__(delay)
        duration_ms(delay, setting="delay")
        self.delay = delay


class Backoff(NamedTuple):
    """The delays before further attempts: `first` seconds, then each `factor` times as long, up to `most`.

    Each delay varies at random by up to the fraction `jitter`, so that messages that failed together are not retried
    together.
    """

    first: Seconds = 1.0
    factor: float = 2.0
    most: Seconds = 300.0
    jitter: float = 0.2

    def delay_ms(self, attempt: int) -> int:
        """Return the delay after this attempt, in milliseconds."""
        first_s, most_s = seconds_of(self.first, setting="first"), seconds_of(self.most, setting="most")
        try:
            span_s = min(most_s, first_s * self.factor ** (attempt - 1))
        except OverflowError:
            span_s = most_s
        return round(1000 * span_s * (1 + self.jitter * random.uniform(-1, 1)))  # noqa: S311 - no secret


BACKOFF = Backoff()


def checked_backoff(value: object) -> Backoff:
    """Return the backoff; raise `InvalidConfig` if it is not a `Backoff` with valid numbers."""
    if not isinstance(value, Backoff):
        rule = "it must be a holdfast.Backoff, such as Backoff(first=1, factor=2, most=300)"
        raise InvalidConfig("backoff", value, rule)
    first_s, factor, most_s, jitter = (seconds_of(each, setting="backoff") for each in value)
    if not 0 <= first_s <= most_s or factor < 1 or not 0 <= jitter <= 1:
        rule = "it must have 0 <= first <= most, factor >= 1 and 0 <= jitter <= 1"
        raise InvalidConfig("backoff", value, rule)
    timeout_ns(most_s, setting="backoff")
    return Backoff(first_s, factor, most_s, jitter)


def checked_reason(reason: object) -> str:
    """Return the reason; raise `InvalidConfig` unless it is a text that every engine can store."""
    if not isinstance(reason, str) or not 0 < len(reason) <= REASON_MAX or not is_unicode(reason):
        rule = f"it must be text of 1 to {REASON_MAX} characters without unpaired surrogates, for people to read"
        raise InvalidConfig("reason", reason, rule)
    return reason


def failed_attempt(entry: str, attempt: int, attempts_max: int, delay_ms: int, error: str) -> MessageOutcome:
    """Return the outcome of a failed attempt: a retry, or a dead letter after the last attempt."""
    if attempt >= attempts_max:
        return MessageOutcome(entry, REJECT, 0, ATTEMPTS_USED_UP, error)
    return MessageOutcome(entry, RETRY, delay_ms, "", error)


def outcome_of(
    entry: str, attempt: int, attempts_max: int, backoff: Backoff, error: BaseException | None
) -> MessageOutcome:
    """Return the outcome for the error that ended the work; an ack for `None`.

    An interruption (KeyboardInterrupt, a cancelled task) says nothing about the message, so the outcome is a release.
    """
    if error is None:
        return MessageOutcome(entry, ACK)
    if isinstance(error, Retry):
        delay_ms = backoff.delay_ms(attempt) if error.delay is None else duration_ms(error.delay, setting="delay")
        text = readable(error.reason or _cause_of(error) or _NO_REASON)
        return failed_attempt(entry, attempt, attempts_max, delay_ms, text)
    if isinstance(error, Reject):
        cause = _cause_of(error)
        text = "" if cause is None else readable(cause)
        return MessageOutcome(entry, REJECT, 0, readable(error.reason)[:REASON_MAX], text)
    if isinstance(error, Release):
        return MessageOutcome(entry, RELEASE, duration_ms(error.delay, setting="delay"))
    if isinstance(error, Exception):
        return failed_attempt(entry, attempt, attempts_max, backoff.delay_ms(attempt), readable(error))
    return MessageOutcome(entry, RELEASE)


def _cause_of(error: BaseException) -> BaseException | None:
    """Return the exception behind this one, as a traceback would show it."""
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def readable(error: object) -> str:
    """Return an error as a text that every engine can store, of at most `ERROR_MAX` characters."""
    try:
        text = shown_error(error) if isinstance(error, BaseException) else str(error)
    except Exception as failure:  # an error in the program's `__repr__` must not prevent the outcome
        raise_if_of_signal(failure)
        text = f"{type(error).__name__} (it cannot be shown: {type(failure).__name__})"
    return text.encode(errors="replace").decode()[:ERROR_MAX]
