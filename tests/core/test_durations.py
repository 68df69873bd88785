"""Durations: text on the command line and in URLs, numbers and timedelta in Python."""

import inspect
from datetime import timedelta

import pytest

import holdfast
from holdfast.clock import parsed_seconds
from holdfast.errors import InvalidConfig


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30), ("5m", 300), ("1h", 3600), ("250ms", 0.25), ("7d", 604800), ("1h30m", 5400), ("1.5s", 1.5),
        (".5s", 0.5), ("30", 30), ("0", 0), ("0.25", 0.25),
    ],
)  # fmt: skip
def test_a_duration_as_text_is_read(text, seconds):
    """People write 5m; a bare number stays seconds, as in every older crontab."""
    assert parsed_seconds(text, setting="ttl") == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "5 m", "5x", "m5", "-5s", "-5", "5s5", "nan", "inf", "1e400", "1:30", "5S"])
def test_a_bad_duration_gets_an_error_with_an_example(text):
    """The error names the setting and the text, and shows how to write it."""
    with pytest.raises(InvalidConfig) as caught:
        parsed_seconds(text, setting="ttl")
    assert f"ttl={text!r} is refused" in str(caught.value)
    assert "30s, 250ms, 5m" in str(caught.value)


def durations(method):
    """Return the parameters of a function that take a length of time."""
    return [name for name, each in inspect.signature(method).parameters.items() if "Seconds" in str(each.annotation)]


def test_every_duration_of_the_api_takes_a_timedelta():
    """Seconds and timedelta mean the same everywhere."""
    second = timedelta(seconds=1)
    with holdfast.connect("memory://durations", fence_memory=timedelta(minutes=1)) as hf:
        for made in (hf.lock("a", second, second), hf.semaphore("c", 1, second, second), hf.rwlock("d", second).read()):
            made.acquire(timeout=second).release()
        with hf.leader("b", second, second) as term:
            assert term.remaining() <= 1
        pool = hf.pool("e", second, second, cool=second, on_death=second)
        pool.set_items(["x"])
        pool.cool("x", timedelta())
        item = pool.borrow(timeout=second)
        item.extend(second)
        item.cool(second)
        assert hf.once("f", window=second, lease=second).call("k", lambda: 1, timeout=second) == 1
        assert hf.budget("g", 1, second, hold=second).reserve("k", 1).settle(1) is None
        assert hf.limit("1/second").wait("k", timeout=second).allowed
        backoff = holdfast.Backoff(second, most=timedelta(minutes=1))
        queue = hf.queue("h", ttl=second, grace=second, dedup_window=second, backoff=backoff)
        queue.publish(1, delay=timedelta(), timeout=second)
        with queue.consumer() as consumer:
            (message,) = consumer.receive(1, timeout=second)
            message.retry(delay=second)
        with hf.registry("i", ttl=second).claim("k"):
            assert hf.registry("i").owner("k") is not None
        assert hf.close(second) == ()


def test_no_duration_of_the_api_is_a_plain_number():
    """A parameter whose name is that of a duration takes a timedelta too."""
    names = {"ttl", "timeout", "window", "lease", "hold", "period", "grace", "delay", "interval", "within", "cool"}
    kinds = [holdfast.Holdfast, holdfast.Lock, holdfast.Queue, holdfast.Pool, holdfast.Registry, holdfast.Once]
    methods = [
        method
        for kind in kinds
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    ]
    wrong = [
        (method.__qualname__, name)
        for method in methods
        for name in names & set(inspect.signature(method).parameters) - set(durations(method))
    ]
    assert wrong == []
    assert len(methods) > 30
