"""One server through one face, for the tests of this folder.

The asyncio face lives in one event loop on a thread of its own. `Awaited` makes its objects read like those of the
blocking face, so that each test is written once. A lock is entered by `acquire`, not by `with`: every call is a task of
its own there.
"""

import asyncio
import inspect
import threading
from concurrent.futures import Future

import holdfast
from holdfast import aio, config
from holdfast.commands import Acquire
from holdfast.commands.queue_admin import PAGE
from holdfast.core.queue.queue import check_consistency
from holdfast.core.step import run
from holdfast.engines import open_engine
from holdfast.engines.redis.scripts import SCRIPTS
from holdfast.testing import eventually
from tests.support.proxy import Proxy, script

WAIT_S = 60
SHAPES = (
    aio.Holdfast,
    aio.Lock,
    aio.Lease,
    aio.LossEvent,
    aio.RateLimiter,
    aio.Budget,
    aio.Reservation,
    aio.Once,
    aio.Registry,
    aio.Semaphore,
    aio.Queue,
    aio.DeadLetterQueue,
    aio.Consumer,
    aio.Message,
    aio.Owner,
    aio.PartitionedQueue,
    aio.Assignment,
)


class Loop:
    """An event loop on its own thread."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="redis-loop", daemon=True)
        self._thread.start()

    def wait_for(self, awaitable, timeout=WAIT_S):
        async def awaited():
            return await awaitable

        return asyncio.run_coroutine_threadsafe(awaited(), self.loop).result(timeout)

    def close(self):
        self.wait_for(self.loop.shutdown_default_executor())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class Awaited:
    """Wraps an object of the asyncio face, so that tests use it like one of the blocking face."""

    def __init__(self, loop, thing):
        self._loop, self._thing = loop, thing

    def __getattr__(self, name):
        value = getattr(self._thing, name)
        if not callable(value) or isinstance(value, SHAPES):
            return self._plain(value)

        def call(*args, **kwargs):
            answer = value(*args, **kwargs)
            answer = self._loop.wait_for(answer) if inspect.isawaitable(answer) else answer
            return self._plain(answer)

        return call

    def _plain(self, thing):
        if type(thing) in (list, tuple):
            return type(thing)(map(self._plain, thing))
        if type(thing) is dict:
            return {key: self._plain(each) for key, each in thing.items()}
        if isinstance(thing, holdfast.Assigned | holdfast.AssignmentLost):
            return type(thing)(self._plain(thing.assignment))
        return Awaited(self._loop, thing) if isinstance(thing, SHAPES) else thing

    def __enter__(self):
        return self._plain(self._loop.wait_for(self._thing.__aenter__()))

    def __exit__(self, *failure):
        return self._loop.wait_for(self._thing.__aexit__(*failure))

    def __iter__(self):
        while True:
            try:
                yield self._plain(self._loop.wait_for(self._thing.__anext__()))
            except StopAsyncIteration:
                return

    def __bool__(self):
        return bool(self._thing)

    def __repr__(self):
        return repr(self._thing)


class Running:
    """A call that runs on another thread."""

    def __init__(self, work):
        self._outcome = Future()
        self._thread = threading.Thread(target=self._run, args=(work,), name="redis-test", daemon=True)
        self._thread.start()

    def _run(self, work):
        try:
            self._outcome.set_result(work())
        except BaseException as error:
            self._outcome.set_exception(error)

    def done(self):
        return self._outcome.done()

    def result(self, timeout=30):
        return self._outcome.result(timeout)

    def error(self, timeout=30):
        return self._outcome.exception(timeout)


class Peer:
    """A client that sends plain commands and renews nothing."""

    def __init__(self, url):
        self._transport = open_engine(config.settings(url)).blocking()

    def send(self, command):
        answer = self._transport.apply(command)
        return answer if isinstance(answer, tuple) else run(answer)

    def audit(self, name, most=PAGE):
        """Check a whole queue, in pages of this size."""

        async def ask(command):
            return self.send(command)

        return run(check_consistency(ask, name, most=most))

    def close(self):
        run(self._transport.close())


class Place:
    """A server, and everything that a test opens on it."""

    def __init__(self, server, face, loop):
        self.server, self.face = server, face
        self.events = []
        self._loop = loop
        self._clients, self._proxies, self._peers, self._running = [], [], [], []

    def proxy(self, **options):
        proxy = Proxy("127.0.0.1", self.server.port, **options)
        self._proxies.append(proxy)
        return proxy

    def connect(self, url=None, **options):
        """Return a client of this face; the events of its leases are collected in `events`."""
        url = self.server.url if url is None else url
        options.setdefault("observer", self.events.append)
        if self.face == "blocking":
            client = holdfast.connect(url, **options)
        else:
            client = Awaited(self._loop, self._loop.wait_for(aio.connect(url, **options)))
        self._clients.append(client)
        return client

    def peer(self, url=None):
        peer = Peer(self.server.url if url is None else url)
        self._peers.append(peer)
        return peer

    def start(self, work):
        running = Running(work)
        self._running.append(running)
        return running

    def forget(self, things):
        """Drop the references, also where the last exchange with the loop still holds them."""
        things.clear()
        if self.face != "blocking":
            self._loop.wait_for(asyncio.sleep(0))

    def kinds(self, *kinds):
        """Return the kinds of the events, in order; only these, if some are named."""
        return [event.kind for event in self.events if not kinds or event.kind in kinds]

    def until(self, kind, count=1, timeout=10.0):
        """Wait until this kind of event has occurred so often."""
        eventually(lambda: len(self.kinds(kind)) >= count, timeout, f"{count} x {kind!r} among {self.kinds()}")

    def until_queued(self, client, name, count):
        eventually(lambda: len(client.show(name).waiters) == count, 10.0, f"{count} waiters for {name!r}")

    def close(self):
        for proxy in self._proxies:
            proxy.accept()
        left = [name for client in self._clients for name in client.close(timeout=10)]
        for running in self._running:
            running.error()
        for peer in self._peers:
            peer.close()
        for proxy in self._proxies:
            proxy.close()
        assert left == [], "leases were left when the clients were closed"


def paired(test):
    """Mark slow tests: each kind of server runs with one face only (see conftest.py)."""
    test.paired = True
    return test


def lengthy(test):
    """Mark slow tests on groups of servers: they run only in `make matrix` (see conftest.py)."""
    test.lengthy = True
    return test


def calls_of(*kinds):
    """Return a condition for a proxy that matches the scripts of these commands."""
    return script(*(SCRIPTS[kind].sha for kind in kinds))


ACQUIRES = calls_of(Acquire)
