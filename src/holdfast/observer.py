"""One way to watch everything that matters.

An observer is any callable that takes an `Event`. It is called from whichever thread the event happens on and must
return quickly; what it raises is logged and forgotten. Events carry names and figures, never payloads or passwords.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from holdfast.names import readable

log = logging.getLogger("holdfast")
# Where warnings go is for the program to say; without a handler of its own, Python would print them.
log.addHandler(logging.NullHandler())
DEBUG = logging.DEBUG
# Asked before what goes well is told, which nobody may want to hear: by the shortest way.
debugging = log.isEnabledFor

KINDS = (
    "granted",  # seconds: how long it was waited
    "refused",  # not acquired; seconds: how long it was waited
    "waiting",  # joined the queue; detail: who holds
    "renewed",  # seconds: how much trust was left
    "renewed_late",  # the same, but less than a third of the ttl was left
    "renewal_failed",  # the engine could not be asked; it will be, until the deadline
    "lost",  # seconds: how long it was held; detail: why
    "released",  # seconds: how long it was held
    "release_delayed",  # the engine could not be told; the keeper goes on
    "undone",  # what no caller owned was given back
    "delivery_abandoned",  # the engine could not be told of an end, and will not be: what it keeps lapses; detail: why
    "duplicate",  # work that is to be done once had been done before
    "rate_limited",  # a rate or a budget said no; seconds: after how long it may say yes, if it may
    "fenced",  # a guarded write was refused, and the block of its lease ended by that
    "unavailable",  # detail: why
    "abandoned",  # a lease was dropped without a release
    "promise_changed",  # of no lease; detail: weaker, stronger or changed, and what
    "clock_jumped",  # of no lease: the engine's clock; seconds: by how much, forward or (less than 0) back
    "handler_failed",  # the work on a message failed; detail: how, and what becomes of it
    "dead_lettered",  # a message is a dead letter; detail: why
    "reclaimed",  # of no lease: consumers were found dead; detail: how many, and what became of what they had
    "reclaim_postponed",  # of no lease: dead consumers were looked for much too late, so that nobody is taken for dead yet
    "assigned",  # a key is ours; seconds: how long ago that was asked for
    "unassigned",  # a key is not ours any more, as we wanted; seconds: how long it was; detail: how it ended
    "expiry_event",  # of no lease: another consumer's time has ended, as the server tells; detail: whose
    "events_dropped",  # of no lease: a slow reader has no room for what is only news; detail: how many
    "events_subscribed",  # of no lease: a server is listened to that tells of the ends of consumers; detail: which
    "events_missing",  # of no lease: one is not, or tells nothing, so that ends are found later; detail: which, and why
    "setting_changed",  # of no lease: a setting of a server was changed, as was asked for; detail: which, and to what
    "engine_restarted",  # of no lease: another run of the engine, or another server, answers; it may have forgotten
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
    """Something that happened to a lease."""

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
    """Log what happened and hand it to the observer, whose troubles are its own. Nearly free when nobody listens.

    `lines` is how many times the line in the log stands for; 0 leaves it out there.
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
