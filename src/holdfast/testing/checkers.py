"""Checkers: pure functions from the events of a history to the violations of an invariant.

A checker reports a violation only if no possible order of the events explains the history. An event took effect at some
moment between `earliest_ns` and `at_ns`; one event comes before another only if it was over before the other could
begin. A worker is identified by its label and its pid.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from holdfast.testing.hold_spans import hold_spans_by_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from holdfast.testing.history import HistoryEvent

    Checker = Callable[[Sequence[HistoryEvent]], list["Violation"]]


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken invariant: its checker, one sentence, and the smallest part of the history that shows it."""

    checker: str
    sentence: str
    events: tuple[HistoryEvent, ...]

    def __str__(self) -> str:
        zero_ns = min((event.at_ns for event in self.events), default=0)
        return "\n".join(
            [
                f"{self.checker}: {self.sentence}",
                *(f"    {_describe(event, zero_ns)}" for event in self.events),
            ]
        )


def overlapping_holders(events: Sequence[HistoryEvent]) -> list[Violation]:
    """Find two workers that believed they held the same name at the same instant.

    `events`: a history, from `read_history`.
    A worker holds a name from `granted` to the first of `released`, `lost`, `died` and the last known `until_ns`.
    """
    violations = []
    for name, spans in hold_spans_by_name(events).items():
        longest = spans[0]
        for span in spans[1:]:
            if span.start_ns < longest.end_ns:
                sentence = f"{_shown(span.opened)} holds {name!r} while {_shown(longest.opened)} still holds it"
                violations.append(_violation("overlapping_holders", sentence, (*longest.events, span.opened)))
            longest = max(longest, span, key=lambda one: one.end_ns)
    return violations


def fences_grow(events: Sequence[HistoryEvent]) -> list[Violation]:
    """Find fences that were granted twice, and later grants with a lower fence, for each name.

    `events`: a history, from `read_history`.
    A repeated answer with the same token and the same fence is no new grant.
    """
    violations = []
    for name, grants in _by_name(events, "granted").items():
        fresh = _without_repeats(grants)
        for first, second in _pairs(fresh, lambda grant: grant.fence):
            sentence = f"fence {first.fence} of {name!r} was given to {_shown(first)} and to {_shown(second)}"
            violations.append(_violation("fences_grow", sentence, (first, second)))
        for before, after in _falls(fresh, _fence):
            sentence = f"{name!r} was granted with fence {after.fence} after fence {before.fence}"
            violations.append(_violation("fences_grow", sentence, (before, after)))
    return violations


def guarded_writes_never_go_down(events: Sequence[HistoryEvent]) -> list[Violation]:
    """Find writes that a guarded resource accepted with a lower fence than before, or with a second token per fence.

    `events`: a history, from `read_history`.
    """
    violations = []
    for name, writes in _by_name(events, "write").items():
        accepted = [write for write in writes if write.accepted and write.fence is not None]
        first_of_token = {(write.fence, write.token): write for write in reversed(accepted)}
        for first, second in _pairs(list(first_of_token.values()), lambda write: write.fence):
            sentence = f"{name!r} accepted fence {first.fence} from two tokens"
            violations.append(_violation("guarded_writes_never_go_down", sentence, (first, second)))
        for before, after in _falls(accepted, _fence):
            sentence = f"{name!r} accepted fence {after.fence} after fence {before.fence}"
            violations.append(_violation("guarded_writes_never_go_down", sentence, (before, after)))
    return violations


def lost_updates(events: Sequence[HistoryEvent], final: Mapping[str, int] | None = None) -> list[Violation]:
    """Find accepted writes of a counter that did not add exactly one to the value before them.

    `events`: a history, from `read_history`.
    `final`: the value of each counter at the end; counters begin at 0. The checker compares it with the number of
    acknowledged writes. A worker that died may have written once without recording it.
    """
    deaths = sum(event.kind == "died" for event in events)
    violations: list[Violation] = []
    for name, writes in _by_name(events, "write").items():
        counted = [write for write in writes if write.accepted and write.value is not None]
        violations += _lost(name, counted, deaths)
        if final is not None and name in final:
            violations += _miscounted(name, len(counted), final[name], deaths)
    return violations


def lost_appends(events: Sequence[HistoryEvent], final: Mapping[str, Sequence[int]]) -> list[Violation]:
    """Find acknowledged appends that are not in the list at the end exactly once.

    `events`: a history, from `read_history`.
    `final`: the elements of each list at the end. An append is an accepted `write` whose `value` is the element. A
    worker that died, or whose answer was lost, may have appended without recording it.
    """
    violations = []
    for name, writes in _by_name(events, "write").items():
        if name not in final:
            continue
        appended = [write for write in writes if write.accepted and write.value is not None]
        times = Counter(final[name])
        for place, write in enumerate(appended):
            if times[_value(write)] != 1:
                what = "is missing" if not times[_value(write)] else "is there more than once"
                sentence = f"{_shown(write)} appended {write.value} to {name!r}, and it {what}"
                violations.append(_violation("lost_appends", sentence, appended[place : place + 2]))
    return violations


def observers_see_fences_grow(events: Sequence[HistoryEvent]) -> list[Violation]:
    """Find observers that saw a leader with an older fence after a newer one had been seen.

    `events`: a history, from `read_history`.
    """
    violations = []
    for name, observations in _by_name(events, "observed").items():
        seen = [observation for observation in observations if observation.fence is not None]
        for before, after in _falls(seen, _fence):
            sentence = f"{_shown(after)} saw fence {after.fence} of {name!r} after {before.fence} had been seen"
            violations.append(_violation("observers_see_fences_grow", sentence, (before, after)))
    return violations


