"""Queues: the checked settings of a queue, publishing, and inspection.

A body is anything that JSON, or the queue's own codec, can encode. Each publish has a token, so the client can resend
the command after a lost reply, and no message is published twice.

Messages that share a key are delivered one at a time, in the order of publication. Each priority has a lane of its own,
and each lane has its share of the fetches, so that no message waits for ever.
"""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.clock import NEVER_NS, NS_PER_MS, Seconds, duration_ms, jittered, timeout_ns, ttl_ms
from holdfast.commands.queue import (
    BATCH_MAX,
    BEHIND,
    DELAYED,
    HELD,
    READY,
    NewMessage,
    Publish,
    Published,
    PublishRefused,
    ReclaimExpired,
)
from holdfast.commands.queue_admin import (
    MESSAGES,
    PAGE,
    ConsistencyChecked,
    ConsistencyPage,
    ConsumerList,
    GetStats,
    ListConsumers,
    Peek,
    Peeked,
    QueueCounts,
)
from holdfast.core.lease.lock import checked_confirm
from holdfast.core.queue.codec import Codec, checked_codec, encoded, packed_headers, shown_body, shown_headers
from holdfast.core.queue.outcomes import Backoff, checked_backoff
from holdfast.core.resend import send_confirmed, send_safely
from holdfast.engines import Capability
from holdfast.errors import MOVING, InvalidConfig, QueueFull, Unavailable
from holdfast.names import Holder, checked_name, new_token
from holdfast.rules.queue.consistency import check_pages
from holdfast.text import size_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from holdfast.commands import Answer
    from holdfast.commands.queue_admin import CheckConsistency, PlacedMessage
    from holdfast.core.client import Client

TTL_S = 30.0
GRACE_S = 2.0
ATTEMPTS = 5
DEDUP_S = 600.0
DEAD_MAX = 100_000
LIMIT_MAX = 10_000
NORMAL = "normal"
DEDUP_KEY = "a dedup_key"
# The lane of each priority, the most urgent first.
LANES = {"high": "high", NORMAL: "", "low": "low"}
_BATCH_BYTES = 1 << 20
_CHECK_MAX_MS, _CHECK_MIN_MS = 5000, 200
# How often a consistency check starts again because another server answered in the middle of it.
_CHECK_TRIES = 5
_FULL_PAUSE_NS, _FULL_PAUSE_MAX_NS = 20 * NS_PER_MS, 500 * NS_PER_MS


class QueueStats(NamedTuple):
    """How many messages of a queue are in each place, its consumers, and counters since it began.

    `ready`: can be received now. `quarantined`: ready, but delivered alone, because consumers died with them.
    `delayed`: not due yet. `in_flight`: held by a consumer. `behind`: wait for an earlier message of their key. `dead`:
    dead letters. `consumers`: how many there are; `waiting` of them wait for a message. `oldest`: the age of the first
    ready message in seconds; `next_due`: in how many seconds the next delay ends; `None` if there is none. `counts`:
    counters by name.
    """

    name: str
    ready: int
    quarantined: int
    delayed: int
    in_flight: int
    dead: int
    consumers: int
    waiting: int
    oldest: float | None
    next_due: float | None
    counts: dict[str, int]
    behind: int = 0


class ConsumerStatus(NamedTuple):
    """One consumer, for people to read.

    `holder`: its process. `in_flight`: how many messages it holds. `seconds`: how long its session has lasted.
    `remaining`: seconds until the session expires without a heartbeat; 0 if the heartbeat is late.
    """

    label: str
    token: str
    holder: Holder
    fence: int
    in_flight: int
    seconds: float
    remaining: float


class PeekedMessage(NamedTuple):
    """One message that was peeked, and is still where it was.

    `consumer`: the token of the consumer that holds the message. `due`: in how many seconds its delay ends.
    """

    id: str
    body: Any
    headers: dict[str, str]
    attempts: int
    crashes: int
    published: float
    consumer: str
    due: float
    key: str = ""


class ConsistencyReport(NamedTuple):
    """The result of a check that every message is in exactly one place. The report is true if there are no faults.

    `messages`: how many messages were checked. `faults`: a sentence for each fault.
    """

    messages: int
    faults: tuple[str, ...]

    def __bool__(self) -> bool:
        return not self.faults


class PublishOptions(NamedTuple):
    """The checked options of a publish, except the body and the deduplication key."""

    delay_ms: int
    headers: str
    key: str | Callable[[Any], str]
    lane: str


