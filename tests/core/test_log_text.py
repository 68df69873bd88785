"""Log records, metrics and spans with text of others in them."""

import logging

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest

import holdfast
from holdfast import errors
from holdfast.contrib.opentelemetry import OpenTelemetryObserver
from holdfast.contrib.prometheus import PrometheusObserver
from holdfast.observer import Event, log
from holdfast.testing.conformance.test_text_laws import HOSTILE, is_plain

TEXTS = [*HOSTILE.values(), "x\ud800y"]


@pytest.mark.finding("S11")
@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_a_traceback_in_the_log_begins_no_line_of_its_own(caplog, text):
    """The exception of a handler or an observer may repeat what a stranger sent."""
    try:
        raise ValueError(text)
    except ValueError:
        log.exception("the observer failed on %s", text)

    lines = logging.Formatter("%(message)s").format(caplog.records[-1]).splitlines()
    assert all(is_plain(line) for line in lines)
    assert lines[0].startswith("the observer failed on x")
    assert all(line.startswith("  ") for line in lines[1:])
    assert any("ValueError" in line for line in lines[1:])


@pytest.mark.finding("S11")
@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_every_error_of_the_library_is_one_line(text):
    """Its attributes keep the text as it is; `str` and `repr` are for people."""
    holder = {"holder": text, "fence": 1, "remaining": 1.0}
    with holdfast.connect("memory://") as client:
        promise = client.promise()
    raised = [
        errors.Unavailable("redis", "failed", text),
        errors.NotAcquired(text, **holder),
        errors.NotAcquired(text, queue=text, reason=text),
        errors.LeaseLost(text, 1, "broken", detail=text),
        errors.RateLimited(text, 1.0, 0, 1, trouble=text),
        errors.BudgetExceeded(text, 1, 0, 1, 0.0),
        errors.PayloadMismatch(text),
        errors.Fenced(text, 1, 2),
        errors.NotOwner(text, text),
        errors.NotFound(text, text),
        errors.ItemsLent(text, (text,)),
        errors.NotPermitted(text, text),
        errors.DomainMismatch(text, text, text, text),
        errors.QueueFull(text, 1, 1),
        errors.BuildFailed(text, text, text),
        errors.PartlyDone(text, 1, ((0, 1, ValueError(text)),), 0),
        errors.InvalidName(text, "a rule"),
        errors.InvalidConfig("label", text, "a rule"),
        errors.PromiseNotKept(text, ("fifo",), promise),
        errors.Deadlock(text, 1),
    ]
    raised[3].__cause__ = UnicodeDecodeError("utf-8", b"pay1oad\xff", 7, 8, "invalid start byte")

    assert [error for error in raised if not is_plain(str(error)) or not is_plain(repr(error))] == []
    assert all("x" in str(error) for error in raised)
    assert "pay1oad" not in str(raised[3])
    assert raised[1].name == text
    public = {each for each in errors.HoldfastError.__subclasses__() if each.__module__ == errors.__name__}
    assert {type(error) for error in raised} == public - {errors.Closed}


@pytest.mark.finding("S11")
@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_metrics_and_spans_show_escaped_names(text):
    """A label goes into text formats, dashboards and alerts."""
    registry, spans, provider = CollectorRegistry(), InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    for observe in (PrometheusObserver(registry), OpenTelemetryObserver(tracer_provider=provider)):
        observe(Event("granted", text, 1, 0.1))
        observe(Event("lost", text, 1, 0.1, text))

    page = generate_latest(registry).decode()
    assert [line for line in page.splitlines() if not is_plain(line)] == []
    assert 'reason="other"' in page
    names = [span.attributes["holdfast.name"] for span in spans.get_finished_spans()]
    assert len(names) == 2
    assert all(is_plain(name) for name in names)
