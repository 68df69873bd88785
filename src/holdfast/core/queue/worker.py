"""Workers: a handler for every message, so many at a time.

One loop says everything to the engine: it takes as many messages as there are free hands, and tells what has become of
those that are done, many at a time. Handlers run where their face lets them, in tasks or threads; each ends by leaving
its outcome here and ringing. To stop is to give back what nobody has begun, to let finish what somebody has, and to
leave.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from holdfast.clock import NEVER_NS, NS, NS_PER_MS, Seconds, timeout_ns
from holdfast.commands.queue import BATCH_MAX, COSTLY_BATCH_MAX, Reclaimed
from holdfast.core.keeper.heartbeats import reclaim_shown
from holdfast.core.queue import consumer as consuming
from holdfast.core.queue.consumer import ConsumerBase
from holdfast.core.queue.handler_threads import HandlerThreads
from holdfast.core.queue.message import MessageBase, conclude, told
from holdfast.core.queue.outcomes import Reject, Release, Retry, readable
from holdfast.core.queue.queue import _whole
from holdfast.core.resend import send_safely
from holdfast.errors import Closed, InvalidConfig, Unavailable
from holdfast.observer import log

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.commands.queue import MessageOutcome
    from holdfast.core.queue.session import ConsumerSession
    from holdfast.engines import Waker

CONCURRENCY_MAX = 5_000
GRACE_S = 30.0
_LOOK_NS = NS
# What one with a key counts for: somebody may stand behind it.
_WEIGHT = BATCH_MAX // COSTLY_BATCH_MAX
_CANCEL_NS = 5 * NS
_RETRY_NS = 200 * NS_PER_MS
# Whoever is asked to come back idle takes nothing for so long, and tries again so much later.
_DRAIN_NS, _DRAIN_AGAIN_NS = 10 * NS, 60 * NS


class WorkerBase:
    """One consumer and its hands."""

    _interruptible = False  # whether a handler that runs can be ended
    _one_thread = False  # whether `_done` is said where the loop runs, so that one ring tells of all that come with it

    def __init__(
        self,
        consumer: ConsumerBase,
        handler: Callable[[Any], Any],
        *,
        concurrency: int,
        grace: Seconds,
        on_loss: str | Callable[[Any], object],
        policies: tuple[str, ...],
    ) -> None:
        if not callable(handler):
            raise InvalidConfig("handler", handler, "it must be callable with a message")
        if not callable(on_loss) and on_loss not in policies:
            raise InvalidConfig("on_loss", on_loss, f"it must be {' or '.join(policies)}, or callable with a message")
        self._consumer = consumer
        self._handler = handler
        self._concurrency = concurrency
        self._grace_ns = timeout_ns(grace, setting="grace")
        self._on_loss = on_loss
        self._waiting: deque[MessageBase] = deque()  # taken, and not begun
        self._running: dict[str, MessageBase] = {}
        self._ended: deque[tuple[MessageBase, BaseException | None]] = deque()  # any thread may add to it
        self._stops = 0
        self._looked = False  # for the dead, since it was given something
        self._called_ns = 0  # since when it is asked to come back idle
        self._interrupted = False  # what was being said may have been heard or not
        self._waker: Waker | None = None  # of the present run
        self._hands = HandlerThreads()  # the same, where handlers run in threads

    @property
    def name(self) -> str:
        """What it is called, for people."""
        return self._consumer.name

    @property
    def running(self) -> int:
        """How many handlers run."""
        return len(self._running)

    def __repr__(self) -> str:
        return f"<worker {self.name!r} of {self._consumer._queue.name!r} running={self.running}>"

    def stop(self) -> None:
        """Take no more, give back what is not begun, let finish what is. Said again, without waiting for that.

        Any thread may say so, also in a signal handler.
        """
        self._stops += 1
        self._wake()

    def _wake(self) -> None:
        if self._waker is not None:
            self._waker.wake()
        self._consumer._stir()

    # What a face brings.

    def _start(self, message: MessageBase) -> None:
        """Have the handler run; `_done` is called when it has ended."""
        raise NotImplementedError

    def _interrupt(self, messages: list[MessageBase]) -> None:
        """End these handlers early, where that is possible."""
        raise NotImplementedError

    def _done(self, message: MessageBase, error: BaseException | None) -> None:
        """A handler has ended; by any thread."""
        if isinstance(error, Exception) and not isinstance(error, Retry | Reject | Release):
            log.warning("holdfast: the handler failed on %r", message, exc_info=error)
        told = self._one_thread and bool(self._ended)
        self._ended.append((message, error))
        if not told:
            self._wake()

    def _outcome(self, message: MessageBase, error: BaseException | None) -> MessageOutcome:
        """An interruption is ours if there is a stop or a loss; else the handler has ended so by itself, and failed."""
        if error is None or isinstance(error, Exception):
            return message._outcome(error)
        if self._stops or message._told_of_loss:
            # The thread of a plain handler goes on, whatever became of the task that waited for it.
            message._gone = True
            return message._outcome(error)
        log.warning("holdfast: the handler ended itself on %r", message, exc_info=error)
        return message._outcome(Retry(reason=readable(error)))


def hands(concurrency: int, prefetch: int) -> tuple[int, int]:
    """How many messages are worked on at once, and how many more are taken ahead; checked."""
    return _whole("concurrency", concurrency, 1, CONCURRENCY_MAX), _whole("prefetch", prefetch, 0, CONCURRENCY_MAX)


async def work(worker: WorkerBase, *, until_idle: bool) -> None:
    """Work until stopped; with `until_idle`, until there is nothing to do."""
    if worker._waker is not None:
        raise RuntimeError(f"worker {worker.name!r} runs already: make another one, or give it more concurrency")
    await consuming.enter(worker._consumer)
    try:
        worker._waker = worker._consumer._queue._client.transport.waker()
        while not worker._stops and await _turn(worker, wait=not until_idle):
            pass
    except Closed:
        worker._stops += 1  # no new work: what is begun may finish, as the client waits for it
    except BaseException:
        worker._stops += 2  # interrupted: there is no time for a grace
        raise
    finally:
        try:
            await _wind_down(worker)
        finally:
            worker._waker, worker._stops, worker._interrupted, worker._looked = None, 0, False, False
            worker._hands.let_go(wait=not worker._running and not worker._one_thread)
            worker._hands = HandlerThreads()
            worker._running.clear()  # of what runs on, in threads that nobody can end, somebody else takes care now


async def _turn(worker: WorkerBase, *, wait: bool) -> bool:
    """Tell, begin, take, sleep; false if there is nothing to do and nobody wants to wait."""
    consumer = worker._consumer
    await _settle(worker)
    _warn(worker)
    _begin(worker)
    room = consumer._prefetch - len(worker._running) - len(worker._waiting)
    alone = any(each.quarantined for each in worker._running.values())
    if room <= 0 or alone or (worker._running and _drains(worker)):
        if not await _finds_unseen(worker):
            await _rest(worker)
        return True
    got = await consuming.take(consumer, room, wait=wait and not worker._ended)
    worker._called_ns = (worker._called_ns or consumer._queue._client.clock.now_ns()) if got.drain else 0
    worker._waiting.extend(got.messages)
    if got.messages:
        worker._looked = False
    if got.messages or worker._ended or worker._stops:
        return True
    if wait or not got.answered:
        await consuming.sleep(consumer, got, _doubt_ns(worker))
    elif worker._running:
        await _rest(worker)
    else:
        return await _look(worker)
    return True


async def _look(worker: WorkerBase) -> bool:
    """Whoever is about to go because nothing is ready looks for the dead, and asks once more: what they had may be."""
    worker._looked, looked = True, worker._looked
    if looked:
        return False
    queue = worker._consumer._queue
    try:
        answer = await send_safely(queue._client, queue._reaping())
    except Unavailable as error:
        queue._client.emit("unavailable", queue.name, detail=str(error))
        return True
    assert isinstance(answer, Reclaimed)
    if answer.requeued or answer.dead_lettered:
        queue._client.emit("reclaimed", queue.name, detail=reclaim_shown(answer))
    return True


async def _finds_unseen(worker: WorkerBase) -> bool:
    """Whether something is with it that it does not know, though no hand is free: others are to have it, and soon.

    A question that was slower than the one that was asked in its place has taken more than there was room for.
    """
    consumer = worker._consumer
    if not consumer._is_unsure(consumer._queue._client.clock.now_ns()):
        return False
    got = await consuming.take(consumer, 0, wait=False)
    worker._ended.extend((message, Release()) for message in got.messages)
    return bool(got.messages)


def _drains(worker: WorkerBase) -> bool:
    """Whether it takes nothing, to come back idle for a suspect. Not for ever: a handler may take hours."""
    now_ns = worker._consumer._queue._client.clock.now_ns()
    return bool(worker._called_ns) and (now_ns - worker._called_ns) % _DRAIN_AGAIN_NS < _DRAIN_NS


async def _rest(worker: WorkerBase) -> None:
    """Until a handler ends, somebody says stop, or a lease falls into doubt."""
    await _sleep(worker, _LOOK_NS, _doubt_ns(worker))


async def _sleep(worker: WorkerBase, span_ns: int, until_ns: int) -> None:
    assert worker._waker is not None
    await worker._waker.wait(min(until_ns, worker._consumer._queue._client.clock.now_ns() + span_ns))


def _doubt_ns(worker: WorkerBase) -> int:
    """When handlers may have to be told. A doubt may end unheard, and begin again: so it is looked at now and then."""
    lease, now_ns = worker._consumer._lease, worker._consumer._queue._client.clock.now_ns()
    if lease is None:
        return NEVER_NS
    return lease.doubt_ns if now_ns < lease.doubt_ns else now_ns + _LOOK_NS


def _begin(worker: WorkerBase) -> None:
    """Give messages to free hands."""
    while worker._waiting and len(worker._running) < worker._concurrency:
        message = worker._waiting[0]
        if message._lease._in_doubt():
            return  # it may be somebody else's: soon the engine says
        worker._waiting.popleft()
        if message._lease is not worker._consumer._lease or message._is_lost():
            worker._consumer._forget(message)  # it is somebody else's by now
            continue
        worker._running[message._entry] = message
        worker._start(message)


def _warn(worker: WorkerBase) -> None:
    """Tell the handlers of a lease that is lost or in doubt, once for each time that it is."""
    lost = [each for each in worker._running.values() if each._is_lost() and each._doubted_ns != each._lease.doubt_ns]
    if not lost:
        return
    for each in lost:
        each._told_of_loss, each._doubted_ns = True, each._lease.doubt_ns
    if worker._on_loss == "cancel":
        worker._interrupt(lost)
    elif callable(worker._on_loss):
        for each in lost:
            try:
                worker._on_loss(each)
            except Exception:
                log.exception("on_loss of %r failed", each)


async def _settle(worker: WorkerBase) -> None:
    """Tell the engine what has ended, many at a time. What cannot be told now is told later."""
    consumer = worker._consumer
    while worker._ended:
        first: list[tuple[MessageBase, BaseException | None]] = []
        lease, room = worker._ended[0][0]._lease, BATCH_MAX
        while worker._ended and room > 0 and worker._ended[0][0]._lease is lease:
            first.append(worker._ended.popleft())
            room -= _WEIGHT if first[-1][0]._kept.key else 1
        for message, _ in first:
            worker._running.pop(message._entry, None)
        said = [(message, error) for message, error in first if not message._settled]
        if said:
            outcomes = tuple(worker._outcome(message, error) for message, error in said)
            lost = await _said(worker, lease, said, outcomes)
            for (message, _), outcome in zip(said, outcomes, strict=True):
                consumer._forget(message)
                if message._entry in lost:
                    detail = f"expired (message {message.id} is not with this consumer, its {outcome.kind} was refused)"
                    consumer._queue._client.emit("lost", consumer._queue.name, message.fence, detail=detail)
                else:
                    message._settled = outcome.kind
                    told(consumer._queue, outcome, message)


async def _said(
    worker: WorkerBase,
    lease: ConsumerSession,
    said: list[tuple[MessageBase, BaseException | None]],
    outcomes: tuple[MessageOutcome, ...],
) -> frozenset[str]:
    """The entries that were not ours. Said by the keeper, if not by us; said again, if it was interrupted."""
    consumer = worker._consumer
    try:
        return frozenset(await conclude(consumer._queue, lease, outcomes, consumer, again=worker._interrupted))
    except Unavailable as error:
        log.warning("holdfast: what became of %d messages cannot be told: %s", len(said), error)
        raise
    except BaseException:
        worker._ended.extendleft(reversed(said))  # it is done, and must not be given back as if it were not
        worker._interrupted = True
        raise


async def _wind_down(worker: WorkerBase) -> None:
    """Give back, let finish, leave."""
    try:
        client = worker._consumer._queue._client
        until_ns = NEVER_NS if worker._grace_ns is None else client.clock.now_ns() + worker._grace_ns
        while worker._waiting:
            worker._ended.append((worker._waiting.popleft(), Release()))
        await _settle(worker)
        while worker._running and client.clock.now_ns() < until_ns and worker._stops < 2:
            await _sleep(worker, _LOOK_NS, until_ns)
            _warn(worker)
            await _settle(worker)
        if worker._running:
            worker._interrupt(list(worker._running.values()))
            until_ns = client.clock.now_ns() + _CANCEL_NS
            while worker._running and worker._interruptible and client.clock.now_ns() < until_ns:
                await _sleep(worker, _RETRY_NS, until_ns)
                await _settle(worker)
    finally:
        await consuming.leave(worker._consumer)
