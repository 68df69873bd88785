"""Events: one way to observe everything that matters, for logs, metrics and traces.

An observer is any callable that takes an `Event`. For an event of a call, the library calls the observer on the
caller's thread, so the observer should return quickly; for an event of the keeper, on a thread of its own. The library
logs and drops an exception that the observer raises; an interruption (`SystemExit`, `KeyboardInterrupt`) reaches the
caller, if there is one. Events carry names and numbers, never payloads or passwords. `name` is the name as the
program chose it; `detail` is one line for people.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

from holdfast.clock import NS
from holdfast.errors import InvalidConfig
from holdfast.names import readable
from holdfast.text import plain

# During an outage, the log gets one WARNING in this time.
_WARN_EVERY_NS = 60 * NS
# An outage is over if commands succeed and none has failed for this long: one of several servers may fail alone.
_QUIET_NS = 2 * NS
# Failures that repeat for as long as an outage lasts.
REPEATED = frozenset(("unavailable", "renewal_failed", "release_delayed"))

log = logging.getLogger("holdfast")


def _escape(record: logging.LogRecord) -> bool:
    """Escape the text of a log record: a name or an error of others must not begin a line or command a terminal."""
    message = record.getMessage()
    if not message.isprintable():
        record.msg, record.args = plain(message), None
    if record.exc_info and not record.exc_text:
        # A traceback has lines of its own; the indentation shows that they belong to this record.
        lines = "".join(traceback.format_exception(*record.exc_info)).splitlines()
        record.exc_text = "\n".join(f"  {plain(line)}" for line in lines)
    return True


log.addFilter(_escape)
# The program decides where warnings go; without a handler on this logger, Python would print them.
log.addHandler(logging.NullHandler())
DEBUG = logging.DEBUG
_COROUTINE = 0x80  # inspect.CO_COROUTINE, without the slow import
# Callers check this before they emit an event about success, which most programs ignore. An alias is the quickest call.
debugging = log.isEnabledFor

# "Of no lease": the event is about the engine or a queue, and `name` is not the name of a lease.
KINDS = (
    "granted",  # seconds: how long the caller waited
    "refused",  # not acquired; seconds: how long the caller waited
    "skipped",  # a decorated function did not run, because its lock was held; seconds: how long the caller waited
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
    "events_dropped",  # of no lease: an owner's slow reader or a blocked observer had no room; detail: how many
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


class Observers:
    """Several observers side by side: the failure of one does not affect the others."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)

    def __call__(self, event: Event) -> None:
        for observer in self._observers:
            try:
                observer(event)
            except Exception:
                log.exception("the observer %r failed on %s", observer, event.kind)


def checked_observer(value: Observer | Sequence[Observer] | None) -> Observer | None:
    """Return the one callable that receives the events; raise `InvalidConfig` for anything that cannot."""
    if value is None:
        return None
    observers: Sequence[Any] = value if isinstance(value, list | tuple) else [value]
    for observer in observers or [value]:
        if not callable(observer):
            raise InvalidConfig("observer", value, "it must be callable with an Event, or a list of such functions")
        if getattr(getattr(observer, "__code__", None), "co_flags", 0) & _COROUTINE:
            raise InvalidConfig("observer", value, "it must be a plain function, because it is called and not awaited")
    return Observers(observers) if len(observers) > 1 else cast("Observer", observers[0])


def level_of(kind: str, count: int = 1) -> int:
    """Return the log level of an event."""
    return _LEVELS.get(kind, logging.DEBUG) if count else logging.DEBUG


def emit(
    observer: Observer | None,
    kind: str,
    name: str,
    fence: int | None = None,
    seconds: float | None = None,
    detail: str = "",
    count: int = 1,
) -> None:
    """Log an event and pass it to the observer. The cost is small if there is no observer and the log level is off.

    `count`: how many events the log line reports; 0 logs the event at DEBUG, because the log already has a WARNING
    about this outage.
    """
    if "\0" in name:
        name = readable(name)
    if detail:
        detail = plain(detail)
    try:
        level = level_of(kind, count)
        if log.isEnabledFor(level):
            words = [kind, *([repr(name)] if name else ())]
            words += [f"fence={fence}"] if fence is not None else []
            words += [f"seconds={seconds:.3f}"] if seconds is not None else []
            more = f" (and {count - 1} more like it)" if count > 1 else ""
            log.log(level, "holdfast: %s%s%s", " ".join(words), f": {detail}" if detail else "", more)
    finally:  # also if a logging handler raises
        if observer is not None:
            try:
                observer(Event(kind, name, fence, seconds, detail))
            except Exception:
                log.exception("the observer failed on %s", kind)


class _Outage:
    __slots__ = ("failures", "last_ns", "left_out", "logged_ns", "since_ns")

    def __init__(self, now_ns: int) -> None:
        self.since_ns = self.logged_ns = self.last_ns = now_ns
        self.failures = self.left_out = 0


class OutageLog:
    """Decides which failures of an outage become a WARNING: the first, and one a minute with the number left out.

    A client may hold thousands of leases or count thousands of hits, and each of them fails again and again. The
    observer still gets every event, and the log has every event at DEBUG.
    """

    def __init__(self) -> None:
        self.open: dict[str, _Outage] = {}  # by the kind of the event

    def count(self, kind: str, now_ns: int) -> int:
        """Count a failure; return how many failures its WARNING stands for; 0: log it at DEBUG."""
        outage = self.open.get(kind)
        if outage is None:
            outage = self.open[kind] = _Outage(now_ns)
            count = 1
        else:
            count = outage.left_out + 1 if now_ns - outage.logged_ns >= _WARN_EVERY_NS else 0
        outage.failures += 1
        outage.last_ns = now_ns
        outage.left_out = 0 if count else outage.left_out + 1
        outage.logged_ns = now_ns if count else outage.logged_ns
        return count

    def over(self, now_ns: int) -> list[str]:
        """After a success, return one line for each kind of failure that has not occurred for a while."""
        ended = [kind for kind, outage in self.open.copy().items() if now_ns - outage.last_ns >= _QUIET_NS]
        gone = [(kind, self.open.pop(kind, None)) for kind in ended]
        return [
            f"holdfast: {kind}: over after {(was.last_ns - was.since_ns) / NS:.1f} s and {was.failures} failures"
            for kind, was in gone
            if was is not None
        ]
