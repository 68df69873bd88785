"""Figures and spans for OpenTelemetry: an observer over the API, whichever SDK and exporter there is behind it.

    hf = holdfast.connect(observer=OpenTelemetryObserver())

A wait is a span, and so is a hold. Both belong to the span in which the lease was asked for, also when the loss is told
on another thread.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from holdfast.contrib.extras import brought_by
from holdfast.contrib.figures import (
    COUNTED,
    DISOWNED,
    ENDS,
    FAMILIES_MAX,
    HOLDS,
    NEWS,
    REASONS,
    SECONDS,
    WAITS,
    Families,
    Held,
    LeastMargin,
    first_part,
    reason_of,
)

with brought_by("opentelemetry", "opentelemetry"):
    from opentelemetry import context, metrics, trace
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.trace import Status, StatusCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider

    from holdfast.observer import Event

_NS = 1_000_000_000
_SCOPE = "holdfast"


class OpenTelemetryObserver:
    """One for a process; several clients may share it. `family` says how names are grouped in figures.

    Spans carry the whole name: there is one for each of them anyway.
    """

    def __init__(
        self,
        *,
        meter_provider: MeterProvider | None = None,
        tracer_provider: TracerProvider | None = None,
        family: Callable[[str], str] = first_part,
        families: int = FAMILIES_MAX,
    ) -> None:
        meter = metrics.get_meter(_SCOPE, meter_provider=meter_provider)
        self._tracer = trace.get_tracer(_SCOPE, tracer_provider=tracer_provider)
        self._families = Families(family, families)
        self._held_leases, self._owned_keys = Held(), Held("assigned", DISOWNED)
        self._least = LeastMargin()
        self._holds: dict[tuple[str, int | None], Span] = {}

        def seconds(name: str, says: str) -> metrics.Histogram:
            bounds = list(SECONDS)
            return meter.create_histogram(name, "s", says, explicit_bucket_boundaries_advisory=bounds)

        self._wait = seconds("holdfast.wait", "How long it took to get a lease, or to give up")
        self._hold = seconds("holdfast.hold", "How long a lease was held")
        self._margin = seconds("holdfast.renewal.margin", "How much trust was left when a lease was renewed")
        self._held = meter.create_up_down_counter("holdfast.held", "{lease}", "Leases that are held now")
        self._owned = meter.create_up_down_counter("holdfast.keys.owned", "{key}", "Keys of queues that are owned now")
        self._lost = meter.create_counter("holdfast.lost", "{lease}", "Leases that were lost while held")
        self._counters = {
            name: meter.create_counter(f"holdfast.{name.replace('_', '.')}", unit, says)
            for name, unit, says in (
                ("contended", "{wait}", "Acquisitions that had to wait for somebody"),
                ("renewed_late", "{renewal}", "Renewals with less than a third of the ttl left"),
                ("renewals_failed", "{renewal}", "Renewals that could not be asked for"),
                ("releases_delayed", "{release}", "Releases not told to the engine at once"),
                ("fenced", "{write}", "Guarded writes that were refused"),
                ("unavailable", "{time}", "Times that the engine could not be used"),
                ("abandoned", "{lease}", "Leases that were dropped without a release"),
                ("given_up", "{end}", "Ends that the engine was not told of"),
                ("duplicate", "{time}", "Work that is to be done once and had been done before"),
                ("rate_limited", "{time}", "Times that a rate or a budget said no"),
                ("messages_failed", "{attempt}", "Attempts at a message that failed here"),
                ("messages_buried", "{message}", "Messages that became dead letters here"),
                ("reapings", "{look}", "Looks of this client that found dead consumers"),
                ("amnesties", "{look}", "Looks for dead consumers that came too late to tell"),
                ("ends_heard", "{end}", "Ends of other owners that the server told of"),
                ("news_dropped", "{time}", "Times that a slow reader had no room for what is only news"),
            )
        }
        self._news = meter.create_counter("holdfast.engine.news", "{time}", "What the engine told of itself")
        for news in NEWS:
            self._news.add(0, {"news": news})
        meter.create_observable_gauge(
            "holdfast.renewal.margin.least", [self._tell_least], "s", "The smallest margin of the last minutes"
        )

    def __call__(self, event: Event) -> None:
        if event.kind in NEWS:
            self._news.add(1, {"news": event.kind})
            return
        labels = {"family": self._families.of(event.name)}
        if self._families.begins(labels["family"]):
            self._begin(labels)
        for name in COUNTED.get(event.kind, ()):
            self._counters[name].add(1, labels)
        if event.seconds is not None:
            self._measure(event, event.seconds, labels)
        if event.kind == "lost":
            self._lost.add(1, {**labels, "reason": reason_of(event)})
        for figure, things in ((self._held, self._held_leases), (self._owned, self._owned_keys)):
            change = things.follow(event)
            if change:
                figure.add(change, labels)
        self._trace(event)

    def _begin(self, labels: dict[str, str]) -> None:
        for counter in self._counters.values():
            counter.add(0, labels)
        for reason in REASONS:
            self._lost.add(0, {**labels, "reason": reason})

    def _measure(self, event: Event, seconds: float, labels: dict[str, str]) -> None:
        if event.kind in WAITS:
            self._wait.record(seconds, {**labels, "outcome": event.kind})
        elif event.kind in HOLDS:
            self._hold.record(seconds, {**labels, "outcome": event.kind})
        elif event.kind in ("renewed", "renewed_late"):
            self._margin.record(seconds, labels)
            self._least.note(seconds)

    def _trace(self, event: Event) -> None:
        now_ns = time.time_ns()
        lease = (event.name, event.fence)
        about: dict[str, str | int] = {"holdfast.name": event.name}
        if event.fence is not None:
            about["holdfast.fence"] = event.fence
        if event.kind in ("granted", "refused"):
            began_ns = now_ns - int((event.seconds or 0) * _NS)
            wait = self._tracer.start_span("holdfast.wait", start_time=began_ns, attributes=about)
            if event.kind == "refused":
                wait.set_status(Status(StatusCode.ERROR, event.detail))
            wait.end(now_ns)
        if event.kind == "granted":
            asked = context.get_current()  # of whoever asked; a loss may be told on another thread
            self._holds[lease] = self._tracer.start_span("holdfast.hold", asked, start_time=now_ns, attributes=about)
        elif event.kind in ENDS:
            hold = self._holds.pop(lease, None)
            if hold is not None:
                if event.kind != "released":
                    hold.set_status(Status(StatusCode.ERROR, f"{event.kind}: {event.detail}".rstrip(": ")))
                hold.end(now_ns)

    def _tell_least(self, _: CallbackOptions) -> Iterable[Observation]:
        least = self._least.value()
        return [] if least != least else [Observation(least)]  # noqa: PLR0124 - NaN: nothing was renewed lately
