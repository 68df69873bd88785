"""Metrics and traces for OpenTelemetry: an observer that uses the API, with any SDK and exporter behind it.

    hf = holdfast.connect(observer=OpenTelemetryObserver())

A wait is a span, and so is a hold. The parent of both is the span in which the program requested the lease, also when
another thread reports the loss.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from holdfast._lazy import Requires
from holdfast.contrib.metrics import (
    ASSIGNMENT_ENDS,
    COUNTED,
    COUNTERS,
    ENGINE_EVENTS,
    FAMILIES_MAX,
    HOLDS,
    LEASE_ENDS,
    REASONS,
    SECONDS,
    WAITS,
    Families,
    LeastMargin,
    OpenLeases,
    first_part,
    reason_of,
)
from holdfast.text import plain

with Requires("holdfast[opentelemetry]", "opentelemetry"):
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
    """Counts and traces events for OpenTelemetry. Make one per process; several clients may share it.

    `meter_provider`, `tracer_provider`: the providers to use; the default is the global ones.
    `family`: a function that returns the family of a name; the default is the part before the first slash or colon.
    `families`: the largest number of families; the rest counts as `other`.

    Metrics have the family of a name. Spans have the whole name: there is one span for each lease anyway.
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
        self._open_leases, self._open_assignments = OpenLeases(), OpenLeases("assigned", ASSIGNMENT_ENDS)
        self._least = LeastMargin()
        self._holds: dict[tuple[str, int | None], Span] = {}

        def histogram(name: str, description: str) -> metrics.Histogram:
            bounds = list(SECONDS)
            return meter.create_histogram(name, "s", description, explicit_bucket_boundaries_advisory=bounds)

        self._wait = histogram("holdfast.wait", "Time from the request for a lease to its grant or refusal")
        self._hold = histogram("holdfast.hold", "Time that a lease was held")
        self._margin = histogram("holdfast.renewal_margin", "Trusted time left when a lease was renewed")
        self._held = meter.create_up_down_counter("holdfast.held", "{lease}", "Leases that are held now")
        self._assignments = meter.create_up_down_counter(
            "holdfast.assignments", "{key}", "Keys of queues that owners of this process have now"
        )
        self._lost = meter.create_counter("holdfast.lost", "{lease}", "Leases that were lost while held")
        self._counters = {
            spec.name: meter.create_counter(f"holdfast.{spec.name}", spec.unit, spec.description) for spec in COUNTERS
        }
        self._engine_events = meter.create_counter("holdfast.engine_events", "{event}", "Events of the engine")
        for event in ENGINE_EVENTS:
            self._engine_events.add(0, {"event": event})
        meter.create_observable_gauge(
            "holdfast.renewal_margin_least", [self._observe_least], "s", "The smallest margin of the last minutes"
        )

    def __call__(self, event: Event) -> None:
        if event.kind in ENGINE_EVENTS:
            self._engine_events.add(1, {"event": event.kind})
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
        for counter, leases in ((self._held, self._open_leases), (self._assignments, self._open_assignments)):
            change = leases.follow(event)
            if change:
                counter.add(change, labels)
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
            self._least.add(seconds)

    def _trace(self, event: Event) -> None:
        now_ns = time.time_ns()
        lease = (event.name, event.fence)
        attributes: dict[str, str | int] = {"holdfast.name": plain(event.name)}
        if event.fence is not None:
            attributes["holdfast.fence"] = event.fence
        if event.kind in ("granted", "refused"):
            began_ns = now_ns - int((event.seconds or 0) * _NS)
            wait = self._tracer.start_span("holdfast.wait", start_time=began_ns, attributes=attributes)
            if event.kind == "refused":
                wait.set_status(Status(StatusCode.ERROR, event.detail))
            wait.end(now_ns)
        if event.kind == "granted":
            caller = context.get_current()  # another thread may report the loss
            self._holds[lease] = self._tracer.start_span(
                "holdfast.hold", caller, start_time=now_ns, attributes=attributes
            )
        elif event.kind in LEASE_ENDS:
            hold = self._holds.pop(lease, None)
            if hold is not None:
                if event.kind != "released":
                    hold.set_status(Status(StatusCode.ERROR, f"{event.kind}: {event.detail}".rstrip(": ")))
                hold.end(now_ns)

    def _observe_least(self, _: CallbackOptions) -> Iterable[Observation]:
        least = self._least.value()
        return [] if least != least else [Observation(least)]  # noqa: PLR0124 - NaN: no recent renewal
