"""An interrupt may come between any two lines: then either the caller has the lease, or no one has.

Every test runs an operation again and again, with a `KeyboardInterrupt` at its first line, its second, and so on, until
it gets through. Afterwards another client must get the name at once, long before the ttl, and the client must work.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import signal
import sys
import threading
import time

import pytest
from interrupts import Interrupt, InterruptAt

import holdfast
from holdfast.testing import eventually

# The second is the first where the collector comes by inside a named tuple's own code, which knows no `__import__`.
pytestmark = [
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored in. <coroutine object"),
]

TTL = 30
AT_ONCE = 2.0


@pytest.fixture
def client(connect):
    return connect()


@pytest.fixture
def swallowed(monkeypatch):
    """Count the interrupts that Python itself drops: those in a finaliser or a callback of the collector."""
    dropped = []
    report = sys.unraisablehook

    def hook(unraisable):
        if isinstance(unraisable.exc_value, Interrupt):
            dropped.append(unraisable.object)
        else:
            report(unraisable)

    monkeypatch.setattr(sys, "unraisablehook", hook)
    return dropped


@pytest.fixture
def assert_clean(client, prober):
    """Check that nothing is left behind: no lease, no place in a waiting line, no lock of the engine."""

    def assert_clean(name, where):
        keeper = client._client.keeper
        try:
            eventually(keeper.idle, AT_ONCE)
            seen = client.show(name)
            assert (seen.holder, seen.waiters) == (None, ())
            assert prober.seconds_to_get(name, AT_ONCE) < AT_ONCE
            assert keeper._heartbeats._schedules == {}
            assert client._client.transport._listener.waiter_registry._wakers == {}
            client.lock(name).acquire(timeout=AT_ONCE).release()
        except (AssertionError, TimeoutError, holdfast.HoldfastError) as error:
            raise AssertionError(f"after an interrupt at {where}: {error!r}") from error

    return assert_clean


def at_every_line(attempt, *, atleast):
    """Call `attempt(name, interrupt)`, interrupted at its first line, its second, and so on, until one gets through.

    Every attempt has a name of its own, because a tombstone stays under its name for a minute.
    """
    for number in itertools.count():
        interrupt = InterruptAt(number)
        attempt(f"name {number}", interrupt)
        if interrupt.where is None:
            assert number >= atleast
            return


def test_an_interrupt_in_acquire_leaves_no_lease_behind(client, assert_clean):
    """A caller that never got the lease cannot release it, so the library must."""

    def attempt(name, interrupt):
        lease = None
        with contextlib.suppress(Interrupt), interrupt:
            lease = client.lock(name, ttl=TTL).acquire()
        if lease is not None:
            lease.release()
        assert_clean(name, interrupt.where)

    at_every_line(attempt, atleast=50)


def test_an_interrupt_in_a_contended_acquire_leaves_the_waiting_line(client, connect, assert_clean):
    """An ended waiter would get an offer, and every waiter behind it would wait for nothing."""
    before = set(threading.enumerate())
    holder = connect()

    def attempt(name, interrupt):
        lease = holder.lock(name, ttl=TTL).acquire(timeout=AT_ONCE)
        with contextlib.suppress(Interrupt, holdfast.NotAcquired), interrupt:
            client.lock(name, ttl=TTL).acquire(timeout=0.003)
        lease.release()
        assert_clean(name, interrupt.where)

    at_every_line(attempt, atleast=80)
    client.close()
    holder.close()
    assert set(threading.enumerate()) <= before


def test_an_interrupt_while_the_lease_is_handed_over_leaves_it_to_the_next(client, url, connect, assert_clean):
    """Between the holder's release and the waiter's return there is a moment in which the lease is an offer."""
    holder, waited = connect(), threading.Event()
    waiting = connect_observed(url, waited)

    def attempt(name, interrupt):
        lease = holder.lock(name, ttl=TTL).acquire(timeout=AT_ONCE)
        waited.clear()
        helper = threading.Thread(target=lambda: (waited.wait(AT_ONCE), lease.release()))
        helper.start()
        got = None
        with contextlib.suppress(Interrupt), interrupt:
            got = waiting.lock(name, ttl=TTL).acquire(timeout=AT_ONCE)
        waited.set()
        helper.join()
        if got is not None:
            got.release()
        eventually(waiting._client.keeper.idle, AT_ONCE)
        assert_clean(name, interrupt.where)

    at_every_line(attempt, atleast=80)
    assert waiting.close(timeout=0) == ()


def connect_observed(url, waited):
    """Return a client, and an event that is set when it stands in line."""
    return holdfast.connect(url, observer=lambda event: waited.set() if event.kind == "waiting" else None)


def test_an_interrupt_in_release_leaves_a_lease_that_can_still_be_released(client, assert_clean):
    """It was released, or it can be: a second release does nothing."""

    def attempt(name, interrupt):
        lease = client.lock(name, ttl=TTL).acquire(timeout=AT_ONCE)
        with contextlib.suppress(Interrupt), interrupt:
            lease.release()
        lease.release()
        assert_clean(name, interrupt.where)

    at_every_line(attempt, atleast=30)


@pytest.mark.parametrize("times", [1, 2])
def test_an_interrupt_anywhere_in_a_block_ends_the_block(client, assert_clean, times):
    """Entering, inside, leaving: wherever the interrupt came, the name is free afterwards and the lock can be used."""

    def attempt(name, interrupt):
        # The one line that no library can guard is shown by the test below.
        interrupt.skip = {"Lock.__exit__"}
        lock = client.lock(name, ttl=TTL, timeout=AT_ONCE, reentrant=times > 1)
        with contextlib.suppress(Interrupt), interrupt, contextlib.ExitStack() as blocks:
            for _ in range(times):
                blocks.enter_context(lock)
        assert lock._entered == {}, interrupt.where
        assert_clean(name, interrupt.where)

    at_every_line(attempt, atleast=100)


def test_an_interrupt_anywhere_in_the_block_of_a_lease_ends_it(client, assert_clean):
    """The same for a lease that was acquired before."""

    def attempt(name, interrupt):
        interrupt.skip = {"Lease.__exit__"}
        lease = client.lock(name, ttl=TTL).acquire(timeout=AT_ONCE)
        with contextlib.suppress(Interrupt), interrupt, lease:
            pass
        lease.release()  # it is still the caller's if the block was never entered
        assert_clean(name, interrupt.where)

    at_every_line(attempt, atleast=30)


def test_an_interrupt_anywhere_in_a_term_ends_the_term(client, assert_clean):
    """A leader that does not know that it leads would keep all others from leading."""

    def attempt(name, interrupt):
        interrupt.skip = {"Leader.__exit__"}
        leader = client.leader(name, ttl=TTL, timeout=AT_ONCE, candidate="ann")
        with contextlib.suppress(Interrupt), interrupt, leader:
            pass
        assert leader._candidacy.term is None, interrupt.where
        assert_clean(name, interrupt.where)

    at_every_line(attempt, atleast=100)


def end_of(interrupted, interrupt):
    """Run the block, interrupted, and drop everything that the interrupt kept alive."""
    try:
        interrupted()
    except Interrupt as error:
        error.__traceback__ = None
    finally:
        interrupt.__exit__()


def test_an_interrupt_before_the_first_line_of_the_exit_leaves_the_lease_to_its_ttl(connect, prober):
    """Python calls `__exit__` and checks for signals before its first line: there the library can only warn.

    The lock object goes with the block, and the dropped lease is no longer renewed.
    """
    client = connect()

    def interrupted():
        with client.lock("x", ttl=1) as lease:
            assert lease.fence
            del lease
            interrupt.__enter__()

    interrupt = InterruptAt(0)
    with pytest.warns(ResourceWarning, match="dropped without a release"):
        end_of(interrupted, interrupt)

    assert "Lock.__exit__" in interrupt.where
    assert prober.seconds_to_get("x", 3) < 1.5


def test_an_interrupt_in_close_can_be_followed_by_another_close(url, prober):
    """A program that is interrupted while it ends wants to end."""

    def attempt(name, interrupt):
        client = holdfast.connect(url)
        client.lock(name, ttl=TTL).acquire().release()
        with contextlib.suppress(Interrupt), interrupt:
            client.close(timeout=1)
        assert client.close(timeout=1) == (), interrupt.where
        assert client._client.state == "closed", interrupt.where
        assert client._client.keeper.stopped(), interrupt.where
        assert prober.seconds_to_get(name, AT_ONCE) < AT_ONCE, interrupt.where
        with pytest.raises(holdfast.Closed):
            client.lock(name).acquire()

    at_every_line(attempt, atleast=30)


@pytest.mark.filterwarnings("ignore:Exception ignored in. <function LeaseBase.__del__")
def test_real_signals_at_random_moments_leave_nothing_behind(client, assert_clean, swallowed):
    """A real signal reaches places that a tracer cannot: inside the standard library, between two bytecodes."""
    dice = random.Random(7)
    lock = client.lock("x", ttl=TTL, timeout=AT_ONCE)
    with lock:
        pass
    quickest = float("inf")
    for _ in range(50):
        began = time.perf_counter()
        with lock:
            pass
        quickest = min(quickest, time.perf_counter() - began)

    def strike(*_):
        raise Interrupt

    before = signal.signal(signal.SIGALRM, strike)
    struck = 0
    try:
        for number in itertools.count():
            if struck >= 100:
                break
            assert number < 3000, f"struck only {struck} times"
            lock = client.lock(f"name {number}", ttl=TTL, timeout=AT_ONCE)
            try:
                signal.setitimer(signal.ITIMER_REAL, dice.uniform(1e-6, quickest * 2))
                with lock:
                    pass
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupt as error:
                struck += 1
                if before_the_first_line(error, type(lock).__exit__):
                    lock.__exit__(None, None, None)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            assert_clean(f"name {number}", "a random moment")
    finally:
        signal.signal(signal.SIGALRM, before)

    assert len(swallowed) < struck, "Python dropped most of them: this shows nothing"


def before_the_first_line(error, function):
    """Return whether the signal came in the one moment that no library can guard."""
    code, trace = function.__code__, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code is code and trace.tb_lineno == code.co_firstlineno:
            return True
        trace = trace.tb_next
    return False


def test_a_signal_handler_may_release_a_lease_in_the_middle_of_another_command(sqlite_url):
    """A program that ends on SIGTERM releases its leases, whatever it was doing: it must not hang."""
    client = holdfast.connect(sqlite_url)
    leases = [client.lock("mine", ttl=TTL).acquire()]

    def release(*_):
        signal.setitimer(signal.ITIMER_REAL, 0)
        leases.pop().release()

    from holdfast import failpoints

    before = signal.signal(signal.SIGALRM, release)
    failpoints.arm(
        "sqlite.before-commit",
        lambda: (
            leases and threading.current_thread() is threading.main_thread() and signal.raise_signal(signal.SIGALRM)
        ),
    )
    try:
        other = client.lock("other", ttl=TTL).acquire(timeout=5)
    finally:
        failpoints.disarm_all()
        signal.signal(signal.SIGALRM, before)

    other.release()
    eventually(lambda: client.show("mine").holder is None, 5)
    assert client.close(timeout=5) == ()


def test_an_interrupted_wait_for_the_gate_leaves_no_waiter(sqlite_url, tmp_path, holdfast_workers, monkeypatch):
    """A wait for the kernel lock cannot be ended: a thread waits there, and unlocks if its caller has gone."""
    monkeypatch.setattr("holdfast.engines.sqlite.process_locks._TRIES", 1)
    client = holdfast.connect(sqlite_url)
    client.lock("y").acquire().release()
    holder = holdfast_workers.start(f"{__file__}:hold_the_gate", path=f"{tmp_path}/hf.db.gate").wait_ready()

    def attempt(_, interrupt):
        holder.send_line("take")
        assert holder.read_line() == "taken"
        threading.Timer(0.005, holder.send_line, ["give"]).start()
        with contextlib.suppress(Interrupt), interrupt:
            client.show("y")
        assert holder.read_line() == "given"
        holder.send_line("take")
        assert holder.read_line(timeout=2) == "taken", interrupt.where
        holder.send_line("give")
        assert holder.read_line() == "given"

    at_every_line(attempt, atleast=30)
    client.close()


def hold_the_gate(path):
    """Run in a child: lock the gate on request."""
    import fcntl

    from holdfast.testing import read_line, ready, send_line

    with open(path, "r+b") as file:
        ready()
        while True:
            try:
                take = read_line() == "take"
            except EOFError:
                return
            fcntl.lockf(file, fcntl.LOCK_EX if take else fcntl.LOCK_UN, 2, 0)
            send_line("taken" if take else "given")
