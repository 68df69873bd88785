"""A signal handler of the program interrupts its own thread only, wherever the signal arrives."""

import asyncio
import signal
import threading
import time

import pytest

import holdfast
from holdfast import aio

TTL = 0.6
BLOCKED_S = 3 * TTL


@pytest.fixture
def handle():
    """Return a function that sets the handler of SIGUSR1 for this test."""
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda handler: signal.signal(signal.SIGUSR1, lambda *_: handler())
    signal.signal(signal.SIGUSR1, before)


def leave():
    raise SystemExit("user code")


def fail():
    raise ZeroDivisionError("user code")


def test_a_handler_that_blocks_delays_no_renewal(url, handle):
    """Not even if the signal arrives while its thread has the guard of the client: the keeper does not wait for it."""
    handle(lambda: time.sleep(BLOCKED_S))
    lost = []
    with holdfast.connect(url) as hf:
        lease = hf.lock("x", ttl=TTL, on_loss=lost.append).acquire()
        waiting = threading.Thread(target=lambda: hf.lock("x", timeout=BLOCKED_S).try_acquire())
        waiting.start()
        with hf._client.guard:
            signal.raise_signal(signal.SIGUSR1)
        lease.check()
        lease.release()
        waiting.join()

    assert lost == []


def test_a_handler_that_blocks_delays_no_renewal_in_asyncio(url, handle):
    """The event loop stands still; the keeper does not."""
    handle(lambda: time.sleep(BLOCKED_S))
    lost = []

    async def main():
        async with await aio.connect(url) as hf:
            lease = await hf.lock("x", ttl=TTL, on_loss=lost.append).acquire()
            with hf._client.guard:
                signal.raise_signal(signal.SIGUSR1)
            lease.check()
            await lease.release()

    asyncio.run(main())
    assert lost == []


@pytest.mark.parametrize("act", [fail, leave])
def test_an_error_of_a_handler_interrupts_the_call_and_leaves_no_lease_behind(url, handle, act):
    """The error reaches the caller whose thread was interrupted; other leases stand."""
    handle(act)
    with holdfast.connect(url) as hf, holdfast.connect(url) as other:
        standing, held = hf.lock("standing", ttl=TTL).acquire(), other.lock("x").acquire()
        threading.Timer(0.2, signal.pthread_kill, (threading.main_thread().ident, signal.SIGUSR1)).start()
        with pytest.raises((ZeroDivisionError, SystemExit)):
            hf.lock("x").acquire(timeout=10)
        held.release()
        other.lock("x", timeout=5).acquire().release()
        standing.check()
        standing.release()


@pytest.mark.parametrize("act", [fail, leave])
def test_an_error_of_a_handler_in_asyncio_leaves_no_lease_behind(url, handle, act):
    """The interrupted loop ends with the error, and the keeper gives back what no caller got."""
    handle(act)
    with holdfast.connect(url) as other:
        held = other.lock("x").acquire()

        async def main():
            async with await aio.connect(url) as hf:
                threading.Timer(0.2, signal.pthread_kill, (threading.main_thread().ident, signal.SIGUSR1)).start()
                await hf.lock("x").acquire(timeout=10)

        with pytest.raises((ZeroDivisionError, SystemExit)):
            asyncio.run(main())
        held.release()
        other.lock("x", timeout=5).acquire().release()
