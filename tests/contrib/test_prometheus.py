"""Metrics for Prometheus: from real leases, through the real client library, by a real scrape."""

import asyncio
import gc
import json
import re
import threading
import urllib.request
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.parser import text_string_to_metric_families

import holdfast
import holdfast.aio
from holdfast import BudgetExceeded, Event, Fenced, LeaseLost, NotAcquired, Unavailable
from holdfast.commands.queue import ACK, Join, MessageOutcome, RecordOutcomes
from holdfast.contrib.metrics import OTHER, LeastMargin
from holdfast.contrib.prometheus import PrometheusObserver
from holdfast.core.step import run
from holdfast.observer import KINDS
from holdfast.testing import GuardedFile, eventually
from holdfast.testing.servers import Server, available

ROOT = Path(__file__).resolve().parents[2]


class Scraped:
    """An observer with its own registry, and the scrape of it."""

    def __init__(self, **options):
        self.registry = CollectorRegistry()
        self.observer = PrometheusObserver(self.registry, **options)
        self._page = partial(generate_latest, self.registry)

    @contextmanager
    def served(self):
        """Scrape over HTTP inside the block."""
        server, thread = start_http_server(0, "127.0.0.1", self.registry)
        self._page = partial(fetched, f"http://127.0.0.1:{server.server_address[1]}/metrics")
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def scrape(self):
        """Return the values by name and labels."""
        families = list(text_string_to_metric_families(self._page().decode()))
        return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}

    def value(self, name, **labels):
        """Return one value, or `None`."""
        return self.scrape().get((name, frozenset(labels.items())))


def fetched(url):
    """Return the body of the page."""
    with urllib.request.urlopen(url, timeout=10) as page:
        return page.read()


@pytest.fixture
def scraped():
    """An observer of this test."""
    return Scraped()


@pytest.fixture
def url(request):
    """A memory engine of this test."""
    return f"memory://{request.node.name}"


def exercise(observer, url):
    """Let leases be waited for, refused, renewed, released and lost, and meet an unreachable engine."""
    with holdfast.connect(url, observer=observer) as hf, holdfast.connect(url, observer=observer) as other:
        renewed = threading.Event()
        hf._client.keeper.reporter.observer = lambda event: (observer(event), event.kind == "renewed" and renewed.set())
        with hf.lock("orders/1", ttl=0.6):
            with pytest.raises(NotAcquired):
                other.lock("orders/1").acquire(timeout=0.05)
            assert renewed.wait(10)
        with pytest.raises(LeaseLost), hf.lock("orders:2"):
            other.break_lease("orders:2", "for the test")
        with hf.lock("reports"):
            pass
    unreachable = holdfast.connect("redis://127.0.0.1:1", observer=observer)
    with pytest.raises(Unavailable):
        unreachable.lock("reports").acquire(timeout=0)
    unreachable.close(0)


def test_events_of_leases_are_counted_and_scraped(scraped, url):
    """Waits, holds, contention, losses, margins and failures count under the family of the name."""
    exercise(scraped.observer, url)

    with scraped.served():
        assert_counted(scraped.value)


def assert_counted(value):
    """Check the metrics of `exercise`."""
    assert value("holdfast_wait_seconds_count", family="orders", outcome="granted") == 2
    assert value("holdfast_wait_seconds_count", family="orders", outcome="refused") == 1
    assert value("holdfast_wait_seconds_sum", family="orders", outcome="refused") >= 0.05
    assert value("holdfast_hold_seconds_count", family="orders", outcome="released") == 1
    assert value("holdfast_hold_seconds_sum", family="orders", outcome="released") > 0.1
    assert value("holdfast_hold_seconds_count", family="orders", outcome="lost") == 1
    assert value("holdfast_contended_total", family="orders") == 1
    assert value("holdfast_lost_total", family="orders", reason="broken") == 1
    assert value("holdfast_renewal_margin_seconds_count", family="orders") >= 1
    assert 0 < value("holdfast_renewal_margin_least_seconds") < 0.6
    assert value("holdfast_unavailable_total", family="reports") >= 1
    assert value("holdfast_hold_seconds_count", family="reports", outcome="released") == 1