def leaks(events: Sequence[HistoryEvent]) -> list[Violation]:
    """Find threads, descriptors and keys without expiry that were left after a close (`leaked` events)."""
    return [
        _violation("leaks", f"{_shown(event)} left {event.detail}", (event,))
        for event in events
        if event.kind == "leaked" and event.value
    ]


ALL: tuple[Checker, ...] = (
    overlapping_holders,
    fences_grow,
    guarded_writes_never_go_down,
    lost_updates,
    observers_see_fences_grow,
    leaks,
)


def check(events: Sequence[HistoryEvent], *checkers: Checker) -> list[Violation]:
    """Return the violations that these checkers find in a history; without checkers, those of `ALL`.

    `events`: a history, from `read_history`.
    """
    return [violation for checker in checkers or ALL for violation in checker(events)]


def assert_holds(events: Sequence[HistoryEvent], *checkers: Checker) -> None:
    """Raise `AssertionError` with a readable report if a checker finds a violation in a history.

    `events`: a history, from `read_history`.
    `checkers`: functions such as `fences_grow`; without any, all of them.
    """
    violations = check(events, *checkers)
    if violations:
        heading = f"{len(violations)} broken in a history of {len(events)} events"
        raise AssertionError("\n\n".join([heading, *map(str, violations)]))


def _lost(name: str, writes: list[HistoryEvent], deaths: int) -> Iterator[Violation]:
    for first, second in _pairs(writes, lambda write: write.value):
        sentence = f"{_shown(first)} and {_shown(second)} both made {name!r} {first.value}: one update is lost"
        yield _violation("lost_updates", sentence, (first, second))
    for before, after in _falls(writes, _value):
        sentence = f"{name!r} became {after.value} after it had been {before.value}"
        yield _violation("lost_updates", sentence, (before, after))

    steps = {_value(write): write for write in writes}
    values = sorted(steps)
    gaps = [(low, high) for low, high in pairwise(values) if high > low + 1]
    if sum(high - low - 1 for low, high in gaps) > deaths:
        low, high = gaps[0]
        sentence = f"{name!r} went from {low} to {high}, and no worker recorded a write between"
        yield _violation("lost_updates", sentence, (steps[low], steps[high]))


def _miscounted(name: str, acknowledged: int, final: int, deaths: int) -> Iterator[Violation]:
    if not acknowledged <= final <= acknowledged + deaths:
        sentence = f"{name!r} ended at {final}, with {acknowledged} acknowledged writes and {deaths} deaths"
        yield _violation("lost_updates", sentence, ())


def _by_name(events: Sequence[HistoryEvent], kind: str) -> dict[str, list[HistoryEvent]]:
    named: dict[str, list[HistoryEvent]] = defaultdict(list)
    for event in sorted(events, key=lambda event: event.at_ns):
        if event.kind == kind:
            named[event.name].append(event)
    return named


def _without_repeats(grants: list[HistoryEvent]) -> list[HistoryEvent]:
    seen = set()
    fresh = []
    for grant in grants:
        # Without a token, a repeated answer looks like a second grant.
        again = grant.token is not None and (grant.token, grant.fence) in seen
        if grant.fence is not None and not again:
            fresh.append(grant)
        seen.add((grant.token, grant.fence))
    return fresh


def _pairs(
    events: list[HistoryEvent], number: Callable[[HistoryEvent], int | None]
) -> Iterator[tuple[HistoryEvent, HistoryEvent]]:
    """Yield pairs of events with the same number: the first event with that number, and each later one."""
    first: dict[int | None, HistoryEvent] = {}
    for event in sorted(events, key=lambda event: event.at_ns):
        if first.setdefault(number(event), event) is not event:
            yield first[number(event)], event


def _falls(
    events: list[HistoryEvent], number: Callable[[HistoryEvent], int]
) -> Iterator[tuple[HistoryEvent, HistoryEvent]]:
    """Yield pairs of events: the second began after the first was over, and has a lower number."""
    over = sorted(events, key=lambda event: event.at_ns)
    highest: HistoryEvent | None = None
    done = 0
    for event in sorted(events, key=lambda event: event.earliest_ns):
        while over[done].at_ns < event.earliest_ns:
            highest = over[done] if highest is None else max(highest, over[done], key=number)
            done += 1
        if highest is not None and number(highest) > number(event):
            yield highest, event


def _fence(event: HistoryEvent) -> int:
    assert event.fence is not None
    return event.fence


def _value(event: HistoryEvent) -> int:
    assert event.value is not None
    return event.value


def _violation(checker: str, sentence: str, events: Sequence[HistoryEvent]) -> Violation:
    return Violation(checker, sentence, tuple(sorted(events, key=lambda event: event.at_ns)))


def _shown(event: HistoryEvent) -> str:
    return f"{event.worker} (pid {event.pid})"


def _describe(event: HistoryEvent, zero_ns: int) -> str:
    """Return one line for people, with times in milliseconds since the first event shown."""

    def moment(ns: int) -> str:
        return f"{(ns - zero_ns) / 1e6:+.3f} ms"

    facts = {
        "fence": event.fence,
        "token": event.token,
        "value": event.value,
        "accepted": event.accepted,
        "since": None if event.since_ns is None else moment(event.since_ns),
        "until": None if event.until_ns is None else moment(event.until_ns),
        "detail": event.detail,
    }
    details = " ".join(f"{key}={fact}" for key, fact in facts.items() if fact is not None)
    return f"{moment(event.at_ns):>14}  {_shown(event)}  {event.kind} {event.name!r} {details}".rstrip()
