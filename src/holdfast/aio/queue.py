"""Queues: messages for whoever is free, each for one of them at a time."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from holdfast.aio.lease import LossEvent
from holdfast.aio.ownership import Owner
from holdfast.clock import Seconds, timeout_ns
from holdfast.core.lease.lock import awaitable, is_coroutine_function, refuse_generator, refuse_unfinished
from holdfast.core.ownership.owner import MOST
from holdfast.core.queue import consumer, dlq, message, partitions, queue, worker
from holdfast.core.queue.queue import NORMAL
from holdfast.core.queue.worker import GRACE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from holdfast.core.queue.dlq import DeadLetter
    from holdfast.core.queue.queue import ConsistencyReport, ConsumerStatus, PeekedMessage, QueueStats


class Message(message.MessageBase):
    """Like `blocking.Message`, awaited."""

    @property
    def lost(self) -> LossEvent:
        """Set while somebody else may have it."""
        return LossEvent(self._lease, self._is_lost, self._is_over)

    async def ack(self) -> None:
        """Like `blocking.Message.ack`, awaited."""
        await message.ack(self)

    async def retry(self, delay: Seconds | None = None, reason: str = "") -> None:
        """Like `blocking.Message.retry`, awaited."""
        await message.retry(self, delay, reason)

    async def release(self, delay: Seconds = 0) -> None:
        """Like `blocking.Message.release`, awaited."""
        await message.release(self, delay)

    async def reject(self, reason: str) -> None:
        """Like `blocking.Message.reject`, awaited."""
        await message.reject(self, reason)

    async def verify(self) -> None:
        """Like `blocking.Message.verify`, awaited."""
        await message.verify(self)

    async def __aenter__(self) -> Message:
        message.refuse_if_not_ours(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return await message.leave(self, error)


class Consumer(consumer.ConsumerBase):
    """Like `blocking.Consumer`, awaited: `async for message in consumer`."""

    _Message = Message

    async def receive(self, most: int = 1, timeout: Seconds | None = None) -> list[Message]:
        """Like `blocking.Consumer.receive`, awaited."""
        return await consumer.receive(self, most, timeout_ns(timeout))

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> Message:
        for each in await self.receive():
            return each
        raise StopAsyncIteration

    async def __aenter__(self) -> Consumer:
        await consumer.enter(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        await consumer.leave(self)
        return False


class Worker(worker.WorkerBase):
    """Like `blocking.Worker`, awaited: handlers are coroutine functions, or plain ones, which run in threads."""

    _interruptible = _one_thread = True

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        refuse_generator(self._handler)
        self._awaits = is_coroutine_function(self._handler)
        self._tasks: dict[str, asyncio.Task[BaseException | None]] = {}

    async def run(self) -> None:
        """Like `blocking.Worker.run`, awaited."""
        await worker.work(self, until_idle=False)

    async def run_until_idle(self) -> None:
        """Like `blocking.Worker.run_until_idle`, awaited."""
        await worker.work(self, until_idle=True)

    def _start(self, message: Any) -> None:
        task = self._tasks[message._entry] = asyncio.get_running_loop().create_task(self._handle(message))
        # Not at the end of the task itself: one that is cancelled before it has begun has no end.
        task.add_done_callback(lambda ended: self._over(message, ended))

    async def _handle(self, message: Any) -> BaseException | None:
        if self._awaits:
            await awaitable(self._handler, self._handler(message))
            return None
        said = asyncio.get_running_loop().create_future()
        self._hands.give(partial(self._work, message, said), len(self._running))
        error, given = await said
        if given is not None:  # of a lambda, or of an object that can be called: nobody could know before
            await given
        return error  # type: ignore[no-any-return]

    def _work(self, message: Any, said: asyncio.Future[Any]) -> None:
        """In a thread. What it ends with is given and not raised: not every error can cross to a loop unharmed."""
        error, given = None, None
        if said.done():
            return  # it was given back before a hand was free
        try:
            result = self._handler(message)
            if hasattr(result, "__await__"):
                given = result
            else:
                refuse_unfinished(self._handler, result)
        except BaseException as failure:  # it says what becomes of the message
            error = failure
        with suppress(RuntimeError):  # the loop may have been closed meanwhile
            said.get_loop().call_soon_threadsafe(_tell, said, (error, given))

    def _over(self, message: Any, task: asyncio.Task[BaseException | None]) -> None:
        del self._tasks[message._entry]
        if task.cancelled():
            return self._done(message, asyncio.CancelledError())
        error = task.exception()
        return self._done(message, task.result() if error is None else error)

    def _interrupt(self, messages: list[Any]) -> None:
        for each in messages:
            task = self._tasks.get(each._entry)
            if task is not None:
                task.cancel()


def _tell(said: asyncio.Future[Any], what: object) -> None:
    if not said.done():
        said.set_result(what)


class DeadLetterQueue(dlq.DlqBase):
    """The dead letters of a queue."""

    async def list(self, limit: int = 100, after: str = "") -> list[DeadLetter]:
        """Like `blocking.DeadLetterQueue.list`, awaited."""
        return await dlq.letters(self, limit, after)

    async def get(self, id: str) -> DeadLetter:  # noqa: A002 - a message's
        """Like `blocking.DeadLetterQueue.get`, awaited."""
        return await dlq.get(self, id)

    async def redrive(
        self,
        ids: Iterable[str] | None = None,
        *,
        where: Callable[[DeadLetter], object] | None = None,
        rate: float | None = None,
        reset_attempts: bool = True,
    ) -> int:
        """Like `blocking.DeadLetterQueue.redrive`, awaited."""
        return await dlq.redrive(self, ids, where, rate, reset_attempts)

    async def purge(
        self,
        ids: Iterable[str] | None = None,
        *,
        where: Callable[[DeadLetter], object] | None = None,
        before: float | None = None,
    ) -> int:
        """Like `blocking.DeadLetterQueue.purge`, awaited."""
        return await dlq.purge(self, ids, where, before)


class Queue(queue.QueueBase):
    """The queue of a name."""

    @property
    def dlq(self) -> DeadLetterQueue:
        """Its dead letters."""
        return DeadLetterQueue(self)

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
        """Like `blocking.Queue.publish`, awaited."""
        terms = queue.checked_terms(delay, headers, key, priority)
        return await queue.publish(self, body, terms, dedup_key, timeout)

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
        """Like `blocking.Queue.publish_many`, awaited."""
        terms = queue.checked_terms(delay, headers, key, priority)
        return await queue.publish_many(self, bodies, terms, timeout)

    def consumer(self, name: str | None = None, *, prefetch: int = 1) -> Consumer:
        """Takes messages one by one; it has at most `prefetch` at a time that are not settled. Use it in `with`."""
        return Consumer(self, name=name, prefetch=prefetch)

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
        """Runs the handler for every message, so many at a time, and takes as many as it has free hands.

        `prefetch` more are taken ahead. `stop()` waits for handlers for `grace`.
        """
        hands = worker.hands(concurrency, prefetch)
        mine = Consumer(self, name=name, prefetch=sum(hands))
        return Worker(mine, handler, concurrency=hands[0], grace=grace, on_loss=on_loss, policies=("report", "cancel"))

    def owner(self, name: str | None = None, *, most: int = MOST, events: str | None = None) -> Owner:
        """Like `blocking.Queue.owner`, awaited."""
        return Owner((self,), name=name, most=most, events=events)

    def partitioned(self, parts: int) -> PartitionedQueue:
        """Like `blocking.Queue.partitioned`, awaited."""
        return PartitionedQueue(self, parts)

    async def stats(self) -> QueueStats:
        """Like `blocking.Queue.stats`, awaited."""
        return await queue.stats(self)

    async def consumers(self, limit: int = 1000) -> list[ConsumerStatus]:
        """Like `blocking.Queue.consumers`, awaited."""
        return await queue.consumers(self, limit)

    async def peek(self, place: str = "ready", limit: int = 10) -> list[PeekedMessage]:
        """Like `blocking.Queue.peek`, awaited."""
        return await queue.peek(self, place, limit)

    async def check(self) -> ConsistencyReport:
        """Like `blocking.Queue.check`, awaited."""
        return await queue.check(self)


class PartitionedQueue(partitions.PartitionedBase):
    """Like `blocking.PartitionedQueue`, awaited."""

    @property
    def parts(self) -> tuple[Queue, ...]:
        """The parts: queues like any other."""
        return self._parts  # type: ignore[return-value]

    def part(self, key: str) -> Queue:
        """The part in which this key is."""
        part: Queue = self._part_of(key)
        return part

    async def publish(self, body: Any, *, key: str | None = None, dedup_key: str | None = None, **options: Any) -> str:
        """Like `blocking.PartitionedQueue.publish`, awaited."""
        part: Queue = self._part_for(key, dedup_key)
        return await part.publish(body, key=key, dedup_key=dedup_key, **options)

    async def publish_many(
        self, bodies: Iterable[Any], *, key: str | Callable[[Any], str] | None = None, **options: Any
    ) -> list[str]:
        """Like `blocking.PartitionedQueue.publish_many`, awaited."""
        return await partitions.publish_many(self, bodies, key, **options)

    def owner(self, name: str | None = None, *, most: int = MOST, events: str | None = None) -> Owner:
        """Like `blocking.PartitionedQueue.owner`, awaited."""
        return Owner(self.parts, name=name, most=most, events=events)

    async def stats(self) -> QueueStats:
        """Like `blocking.PartitionedQueue.stats`, awaited."""
        return await partitions.stats(self._parts, self.name)

    async def check(self) -> ConsistencyReport:
        """Like `blocking.PartitionedQueue.check`, awaited."""
        return await partitions.check(self._parts)
