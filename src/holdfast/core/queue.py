"""Queues: what a queue object knows, how messages are sent, and how a queue stands.

A message is text, numbers, lists and dictionaries that JSON can carry, or whatever the queue's codec can. Sending is
safe to repeat: each call has a token, so a lost answer is asked for again and nothing is sent twice.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from holdfast.clock import NEVER_NS, NS_PER_MS, Seconds, timeout_ns, ttl_ms
from holdfast.commands.queue_views import Audit, Audited, Gauge, Gauged, Peek, Peeked, Roll, Rolled
from holdfast.commands.queues import AT_ONCE, DELAYED, HELD, READY, Crowded, Draft, Publish, Published, Reap
from holdfast.core.asking import ask_again, ask_confirmed
from holdfast.core.lease import jittered
from holdfast.core.lock import confirmed_by
from holdfast.core.outcomes import Backoff, checked_backoff
from holdfast.core.terms import cool_ms
from holdfast.errors import InvalidConfig, QueueFull, Unavailable
from holdfast.names import Owner, checked_name, is_unicode, new_token

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.commands.queues import Message as Kept
    from holdfast.core.client import Client

TTL_S = 30.0
GRACE_S = 2.0
ATTEMPTS = 5
DEDUP_S = 600.0
DEAD_MAX = 100_000
BODY_MAX_BYTES = 1 << 20
HEADERS_MAX_BYTES = 8192
LIMIT_MAX = 10_000
_AT_ONCE_BYTES = 1 << 20
_LOOK_MAX_MS, _LOOK_MIN_MS = 5000, 200
_FULL_NS, _FULL_MAX_NS = 20 * NS_PER_MS, 500 * NS_PER_MS


class Codec(Protocol):
    """How a body becomes bytes, and bytes a body. What `decode` raises makes the message a dead letter."""

    def encode(self, body: Any) -> bytes:
        """The bytes of a body."""

    def decode(self, data: bytes) -> Any:
        """The body of some bytes."""


class _Json:
    # Made once: `dumps` with settings of its own would make an encoder for each message.
    _encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode
    _decode = json.JSONDecoder().decode

    def encode(self, body: Any) -> bytes:
        return self._encode(body).encode()

    def decode(self, data: bytes) -> Any:
        return self._decode(data.decode())


class _Bytes:
    def encode(self, body: Any) -> bytes:
        if not isinstance(body, bytes | bytearray | memoryview):
            raise TypeError(f"a body of this queue must be bytes, not {type(body).__name__}")
        return bytes(body)

    def decode(self, data: bytes) -> bytes:
        return data


_CODECS: dict[str, Codec] = {"json": _Json(), "bytes": _Bytes()}


class QueueStats(NamedTuple):
    """How a queue stands: how many messages are where, who is there, and what was counted since it began.

    `oldest`: how many seconds ago the first ready message was sent; `next_due`: in how many seconds the next delay is
    over; `None` where there is none. `waiting` consumers have nothing to do.
    """

    name: str
    ready: int
    suspects: int
    delayed: int
    in_flight: int
    dead: int
    consumers: int
    waiting: int
    oldest: float | None
    next_due: float | None
    counts: dict[str, int]


class ConsumerStanding(NamedTuple):
    """One consumer, as people see it. `remaining` is 0 if it is late."""

    label: str
    token: str
    owner: Owner
    fence: int
    in_flight: int
    seconds: float
    remaining: float


class Seen(NamedTuple):
    """One message that was looked at, where it is. `consumer`: the token of whoever has it; `due` in seconds."""

    id: str
    body: Any
    headers: dict[str, str]
    attempts: int
    crashes: int
    published: float
    consumer: str
    due: float


class Soundness(NamedTuple):
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
        client.refuse_without("queues")
        self.name = checked_name(name)
        self._client = client
        self._attempts_max = _whole("max_attempts", max_attempts, 1)
        self._backoff = checked_backoff(backoff)
        self._bound = 0 if bound is None else _whole("bound", bound, 1)
        self._dead_max = 0 if dead_max is None else _whole("dead_max", dead_max, 1)
        self._dedup_ms = ttl_ms(dedup_window, setting="dedup_window")
        self._codec = _checked_codec(codec)
        self._ttl_ms = ttl_ms(ttl)
        self._grace_ms = cool_ms(grace, setting="grace")
        self._confirm = confirm is not None and bool(confirmed_by(client, confirm))

    def __repr__(self) -> str:
        return f"<queue {self.name!r} on {self._client.url}>"

    def _reaping(self) -> Reap:
        interval_ms = max(_LOOK_MIN_MS, min(_LOOK_MAX_MS, self._ttl_ms // 6))
        return Reap(self.name, interval_ms, self._grace_ms, self._ttl_ms, self._attempts_max, self._dead_max)

    def _draft(self, body: Any, delay_ms: int, dedup: str, headers: str) -> Draft:
        data = encoded(self._codec, body)
        return Draft(new_token(), data, headers, delay_ms, dedup, self._dedup_ms if dedup else 0)


async def publish(
    queue: QueueBase,
    body: Any,
    delay: Seconds,
    dedup_key: str | None,
    headers: dict[str, str] | None,
    timeout: Seconds | None,
) -> str:
    """Send one message; its id."""
    draft = queue._draft(body, cool_ms(delay, setting="delay"), _checked_key(dedup_key), packed_headers(headers))
    return (await _send(queue, (draft,), _until_ns(queue, timeout), ()))[0]


async def publish_many(
    queue: QueueBase,
    bodies: Iterable[Any],
    delay: Seconds,
    headers: dict[str, str] | None,
    timeout: Seconds | None,
) -> list[str]:
    """Send many messages, a part at a time; their ids. The error tells what was sent before it."""
    if isinstance(bodies, str | bytes | dict):
        raise InvalidConfig("bodies", bodies, "it must be a list of bodies, not one")
    delay_ms, packed = cool_ms(delay, setting="delay"), packed_headers(headers)
    drafts = [queue._draft(body, delay_ms, "", packed) for body in bodies]
    sent: list[str] = []
    until_ns, most = _until_ns(queue, timeout), min(AT_ONCE, queue._bound or AT_ONCE)
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
    patience_ns = timeout_ns(timeout)
    return NEVER_NS if patience_ns is None else queue._client.clock.now_ns() + patience_ns


async def _send(queue: QueueBase, drafts: tuple[Draft, ...], until_ns: int, before: tuple[str, ...]) -> tuple[str, ...]:
    """The ids of those that were sent: all, or, of many that have to wait for room, as many as there is room for."""
    client, pause_ns = queue._client, _FULL_NS
    command = Publish(queue.name, new_token(), drafts, queue._bound)
    while True:
        answer = await (ask_confirmed if queue._confirm else ask_again)(client, command)
        if isinstance(answer, Published):
            return answer.ids
        assert isinstance(answer, Crowded)
        now_ns = client.clock.now_ns()
        if now_ns >= until_ns:
            raise QueueFull(queue.name, answer.size, queue._bound, before)
        room = queue._bound - answer.size
        if 0 < room < len(command.drafts):
            command = Publish(queue.name, new_token(), drafts[:room], queue._bound)
            continue
        await client.form.bell().wait(min(until_ns, now_ns + jittered(pause_ns, now_ns)))
        pause_ns = min(2 * pause_ns, _FULL_MAX_NS)


async def stats(queue: QueueBase) -> QueueStats:
    """How the queue stands now."""
    now = await ask_again(queue._client, Gauge(queue.name))
    assert isinstance(now, Gauged)
    return _standing(queue.name, now)


async def all_stats(client: Client, names: Sequence[str]) -> list[QueueStats]:
    """How many queues stand, in few exchanges; without those of which the engine knows nothing any more."""
    answers = await client.ask_all([Gauge(name) for name in names])
    return [_standing(name, now) for name, now in zip(names, answers, strict=True) if now != _NOTHING]


# What is answered of a queue that nobody has used.
_NOTHING = Gauged(0, 0, 0, 0, 0, 0, 0, -1, 0, ())


def _standing(name: str, now: Gauged) -> QueueStats:
    oldest = None if now.oldest_ms < 0 else now.oldest_ms / 1000
    places = (now.ready, now.suspects, now.delayed, now.held, now.dead, now.consumers, now.hungry)
    return QueueStats(name, *places, oldest, now.next_ms / 1000 if now.next_ms else None, dict(now.counts))


async def consumers(queue: QueueBase, limit: int) -> list[ConsumerStanding]:
    """Who is there."""
    answer = await ask_again(queue._client, Roll(queue.name, _whole("limit", limit, 0, LIMIT_MAX)))
    assert isinstance(answer, Rolled)
    return [
        ConsumerStanding(
            seen.label,
            seen.token,
            Owner.unpacked(seen.owner),
            seen.fence,
            seen.held,
            seen.since_ms / 1000,
            seen.remaining_ms / 1000,
        )
        for seen in answer.consumers
    ]


async def peek(queue: QueueBase, place: str, limit: int) -> list[Seen]:
    """The first messages of a place, left where they are."""
    if place not in (READY, DELAYED, IN_FLIGHT):
        raise InvalidConfig("place", place, f"it must be {READY!r}, {DELAYED!r} or {IN_FLIGHT!r}")
    where = HELD if place == IN_FLIGHT else place
    answer = await ask_again(queue._client, Peek(queue.name, where, _whole("limit", limit, 0, LIMIT_MAX)))
    assert isinstance(answer, Peeked)
    return [
        Seen(
            each.message.id,
            shown_body(queue._codec, each.message),
            unpacked_headers(each.message.headers),
            each.message.attempts,
            each.message.crashes,
            each.message.sent_us / 1_000_000,
            each.consumer,
            each.due_ms / 1000,
        )
        for each in answer.glimpses
    ]


IN_FLIGHT = "in_flight"


async def check(queue: QueueBase) -> Soundness:
    """Whether every message is in exactly one place. It looks at all of them."""
    answer = await ask_again(queue._client, Audit(queue.name))
    assert isinstance(answer, Audited)
    return Soundness(answer.messages, answer.faults)


def encoded(codec: Codec, body: Any) -> bytes:
    """The bytes of a body, or `InvalidConfig` with what is wrong with it."""
    try:
        data = codec.encode(body)
    except Exception as error:
        raise InvalidConfig("body", body, f"the queue's codec cannot encode it: {error}") from error
    if not isinstance(data, bytes):
        raise InvalidConfig("codec", codec, f"it must encode to bytes, not {type(data).__name__}")
    if len(data) > BODY_MAX_BYTES:
        rule = f"a body may have at most {BODY_MAX_BYTES} bytes, this one has {len(data)}: send where to find it"
        raise InvalidConfig("body", body, rule)
    return data


def shown_body(codec: Codec, message: Kept) -> Any:
    """The body for people; its bytes where it cannot be decoded."""
    try:
        return codec.decode(message.body)
    except Exception:
        return message.body


def packed_headers(headers: dict[str, str] | None) -> str:
    if headers is None:
        return ""
    texts = isinstance(headers, dict) and all(
        isinstance(each, str) and is_unicode(each) for pair in headers.items() for each in pair
    )
    packed = json.dumps(headers, separators=(",", ":"), ensure_ascii=False) if texts else ""
    if not texts or len(packed.encode()) > HEADERS_MAX_BYTES:
        rule = f"it must be a dictionary of texts, of at most {HEADERS_MAX_BYTES} bytes as JSON"
        raise InvalidConfig("headers", headers, rule)
    return packed if headers else ""


def unpacked_headers(packed: str) -> dict[str, str]:
    return dict(json.loads(packed)) if packed else {}


def _checked_key(key: str | None) -> str:
    if key is None:
        return ""
    return checked_name(key)


def _checked_codec(codec: str | Codec) -> Codec:
    if isinstance(codec, str):
        if codec not in _CODECS:
            raise InvalidConfig("codec", codec, f"it must be one of {', '.join(sorted(_CODECS))}, or have both words")
        return _CODECS[codec]
    if not callable(getattr(codec, "encode", None)) or not callable(getattr(codec, "decode", None)):
        raise InvalidConfig("codec", codec, "it must have `encode(body)` and `decode(data)`")
    return codec


def _whole(setting: str, value: int, least: int, most: int = 2**31 - 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidConfig(setting, value, f"it must be a whole number from {least} to {most}")
    return value
