"""Queues: what a queue object knows, how messages are sent, and how a queue stands.

A message is text, numbers, lists and dictionaries that JSON can carry, or whatever the queue's codec can. Sending is
safe to repeat: each call has a token, so a lost answer is asked for again and nothing is sent twice.

Messages that share a key are handed out one at a time, in the order in which they were sent. What is urgent goes into a
lane of its own; each lane has its share, so that nothing waits for ever.
"""

from __future__ import annotations

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
from holdfast.core.lease.lock import confirmed_by
from holdfast.core.queue.codec import Codec, checked_codec, encoded, packed_headers, shown_body, shown_headers
from holdfast.core.queue.outcomes import Backoff, checked_backoff
from holdfast.core.resend import send_confirmed, send_safely
from holdfast.engines import Capability
from holdfast.errors import MOVING, InvalidConfig, QueueFull, Unavailable
from holdfast.names import Holder, checked_name, new_token
from holdfast.rules.queue.consistency import check_pages

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
_AT_ONCE_BYTES = 1 << 20
_LOOK_MAX_MS, _LOOK_MIN_MS = 5000, 200
# How often a check is begun before it is given up, because each time another server has answered in its course.
_WALKS = 5
_FULL_NS, _FULL_MAX_NS = 20 * NS_PER_MS, 500 * NS_PER_MS


