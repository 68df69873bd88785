"""Figures and spans for OpenTelemetry, through the real SDK."""

import re
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

import holdfast
from holdfast import Event, LeaseLost, NotAcquired
from holdfast.contrib.opentelemetry import OpenTelemetryObserver
from holdfast.observer import KINDS
from holdfast.testing import eventually

ROOT = Path(__file__).resolve().parents[2]


class Telemetry:
    """An SDK that keeps what it is told."""

    def __init__(self):
        self._reader, self._spans = InMemoryMetricReader(), InMemorySpanExporter()
        self.meters = MeterProvider([self._reader])
        self.traces = TracerProvider()
        self.traces.add_span_processor(SimpleSpanProcessor(self._spans))
        self.tracer = self.traces.get_tracer("test")
        self.observer = OpenTelemetryObserver(meter_provider=self.meters, tracer_provider=self.traces)

    def points(self):
        """Data point by name and labels."""
        data = self._reader.get_metrics_data()
        found = [
            (metric.name, point)
            for resource in (data.resource_metrics if data else [])
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
        ]
        return {(name, frozenset(point.attributes.items())): point for name, point in found}

    def point(self, name, **labels):
        return self.points()[name, frozenset(labels.items())]

    def spans(self, name):
        return [span for span in self._spans.get_finished_spans() if span.name == name]

    def close(self):
        self.meters.shutdown()
        self.traces.shutdown()


@pytest.fixture
def telemetry():
    telemetry = Telemetry()
    yield telemetry
    telemetry.close()


@pytest.fixture
def clients(telemetry, request):
    url = f"memory://{request.node.name}"
    with holdfast.connect(url, observer=telemetry.observer) as one, holdfast.connect(url) as other:
        yield one, other


def test_waits_and_holds_are_spans_of_whoever_asked(telemetry, clients):
    """A trace shows where the time went: waiting for the lease, then holding it."""
    hf, _ = clients
    with telemetry.tracer.start_as_current_span("request") as request, hf.lock("orders/42") as lease:
        pass
    (wait,), (hold,) = telemetry.spans("holdfast.wait"), telemetry.spans("holdfast.hold")

    for span in (wait, hold):
        assert span.parent.span_id == request.get_span_context().span_id
        assert dict(span.attributes) == {"holdfast.name": "orders/42", "holdfast.fence": lease.fence}
        assert span.status.status_code is StatusCode.UNSET
    assert wait.start_time <= wait.end_time <= hold.start_time <= hold.end_time


def test_a_loss_ends_the_span_though_another_thread_tells_it(telemetry, clients):
    """The keeper hears of it; the span is still the caller's, and says why."""
    hf, other = clients
    with telemetry.tracer.start_as_current_span("request") as request:
        lease = hf.lock("orders/42", ttl=0.6).acquire()
    other.break_lease("orders/42", "for the test")
    eventually(lambda: telemetry.spans("holdfast.hold"), what="an end of the span")
    (hold,) = telemetry.spans("holdfast.hold")

    assert hold.parent.span_id == request.get_span_context().span_id
    assert hold.status.status_code is StatusCode.ERROR
    assert "broken for the test" in hold.status.description
    with pytest.raises(LeaseLost):
        lease.release()


def test_a_wait_in_vain_is_a_failed_span(telemetry, clients):
    """It names the holder, and lasted as long as the patience did."""
    hf, other = clients
    with other.lock("x"), pytest.raises(NotAcquired):
        hf.lock("x").acquire(timeout=0.1)
    (wait,) = telemetry.spans("holdfast.wait")

    assert wait.status.status_code is StatusCode.ERROR
    assert "held by" in wait.status.description
    assert wait.end_time - wait.start_time >= 0.1e9


def test_figures_are_recorded_by_family(telemetry, clients):
    """The same figures as for Prometheus, under OpenTelemetry's names."""
    hf, other = clients
    with hf.lock("orders/1", ttl=0.6):
        assert telemetry.point("holdfast.held", family="orders").value == 1
        eventually(lambda: any(name == "holdfast.renewal.margin" for name, _ in telemetry.points()), what="a renewal")
    with pytest.raises(LeaseLost), hf.lock("orders/2"):
        other.break_lease("orders/2", "for the test")
    with other.lock("orders/3"), pytest.raises(NotAcquired):
        hf.lock("orders/3").acquire(timeout=0.05)

    point = telemetry.point
    assert point("holdfast.wait", family="orders", outcome="granted").count == 2
    assert point("holdfast.wait", family="orders", outcome="refused").sum >= 0.05
    assert point("holdfast.hold", family="orders", outcome="released").count == 1
    assert point("holdfast.lost", family="orders", reason="broken").value == 1
    assert point("holdfast.contended", family="orders").value == 1
    assert point("holdfast.held", family="orders").value == 0
    assert 0 < point("holdfast.renewal.margin.least").value < 0.6


def test_every_kind_of_event_is_understood(telemetry):
    """A figure must never be why an observer fails; and each that is documented exists."""
    for kind in KINDS:
        telemetry.observer(Event(kind, "x"))
        telemetry.observer(Event(kind, "x", 1, 0.1, "why"))
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    listed = re.findall(r"\| `(holdfast\.[\w.]+)`", page)

    assert sorted(listed) == sorted({name for name, _ in telemetry.points()})


def test_counts_begin_at_zero_and_failed_renewals_are_an_outage(telemetry, clients):
    """The same figures as for Prometheus, by the same rules."""
    hf, _ = clients
    with hf.lock("x/1"):
        pass
    assert telemetry.point("holdfast.lost", family="x", reason="expired").value == 0
    assert telemetry.point("holdfast.unavailable", family="x").value == 0

    telemetry.observer(Event("renewal_failed", "x/1", 1))
    assert telemetry.point("holdfast.unavailable", family="x").value == 1
    assert telemetry.point("holdfast.renewals.failed", family="x").value == 1
