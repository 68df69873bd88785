"""Queues: messages for whoever is free, each for one of them at a time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from holdfast.blocking.lease import LossEvent
from holdfast.blocking.ownership import Owner
from holdfast.clock import Seconds, timeout_ns
from holdfast.core.lease.lock import refuse_coroutine, refuse_unfinished
from holdfast.core.ownership.owner import MOST
from holdfast.core.queue import consumer, dlq, message, partitions, queue, worker
from holdfast.core.queue.queue import NORMAL
from holdfast.core.queue.worker import GRACE_S
from holdfast.core.step import run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from holdfast.core.queue.dlq import DeadLetter
    from holdfast.core.queue.queue import ConsistencyReport, ConsumerStatus, PeekedMessage, QueueStats


class Message(message.MessageBase):
    """One delivery of a message. In `with` it is done if the block ends well, and tried again if an error leaves it."""

    @property
    def lost(self) -> LossEvent:
        """Set while somebody else may have it."""
        return LossEvent(self._lease, self._is_lost, self._is_over)

    def ack(self) -> None:
        """It is done, and gone. `LeaseLost`, as of all that follow, if it is somebody else's by now."""
        run(message.ack(self))

    def retry(self, delay: Seconds | None = None, reason: str = "") -> None:
        """This attempt has failed; the next comes after the delay, else by the queue's backoff. The last is dead."""
        run(message.retry(self, delay, reason))

    def release(self, delay: Seconds = 0) -> None:
        """Give it back, as if it had not been tried."""
        run(message.release(self, delay))

    def reject(self, reason: str) -> None:
        """There is no use in trying again: make it a dead letter."""
        run(message.reject(self, reason))

    def verify(self) -> None:
        """Ask the engine whether it is still ours: `LeaseLost` if it is not."""
        run(message.verify(self))

    def __enter__(self) -> Message:
        message.refuse_if_not_ours(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return run(message.leave(self, error))


class Consumer(consumer.ConsumerBase):
    """Takes messages, inside a `with` block: `for message in consumer`."""

    _Message = Message

    def receive(self, most: int = 1, timeout: Seconds | None = None) -> list[Message]:
        """Up to so many messages, as soon as there is one; none if there is none in time, or the consumer stops."""
        return run(consumer.receive(self, most, timeout_ns(timeout)))

    def __iter__(self) -> Consumer:
        return self

    def __next__(self) -> Message:
        for each in self.receive():
            return each
        raise StopIteration

    def __enter__(self) -> Consumer:
        run(consumer.enter(self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        run(consumer.leave(self))
        return False


class Worker(worker.WorkerBase):
    """A handler for every message, in threads, so many at a time."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        refuse_coroutine(self._handler)

    def run(self) -> None:
        """Work until `stop()` is said: by another thread, a signal handler, or a handler of a message."""
        run(worker.work(self, until_idle=False))

    def run_until_idle(self) -> None:
        """Work until nothing is ready and nothing runs; what is delayed is not waited for."""
        run(worker.work(self, until_idle=True))

    def _start(self, message: Any) -> None:
        self._hands.give(partial(self._work, message), len(self._running))

    def _work(self, message: Any) -> None:
        error: BaseException | None = None
        try:
            refuse_unfinished(self._handler, self._handler(message))
        except BaseException as failure:  # it says what becomes of the message
            error = failure
        self._done(message, error)

    def _interrupt(self, messages: list[Any]) -> None:
        """A thread cannot be ended from outside; its handler may look at `message.lost`."""


class DeadLetterQueue(dlq.DlqBase):
    """The dead letters of a queue."""

    def list(self, limit: int = 100, after: str = "") -> list[DeadLetter]:
        """The oldest deaths first; `after` is the `place` of the last letter seen."""
        return run(dlq.letters(self, limit, after))

    def get(self, id: str) -> DeadLetter:  # noqa: A002 - a message's
        """The dead letter of this message; `NotFound` if there is none."""
        return run(dlq.get(self, id))

    def redrive(
        self,
        ids: Iterable[str] | None = None,
        *,
        where: Callable[[DeadLetter], object] | None = None,
        rate: float | None = None,
        reset_attempts: bool = True,
    ) -> int:
        """Make these messages again, or those of which `where` is true, or all; how many were. `rate`: per second."""
        return run(dlq.redrive(self, ids, where, rate, reset_attempts))

    def purge(
        self,
        ids: Iterable[str] | None = None,
        *,
        where: Callable[[DeadLetter], object] | None = None,
        before: float | None = None,
    ) -> int:
        """Forget these, or those of which `where` is true and that died before, or all; how many were."""
        return run(dlq.purge(self, ids, where, before))


class Queue(queue.QueueBase):
    """The queue of a name."""

    @property
    def dlq(self) -> DeadLetterQueue:
        """Its dead letters."""
        return DeadLetterQueue(self)

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
        """Send a message; its id. With a `dedup_key` that was used before, nothing is sent, and that one's id is given.

        With a `key`, it is handed out when all that were sent before with the same key are done. `priority`: `high`,
        `normal` or `low`. Where the queue is bounded and full, it waits so long for room, then `QueueFull`.
        """
        terms = queue.checked_terms(delay, headers, key, priority)
        return run(queue.publish(self, body, terms, dedup_key, timeout))

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
        """Send many, a part at a time; their ids. Where there is no room for all, the error tells which were sent.

        A `key` is that of all of them, or what this function says of each body.
        """
        terms = queue.checked_terms(delay, headers, key, priority)
        return run(queue.publish_many(self, bodies, terms, timeout))

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
        return Worker(mine, handler, concurrency=hands[0], grace=grace, on_loss=on_loss, policies=("report",))

    def owner(self, name: str | None = None, *, most: int = MOST, events: str | None = None) -> Owner:
        """Owns keys, up to so many, until it says otherwise: for hours. Use it in `with`.

        With `events`, it hears at once when somebody else's time has ended: `listen`, if the server already tells that,
        or `configure`, to have it do so. Nothing depends on it.
        """
        return Owner((self,), name=name, most=most, events=events)

    def partitioned(self, parts: int) -> PartitionedQueue:
        """The same queue in so many parts, each in a slot of its own: where one server of a cluster is not enough."""
        return PartitionedQueue(self, parts)

    def stats(self) -> QueueStats:
        """How many messages are where, and what was counted."""
        return run(queue.stats(self))

    def consumers(self, limit: int = 1000) -> list[ConsumerStatus]:
        """Who takes messages."""
        return run(queue.consumers(self, limit))

    def peek(self, place: str = "ready", limit: int = 10) -> list[PeekedMessage]:
        """The first messages that are `ready`, `delayed`, `in_flight` or `behind` others, left where they are."""
        return run(queue.peek(self, place, limit))

    def check(self) -> ConsistencyReport:
        """Whether every message is in exactly one place. It looks at all of them, in steps that stop nobody."""
        return run(queue.check(self))


class PartitionedQueue(partitions.PartitionedBase):
    """A queue in parts. A key always goes to the same one."""

    @property
    def parts(self) -> tuple[Queue, ...]:
        """The parts: queues like any other."""
        return self._parts  # type: ignore[return-value]

    def part(self, key: str) -> Queue:
        """The part in which this key is."""
        part: Queue = self._part_of(key)
        return part

    def publish(self, body: Any, *, key: str | None = None, dedup_key: str | None = None, **options: Any) -> str:
        """Like `Queue.publish`, into the part of the key; without one, into that of the `dedup_key`; else into any.

        A part remembers its own `dedup_key`s: one that comes with two keys may be sent twice.
        """
        part: Queue = self._part_for(key, dedup_key)
        return part.publish(body, key=key, dedup_key=dedup_key, **options)

    def publish_many(
        self, bodies: Iterable[Any], *, key: str | Callable[[Any], str] | None = None, **options: Any
    ) -> list[str]:
        """Like `Queue.publish_many`, each body into the part of its key; the ids in the order of the bodies.

        What the error says was sent may be any of them: it was sent a part of the queue at a time.
        """
        return run(partitions.publish_many(self, bodies, key, **options))

    def owner(self, name: str | None = None, *, most: int = MOST, events: str | None = None) -> Owner:
        """Like `Queue.owner`, of all parts at once."""
        return Owner(self.parts, name=name, most=most, events=events)

    def stats(self) -> QueueStats:
        """How all parts stand together."""
        return run(partitions.stats(self._parts, self.name))

    def check(self) -> ConsistencyReport:
        """Whether every message is in exactly one place, of all parts."""
        return run(partitions.check(self._parts))