def test_the_number_of_held_leases_goes_up_and_down(scraped, url):
    """Also when a lease is lost or dropped, and when its end has more than one event."""
    with holdfast.connect(url, observer=scraped.observer) as hf:
        first, second = hf.lock("x/1").acquire(), hf.lock("x/2").acquire()
        assert scraped.value("holdfast_held", family="x") == 2
        first.release()
        assert scraped.value("holdfast_held", family="x") == 1
        hf.break_lease("x/2", "for the test")
        with pytest.raises(LeaseLost):
            second.release()
        assert scraped.value("holdfast_held", family="x") == 0
    scraped.observer(Event("abandoned", "x/2", second.fence))

    assert scraped.value("holdfast_held", family="x") == 0


def test_rare_events_are_counted_too(scraped):
    """The test sends the observer events that it cannot provoke at will."""
    for kind in ("renewed_late", "renewal_failed", "release_delayed", "fenced", "abandoned"):
        scraped.observer(Event(kind, "x", 1, 0.25))

    for name in ("renewed_late", "renewal_failed", "release_delayed", "fenced", "abandoned"):
        assert scraped.value(f"holdfast_{name}_total", family="x") == 1
    assert scraped.value("holdfast_renewal_margin_least_seconds") == 0.25


def test_pools_registries_limits_and_queues_are_families(scraped, url):
    """A pool, a registry, a once, a rate limit and a budget are families, whatever items and keys they have."""
    with holdfast.connect(url, observer=scraped.observer) as hf:
        pool = hf.pool("channels", timeout=0)
        pool.set_items(["alice", "bob"])
        with pool.borrow(), pool.borrow():
            assert scraped.value("holdfast_held", family="channels") == 2
            with pytest.raises(NotAcquired):
                pool.borrow()
        with hf.registry("conversations").claim("42"):
            assert not hf.registry("conversations").claim("42")
        for _ in range(3):
            hf.once("payments").call("order-42", lambda: 1)
            hf.limit("1/hour", name="logins").hit("ann")
        with pytest.raises(BudgetExceeded):
            hf.budget("fees", limit=1).reserve("ann", 2)
    value = scraped.value

    assert value("holdfast_hold_seconds_count", family="channels", outcome="released") == 2
    assert value("holdfast_wait_seconds_count", family="channels", outcome="refused") == 1
    assert value("holdfast_wait_seconds_count", family="conversations", outcome="refused") == 1
    assert value("holdfast_wait_seconds_count", family="payments", outcome="granted") == 1
    assert value("holdfast_duplicate_total", family="payments") == 2
    assert (
        value("holdfast_rate_limited_total", family="logins"),
        value("holdfast_rate_limited_total", family="fees"),
    ) == (2, 1)
    # The dashboard offers these families.
    listed = {dict(labels)["family"] for name, labels in scraped.scrape() if name == "holdfast_unavailable_total"}
    assert listed == {"channels", "conversations", "payments", "logins", "fees"}
    assert {value("holdfast_held", family=one) for one in ("channels", "conversations", "payments")} == {0}


def test_events_of_the_engine_have_no_family(scraped):
    """They belong to no lease. The counter starts at 0, so that the first event is visible."""
    before = scraped.value("holdfast_engine_events_total", event="engine_restarted")
    scraped.observer(Event("engine_restarted", "", None, None, "another run"))

    assert (before, scraped.value("holdfast_engine_events_total", event="engine_restarted")) == (0, 1)
    assert not any(dict(labels).get("family") == "" for _, labels in scraped.scrape())


def test_a_lease_whose_release_is_delayed_is_not_held_for_ever(scraped):
    """Whatever the event of its end, the number of held leases goes down by one, and once."""
    for end in ("release_delayed", "undone", "delivery_abandoned"):
        scraped.observer(Event("granted", "x", 1, 0.1))
        for kind in (end, "released"):
            scraped.observer(Event(kind, "x", 1, 0.1))
            assert scraped.value("holdfast_held", family="x") == 0


def test_counters_start_at_zero_with_the_first_grant(scraped, url):
    """`increase()` of a time series that starts with its first loss is 0: the first loss would be invisible."""
    with holdfast.connect(url, observer=scraped.observer) as hf, hf.lock("x/1"):
        values = {name: v for (name, labels), v in scraped.scrape().items() if ("family", "x") in labels}

    for name in ("contended", "lost", "renewed_late", "renewal_failed", "release_delayed", "fenced", "unavailable"):
        assert values[f"holdfast_{name}_total"] == 0
    assert scraped.value("holdfast_lost_total", family="x", reason="expired") == 0


