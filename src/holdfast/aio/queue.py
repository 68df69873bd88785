"""Queues of messages for competing consumers: each message is delivered to one consumer at a time."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from holdfast.aio.lease import LossEvent
from holdfast.aio.ownership import Assignment, Owner
from holdfast.clock import Seconds, timeout_ns
from holdfast.core.lease.lock import awaitable, is_coroutine_function, refuse_generator, refuse_unfinished
from holdfast.core.ownership.owner import MOST, OwnerCore
from holdfast.core.queue import dlq, partitions
from holdfast.core.queue.consumer import ConsumerBase, ConsumerCore
from holdfast.core.queue.dlq import DeadLetterQueueBase
from holdfast.core.queue.handler_threads import HandlerThreads
from holdfast.core.queue.message import MessageBase
from holdfast.core.queue.partitions import PartitionedQueueBase
from holdfast.core.queue.queue import NORMAL, QueueBase, checked_options
from holdfast.core.queue.worker import GRACE_S, WorkerBase, WorkerCore, checked_concurrency
from holdfast.core.unknown_options import teaching
from holdfast.interrupts import is_of_signal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from holdfast.core.queue.consumer import Delivered
    from holdfast.core.queue.dlq import DeadLetter
    from holdfast.core.queue.queue import ConsistencyReport, ConsumerStatus, PeekedMessage, QueueStats


class Message(MessageBase):
    """One delivery of a message.

    An `async with` block acks it if the block ends well, and retries it if an error leaves the block. `ack`, `retry`,
    `release`, `reject` and `verify` raise `LeaseLost` if another consumer holds the message by now, or may hold it and
    the engine does not answer; `Unavailable` with the outcome `"unknown"` if only the engine does not answer.
    """

    @property
    def lost(self) -> LossEvent:
        """Set while another consumer may have the message."""
        return LossEvent(self._held.session, self._held.is_lost, self._held.is_over)

    async def ack(self) -> None:
        """Record that the work is done; the engine deletes the message."""
        await self._held.ack()

    async def retry(self, delay: Seconds | None = None, reason: str = "") -> None:
        """Record a failed attempt; the message is redelivered, or becomes a dead letter after the last attempt.

        `delay`: seconds before the next attempt; `None` uses the queue's backoff.
        `reason`: text that is stored as the error of this attempt.
        """
        await self._held.retry(delay, reason)

    async def release(self, delay: Seconds = 0) -> None:
        """Give the message back for another consumer; no attempt is used.

        `delay`: seconds before it is ready again.
        """
        await self._held.release(delay)

    async def reject(self, reason: str) -> None:
        """Make the message a dead letter, because no further attempt can succeed.

        `reason`: why, for people to read.
        """
        await self._held.reject(reason)

    async def verify(self) -> None:
        """Ask the engine whether this consumer still holds the message; raise `LeaseLost` if it does not."""
        await self._held.verify()

    async def __aenter__(self) -> Message:
        self._held.check_unfinished()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return await self._held.leave(error)


class Consumer(ConsumerBase):
    """Receives messages, inside an `async with` block: `async for message in consumer`."""

    async def receive(self, most: int = 1, timeout: Seconds | None = None) -> list[Message]:
        """Return messages as soon as there is one; none after the timeout, or if the consumer stops.

        `most`: how many messages at most.
        `timeout`: seconds to wait; `None` waits for ever, 0 does not wait.
        """
        return await self._core.receive(most, timeout_ns(timeout))

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> Message:
        for each in await self.receive():
            return each
        raise StopAsyncIteration

    async def __aenter__(self) -> Consumer:
        await self._core.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        await self._core.leave()
        return False


class _TaskRunner:
    """Runs coroutine functions in tasks, and plain handlers in threads."""

    interruptible = same_thread = True

    def __init__(self, handler: Callable[[Any], Any]) -> None:
        refuse_generator(handler)
        self._handler = handler
        self._is_coroutine = is_coroutine_function(handler)
        self._tasks: dict[str, asyncio.Task[BaseException | None]] = {}
        self._threads = HandlerThreads()

    def start(self, delivered: Delivered, running: int, done: Callable[[BaseException | None], None]) -> None:
        entry = delivered.held.entry
        task = asyncio.get_running_loop().create_task(self._handle(delivered.message, running))
        self._tasks[entry] = task
        # A callback, not code at the end of the task: a task that is cancelled before it begins never runs its code.
        task.add_done_callback(partial(self._ended, entry, done))

    async def _handle(self, message: Any, running: int) -> BaseException | None:
        try:
            return await self._handled(message, running)
        except (KeyboardInterrupt, SystemExit) as error:
            # A task that raises these ends the whole loop, as Ctrl-C should; a handler that exits has failed.
            if is_of_signal(error):
                raise
            return error

    async def _handled(self, message: Any, running: int) -> BaseException | None:
        if self._is_coroutine:
            await awaitable(self._handler, self._handler(message))
            return None
        result = asyncio.get_running_loop().create_future()
        self._threads.submit(partial(self._run, message, result), running)
        error, unfinished = await result
        if unfinished is not None:  # the handler is a lambda or a callable object that returned a coroutine
            await unfinished
        return error  # type: ignore[no-any-return]

    def _run(self, message: Any, result: asyncio.Future[Any]) -> None:
        """Run a plain handler in a thread, and set its error as the result: a future refuses some exceptions."""
        error, unfinished = None, None
        if result.done():
            return  # the message was released before a thread was free
        try:
            returned = self._handler(message)
            if hasattr(returned, "__await__"):
                unfinished = returned
            else:
                refuse_unfinished(self._handler, returned)
        except BaseException as failure:  # the class of the error decides the outcome of the message
            error = failure
        with suppress(RuntimeError):  # the loop may have been closed in the meantime
            result.get_loop().call_soon_threadsafe(_set_result, result, (error, unfinished))

    def _ended(
        self, entry: str, done: Callable[[BaseException | None], None], task: asyncio.Task[BaseException | None]
    ) -> None:
        del self._tasks[entry]
        if task.cancelled():
            return done(asyncio.CancelledError())
        error = task.exception()
        return done(task.result() if error is None else error)

    def interrupt(self, delivered: list[Delivered]) -> None:
        for each in delivered:
            task = self._tasks.get(each.held.entry)
            if task is not None:
                task.cancel()

    def stop(self, *, wait: bool) -> None:
        self._threads.stop(wait=wait)
        self._threads = HandlerThreads()


def _set_result(future: asyncio.Future[Any], result: object) -> None:
    if not future.done():
        future.set_result(result)


class Worker(WorkerBase):
    """Runs a handler for every message of a queue, several at a time.

    Coroutine functions run in tasks, plain functions in threads.
    """

    async def run(self) -> None:
        """Handle messages until `stop()` is called: by another thread, a signal handler, or a handler of a message."""
        await self._core.work(until_idle=False)

    async def run_until_idle(self) -> None:
        """Handle messages until none is ready and no handler runs; do not wait for delayed messages."""
        await self._core.work(until_idle=True)


class DeadLetterQueue(DeadLetterQueueBase):
    """The dead-letter queue (DLQ) of a queue: its messages that are not retried any more."""

    async def list(self, limit: int = 100, after: str = "") -> list[DeadLetter]:
        """Return dead letters, the oldest first.

        `limit`: how many at most.
        `after`: the `position` of the last dead letter of the page before; empty begins with the oldest.
        """
        return await dlq.list_dead_letters(self._queue, limit, after)

    async def get(self, id: str) -> DeadLetter:  # noqa: A002 - the id of a message
        """Return one dead letter; raise `NotFound` if there is none.

        `id`: the id of the message.
        """
        return await dlq.get_dead_letter(self._queue, id)

    async def redrive(
        self,
        ids: Iterable[str] | None = None,
        *,
        where: Callable[[DeadLetter], object] | None = None,
        rate: float | None = None,
        reset_attempts: bool = True,
    ) -> int:
        """Publish dead letters again, and return how many; without `ids` and `where`, all that are there now.

        `ids`: the ids of their messages.
        `where`: a function of a dead letter; only those for which it is true.
        `rate`: how many per second at most; `None` has no limit.
        `reset_attempts`: whether all attempts are available again, and the record of failures is deleted.
        """
        return await dlq.redrive(self._queue, ids, where, rate, reset_attempts)

    async def purge(
        self,
        ids: Iterable[str] | None = None,
        *,
        where: Callable[[DeadLetter], object] | None = None,
        before: float | None = None,
    ) -> int:
        """Delete dead letters, and return how many; without parameters, all that are there now.

        `ids`: the ids of their messages.
        `where`: a function of a dead letter; only those for which it is true.
        `before`: only those that died before this time, in seconds since 1970.
        """
        return await dlq.purge(self._queue, ids, where, before)


@teaching
class Queue(QueueBase):
    """A queue of messages for competing consumers, with at-least-once delivery."""

    @property
    def dlq(self) -> DeadLetterQueue:
        """The dead-letter queue."""
        return DeadLetterQueue(self._core)

    async def publish(
        self,
        body: Any,
        *,
        delay: Seconds = 0,
        dedup_key: str | None = None,
        headers: dict[str, str] | None = None,
        timeout: Seconds | None = 0,
        key: str | None = None,
        priority: str = NORMAL,
    ) -> str:
        """Publish a message, and return its id.

        `body`: anything that the queue's codec can encode; with the default codec, anything that JSON can encode.
        `delay`: seconds before the message is ready.
        `dedup_key`: a deduplication key: if a message was published under it within the queue's `dedup_window`, publish
        nothing, and return the id of that message.
        `headers`: texts beside the body.
        `timeout`: seconds to wait for room if the queue is bounded and full, before `QueueFull`; `None` waits for ever.
        `key`: messages of one key are delivered one at a time, in the order of publication.
        `priority`: `high`, `normal` or `low`.
        """
        options = checked_options(delay, headers, key, priority)
        return await self._core.publish(body, options, dedup_key, timeout)

    async def publish_many(
        self,
        bodies: Iterable[Any],
        *,
        delay: Seconds = 0,
        headers: dict[str, str] | None = None,
        timeout: Seconds | None = 0,
        key: str | Callable[[Any], str] | None = None,
        priority: str = NORMAL,
    ) -> list[str]:
        """Publish many messages in batches, and return their ids. An error names those published before it.

        `bodies`: one body per message.
        `delay`: seconds before the messages are ready.
        `headers`: texts beside each body.
        `timeout`: seconds to wait for room if the queue is bounded and full, before `QueueFull`; `None` waits for ever.
        `key`: the key of all messages, or a function that returns the key for a body.
        `priority`: `high`, `normal` or `low`.
        """
        options = checked_options(delay, headers, key, priority)
        return await self._core.publish_many(bodies, options, timeout)

    def consumer(self, name: str | None = None, *, prefetch: int = 1) -> Consumer:
        """Return a consumer, which receives messages one by one inside its `async with` block.

        `name`: a name for people to read; two consumers may have the same one. Default: the client's label, or host and
        process id.
        `prefetch`: how many unfinished messages it may hold at a time.
        """
        return Consumer(ConsumerCore(self._core, Message, name=name, prefetch=prefetch))

    def worker(
        self,
        handler: Callable[[Message], Any],
        *,
        name: str | None = None,
        concurrency: int = 8,
        prefetch: int = 0,
        grace: Seconds = GRACE_S,
        on_loss: str | Callable[[Message], object] = "report",
    ) -> Worker:
        """Return a worker, which calls a handler for every message; start it with `run()`.

        `handler`: called with each message. If it returns, the message is acked; if it raises, it is retried. It may
        raise `Retry`, `Release` or `Reject`.
        `name`: a name for people to read.
        `concurrency`: how many handlers run at a time.
        `prefetch`: how many messages to receive ahead of the handlers.
        `grace`: seconds that `stop()` waits for running handlers.
        `on_loss`: what to do if another consumer may have the message while its handler runs: `report` only sets
        `message.lost`; `cancel` cancels the handler; or a function, called with the message.
        """
        slots, ahead = checked_concurrency(concurrency, prefetch)
        consumer = ConsumerCore(self._core, Message, name=name, prefetch=slots + ahead)
        return Worker(
            WorkerCore(
                consumer,
                handler,
                _TaskRunner,
                concurrency=slots,
                grace=grace,
                on_loss=on_loss,
                policies=("report", "cancel"),
            )
        )

    def owner(self, name: str | None = None, *, most: int = MOST, events: str | None = None) -> Owner:
        """Return an owner, which holds keys for hours, inside its `async with` block.

        `name`: a name for people to read.
        `most`: how many keys it may hold.
        `events`: how the owner learns at once of the expiry of other owners: `listen` if the server already publishes
        such events, `configure` to turn them on at the server, `None` not at all. Recovery does not depend on events.
        """
        return Owner(OwnerCore((self._core,), Assignment, name=name, most=most, events=events))

    def partitioned(self, parts: int) -> PartitionedQueue:
        """Return this queue in partitions, each in its own cluster slot, for when one server is not enough.

        `parts`: how many partitions, 1 to 256. It must be the same for all producers and consumers of the queue.
        """
        cores = partitions.partitions_of(self._core, parts)
        return PartitionedQueue(self.name, cores, [Queue(core) for core in cores])

    async def stats(self) -> QueueStats:
        """Return how many messages are ready, delayed, held or dead, and the counters of the queue."""
        return await self._core.stats()

    async def consumers(self, limit: int = 1000) -> list[ConsumerStatus]:
        """Return the consumers, the first to expire first.

        `limit`: how many at most.
        """
        return await self._core.consumers(limit)

    async def peek(self, place: str = "ready", limit: int = 10) -> list[PeekedMessage]:
        """Return the first messages of a place without receiving them.

        `place`: `ready`, `delayed`, `in_flight` or `behind` (waiting behind another message of their key).
        `limit`: how many at most.
        """
        return await self._core.peek(place, limit)

    async def check(self) -> ConsistencyReport:
        """Check that every message is in exactly one place. Reads all messages, in steps that block no client."""
        return await self._core.check()


class PartitionedQueue(PartitionedQueueBase):
    """A queue in partitions. A key always goes to the same partition."""

    @property
    def parts(self) -> tuple[Queue, ...]:
        """The partitions: queues like any other."""
        return self._parts

    def part(self, key: str) -> Queue:
        """Return the partition of a key.

        `key`: the key of messages.
        """
        part: Queue = self._part_of(key)
        return part

    async def publish(self, body: Any, *, key: str | None = None, dedup_key: str | None = None, **options: Any) -> str:
        """Publish a message like `Queue.publish`, into the partition of its key, and return its id.

        Each partition remembers its own deduplication keys: the same `dedup_key` with two keys may publish twice.

        `body`: as in `Queue.publish`.
        `key`: chooses the partition; without it, the `dedup_key` does; without both, the choice is random.
        `dedup_key`: as in `Queue.publish`.
        `options`: the other options of `Queue.publish`.
        """
        part: Queue = self._part_for(key, dedup_key)
        return await part.publish(body, key=key, dedup_key=dedup_key, **options)

    async def publish_many(
        self, bodies: Iterable[Any], *, key: str | Callable[[Any], str] | None = None, **options: Any
    ) -> list[str]:
        """Publish many messages, each into the partition of its key; return the ids in the order of the bodies.

        One partition is published after the other, so the messages that an error names need not be the first bodies.

        `bodies`: one body per message.
        `key`: the key of all messages, or a function that returns the key for a body.
        `options`: the other options of `Queue.publish_many`.
        """
        return await partitions.publish_many(self._cores, bodies, key, **options)

    def owner(self, name: str | None = None, *, most: int = MOST, events: str | None = None) -> Owner:
        """Return an owner of keys in all partitions at once.

        `name`, `most`, `events`: as in `Queue.owner`.
        """
        return Owner(OwnerCore(self._cores, Assignment, name=name, most=most, events=events))

    async def stats(self) -> QueueStats:
        """Return the statistics of all partitions together."""
        return await partitions.stats(self._cores, self.name)

    async def check(self) -> ConsistencyReport:
        """Check that every message of every partition is in exactly one place."""
        return await partitions.check(self._cores)
