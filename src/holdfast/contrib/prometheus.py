"""Metrics for Prometheus: an observer that counts.

    hf = holdfast.connect(observer=PrometheusObserver())

The observer sends nothing by itself: expose its registry as usual, for example with
`prometheus_client.start_http_server`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._lazy import Requires
from holdfast.contrib.metrics import (
    ASSIGNMENT_ENDS,
    COUNTED,
    COUNTERS,
    ENGINE_EVENTS,
    FAMILIES_MAX,
    HOLDS,
    REASONS,
    SECONDS,
    WAITS,
    Families,
    LeastMargin,
    OpenLeases,
    first_part,
    reason_of,
)

with Requires("holdfast[prometheus]", "prometheus_client"):
    from prometheus_client import REGISTRY, Counter, Gauge, Histogram

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client import CollectorRegistry

    from holdfast.observer import Event


class PrometheusObserver:
    """Counts events for Prometheus. Make one per process and registry; several clients may share it.

    `registry`: where the metrics are registered.
    `family`: a function that returns the family of a name; the default is the part before the first slash or colon.
    `families`: the largest number of families; the rest counts as `other`.
    """

    def __init__(
        self,
        registry: CollectorRegistry = REGISTRY,
        *,
        family: Callable[[str], str] = first_part,
        families: int = FAMILIES_MAX,
    ) -> None:
        self._families = Families(family, families)
        self._open_leases, self._open_assignments = OpenLeases(), OpenLeases("assigned", ASSIGNMENT_ENDS)
        self._least = LeastMargin()

        def counter(name: str, description: str, *labels: str) -> Counter:
            return Counter(f"holdfast_{name}", description, ["family", *labels], registry=registry)

        def histogram(name: str, description: str, *labels: str) -> Histogram:
            return Histogram(f"holdfast_{name}", description, ["family", *labels], registry=registry, buckets=SECONDS)

        self._wait = histogram("wait_seconds", "Time from the request for a lease to its grant or refusal", "outcome")
        self._hold = histogram("hold_seconds", "Time that a lease was held", "outcome")
        self._margin = histogram("renewal_margin_seconds", "Trusted time left when a lease was renewed")
        self._lost = counter("lost", "Leases that were lost while held", "reason")
        self._counters = {spec.name: counter(spec.name, spec.description) for spec in COUNTERS}
        self._engine_events = Counter("holdfast_engine_events", "Events of the engine", ["event"], registry=registry)
        for event in ENGINE_EVENTS:
            self._engine_events.labels(event)
        self._held = Gauge("holdfast_held", "Leases that are held now", ["family"], registry=registry)
        self._assignments = Gauge(
            "holdfast_assignments", "Keys of queues that owners of this process have now", ["family"], registry=registry
        )
        least = Gauge(
            "holdfast_renewal_margin_least_seconds",
            "The smallest margin at a renewal in the last five to ten minutes",
            registry=registry,
        )
        least.set_function(self._least.value)

    def __call__(self, event: Event) -> None:
        if event.kind in ENGINE_EVENTS:
            self._engine_events.labels(event.kind).inc()
            return
        family, seconds = self._families.of(event.name), event.seconds
        if self._families.begins(family):
            self._begin(family)
        for name in COUNTED.get(event.kind, ()):
            self._counters[name].labels(family).inc()
        if event.kind in WAITS and seconds is not None:
            self._wait.labels(family, event.kind).observe(seconds)
        elif event.kind in HOLDS and seconds is not None:
            self._hold.labels(family, event.kind).observe(seconds)
        elif event.kind in ("renewed", "renewed_late") and seconds is not None:
            self._margin.labels(family).observe(seconds)
            self._least.add(seconds)
        if event.kind == "lost":
            self._lost.labels(family, reason_of(event)).inc()
        for gauge, leases in ((self._held, self._open_leases), (self._assignments, self._open_assignments)):
            change = leases.follow(event)
            if change:
                gauge.labels(family).inc(change)

    def _begin(self, family: str) -> None:
        for counter in self._counters.values():
            counter.labels(family)
        for reason in REASONS:
            self._lost.labels(family, reason)
