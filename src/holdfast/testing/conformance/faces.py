"""One engine through one face, for laws that are written once, as blocking code.

The asyncio face runs in one event loop on its own thread. `Awaited` makes its objects look like those of the blocking
face: a call hands its awaitable to the loop and waits for the result. One task awaits everything for one thread of a
law, so that `with` enters and leaves in the same task.
"""

import asyncio
import gc
import inspect
import os
import threading
import time
import uuid
from concurrent.futures import Future
from contextlib import contextmanager
from functools import wraps

import holdfast
from holdfast import Assigned, AssignmentLost, aio, config
from holdfast.clock import SYSTEM
from holdfast.engines import open_engine
from holdfast.engines.sqlite import process_locks as lockfile
from holdfast.testing import eventually
from holdfast.testing.conformance.faults import Peer, Wire

WAIT_S = 60
LOST_S = 5
SHAPES = (
    aio.Holdfast,
    aio.Lock,
    aio.LockMany,
    aio.LeaseGroup,
    aio.Lease,
    aio.Leader,
    aio.Leading,
    aio.Pool,
    aio.RWLock,
    aio.LossEvent,
    aio.RateLimiter,
    aio.Budget,
    aio.Reservation,
    aio.Once,
    aio.Registry,
    aio.Queue,
    aio.DeadLetterQueue,
    aio.Consumer,
    aio.Worker,
    aio.Message,
    aio.Owner,
    aio.PartitionedQueue,
    aio.Assignment,
)


def on_loop(work):
    """Return a plain function as the coroutine function that the asyncio face needs; it runs in another thread."""

    @wraps(work)
    async def awaited(*args, **kwargs):
        return await asyncio.to_thread(work, *(plain(arg) for arg in args), **kwargs)

    return awaited


