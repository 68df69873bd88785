"""Events: one way to observe everything that matters, for logs, metrics and traces.

An observer is any callable that takes an `Event`. The library calls the observer on the thread where the event happens,
so the observer must return quickly; the library logs and drops an exception that it raises. Events carry names and
numbers, never payloads or passwords.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from holdfast.names import readable

log = logging.getLogger("holdfast")
# The program decides where warnings go; without a handler on this logger, Python would print them.
log.addHandler(logging.NullHandler())
DEBUG = logging.DEBUG
# Callers check this before they emit an event about success, which most programs ignore. An alias is the quickest call.
debugging = log.isEnabledFor

# "Of no lease": the event is about the engine or a queue, and `name` is not the name of a lease.
KINDS = (
    "granted",  # seconds: how long the caller waited
    "refused",  # not acquired; seconds: how long the caller waited
    "waiting",  # joined the waiting line; detail: the holder
    "renewed",  # seconds: how much of the trusted time was left
    "renewed_late",  # the same, but less than a third of the ttl was left
    "renewal_failed",  # the engine did not answer; the keeper tries again until the deadline
    "lost",  # seconds: how long it was held; detail: why
    "released",  # seconds: how long it was held
    "release_delayed",  # the engine did not answer; the keeper keeps sending the release
    "undone",  # the library took back a lease that no caller got
    "delivery_abandoned",  # a release or an undo did not reach the engine and is not tried again; detail: why
    "duplicate",  # `once` found that the work was done before
    "rate_limited",  # a rate limit or a budget refused; seconds: after how long it may allow, if it may
    "fenced",  # a guard refused a write, and that error ended the block of the lease
    "unavailable",  # detail: why
    "abandoned",  # the program dropped a lease without releasing it
    "promise_changed",  # of no lease; detail: weaker, stronger or changed, and what
    "clock_jumped",  # of no lease: the engine's clock; seconds: by how much, forward or (less than 0) back
    "handler_failed",  # the work on a message failed; detail: the message, the attempt and the error
    "dead_lettered",  # a message became a dead letter; detail: why
    "reclaimed",  # of no lease: consumers were declared dead; detail: their number, and the outcome for their messages
    "reclaim_postponed",  # of no lease: the search for dead consumers came much too late, so all of them get more time
    "assigned",  # an owner has a key; seconds: how long ago it claimed the key
    "unassigned",  # an owner gave a key up; seconds: how long it had the key; detail: how it ended
    "expiry_event",  # of no lease: the server reported the end of another consumer; detail: which
    "events_dropped",  # of no lease: a slow reader had no room for events that are only information; detail: how many
    "events_subscribed",  # of no lease: a server reports the ends of consumers now; detail: which server
    "events_missing",  # of no lease: a server does not, so ends are found later; detail: which server, and why
    "setting_changed",  # of no lease: a setting of a server was changed on request; detail: which, and to what
    "engine_restarted",  # of no lease: the engine restarted, or another server answers; it may have forgotten
)

_LEVELS = {
    "renewed_late": logging.WARNING,
    "renewal_failed": logging.WARNING,
    "lost": logging.WARNING,
    "release_delayed": logging.WARNING,
    "delivery_abandoned": logging.WARNING,
    "unavailable": logging.WARNING,
    "fenced": logging.WARNING,
    "abandoned": logging.WARNING,
    "promise_changed": logging.WARNING,
    "clock_jumped": logging.WARNING,
    "engine_restarted": logging.WARNING,
    "handler_failed": logging.WARNING,
    "dead_lettered": logging.WARNING,
    "reclaimed": logging.WARNING,
    "reclaim_postponed": logging.WARNING,
    "events_dropped": logging.WARNING,
    "events_missing": logging.WARNING,
    "setting_changed": logging.WARNING,
}


class Event(NamedTuple):
    """Something that happened to a lease, a message or the engine. `KINDS` explains `seconds` and `detail`."""

    kind: str
    name: str
    fence: int | None = None
    seconds: float | None = None
    detail: str = ""


Observer = Callable[[Event], None]


def emit(
    observer: Observer | None,
    kind: str,
    name: str,
    fence: int | None = None,
    seconds: float | None = None,
    detail: str = "",
    lines: int = 1,
) -> None:
    """Log an event and pass it to the observer. The cost is small if there is no observer and the log level is off.

    `lines`: the number of events that the log line stands for; 0 writes no line.
    """
    if "\0" in name:
        name = readable(name)
    level = _LEVELS.get(kind, logging.DEBUG)
    if lines and log.isEnabledFor(level):
        words = [kind, *([repr(name)] if name else ())]
        words += [f"fence={fence}"] if fence is not None else []
        words += [f"seconds={seconds:.3f}"] if seconds is not None else []
        more = f" (and {lines - 1} more like it)" if lines > 1 else ""
        log.log(level, "holdfast: %s%s%s", " ".join(words), f": {detail}" if detail else "", more)
    if observer is not None:
        try:
            observer(Event(kind, name, fence, seconds, detail))
        except Exception:
            log.exception("the observer failed on %s", kind)