class QueueStats(NamedTuple):
    """How a queue stands: how many messages are where, who is there, and what was counted since it began.

    `behind` wait for others of their key. `oldest`: how many seconds ago the first ready message was sent; `next_due`:
    in how many seconds the next delay is over; `None` where there is none. `waiting` consumers have nothing to do.
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
    """One consumer, as people see it. `remaining` is 0 if it is late."""

    label: str
    token: str
    holder: Holder
    fence: int
    in_flight: int
    seconds: float
    remaining: float


class PeekedMessage(NamedTuple):
    """One message that was looked at, where it is. `consumer`: the token of whoever has it; `due` in seconds."""

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
    """Whether every message is in exactly one place. True if nothing is wrong."""

    messages: int
    faults: tuple[str, ...]

    def __bool__(self) -> bool:
        return not self.faults


class QueueBase:
    """Settings, checked before any input or output."""

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
        self._client = client
        self._attempts_max = _whole("max_attempts", max_attempts, 1)
        self._backoff = checked_backoff(backoff)
        self._bound = 0 if bound is None else _whole("bound", bound, 1)
        self._dead_max = 0 if dead_max is None else _whole("dead_max", dead_max, 1)
        self._dedup_ms = ttl_ms(dedup_window, setting="dedup_window")
        self._codec = checked_codec(codec)
        self._ttl_ms = ttl_ms(ttl)
        self._grace_ms = duration_ms(grace, setting="grace")
        self._confirm = confirm is not None and bool(confirmed_by(client, confirm))

    def __repr__(self) -> str:
        return f"<queue {self.name!r} on {self._client.url}>"

    def _reaping(self) -> ReclaimExpired:
        interval_ms = max(_LOOK_MIN_MS, min(_LOOK_MAX_MS, self._ttl_ms // 6))
        return ReclaimExpired(self.name, interval_ms, self._grace_ms, self._ttl_ms, self._attempts_max, self._dead_max)

    def _draft(self, body: Any, terms: Terms, dedup: str = "") -> NewMessage:
        data = encoded(self._codec, body)
        key = checked_name(terms.key(body), "a key") if callable(terms.key) else terms.key
        dedup_ms = self._dedup_ms if dedup else 0
        return NewMessage(new_token(), data, terms.headers, terms.delay_ms, dedup, dedup_ms, key, terms.lane)


class Terms(NamedTuple):
    """How messages are sent, checked: all but their bodies."""

    delay_ms: int
    headers: str
    key: str | Callable[[Any], str]
    lane: str


def checked_terms(
    delay: Seconds, headers: dict[str, str] | None, key: str | Callable[[Any], str] | None, priority: str
) -> Terms:
    """The same, or an error that names what is wrong with them."""
    delay_ms = duration_ms(delay, setting="delay")
    if key is not None and delay_ms:
        rule = "a message with a key has its place behind all that were sent with the same one: it cannot have a delay"
        raise InvalidConfig("delay", delay, rule)
    if not isinstance(priority, str) or priority not in LANES:
        raise InvalidConfig("priority", priority, f"it must be one of {', '.join(LANES)}")
    checked = "" if key is None else key if callable(key) else checked_name(key, "a key")
    return Terms(delay_ms, packed_headers(headers), checked, LANES[priority])


async def publish(queue: QueueBase, body: Any, terms: Terms, dedup_key: str | None, timeout: Seconds | None) -> str:
    """Send one message; its id."""
    draft = queue._draft(body, terms, "" if dedup_key is None else checked_name(dedup_key, DEDUP_KEY))
    return (await _send(queue, (draft,), _until_ns(queue, timeout), ()))[0]


async def publish_many(queue: QueueBase, bodies: Iterable[Any], terms: Terms, timeout: Seconds | None) -> list[str]:
    """Send many messages, a part at a time; their ids. The error tells what was sent before it."""
    drafts = [queue._draft(body, terms) for body in many_bodies(bodies)]
    return await send_all(queue, drafts, _until_ns(queue, timeout))


def many_bodies(bodies: Iterable[Any]) -> Iterable[Any]:
    """The same, unless it is one body that only looks like many."""
    if not isinstance(bodies, str | bytes | dict):
        with suppress(TypeError):
            return iter(bodies)
    raise InvalidConfig("bodies", bodies, "it must be a list of bodies, not one")


async def send_all(queue: QueueBase, drafts: list[NewMessage], until_ns: int) -> list[str]:
    """The ids of these, sent a part at a time."""
    sent: list[str] = []
    most = min(BATCH_MAX, queue._bound or BATCH_MAX)
    while len(sent) < len(drafts):
        first, part, size = len(sent), 0, 0
        for draft in drafts[first : first + most]:
            size += len(draft.body)
            if part and size > _AT_ONCE_BYTES:
                break
            part += 1
        try:
            sent += await _send(queue, tuple(drafts[first : first + part]), until_ns, tuple(sent))
        except Unavailable as error:
            raise error.after(tuple(sent)) from error
    return sent


def _until_ns(queue: QueueBase, timeout: Seconds | None) -> int:
    wait_ns = timeout_ns(timeout)
    return NEVER_NS if wait_ns is None else queue._client.clock.now_ns() + wait_ns


async def _send(
    queue: QueueBase, drafts: tuple[NewMessage, ...], until_ns: int, before: tuple[str, ...]
) -> tuple[str, ...]:
    """The ids of those that were sent: all, or, of many that have to wait for room, as many as there is room for."""
    client, pause_ns = queue._client, _FULL_NS
    command = Publish(queue.name, new_token(), drafts, queue._bound)
    while True:
        answer = await (send_confirmed if queue._confirm else send_safely)(client, command)
        if isinstance(answer, Published):
            return answer.ids
        assert isinstance(answer, PublishRefused)
        now_ns = client.clock.now_ns()
        if now_ns >= until_ns:
            raise QueueFull(queue.name, answer.size, queue._bound, before)
        room = queue._bound - answer.size
        if 0 < room < len(command.messages):
            command = Publish(queue.name, new_token(), drafts[:room], queue._bound)
            continue
        await client.transport.waker().wait(min(until_ns, now_ns + jittered(pause_ns, now_ns)))
        pause_ns = min(2 * pause_ns, _FULL_MAX_NS)


async def stats(queue: QueueBase) -> QueueStats:
    """How the queue stands now."""
    now = await send_safely(queue._client, GetStats(queue.name))
    assert isinstance(now, QueueCounts)
    return _standing(queue.name, now)


async def all_stats(client: Client, names: Sequence[str]) -> list[QueueStats]:
    """How many queues stand, in few exchanges; without those of which the engine knows nothing any more."""
    answers = await client.send_all([GetStats(name) for name in names])
    return [_standing(name, now) for name, now in zip(names, answers, strict=True) if now != _NOTHING]


# What is answered of a queue that nobody has used.
_NOTHING = QueueCounts(0, 0, 0, 0, 0, 0, 0, -1, 0, ())


def _standing(name: str, now: QueueCounts) -> QueueStats:
    oldest = None if now.oldest_ms < 0 else now.oldest_ms / 1000
    places = (now.ready, now.quarantined, now.delayed, now.held, now.dead, now.consumers, now.waiting)
    next_due = now.next_ms / 1000 if now.next_ms else None
    return QueueStats(name, *places, oldest, next_due, dict(now.counts), now.behind)


async def consumers(queue: QueueBase, limit: int) -> list[ConsumerStatus]:
    """Who is there."""
    answer = await send_safely(queue._client, ListConsumers(queue.name, _whole("limit", limit, 0, LIMIT_MAX)))
    assert isinstance(answer, ConsumerList)
    return [
        ConsumerStatus(
            seen.label,
            seen.token,
            Holder.unpacked(seen.holder),
            seen.fence,
            seen.held,
            seen.since_ms / 1000,
            seen.remaining_ms / 1000,
        )
        for seen in answer.consumers
    ]


async def peek(queue: QueueBase, place: str, limit: int) -> list[PeekedMessage]:
    """The first messages of a place, left where they are."""
    if place not in _PLACES:
        raise InvalidConfig("place", place, f"it must be one of {', '.join(_PLACES)}")
    _whole("limit", limit, 0, LIMIT_MAX)
    glimpses: list[PlacedMessage] = []
    for lane in LANES.values() if place == READY else ("",):
        answer = await send_safely(queue._client, Peek(queue.name, _PLACES[place], limit - len(glimpses), lane))
        assert isinstance(answer, Peeked)
        glimpses += answer.messages
    return [
        PeekedMessage(
            each.message.id,
            shown_body(queue._codec, each.message),
            shown_headers(each.message.headers),
            each.message.attempts,
            each.message.crashes,
            each.message.published_us / 1_000_000,
            each.consumer,
            each.due_ms / 1000,
            each.message.key,
        )
        for each in glimpses
    ]


IN_FLIGHT = "in_flight"
_PLACES = {READY: READY, DELAYED: DELAYED, IN_FLIGHT: HELD, BEHIND: BEHIND}


async def check(queue: QueueBase, told: Callable[[int], object] | None = None) -> ConsistencyReport:
    """Whether every message is in exactly one place. It looks at all, and tells after each step at how many."""
    return ConsistencyReport(*await audited(lambda command: send_safely(queue._client, command), queue.name, told))


async def audited(
    ask: Callable[[CheckConsistency], Awaitable[Answer]],
    name: str,
    told: Callable[[int], object] | None = None,
    most: int = PAGE,
) -> ConsistencyChecked:
    """An engine that does not look at all messages at once is asked page by page: others are served in between.

    What was seen at a server that was replaced meanwhile says nothing: then it is begun again.
    """
    for _ in range(_WALKS):
        pages, server = check_pages(name, most), None
        question = next(pages)
        while True:
            answer = await ask(question)
            if isinstance(answer, ConsistencyChecked):
                return answer
            assert isinstance(answer, ConsistencyPage)
            if server not in (None, answer.server):
                break
            server = answer.server
            if told is not None:
                told(len(answer.values) // (2 if question.part == MESSAGES else 1))
            try:
                question = pages.send(answer)
            except StopIteration as end:
                found: ConsistencyChecked = end.value
                return found
    raise Unavailable("engine", MOVING, f"another server has answered before a check of {name!r} was at its end")


def _whole(setting: str, value: int, least: int, most: int = 2**31 - 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidConfig(setting, value, f"it must be a whole number from {least} to {most}")
    return value
