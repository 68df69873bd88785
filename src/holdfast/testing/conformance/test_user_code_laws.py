"""User code that runs inside the library: whatever it does, the keeper renews every other lease in time.

Each law is one row of the table "Your code inside Holdfast" in `docs/errors.md`: what becomes of an exception, of an
interruption (`SystemExit`), and what happens while the user's code blocks.
"""

import gc
import threading
import time

import pytest

from holdfast import InvalidConfig, LeaseLost
from holdfast.commands import Renew
from holdfast.core.keeper import reporter
from holdfast.testing import eventually
from holdfast.testing.conformance.faces import together

TTL = 0.6
BLOCKED_S = 3 * TTL


def fail():
    raise ZeroDivisionError("user code")


def leave():
    raise SystemExit("user code")


def block():
    time.sleep(BLOCKED_S)


class Misbehaving:
    """An observer that misbehaves on events of one kind and name."""

    def __init__(self, kind, act):
        self.kind, self.act = kind, act
        self.events, self.blocked = [], False

    def __call__(self, event):
        self.events.append(event)
        if (event.kind, event.name) == (self.kind, "x") and not self.blocked:
            self.blocked = self.act is block  # once is enough
            self.act()

    def count(self, kind, name="x"):
        return sum((event.kind, event.name) == (kind, name) for event in self.events.copy())


def kept(client, name="standing"):
    """Return a lease that must be renewed in time until `held`."""
    return client.lock(name, ttl=TTL).acquire()


def held(lease):
    """Release a lease that was kept; raise if it was lost."""
    lease.check()
    lease.release()


@together
@pytest.mark.finding("S11", "S12")
def test_an_observer_of_the_keeper_neither_ends_nor_delays_it(face):
    """An exception and an interruption are logged and dropped; a blocked observer delays only events of the keeper."""
    for act in (fail, leave, block):
        observer = Misbehaving("renewed", act)
        client = face.connect(observer=observer)
        leases = [client.lock("x", ttl=TTL).acquire(), kept(client)]
        renewed = 1 if act is block else 4
        eventually(lambda seen=observer, most=renewed: seen.count("renewed") >= most, 20)
        time.sleep(BLOCKED_S if act is block else 0)
        for lease in leases:
            held(lease)
        client.close()
        assert observer.count("renewed", "standing") >= 2, act


@together
def test_the_observer_hears_of_every_loss_even_if_it_was_blocked(face):
    """The queue of a blocked observer drops repeated events only."""
    blocked = threading.Event()
    observer = Misbehaving("renewal_failed", lambda: blocked.wait(20))
    client = face.connect(observer=observer)
    wire = face.wire(client)
    leases = [client.lock("x" if number == 0 else f"x/{number}", ttl=TTL).acquire() for number in range(20)]
    wire.fail(Renew)
    eventually(lambda: all(lease.lost for lease in leases), 20)
    wire.heal()
    blocked.set()
    eventually(lambda: sum(event.kind == "lost" for event in observer.events.copy()) == 20, 20, "all losses")
    for lease in leases:
        with pytest.raises(LeaseLost):
            lease.release()


def test_a_blocked_observer_does_not_delay_the_report_of_a_loss(face):
    """The observer comes first, but only for a moment: the holder must know."""
    gate, called = threading.Event(), []
    holder, other = face.connect(observer=Misbehaving("lost", lambda: gate.wait(20))), face.connect()
    lease = holder.lock("x", ttl=TTL, on_loss=lambda _: called.append(lease.lost.is_set())).acquire()
    standing = kept(holder)
    other.break_lease("x", "by hand")
    began = time.monotonic()

    assert lease.lost.wait(5)
    assert time.monotonic() - began < TTL / 3 + reporter.OBSERVER_WAIT_S + 0.5
    with pytest.raises(LeaseLost):
        lease.check()
    eventually(lambda: called == [True], 5)
    held(standing)
    gate.set()
    with pytest.raises(LeaseLost):
        lease.release()


def test_the_observer_hears_of_a_loss_before_the_lease_is_lost(face, monkeypatch):
    """The order is: the observer, then `lease.lost`, then `on_loss`. It holds for every thread that finds the loss."""
    monkeypatch.setattr(reporter, "OBSERVER_WAIT_S", 10)
    monkeypatch.setattr("holdfast.core.lease.state.OBSERVER_WAIT_S", 10)
    for found_by in ("the keeper", "the holder"):
        order, leases = [], []

        def observer(event, order=order, leases=leases):
            if event.kind == "lost":
                time.sleep(0.05)  # time for another thread to be faster
                order.append(("observer", bool(leases[0].lost)))

        holder, other = face.connect(observer=observer), face.connect()
        ttl = TTL if found_by == "the keeper" else 30
        on_loss = lambda lost, order=order: order.append(("on_loss", bool(lost.lost)))  # noqa: E731
        leases.append(holder.lock("x", ttl=ttl, on_loss=on_loss).acquire())
        other.break_lease("x", "by hand")
        if found_by == "the keeper":
            assert leases[0].lost.wait(10)
            order.append(("holder", True))
        with pytest.raises(LeaseLost):
            leases[0].release()
        eventually(lambda order=order: ("on_loss", True) in order, 5)

        assert order[0] == ("observer", False), found_by
        assert leases[0].lost


