"""Queues of messages for competing consumers: each message is delivered to one consumer at a time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from holdfast.blocking.lease import LossEvent
from holdfast.blocking.ownership import Assignment, Owner
from holdfast.clock import Seconds, timeout_ns
from holdfast.core.lease.lock import refuse_coroutine, refuse_unfinished
from holdfast.core.ownership.owner import MOST, OwnerCore
from holdfast.core.queue import dlq, partitions
from holdfast.core.queue.consumer import ConsumerBase, ConsumerCore
from holdfast.core.queue.dlq import DeadLetterQueueBase
from holdfast.core.queue.handler_threads import HandlerThreads
from holdfast.core.queue.message import MessageBase
from holdfast.core.queue.partitions import PartitionedQueueBase
from holdfast.core.queue.queue import NORMAL, QueueBase, checked_options
from holdfast.core.queue.worker import GRACE_S, WorkerBase, WorkerCore, checked_concurrency
from holdfast.core.step import run
from holdfast.core.unknown_options import teaching

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from holdfast.core.queue.consumer import Delivered
    from holdfast.core.queue.dlq import DeadLetter
    from holdfast.core.queue.queue import ConsistencyReport, ConsumerStatus, PeekedMessage, QueueStats


class Message(MessageBase):
    """One delivery of a message.

    A `with` block acks it if the block ends well, and retries it if an error leaves the block. `ack`, `retry`,
    `release`, `reject` and `verify` raise `LeaseLost` if another consumer holds the message by now, or may hold it and
    the engine does not answer; `Unavailable` with the outcome `"unknown"` if only the engine does not answer.
    """

    @property
    def lost(self) -> LossEvent:
        """Set while another consumer may have the message."""
        return LossEvent(self._held.session, self._held.is_lost, self._held.is_over)

    def ack(self) -> None:
        """Record that the work is done; the engine deletes the message."""
        run(self._held.ack())

    def retry(self, delay: Seconds | None = None, reason: str = "") -> None:
        """Record a failed attempt; the message is redelivered, or becomes a dead letter after the last attempt.

        `delay`: seconds before the next attempt; `None` uses the queue's backoff.
        `reason`: text that is stored as the error of this attempt.
        """
        run(self._held.retry(delay, reason))

    def release(self, delay: Seconds = 0) -> None:
        """Give the message back for another consumer; no attempt is used.

        `delay`: seconds before it is ready again.
        """
        run(self._held.release(delay))

    def reject(self, reason: str) -> None:
        """Make the message a dead letter, because no further attempt can succeed.

        `reason`: why, for people to read.
        """
        run(self._held.reject(reason))

    def verify(self) -> None:
        """Ask the engine whether this consumer still holds the message; raise `LeaseLost` if it does not."""
        run(self._held.verify())

    def __enter__(self) -> Message:
        self._held.check_unfinished()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return run(self._held.leave(error))


class Consumer(ConsumerBase):
    """Receives messages, inside a `with` block: `for message in consumer`."""

    def receive(self, most: int = 1, timeout: Seconds | None = None) -> list[Message]:
        """Return messages as soon as there is one; none after the timeout, or if the consumer stops.

        `most`: how many messages at most.
        `timeout`: seconds to wait; `None` waits for ever, 0 does not wait.
        """
        return run(self._core.receive(most, timeout_ns(timeout)))

    def __iter__(self) -> Consumer:
        return self

    def __next__(self) -> Message:
        for each in self.receive():
            return each
        raise StopIteration

    def __enter__(self) -> Consumer:
        run(self._core.enter())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        run(self._core.leave())
        return False


class _ThreadRunner:
    """Runs plain handlers in threads. A thread cannot be ended from outside; its handler may check `message.lost`."""

    interruptible = same_thread = False

    def __init__(self, handler: Callable[[Any], Any]) -> None:
        refuse_coroutine(handler)
        self._handler = handler
        self._threads = HandlerThreads()

    def start(self, delivered: Delivered, running: int, done: Callable[[BaseException | None], None]) -> None:
        self._threads.submit(partial(self._run, delivered.message, done), running)

    def _run(self, message: Any, done: Callable[[BaseException | None], None]) -> None:
        error: BaseException | None = None
        try:
            refuse_unfinished(self._handler, self._handler(message))
        except BaseException as failure:  # the class of the error decides the outcome of the message
            error = failure
        done(error)

    def interrupt(self, delivered: list[Delivered]) -> None:
        pass

    def stop(self, *, wait: bool) -> None:
        self._threads.stop(wait=wait)
        self._threads = HandlerThreads()


class Worker(WorkerBase):
    """Runs a handler for every message of a queue, in threads, several at a time."""

    def run(self) -> None:
        """Handle messages until `stop()` is called: by another thread, a signal handler, or a handler of a message."""
        run(self._core.work(until_idle=False))

    def run_until_idle(self) -> None:
        """Handle messages until none is ready and no handler runs; do not wait for delayed messages."""
        run(self._core.work(until_idle=True))


class DeadLetterQueue(DeadLetterQueueBase):
    """The dead-letter queue (DLQ) of a queue: its messages that are not retried any more."""

    def list(self, limit: int = 100, after: str = "") -> list[DeadLetter]:
        """Return dead letters, the oldest first.

        `limit`: how many at most.
        `after`: the `position` of the last dead letter of the page before; empty begins with the oldest.
        """
        return run(dlq.list_dead_letters(self._queue, limit, after))

    def get(self, id: str) -> DeadLetter:  # noqa: A002 - the id of a message
        """Return one dead letter; raise `NotFound` if there is none.

        `id`: the id of the message.
        """
        return run(dlq.get_dead_letter(self._queue, id))

    def redrive(
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
        return run(dlq.redrive(self._queue, ids, where, rate, reset_attempts))

    def purge(
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
        return run(dlq.purge(self._queue, ids, where, before))


@teaching
class Queue(QueueBase):
    """A queue of messages for competing consumers, with at-least-once delivery."""

    @property
    def dlq(self) -> DeadLetterQueue:
        """The dead-letter queue."""
        return DeadLetterQueue(self._core)

    def publish(
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
        return run(self._core.publish(body, options, dedup_key, timeout))

    def publish_many(
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
        return run(self._core.publish_many(bodies, options, timeout))

    def consumer(self, name: str | None = None, *, prefetch: int = 1) -> Consumer:
        """Return a consumer, which receives messages one by one inside its `with` block.

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
        `message.lost`; or a function, called with the message.
        """
        slots, ahead = checked_concurrency(concurrency, prefetch)
        consumer = ConsumerCore(self._core, Message, name=name, prefetch=slots + ahead)
        return Worker(
            WorkerCore(
                consumer,
                handler,
                _ThreadRunner,
                concurrency=slots,
                grace=grace,
                on_loss=on_loss,
                policies=("report",),
            )
        )

    def owner(self, name: str | None = None, *, most: int = MOST, events: str | None = None) -> Owner:
        """Return an owner, which holds keys for hours, inside its `with` block.

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

    def stats(self) -> QueueStats:
        """Return how many messages are ready, delayed, held or dead, and the counters of the queue."""
        return run(self._core.stats())

    def consumers(self, limit: int = 1000) -> list[ConsumerStatus]:
        """Return the consumers, the first to expire first.

        `limit`: how many at most.
        """
        return run(self._core.consumers(limit))

    def peek(self, place: str = "ready", limit: int = 10) -> list[PeekedMessage]:
        """Return the first messages of a place without receiving them.

        `place`: `ready`, `delayed`, `in_flight` or `behind` (waiting behind another message of their key).
        `limit`: how many at most.
        """
        return run(self._core.peek(place, limit))

    def check(self) -> ConsistencyReport:
        """Check that every message is in exactly one place. Reads all messages, in steps that block no client."""
        return run(self._core.check())


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

    def publish(self, body: Any, *, key: str | None = None, dedup_key: str | None = None, **options: Any) -> str:
        """Publish a message like `Queue.publish`, into the partition of its key, and return its id.

        Each partition remembers its own deduplication keys: the same `dedup_key` with two keys may publish twice.

        `body`: as in `Queue.publish`.
        `key`: chooses the partition; without it, the `dedup_key` does; without both, the choice is random.
        `dedup_key`: as in `Queue.publish`.
        `options`: the other options of `Queue.publish`.
        """
        part: Queue = self._part_for(key, dedup_key)
        return part.publish(body, key=key, dedup_key=dedup_key, **options)

    def publish_many(
        self, bodies: Iterable[Any], *, key: str | Callable[[Any], str] | None = None, **options: Any
    ) -> list[str]:
        """Publish many messages, each into the partition of its key; return the ids in the order of the bodies.

        One partition is published after the other, so the messages that an error names need not be the first bodies.

        `bodies`: one body per message.
        `key`: the key of all messages, or a function that returns the key for a body.
        `options`: the other options of `Queue.publish_many`.
        """
        return run(partitions.publish_many(self._cores, bodies, key, **options))

    def owner(self, name: str | None = None, *, most: int = MOST, events: str | None = None) -> Owner:
        """Return an owner of keys in all partitions at once.

        `name`, `most`, `events`: as in `Queue.owner`.
        """
        return Owner(OwnerCore(self._cores, Assignment, name=name, most=most, events=events))

    def stats(self) -> QueueStats:
        """Return the statistics of all partitions together."""
        return run(partitions.stats(self._cores, self.name))

    def check(self) -> ConsistencyReport:
        """Check that every message of every partition is in exactly one place."""
        return run(partitions.check(self._cores))