class Loop:
    """An event loop on its own thread, shared by all laws."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="laws-loop", daemon=True)
        self._thread.start()
        self._lanes = threading.local()
        self._tasks = []

    def wait_for(self, awaitable):
        """Await something in the task of the calling thread; return its result."""
        done = Future()
        if not hasattr(self._lanes, "queue"):
            self._lanes.queue = asyncio.Queue()
            self._lanes.task = asyncio.run_coroutine_threadsafe(_lane(self._lanes.queue), self.loop)
            self._tasks.append(self._lanes.task)
        self.loop.call_soon_threadsafe(self._lanes.queue.put_nowait, (awaitable, done))
        try:
            return done.result(WAIT_S)
        finally:
            if not done.done():  # stuck: the next test begins with a new task
                self._lanes.task.cancel()
                del self._lanes.queue

    def close(self):
        if self.loop.is_closed():  # several conftests may close it
            return
        for task in self._tasks:
            task.cancel()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()


async def _lane(queue):
    while True:
        awaitable, done = await queue.get()
        try:
            done.set_result(await awaitable)
        except BaseException as error:  # also an error that would end the loop: the caller raises it
            done.set_exception(error)
        del awaitable, done


LOOP = Loop()


def plain(thing):
    """Return an object of the asyncio face as one that reads like the blocking face."""
    if isinstance(thing, Assigned | AssignmentLost):
        return type(thing)(plain(thing.assignment))
    if type(thing) is dict:
        return {key: plain(each) for key, each in thing.items()}
    return Awaited(thing) if isinstance(thing, SHAPES) else thing


class Awaited:
    """An object of the asyncio face that reads like its twin of the blocking face."""

    def __init__(self, thing):
        object.__setattr__(self, "_thing", thing)

    def __setattr__(self, name, value):
        setattr(self._thing, name, value)

    def __getattr__(self, name):
        value = getattr(self._thing, name)
        if not callable(value) or isinstance(value, SHAPES):
            return plain(value)

        def call(*args, **kwargs):
            args = [
                on_loop(arg) if name in ("run", "call", "worker", "keep", "leading") and callable(arg) else arg
                for arg in args
            ]
            answer = value(*args, **kwargs)
            if inspect.isasyncgen(answer):
                return _iterated(answer)
            answer = LOOP.wait_for(answer) if inspect.isawaitable(answer) else answer
            return [plain(each) for each in answer] if type(answer) is list else plain(answer)

        return call

    def __call__(self, work, **options):
        if isinstance(work, str):  # the call makes a decorator
            return Awaited(self._thing(work, **options))
        locked = self._thing(on_loop(work))
        return wraps(work)(lambda *args, **kwargs: LOOP.wait_for(locked(*args, **kwargs)))

    def __enter__(self):
        return plain(LOOP.wait_for(self._thing.__aenter__()))

    def __exit__(self, *failure):
        return LOOP.wait_for(self._thing.__aexit__(*failure))

    def __bool__(self):
        return bool(self._thing)

    def __getitem__(self, key):
        return plain(self._thing[key])

    def __iter__(self):
        while True:
            try:
                yield plain(LOOP.wait_for(self._thing.__anext__()))
            except StopAsyncIteration:
                return


def _iterated(source):
    try:
        while True:
            yield LOOP.wait_for(anext(source))
    finally:
        LOOP.wait_for(source.aclose())


class Running:
    """Work that runs in another thread."""

    def __init__(self, work, *args, **kwargs):
        self._outcome = Future()
        self._thread = threading.Thread(target=self._run, args=(work, args, kwargs), name="law", daemon=True)
        self._thread.start()

    def _run(self, work, args, kwargs):
        try:
            self._outcome.set_result(work(*args, **kwargs))
        except BaseException as error:  # `result` raises it
            self._outcome.set_exception(error)

    def done(self):
        return self._outcome.done()

    def result(self, timeout=20):
        return self._outcome.result(timeout)

    def error(self, timeout=20):
        return self._outcome.exception(timeout)


class Face:
    """One engine through one face: the fixture of most laws."""

    def __init__(self, place, kind, folder, clock=None):
        self.place, self.kind, self.folder, self.clock = place, kind, folder, clock
        self.unique = uuid.uuid4().hex
        self.url = place.fresh_url(folder, self.unique)
        self._clients, self._wires, self._peers, self._running = [], [], [], []
        folder.mkdir()

    def __str__(self):
        return f"{self.place}-{self.kind}"

    def connect(self, url=None, **options):
        """Return a client that is closed at the end of the test; a leak of it fails the test."""
        url = self.url if url is None else url
        if self.clock is not None:
            options["clock"] = self.clock
        client = (
            holdfast.connect(url, **options)
            if self.kind == "blocking"
            else plain(LOOP.wait_for(aio.connect(url, **options)))
        )
        self._clients.append(client)
        return client

    def wire(self, client):
        """Put a `Wire` between a client and its engine, to count commands and to inject faults."""
        wire = Wire(client._client)
        self._wires.append(wire)
        return wire

    def peer(self):
        """Return another client of the same engine, which sends plain commands and renews nothing."""
        peer = Peer(open_engine(config.settings(self.url, clock=self.clock or SYSTEM)))
        self._peers.append(peer)
        return peer

    def start(self, work, *args, **kwargs):
        """Run `work` in another thread."""
        running = Running(work, *args, **kwargs)
        self._running.append(running)
        return running

    def finish(self, awaitable):
        """Await a coroutine of the asyncio face in the task of this thread."""
        return LOOP.wait_for(awaitable)

    def drop(self, things):
        """Drop every reference to these objects, also those of the last exchange with the loop."""
        things.clear()
        if self.kind == "asyncio":
            LOOP.wait_for(asyncio.sleep(0))
        gc.collect()

    def close(self):
        """Close all clients of the test; return the names of leases that were still held."""
        for wire in self._wires:
            wire.heal()
        with passing(self.clock):
            left = [client.close(timeout=LOST_S) for client in self._clients if client._client.state != "closed"]
        for peer in self._peers:
            peer.close()
        for running in self._running:
            running.error(LOST_S)
        return [name for names in left for name in names]


@contextmanager
def passing(clock):
    """Move a manual clock forward during the block, so that time limits end."""
    if clock is None:
        yield
        return
    over = threading.Event()

    def move():
        while not over.wait(0.02):
            clock.advance(0.5)

    moving = Running(move)
    try:
        yield
    finally:
        over.set()
        moving.result()


def together(law):
    """Decorate a law that mostly waits: it runs on every engine through both faces at the same time."""

    def on_all(faces):
        running = [(face, Running(law, face)) for face in faces]
        broken = [(face, error) for face, law in running if (error := law.error(WAIT_S)) is not None]
        for face, error in broken:
            error.add_note(f"on {face}")
        if broken:
            raise BaseExceptionGroup(f"broken on {', '.join(str(face) for face, _ in broken)}", [e for _, e in broken])

    on_all.__name__, on_all.__doc__, on_all.__module__ = law.__name__, law.__doc__, law.__module__
    return on_all


def waiting_labels(client, name):
    """Return the labels of the waiters of a name, in order."""
    return [waiter.label for waiter in client.show(name).waiters]


def until_waiters(client, name, count, timeout=2):
    """Wait until so many waiters are in the waiting line; less long than a heartbeat lasts."""
    eventually(lambda: len(client.show(name).waiters) == count, timeout, f"{count} waiters for {name!r}")


def until_idle(wire, quiet=0.05):
    """Wait until no command was sent for a moment."""

    def silent():
        before = len(wire.sent)
        time.sleep(quiet)
        return len(wire.sent) == before

    eventually(silent, what="silence on the wire")


def wakers_of(client):
    """Return the wakers of a client's waiters, where the engine keeps them in memory."""
    store = getattr(client._client.engine, "store", None)
    return {} if store is None else store.waiter_registry._wakers


def threads_of_holdfast():
    """Return the running threads of Holdfast. Threads of an earlier test may still end: compare for new ones only."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("holdfast")}


def descriptors():
    """Return the number of open descriptors, without those that SQLite's process locks keep for the whole process."""
    return len(os.listdir("/proc/self/fd")) - len(lockfile._files)