@pytest.mark.finding("S12")
def test_an_observer_of_a_call_interrupts_that_call_only(face):
    """An exception is dropped; an interruption reaches the caller, and leaves no lease behind; a block delays it."""
    other = face.connect()
    for kind, act in (("granted", fail), ("granted", leave), ("granted", block), ("released", leave)):
        client = face.connect(observer=Misbehaving(kind, act))
        standing = kept(client)
        calling = face.start(lambda client=client: client.lock("x", ttl=30).acquire().release())
        if act is leave:
            assert isinstance(calling.error(), SystemExit), kind
        else:
            assert calling.error() is None, act
        other.lock("x", timeout=5).acquire().release()  # the keeper gives back the lease of an interrupted call
        held(standing)


def test_on_loss_neither_ends_nor_delays_the_keeper(face, caplog):
    """An exception and an interruption are logged and dropped; a block concerns only its own thread or event loop."""
    for act in (fail, leave, block):
        holder, other = face.connect(), face.connect()
        standing, called = kept(holder), []

        def on_loss(_lease, act=act, called=called):
            called.append(act)
            act()

        lease = holder.lock("x", ttl=TTL, on_loss=on_loss).acquire()
        other.break_lease("x", "by hand")
        eventually(lambda called=called: called == [act], 10)  # noqa: B023 - this round's
        if act is block:
            time.sleep(BLOCKED_S)
        else:
            eventually(lambda: "on_loss of lease 'x' failed" in caplog.text, 5)
        caplog.clear()
        with pytest.raises(LeaseLost):
            lease.release()
        held(standing)


class BadCodec:
    """A codec that misbehaves."""

    def __init__(self, encode=None, decode=None):
        self._encode, self._decode = encode, decode

    def encode(self, body):
        if self._encode is not None:
            self._encode()
        return body

    def decode(self, data):
        if self._decode is not None:
            self._decode()
        return data


@pytest.mark.capability("queues")
def test_a_codec_interrupts_its_own_call_only(face):
    """An error of `encode` reaches the caller, and nothing is published; a block delays the caller only."""
    client = face.connect()
    standing = kept(client)
    for act, error in ((fail, InvalidConfig), (leave, SystemExit), (block, None)):
        publishing = face.start(lambda act=act: client.queue("jobs", codec=BadCodec(encode=act)).publish(b"a"))
        assert type(publishing.error()) is (error or type(None)), act
    assert client.queue("jobs").stats().ready == 1
    held(standing)


@pytest.mark.capability("queues")
def test_a_codec_that_cannot_decode_loses_no_message(face):
    """After an exception the message is a dead letter; after an interruption of the caller it is delivered again."""
    client = face.connect()
    standing, good = kept(client), client.queue("jobs", codec="bytes")
    good.publish_many([b"a"])
    with client.queue("jobs", codec=BadCodec(decode=fail), ttl=TTL).consumer() as consumer:
        assert consumer.receive(timeout=0.5) == []
    assert good.stats().dead == 1

    good.publish_many([b"b"])
    with (
        pytest.raises(SystemExit),
        client.queue("jobs", codec=BadCodec(decode=leave), ttl=TTL).consumer() as consumer,
    ):
        consumer.receive(timeout=5)
    with client.queue("jobs", codec=BadCodec(decode=block), ttl=TTL).consumer() as consumer:
        (message,) = consumer.receive(timeout=10)
        assert message.body == b"b"
        message.ack()
    held(standing)


@pytest.mark.capability("queues")
@together
def test_a_handler_fails_its_own_message_only(face):
    """An exception fails the attempt; a handler that blocks keeps its message, and delays no renewal."""
    client = face.connect()
    standing, queue = kept(client), client.queue("jobs", max_attempts=1, ttl=TTL)
    acts, done = {"fail": fail, "block": block, "good": lambda: None}, []

    def handle(message):
        acts[message.body]()
        done.append((message.body, message.attempt))

    queue.publish_many(list(acts))
    worker = queue.worker(handle, concurrency=4)
    running = face.start(worker.run)
    eventually(lambda: len(done) == 2 and queue.stats().dead == 1, 20)
    worker.stop()
    running.result()

    assert sorted(done) == [("block", 1), ("good", 1)]
    assert [dead.body for dead in queue.dlq.list()] == ["fail"]
    held(standing)


@pytest.mark.finding("S10")
def test_a_lease_that_is_collected_under_a_lock_of_the_observer_deadlocks_nothing(face):
    """The garbage collector runs at any moment, also inside of an observer that has a plain lock."""
    lock, kinds = threading.Lock(), []

    def observer(event):
        with lock:
            kinds.append(event.kind)

    client = face.connect(observer=observer)
    standing = kept(client)
    cycle = [client.lock("x", ttl=TTL).acquire()]
    cycle.append(cycle)
    cycles = [cycle]
    del cycle
    ended = threading.Event()

    def collect():
        with lock:
            gc.collect()
        ended.set()

    def drop():
        cycles.clear()
        threading.Thread(target=collect, daemon=True).start()
        assert ended.wait(10)

    with pytest.warns(ResourceWarning, match="'x' was dropped"):
        drop()
    eventually(lambda: "abandoned" in kinds, 10)
    held(standing)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_finalizer_of_the_program_concerns_only_its_own_thread(face):
    """Python drops whatever `__del__` raises; a `__del__` that blocks delays the thread that runs it."""

    class Finalized:
        def __init__(self, act):
            self.act = act

        def __del__(self):
            self.act()

    client = face.connect()
    standing = kept(client)
    for act in (fail, leave, block):
        Finalized(act)
    held(standing)