def test_failed_renewals_count_as_an_unavailable_engine(scraped):
    """In a process that only holds leases, renewals are the only commands that can fail."""
    with Server(min(available())) as server:
        hf = holdfast.connect(server.url, observer=scraped.observer)
        lease = hf.lock("x", ttl=5).acquire()
        assert scraped.value("holdfast_unavailable_total", family="x") == 0
        server.kill()
        eventually(lambda: scraped.value("holdfast_unavailable_total", family="x"), 20)
        assert scraped.value("holdfast_renewal_failed_total", family="x") >= 1
        server.start()
        eventually(lambda: lease.lost, 20)
        hf.close(1)


def test_a_fenced_write_is_counted_once(scraped, url, tmp_path):
    """The block of its lease counts it, in both faces; the block of another lease around it does not."""
    guard = GuardedFile(tmp_path / "resource")
    hf = holdfast.connect(url, observer=scraped.observer)
    hf.lock("other/1").acquire().release()
    guard.write(2**60, "newer", lambda value: value + 1)

    with pytest.raises(Fenced), hf.lock("other/1"), hf.lock("x/1") as lease:
        guard.write(lease.fence, lease.token, lambda value: value + 1)
    assert scraped.value("holdfast_fenced_total", family="x") == 1
    assert scraped.value("holdfast_fenced_total", family="other") == 0
    hf.close()

    async def late():
        async with (
            await holdfast.aio.connect(url, observer=scraped.observer) as hf,
            hf.lock("x/1") as lease,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(asyncio.to_thread(guard.guarded_read, lease.fence, lease.token))

    with pytest.raises(ExceptionGroup) as refused:
        asyncio.run(late())
    assert refused.group_contains(Fenced)
    assert scraped.value("holdfast_fenced_total", family="x") == 2


def test_every_kind_of_event_is_understood(scraped):
    """No event may make the observer fail."""
    for kind in KINDS:
        scraped.observer(Event(kind, "x"))
        scraped.observer(Event(kind, "x", 1, 0.1, "why"))

    assert scraped.value("holdfast_lost_total", family="x", reason="unknown") == 1


def test_many_names_make_few_families():
    """Names have no bound, but the number of time series must have one."""
    scraped = Scraped(families=3)
    for number in range(100):
        scraped.observer(Event("waiting", f"user-{number}"))
    values = {dict(labels)["family"]: v for (name, labels), v in scraped.scrape().items() if "contended_total" in name}

    assert len(values) == 4
    assert values[OTHER] == 97


def test_the_users_own_families_are_used():
    """The user knows how to group the names."""
    scraped = Scraped(family=lambda name: name.rpartition(".")[2])
    scraped.observer(Event("waiting", "a/b.pdf"))

    assert scraped.value("holdfast_contended_total", family="pdf") == 1


def test_the_smallest_margin_is_forgotten_after_a_while():
    """An alert must end when its cause is over."""
    now = [0.0]
    least = LeastMargin(window_s=10, clock=lambda: now[0])
    least.add(0.1)
    least.add(0.5)
    assert least.value() == 0.1
    now[0] = 15
    least.add(0.7)
    assert least.value() == 0.1
    now[0] = 25
    assert least.value() == 0.7
    now[0] = 45
    assert least.value() != least.value()


def test_the_dashboard_uses_every_metric_and_no_other(scraped, url):
    """A panel without data misleads, and a metric without a panel is invisible."""
    exercise(scraped.observer, url)
    for kind in KINDS:
        scraped.observer(Event(kind, "x", 1, 0.1, "why"))
    with scraped.served():
        exported = {name for name, _ in scraped.scrape() if not name.endswith("_created")}
    dashboard = json.loads((ROOT / "docs" / "grafana" / "holdfast.json").read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [variable["query"] for variable in dashboard["templating"]["list"]]
    used = {name for text in queries for name in re.findall(r"holdfast_\w+", text)}

    def family(name):
        return re.sub(r"_(bucket|count|sum)$", "", name)

    assert used - exported == set()
    assert {family(name) for name in exported} - {family(name) for name in used} == set()


def test_the_documented_names_are_the_exported_ones(scraped, url):
    """docs/metrics.md lists each metric once."""
    exercise(scraped.observer, url)
    for kind in KINDS:
        scraped.observer(Event(kind, "x", 1, 0.1, "why"))
    exported = {re.sub(r"_(bucket|count|sum|created)$", "", name) for name, _ in scraped.scrape()}
    exported = {name for name in exported if f"{name}_total" not in exported}
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(holdfast_\w+)`", page, re.MULTILINE)

    assert sorted(listed) == sorted(exported)


def test_an_abandoned_lease_is_counted(scraped, url):
    """The metric shows a program that drops a lease."""
    with holdfast.connect(url, observer=scraped.observer) as hf:
        with pytest.warns(ResourceWarning):
            hf.lock("x", ttl=0.2).acquire()
        eventually(lambda: scraped.value("holdfast_abandoned_total", family="x") == 1)
    assert scraped.value("holdfast_held", family="x") == 0


def test_outcomes_of_messages_are_counted(scraped, url):
    """Failures, dead letters and reclaims count by the family of the queue, from 0 with the first consumer."""
    with holdfast.connect(url, observer=scraped.observer) as hf:
        queue = hf.queue("mails/out", max_attempts=2, ttl=1, grace=0)
        with queue.consumer() as consumer:
            assert scraped.value("holdfast_handler_failed_total", family="mails") == 0
            queue.publish("x")
            for _ in range(2):
                (message,) = consumer.receive(timeout=10)
                message.retry(delay=0, reason="no")
            assert scraped.value("holdfast_handler_failed_total", family="mails") == 1
            assert scraped.value("holdfast_dead_lettered_total", family="mails") == 1
            assert scraped.value("holdfast_reclaimed_total", family="mails") == 0
            run(hf._client.transport.apply_all([Join("mails/out", "doomed", "", "doomed", 1)]))
            eventually(lambda: scraped.value("holdfast_reclaimed_total", family="mails") == 1, 20)


def test_assignments_are_counted(scraped, url):
    """How many keys are assigned now, how long they waited, how long they were assigned, and how that ended."""

    def assigned():
        return scraped.value("holdfast_assignments", family="chats")

    def ended(outcome):
        return scraped.value("holdfast_hold_seconds_count", family="chats", outcome=outcome)

    with holdfast.connect(url, observer=scraped.observer) as hf:
        queue = hf.queue("chats/open", ttl=1, grace=0)
        queue.publish_many(range(4), key=str)
        with queue.owner() as owner:
            works = [owner.claim("3"), *(owner.next(10).assignment for _ in range(3))]
            assert assigned() == scraped.value("holdfast_wait_seconds_count", family="chats", outcome="assigned") == 4
            works[0].ack()
            works[1].release(delay=60)
            assert (assigned(), ended("unassigned")) == (2, 2)
            run(
                hf._client.transport.apply_all(
                    [RecordOutcomes("chats/open", works[2].token, (MessageOutcome(works[2]._held.entry, ACK),))]
                )
            )
            with pytest.raises(LeaseLost):
                works[2].ack()
            assert (assigned(), ended("lost")) == (1, 1)
            assert scraped.value("holdfast_lost_total", family="chats", reason="expired") == 1
        assert (assigned(), ended("unassigned")) == (0, 3)


@pytest.mark.finding("S10")
def test_a_lease_that_is_collected_while_a_metric_is_locked_deadlocks_nothing(scraped, url):
    """The garbage collector may run inside of prometheus_client, whose locks are plain locks."""
    with holdfast.connect(url, observer=scraped.observer) as hf:
        cycle = [hf.lock("orders/1", ttl=0.6).acquire()]
        cycle.append(cycle)
        cycles = [cycle]
        del cycle
        ended = threading.Event()

        def collect():
            with scraped.observer._counters["abandoned"]._lock:
                gc.collect()
            ended.set()

        def drop():
            cycles.clear()
            threading.Thread(target=collect, daemon=True).start()
            assert ended.wait(10)

        with pytest.warns(ResourceWarning, match="was dropped"):
            drop()
        eventually(lambda: scraped.value("holdfast_abandoned_total", family="orders") == 1, 10)
        assert scraped.value("holdfast_held", family="orders") == 0
