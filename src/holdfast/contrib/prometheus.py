"""Figures for Prometheus: an observer that counts.

    hf = holdfast.connect(observer=PrometheusObserver())

Nothing is sent by itself: expose the registry as any other, with `prometheus_client.start_http_server` for instance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.contrib.extras import brought_by
from holdfast.contrib.figures import (
    COUNTED,
    DISOWNED,
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

with brought_by("prometheus", "prometheus_client"):
    from prometheus_client import REGISTRY, Counter, Gauge, Histogram

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client import CollectorRegistry

    from holdfast.observer import Event


class PrometheusObserver:
    """One for a process and its registry; several clients may share it. `family` says how names are grouped."""

    def __init__(
        self,
        registry: CollectorRegistry = REGISTRY,
        *,
        family: Callable[[str], str] = first_part,
        families: int = FAMILIES_MAX,
    ) -> None:
        self._families = Families(family, families)
        self._held_leases, self._owned_keys = Held(), Held("assigned", DISOWNED)
        self._least = LeastMargin()

        def counter(name: str, says: str, *labels: str) -> Counter:
            return Counter(f"holdfast_{name}", says, ["family", *labels], registry=registry)

        def histogram(name: str, says: str, *labels: str) -> Histogram:
            return Histogram(f"holdfast_{name}", says, ["family", *labels], registry=registry, buckets=SECONDS)

        self._wait = histogram("wait_seconds", "How long it took to get a lease, or to give up", "outcome")
        self._hold = histogram("hold_seconds", "How long a lease was held", "outcome")
        self._margin = histogram("renewal_margin_seconds", "How much trust was left when a lease was renewed")
        self._lost = counter("lost", "Leases that were lost while held", "reason")
        self._counters = {
            name: counter(name, says)
            for name, says in (
                ("contended", "Acquisitions that had to wait for somebody"),
                ("renewed_late", "Renewals that came when less than a third of the ttl was left"),
                ("renewals_failed", "Renewals that the engine could not be asked for; they are repeated"),
                ("releases_delayed", "Releases that the engine could not be told of at once"),
                ("fenced", "Guarded writes that were refused because a newer holder had written"),
                ("unavailable", "Times that the engine could not be used"),
                ("abandoned", "Leases that were dropped without a release"),
                ("given_up", "Ends that the engine was not told of: what it kept has lapsed"),
                ("duplicate", "Work that is to be done once and had been done before"),
                ("rate_limited", "Times that a rate or a budget said no"),
                ("messages_failed", "Attempts at a message that failed here"),
                ("messages_buried", "Messages that became dead letters here"),
                ("reapings", "Looks of this client that found dead consumers"),
                ("amnesties", "Looks for dead consumers that came so late that nobody was taken for dead"),
                ("ends_heard", "Ends of other owners that the server told of"),
                ("news_dropped", "Times that a slow reader had no room for what is only news"),
            )
        }
        self._news = Counter("holdfast_engine_news", "What the engine told of itself", ["news"], registry=registry)
        for news in NEWS:
            self._news.labels(news)
        self._held = Gauge("holdfast_held", "Leases that are held now", ["family"], registry=registry)
        self._owned = Gauge("holdfast_keys_owned", "Keys of queues that are owned now", ["family"], registry=registry)
        least = Gauge(
            "holdfast_renewal_margin_least_seconds",
            "The smallest margin left at a renewal in the last five to ten minutes",
            registry=registry,
        )
        least.set_function(self._least.value)

    def __call__(self, event: Event) -> None:
        if event.kind in NEWS:
            self._news.labels(event.kind).inc()
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
            self._least.note(seconds)
        if event.kind == "lost":
            self._lost.labels(family, reason_of(event)).inc()
        for gauge, things in ((self._held, self._held_leases), (self._owned, self._owned_keys)):
            change = things.follow(event)
            if change:
                gauge.labels(family).inc(change)

    def _begin(self, family: str) -> None:
        for counter in self._counters.values():
            counter.labels(family)
        for reason in REASONS:
            self._lost.labels(family, reason)
