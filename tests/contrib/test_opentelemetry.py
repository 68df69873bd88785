"""Metrics and spans for OpenTelemetry, through the real SDK."""

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
    """An SDK that keeps metrics and spans in memory."""

    def __init__(self):
        self._reader, self._spans = InMemoryMetricReader(), InMemorySpanExporter()
        self.meters = MeterProvider([self._reader])
        self.traces = TracerProvider()
        self.traces.add_span_processor(SimpleSpanProcessor(self._spans))
        self.tracer = self.traces.get_tracer("test")
        self.observer = OpenTelemetryObserver(meter_provider=self.meters, tracer_provider=self.traces)

    def points(self):
        """Return the data points by name and labels."""
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
        """Return one data point."""
        return self.points()[name, frozenset(labels.items())]

    def spans(self, name):
        """Return the finished spans of this name."""
        return [span for span in self._spans.get_finished_spans() if span.name == name]

    def close(self):
        self.meters.shutdown()
        self.traces.shutdown()


@pytest.fixture
def telemetry():
    """An SDK of this test."""
    telemetry = Telemetry()
    yield telemetry
    telemetry.close()


@pytest.fixture
def clients(telemetry, request):
    """Two clients of one engine; the first is observed."""
    url = f"memory://{request.node.name}"
    with holdfast.connect(url, observer=telemetry.observer) as one, holdfast.connect(url) as other:
        yield one, other


def test_waits_and_holds_are_children_of_the_callers_span(telemetry, clients):
    """A trace shows how long the caller waited for the lease, and how long it held it."""
    hf, _ = clients
    with telemetry.tracer.start_as_current_span("request") as request, hf.lock("orders/42") as lease:
        pass
    (wait,), (hold,) = telemetry.spans("holdfast.wait"), telemetry.spans("holdfast.hold")

    for span in (wait, hold):
        assert span.parent.span_id == request.get_span_context().span_id
        assert dict(span.attributes) == {"holdfast.name": "orders/42", "holdfast.fence": lease.fence}
        assert span.status.status_code is StatusCode.UNSET
    assert wait.start_time <= wait.end_time <= hold.start_time <= hold.end_time


def test_a_loss_on_another_thread_ends_the_span(telemetry, clients):
    """The keeper thread reports the loss; the span is still the caller's child, and has the reason."""
    hf, other = clients
    with telemetry.tracer.start_as_current_span("request") as request:
        lease = hf.lock("orders/42", ttl=0.6).acquire()
    other.break_lease("orders/42", "for the test")
    eventually(lambda: telemetry.spans("holdfast.hold"), what="the end of the span")
    (hold,) = telemetry.spans("holdfast.hold")

    assert hold.parent.span_id == request.get_span_context().span_id
    assert hold.status.status_code is StatusCode.ERROR
    assert "broken for the test" in hold.status.description
    with pytest.raises(LeaseLost):
        lease.release()


def test_a_refused_wait_is_a_failed_span(telemetry, clients):
    """It names the holder, and lasts as long as the timeout."""
    hf, other = clients
    with other.lock("x"), pytest.raises(NotAcquired):
        hf.lock("x").acquire(timeout=0.1)
    (wait,) = telemetry.spans("holdfast.wait")

    assert wait.status.status_code is StatusCode.ERROR
    assert "held by" in wait.status.description
    assert wait.end_time - wait.start_time >= 0.1e9


def test_metrics_are_recorded_by_family(telemetry, clients):
    """OpenTelemetry has the same metrics as Prometheus, in its own naming style."""
    hf, other = clients
    with hf.lock("orders/1", ttl=0.6):
        assert telemetry.point("holdfast.held", family="orders").value == 1
        eventually(lambda: any(name == "holdfast.renewal_margin" for name, _ in telemetry.points()), what="a renewal")
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
    assert 0 < point("holdfast.renewal_margin_least").value < 0.6


def test_every_kind_of_event_is_understood(telemetry):
    """No event may make the observer fail, and every documented metric exists."""
    for kind in KINDS:
        telemetry.observer(Event(kind, "x"))
        telemetry.observer(Event(kind, "x", 1, 0.1, "why"))
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    listed = re.findall(r"\| `(holdfast\.[\w.]+)`", page)

    assert sorted(listed) == sorted({name for name, _ in telemetry.points()})


def test_counters_start_at_zero_and_failed_renewals_count_as_unavailable(telemetry, clients):
    """The rules are those of the Prometheus observer."""
    hf, _ = clients
    with hf.lock("x/1"):
        pass
    assert telemetry.point("holdfast.lost", family="x", reason="expired").value == 0
    assert telemetry.point("holdfast.unavailable", family="x").value == 0

    telemetry.observer(Event("renewal_failed", "x/1", 1))
    assert telemetry.point("holdfast.unavailable", family="x").value == 1
    assert telemetry.point("holdfast.renewal_failed", family="x").value == 1
