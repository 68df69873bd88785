"""An interrupt inside a step of `memory://`: the step happens as a whole, or not at all.

A step is Python in the thread of the caller, so a signal handler that raises may end it between any two lines.
"""

import contextlib
import itertools
import random
import signal
import time

import pytest
from interrupts import Interrupt, InterruptAt

import holdfast
from holdfast.rules.queue.state import position_of_dead_letter
from holdfast.testing import eventually

pytestmark = [
    pytest.mark.finding("X5"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored in. <coroutine object"),
    pytest.mark.filterwarnings("ignore:Exception ignored in. <function"),
    pytest.mark.filterwarnings("ignore:lease .* was dropped without a release:ResourceWarning"),
]
TTL = 30


@pytest.fixture
def client():
    with holdfast.connect("memory://interrupts") as client:
        yield client


def domain_of(client):
    return client._client.engine.store.domain


def check_pool(state):
    """Compare every index of a pool with its items, and the order of the line with the tickets."""
    items, line = state._items, state.waiting_line
    assert state._tokens == {each.token: name for name, each in items.items() if each.taken}
    assert state._offered == {each.token: each.client for each in items.values() if each.state == "offered"}
    assert state._free == {name: each.order for name, each in items.items() if each.state == "free"}
    assert state._unavailable == {name: each.back_us for name, each in items.items() if each.state != "free"}
    assert state._cooling == sum(each.state == "cooling" for each in items.values())
    assert state._leaving == sum(each.leaving for each in items.values())
    assert {(order, name) for name, order in state._free.items()} <= set(state._by_order._heap)
    assert {(back, name) for name, back in state._unavailable.items()} <= set(state._by_back._heap)
    tokens = [token for share in line._by_share.values() for token in share]
    assert sorted(tokens) == sorted(line._by_token) == sorted(line._tickets)
    assert sum(line.clients.values()) == len(tokens)


def check_queue(state):
    """Compare every index of a queue with its messages."""
    assert state.check_consistency()[1] == []
    assert sorted(state._delayed) == sorted(state._due.values())
    assert state._dead_order == sorted(map(position_of_dead_letter, state._dead.values()))
    assert state._behind_count == sum(map(len, state._behind.values()))
    assert {(each.expires_us, token) for token, each in state._consumers.items()} <= set(state._expiries)
    for remembered in (state._dedup, state._results):
        assert {(until, key) for key, (_, until) in remembered._known.items()} <= set(remembered._expiries)


def check_domain(client):
    """Check the whole state, as the next command of any client would find it."""
    domain = domain_of(client)
    with domain.lock:
        for pool in domain.pools.values():
            pool.pool_state.roll_back()
            check_pool(pool.pool_state)
        for queue in domain.queues.values():
            queue.roll_back()
            check_queue(queue)
        registry = domain.registry
        registry.roll_back()
        assert registry._order == {key: sorted(tokens) for key, tokens in registry._tokens.items()}
        assert set(domain.records) <= {name for _, name in domain.ends}
        assert set(domain.counters.known) <= {key for _, key in domain.counters._ends}


def use_semaphore(client, number):
    with client.semaphore(f"gpu {number}", permits=2, ttl=TTL).acquire(timeout=5):
        pass


def use_pool(client, number):
    pool = client.pool(f"channels {number}")
    pool.set_items(["a", "b", "c"])
    with pool.borrow(timeout=5) as item:
        item.cool(0.001)
    pool.remove(["a"], leave=True)


def use_rwlock(client, number):
    rw = client.rwlock(f"index {number}", ttl=TTL)
    with rw.read():
        pass
    with rw.write():
        pass


def use_queue(client, number):
    queue = client.queue(f"jobs {number}", ttl=TTL)
    queue.publish_many(["one", "two"], key="k")
    queue.publish("three", delay=0.001, dedup_key="d")
    with queue.consumer(prefetch=4) as consumer:
        for message in consumer.receive(1, timeout=5):
            message.reject("no")
        for message in consumer.receive(2, timeout=5):
            message.retry(delay=0)
        for message in consumer.receive(1, timeout=5):
            message.ack()
    queue.dlq.purge()


def use_registry(client, number):
    registry = client.registry(f"rooms {number}", ttl=TTL)
    with registry.claim("k") as entry:
        registry.send("k", "hello")
        assert entry.receive(timeout=5) == "hello"
        assert len(registry.list()) == 1


def use_counters(client, number):
    client.limit("5/second", name=f"api {number}").hit("ann")
    with client.budget(f"fees {number}", limit=10).reserve("ann", 3) as reservation:
        reservation.settle(2)


USES = [use_semaphore, use_pool, use_rwlock, use_queue, use_registry, use_counters]


@pytest.mark.parametrize("use", USES)
def test_an_interrupt_at_any_line_of_a_step_leaves_a_whole_state(client, use):
    """The next command rolls an interrupted step back."""
    for number in itertools.count():
        interrupt = InterruptAt(number, among=("/rules/", "/engines/memory/"))
        with contextlib.suppress(Interrupt), interrupt:
            use(client, number)
        try:
            check_domain(client)
        except AssertionError as error:
            raise AssertionError(f"after an interrupt at {interrupt.where}") from error
        if interrupt.where is None:
            break
        domain_of(client).pools.clear()  # otherwise each check would take longer than the last
        domain_of(client).queues.clear()
    assert number > 30
    eventually(client._client.keeper.idle, 5, "no lease left")


def test_a_message_is_published_or_not_and_received_or_not(client):
    """An interrupted step loses no message and doubles none."""
    for number in itertools.count():
        queue = client.queue(f"whole {number}")
        interrupt = InterruptAt(number, among=("/rules/", "/engines/memory/"))
        with contextlib.suppress(Interrupt), interrupt:
            queue.publish_many(["one", "two", "three"])
            with queue.consumer(prefetch=3) as consumer:
                for message in consumer.receive(3, timeout=5):
                    message.release()
        eventually(lambda queue=queue: queue.stats().in_flight == 0, 5, f"no consumer after {interrupt.where}")
        assert queue.stats().ready in (0, 3), interrupt.where
        if interrupt.where is None:
            break
    assert number > 100


def test_a_thousand_signals_break_no_semaphore_pool_or_queue(client):
    """A real signal strikes between any two bytecodes, also where a tracer cannot."""
    dice, struck = random.Random(5), 0
    # An interrupt between a grant and the block of its lease leaves the lease to its ttl.
    semaphore = client.semaphore("gpu", permits=3, ttl=0.5)
    pool = client.pool("channels", ttl=0.5, cool=0)
    pool.set_items(["a", "b", "c"])
    queue = client.queue("jobs", ttl=TTL)

    def work():
        with semaphore.acquire(timeout=5):
            pass
        with pool.borrow(timeout=5):
            pass
        queue.publish_many(["one", "two"])

    work()
    began = time.perf_counter()
    for _ in range(20):
        work()
    usual = (time.perf_counter() - began) / 20

    def strike(*_):
        raise Interrupt

    before = signal.signal(signal.SIGALRM, strike)
    try:
        for number in itertools.count():
            if struck >= 1000:
                break
            assert number < 20_000, f"struck only {struck} times"
            try:
                signal.setitimer(signal.ITIMER_REAL, dice.uniform(1e-6, usual))
                work()
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupt:
                struck += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)

    check_domain(client)
    assert queue.stats().ready % 2 == 0, "a publish of two messages published one"
    eventually(client._client.keeper.idle, 10, "the undos of interrupted calls")
    for held in (semaphore, pool):
        eventually(lambda held=held: held.stats().lent == 0, 10, "no loan left")
    with holdfast.connect("memory://interrupts") as other:
        leases = [other.semaphore("gpu", permits=3).acquire(timeout=2) for _ in range(3)]
        leases += [other.pool("channels").borrow(timeout=2) for _ in range(3)]
        for lease in leases:
            lease.release()