class QueueCore:
    """A queue: its settings, checked before any I/O, and its operations."""

    def __init__(
        self,
        client: Client,
        name: str,
        *,
        max_attempts: int,
        backoff: Backoff,
        bound: int | None,
        dead_max: int | None,
        dedup_window: Seconds,
        codec: str | Codec,
        ttl: Seconds,
        grace: Seconds,
        confirm: str | None,
    ) -> None:
        client.refuse_without(Capability.QUEUES)
        self.name = checked_name(name)
        self.client = client
        self.attempts_max = whole_number("max_attempts", max_attempts, 1)
        self.backoff = checked_backoff(backoff)
        self.bound = 0 if bound is None else whole_number("bound", bound, 1)
        self.dead_max = 0 if dead_max is None else whole_number("dead_max", dead_max, 1)
        self.dedup_ms = ttl_ms(dedup_window, setting="dedup_window")
        self.codec = checked_codec(codec)
        self.ttl_ms = ttl_ms(ttl)
        self.grace_ms = duration_ms(grace, setting="grace")
        self.confirm = confirm is not None and bool(checked_confirm(client, confirm))

    def named(self, name: str) -> QueueCore:
        """Return a queue with the same settings and another name."""
        other = copy.copy(self)
        other.name = checked_name(name)
        return other

    def reclaim_command(self) -> ReclaimExpired:
        """Return the command that reclaims the messages of expired consumers, with its interval and its grace.

        The engine redelivers a message when its consumer has sent no heartbeat for the ttl plus the grace. If the
        engine postpones a check, every consumer gets another ttl to send a heartbeat.
        """
        interval_ms = max(_CHECK_MIN_MS, min(_CHECK_MAX_MS, self.ttl_ms // 6))
        return ReclaimExpired(self.name, interval_ms, self.grace_ms, self.ttl_ms, self.attempts_max, self.dead_max)

    def new_message(self, body: Any, options: PublishOptions, dedup_key: str = "") -> NewMessage:
        """Return the message to publish for this body."""
        data = encoded(self.codec, body)
        key = checked_name(options.key(body), "a key") if callable(options.key) else options.key
        dedup_ms = self.dedup_ms if dedup_key else 0
        return NewMessage(new_token(), data, options.headers, options.delay_ms, dedup_key, dedup_ms, key, options.lane)

    def until_ns(self, timeout: Seconds | None) -> int:
        """Return when a timeout that starts now ends."""
        wait_ns = timeout_ns(timeout)
        return NEVER_NS if wait_ns is None else self.client.clock.now_ns() + wait_ns

    async def publish(self, body: Any, options: PublishOptions, dedup_key: str | None, timeout: Seconds | None) -> str:
        """Publish one message, and return its id."""
        checked = "" if dedup_key is None else checked_name(dedup_key, DEDUP_KEY)
        message = self.new_message(body, options, checked)
        return (await self._publish((message,), self.until_ns(timeout), ()))[0]

    async def publish_many(self, bodies: Iterable[Any], options: PublishOptions, timeout: Seconds | None) -> list[str]:
        """Publish many messages in batches, and return their ids. An error names those published before it."""
        messages = [self.new_message(body, options) for body in checked_bodies(bodies)]
        return await self.publish_all(messages, self.until_ns(timeout))

    async def publish_all(self, messages: list[NewMessage], until_ns: int) -> list[str]:
        """Publish these messages in batches, and return their ids."""
        sent: list[str] = []
        most = min(BATCH_MAX, self.bound or BATCH_MAX)
        while len(sent) < len(messages):
            first, part, size = len(sent), 0, 0
            for message in messages[first : first + most]:
                size += len(message.body)
                if part and size > _BATCH_BYTES:
                    break
                part += 1
            try:
                sent += await self._publish(tuple(messages[first : first + part]), until_ns, tuple(sent))
            except Unavailable as error:
                raise error.after(tuple(sent)) from error
        return sent

    async def _publish(
        self, messages: tuple[NewMessage, ...], until_ns: int, before: tuple[str, ...]
    ) -> tuple[str, ...]:
        """Publish all messages, or the first ones that the bound leaves room for; return their ids."""
        client, pause_ns = self.client, _FULL_PAUSE_NS
        command = Publish(self.name, new_token(), messages, self.bound)
        while True:
            answer = await (send_confirmed if self.confirm else send_safely)(client, command)
            if isinstance(answer, Published):
                return answer.ids
            assert isinstance(answer, PublishRefused)
            now_ns = client.clock.now_ns()
            if now_ns >= until_ns:
                raise QueueFull(self.name, answer.size, self.bound, before)
            room = self.bound - answer.size
            if 0 < room < len(command.messages):
                command = Publish(self.name, new_token(), messages[:room], self.bound)
                continue
            await client.transport.waker().wait(min(until_ns, now_ns + jittered(pause_ns, now_ns)))
            pause_ns = min(2 * pause_ns, _FULL_PAUSE_MAX_NS)

    async def stats(self) -> QueueStats:
        """Return the statistics of the queue."""
        counts = await send_safely(self.client, GetStats(self.name))
        assert isinstance(counts, QueueCounts)
        return _stats(self.name, counts)

    async def consumers(self, limit: int) -> list[ConsumerStatus]:
        """Return the consumers, the first to expire first."""
        answer = await send_safely(self.client, ListConsumers(self.name, whole_number("limit", limit, 0, LIMIT_MAX)))
        assert isinstance(answer, ConsumerList)
        return [
            ConsumerStatus(
                each.label,
                each.token,
                Holder.unpacked(each.holder),
                each.fence,
                each.held,
                each.since_ms / 1000,
                each.remaining_ms / 1000,
            )
            for each in answer.consumers
        ]

    async def peek(self, place: str, limit: int) -> list[PeekedMessage]:
        """Return the first messages of a place without receiving them."""
        if place not in _PLACES:
            raise InvalidConfig("place", place, f"it must be one of {', '.join(_PLACES)}")
        whole_number("limit", limit, 0, LIMIT_MAX)
        placed: list[PlacedMessage] = []
        for lane in LANES.values() if place == READY else ("",):
            answer = await send_safely(self.client, Peek(self.name, _PLACES[place], limit - len(placed), lane))
            assert isinstance(answer, Peeked)
            placed += answer.messages
        return [
            PeekedMessage(
                each.message.id,
                shown_body(self.codec, each.message),
                shown_headers(each.message.headers),
                each.message.attempts,
                each.message.crashes,
                each.message.published_us / 1_000_000,
                each.consumer,
                each.due_ms / 1000,
                each.message.key,
            )
            for each in placed
        ]

    async def check(self, progress: Callable[[int], object] | None = None) -> ConsistencyReport:
        """Check that every message is in exactly one place; `progress` gets the number of entries of each page."""
        answer = await check_consistency(lambda command: send_safely(self.client, command), self.name, progress)
        return ConsistencyReport(*answer)


IN_FLIGHT = "in_flight"
_PLACES = {READY: READY, DELAYED: DELAYED, IN_FLIGHT: HELD, BEHIND: BEHIND}


def checked_options(
    delay: Seconds, headers: dict[str, str] | None, key: str | Callable[[Any], str] | None, priority: str
) -> PublishOptions:
    """Return the checked options of a publish; the error for an invalid option names it."""
    delay_ms = duration_ms(delay, setting="delay")
    if key is not None and delay_ms:
        rule = "a message with a key comes after all earlier messages of that key: it cannot have a delay"
        raise InvalidConfig("delay", delay, rule)
    if not isinstance(priority, str) or priority not in LANES:
        raise InvalidConfig("priority", priority, f"it must be one of {', '.join(LANES)}")
    checked = "" if key is None else key if callable(key) else checked_name(key, "a key")
    return PublishOptions(delay_ms, packed_headers(headers), checked, LANES[priority])


def checked_bodies(bodies: Iterable[Any]) -> Iterable[Any]:
    """Return an iterator over the bodies; raise `InvalidConfig` for a text, bytes or a dictionary: that is one body."""
    if not isinstance(bodies, str | bytes | dict):
        with suppress(TypeError):
            return iter(bodies)
    raise InvalidConfig("bodies", size_of(bodies), "it must be a list of bodies, not one")


async def all_stats(client: Client, names: Sequence[str]) -> list[QueueStats]:
    """Return the statistics of many queues in few exchanges, without the queues that the engine does not know."""
    answers = await client.send_all([GetStats(name) for name in names])
    return [_stats(name, counts) for name, counts in zip(names, answers, strict=True) if counts not in (_UNUSED, None)]


# The answer for a queue that was never used.
_UNUSED = QueueCounts(0, 0, 0, 0, 0, 0, 0, -1, 0, ())


def _stats(name: str, counts: QueueCounts) -> QueueStats:
    return QueueStats(
        name=name,
        ready=counts.ready,
        quarantined=counts.quarantined,
        delayed=counts.delayed,
        in_flight=counts.held,
        dead=counts.dead,
        consumers=counts.consumers,
        waiting=counts.waiting,
        oldest=None if counts.oldest_ms < 0 else counts.oldest_ms / 1000,
        next_due=counts.next_ms / 1000 if counts.next_ms else None,
        counts=dict(counts.counts),
        behind=counts.behind,
    )


async def check_consistency(
    send: Callable[[CheckConsistency], Awaitable[Answer]],
    name: str,
    progress: Callable[[int], object] | None = None,
    most: int = PAGE,
) -> ConsistencyChecked:
    """Check a queue. If the engine cannot read all messages at once, check page by page, and let others work between.

    Pages of two servers prove nothing: if another server answers in the middle, for example after a failover, the check
    starts again.
    """
    for _ in range(_CHECK_TRIES):
        pages, server = check_pages(name, most), None
        command = next(pages)
        while True:
            answer = await send(command)
            if isinstance(answer, ConsistencyChecked):
                return answer
            assert isinstance(answer, ConsistencyPage)
            if server not in (None, answer.server):
                break
            server = answer.server
            if progress is not None:
                progress(len(answer.values) // (2 if command.part == MESSAGES else 1))
            try:
                command = pages.send(answer)
            except StopIteration as end:
                result: ConsistencyChecked = end.value
                return result
    raise Unavailable("engine", MOVING, f"another server answered before a check of {name!r} was finished")


def whole_number(setting: str, value: int, least: int, most: int = 2**31 - 1) -> int:
    """Return the number; raise `InvalidConfig` unless it is a whole number in these bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidConfig(setting, value, f"it must be a whole number from {least} to {most}")
    return value


class QueueBase:
    """A queue of messages."""

    def __init__(self, core: QueueCore) -> None:
        self._core = core

    @property
    def name(self) -> str:
        """The name of the queue."""
        return self._core.name

    def __repr__(self) -> str:
        return f"<queue {self.name!r} on {self._core.client.url}>"
