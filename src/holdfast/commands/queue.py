"""Commands about queues of messages, and their answers.

A message is in exactly one place: ready in a lane, delayed, held by one consumer, behind another message of its key, or
among the dead letters. Each command moves messages from place to place in one atomic step. A message keeps its id for
its whole life. It gets a new *entry* each time it enters a lane, so a consumer that names an old entry has lost the
message.

A *lane* holds the ready messages of one priority, or those in quarantine.

Among the messages that share a key, one comes first: it is ready, delayed or held. The others stay *behind* it, in the
order of publication, until it is acked or becomes a dead letter.

No command names more than `BATCH_MAX` messages, and none moves many more, so that no step takes long.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.commands.queue_admin import (
    CheckConsistency,
    ConsistencyChecked,
    ConsistencyPage,
    ConsumerList,
    GetStats,
    ListConsumers,
    Peek,
    Peeked,
    QueueCounts,
)

BATCH_MAX = 128
# The same bound for steps that cost at least twice as much per message: a reclaim, a redrive, and outcomes of messages
# with keys.
COSTLY_BATCH_MAX = BATCH_MAX // 2
# A step that reads or moves many bodies ends when they have this many bytes, so that no step takes long.
PAGE_BYTES = 1 << 20
# The lane of messages whose consumers have died. A consumer that has no other new message receives them one at a time.
QUARANTINE = "!"
# The kinds of `MessageOutcome`.
ACK, RETRY, RELEASE, REJECT, VERIFY = "ack", "retry", "release", "reject", "verify"
# The places where a message may be.
READY, DELAYED, HELD, BEHIND, DEAD = "ready", "delayed", "held", "behind", "dead"


class NewMessage(NamedTuple):
    """A message to publish; the producer chooses its id.

    With a `dedup_key`, the engine stores the message only if no message was published under that key in the last
    `dedup_ms`. A message with a `key` waits for all earlier messages of that key, and has no delay. The `lane` is its
    priority.
    """

    id: str
    body: bytes
    headers: str = ""
    delay_ms: int = 0
    dedup_key: str = ""
    dedup_ms: int = 0
    key: str = ""
    lane: str = ""


class StoredMessage(NamedTuple):
    """A message as the engine stores it: the published part, and the record of its deliveries.

    `attempts` counts failed attempts, `crashes` the consumers that died while they held the message.
    `first_consumer` and `last_consumer` are the labels of the consumers that failed with it; `last_error` is the error
    of the last one.
    """

    id: str
    body: bytes
    headers: str
    key: str
    lane: str
    published_us: int
    attempts: int = 0
    crashes: int = 0
    first_consumer: str = ""
    last_consumer: str = ""
    last_error: str = ""


class Publish(NamedTuple):
    """Publish all of these messages, or none if the queue would then hold more than `bound`; 0 means no bound.

    All messages count except dead letters. The token belongs to this call: a copy that arrives within
    `RESULT_MEMORY_MS` gets the same answer and publishes nothing.
    """

    name: str
    token: str
    messages: tuple[NewMessage, ...]
    bound: int = 0


class Join(NamedTuple):
    """Start a consumer session, which lasts for `ttl_ms` without a heartbeat.

    The token names the session; each session has a new one. `keeps_messages` marks a consumer that holds its messages
    for a long time (see `ReclaimExpired`). With `announce_expiry`, an engine with expiry events announces the end of
    the session. Answers: `Granted`; for a copy, `Granted` with the same fence, and the ttl starts again; `NotHeld` if
    the engine has declared this consumer dead in the meantime.
    """

    name: str
    token: str
    holder: str
    label: str
    ttl_ms: int
    keeps_messages: bool = False
    announce_expiry: bool = False


class ConsumerHeartbeat(NamedTuple):
    """Extend a consumer session to `ttl_ms` from now.

    A late heartbeat counts until another client reclaims the consumer's messages. Answers: `Renewed`, or `NotHeld` if
    the engine no longer knows the consumer.
    """

    name: str
    token: str
    ttl_ms: int


class Leave(NamedTuple):
    """End a consumer session; its messages are ready again, and no attempt is used.

    Answers: `Released`; `NotHeld`; `LeaveUnfinished` if the consumer holds more than `BATCH_MAX` messages. Then that
    many are ready again, the session continues, and the consumer sends the command again.
    """

    name: str
    token: str


class Receive(NamedTuple):
    """Receive up to `most` messages, trying the lanes in this order.

    `wait`: if there is no message, add the consumer to the waiting consumers and wake it later.
    `quarantine_max`: how many messages in quarantine the consumer accepts; 0 unless it holds nothing new. If there are
    any, it receives those alone.
    `known_entries`: the entries that the consumer knows it holds. If given, the engine first sends the held messages
    that are missing in the list, because the answer that brought them was lost; `Received.lost` names the entries in
    the list that the consumer does not hold.
    `fair_share`: take no more than an equal share among all consumers.
    `seen_fence`: the largest fence that the consumer has received; -1 if it does not say. The engine first sends the
    held messages with a larger fence. So a copy of this command that arrives late, after the next one, takes no message
    that the consumer would never see.

    Messages whose delay has passed become ready first. Answers: `Received`, or `NotHeld` if the engine no longer knows
    the consumer. A second copy may take more messages, so a consumer that lost an answer sends `known_entries`.
    """

    name: str
    token: str
    most: int
    wait: bool = False
    quarantine_max: int = 0
    known_entries: tuple[str, ...] | None = None
    lanes: tuple[str, ...] = ("",)
    fair_share: bool = False
    seen_fence: int = -1


class MessageOutcome(NamedTuple):
    """The outcome of one delivery.

    `ack`: the work is done, and the engine deletes the message. `retry`: the attempt failed, and the message is ready
    again after the delay. `release`: the same, but no attempt is used. `reject`: the attempt failed, and the message
    becomes a dead letter. `verify`: no change; the answer shows whether the consumer still holds the message. `keyed`:
    the message has a key, so others may be behind it.
    """

    entry: str
    kind: str
    delay_ms: int = 0
    reason: str = ""
    error: str = ""
    keyed: bool = False


class RecordOutcomes(NamedTuple):
    """Record the outcomes of messages that this consumer holds; each one succeeds or fails by itself.

    The engine drops the oldest dead letters beyond `dead_max` and counts them; 0 keeps all. `resent`: an earlier copy
    may have recorded the outcomes, so the engine counts an outcome as lost only if it declared the consumer dead.
    """

    name: str
    token: str
    outcomes: tuple[MessageOutcome, ...]
    dead_max: int = 0
    resent: bool = False


class ReclaimExpired(NamedTuple):
    """Reclaim the messages of expired consumers, unless another client has checked within the interval.

    A consumer has expired if it sent no heartbeat for its ttl plus the grace. If no client has checked for a long time,
    or the clock went back, the engine itself may have been away: then every consumer gets `postpone_ms` to send a
    heartbeat. A message that was alone with its consumer, or in quarantine, loses an attempt; any other goes into
    quarantine after its second crash. If the consumer keeps messages for a long time, only those in the blame window
    count: see `ConsumerRecord.blame_from_us`.
    """

    name: str
    interval_ms: int
    grace_ms: int
    postpone_ms: int
    attempts_max: int
    dead_max: int = 0


class TakeOver(NamedTuple):
    """Receive the first message of a key, if no consumer holds it or the session of its consumer has expired.

    There is no grace: the engine declares the previous consumer dead, as `ReclaimExpired` does. Answers: `Received`
    with that message; `NotTakenOver`; `NotHeld` if the engine no longer knows the consumer that sent the command. A
    second copy gets the same answer.
    """

    name: str
    token: str
    key: str
    attempts_max: int
    dead_max: int = 0


class ListKeys(NamedTuple):
    """List the keys of the messages that a consumer holds, the oldest delivery first. Answer: `KeysHeld`."""

    name: str
    token: str
    limit: int


class ListDeadLetters(NamedTuple):
    """List dead letters after this position, the oldest first; fewer than `limit` if their bodies reach `PAGE_BYTES`.

    Answer: `DeadLetterPage`.
    """

    name: str
    after: str
    limit: int


class ListDeadPositions(NamedTuple):
    """List the positions of dead letters after this one, without reading their bodies. Answer: `DeadPositions`."""

    name: str
    after: str
    limit: int


class GetDeadLetter(NamedTuple):
    """Get the dead letter of this message. Answer: `DeadLetterPage` with one dead letter, or with none."""

    name: str
    id: str


class Redrive(NamedTuple):
    """Turn these dead letters into messages again; with `reset`, without their record of attempts.

    Answer: `DeadLettersRemoved`; the step ends when the bodies that it has moved reach `PAGE_BYTES`. A token belongs to
    this call: a copy that arrives within `RESULT_MEMORY_MS` gets the same answer and moves nothing.
    """

    name: str
    ids: tuple[str, ...]
    reset: bool = True
    token: str = ""


class Purge(NamedTuple):
    """Delete these dead letters. Answer: `DeadLettersRemoved`. The token works as in `Redrive`.

    `by_position`: `ids` are positions of dead letters, so that the engine need not read a body to find one.
    """

    name: str
    ids: tuple[str, ...]
    token: str = ""
    by_position: bool = False


# Answers.


class Published(NamedTuple):
    """The messages are published. If a `dedup_key` was used before, its place has the id of the earlier message."""

    ids: tuple[str, ...]


class PublishRefused(NamedTuple):
    """Nothing was published: the queue is full, and holds `size` messages."""

    size: int


class Delivery(NamedTuple):
    """One message that the consumer now holds. Its fence is larger than the fence of every earlier delivery."""

    entry: str
    fence: int
    quarantined: bool
    message: StoredMessage


class Received(NamedTuple):
    """The messages for this consumer.

    `position`: how many waiting consumers are ahead of this one; `None` if it does not wait. `next_ms`: when the next
    delay ends; 0 if no message is delayed. `drain`: the consumer should finish its messages and come back with none,
    because a message in quarantine is ready for it. `lost`: the entries of `known_entries` that it does not hold.
    """

    deliveries: tuple[Delivery, ...]
    position: int | None
    next_ms: int
    drain: bool = False
    lost: tuple[str, ...] = ()


class LeaveUnfinished(NamedTuple):
    """A part of the consumer's messages is ready again; it must send `Leave` again for the rest."""


class NotTakenOver(NamedTuple):
    """The message of the key is not available: it is `delayed`, `dead`, or `held` by `label` under `fence`.

    `place` is empty if the key has no message.
    """

    place: str
    label: str = ""
    fence: int = 0


class KeysHeld(NamedTuple):
    """The first keys of a consumer, and how many messages it holds in all."""

    keys: tuple[str, ...]
    held: int


class OutcomesRecorded(NamedTuple):
    """All outcomes are recorded, except those of `lost` entries: the consumer no longer held them."""

    lost: tuple[str, ...]


class Reclaimed(NamedTuple):
    """The result of a check for expired consumers; the next check is due in `next_ms`.

    `checked` is false if it was too early to check. `postponed`: consumers were late, and got more time. `consumers`
    were declared dead, `requeued` of their messages are ready again, and `dead_lettered` became dead letters.
    """

    checked: bool
    postponed: bool
    consumers: int
    requeued: int
    dead_lettered: int
    next_ms: int


class StoredDeadLetter(NamedTuple):
    """A dead letter as the engine stores it: the reason, the time, and the message with its record."""

    reason: str
    died_us: int
    message: StoredMessage


class DeadLetterPage(NamedTuple):
    """Dead letters, the oldest first. `last`: the position to continue after; empty if there are no more."""

    dead_letters: tuple[StoredDeadLetter, ...]
    last: str


class DeadLettersRemoved(NamedTuple):
    """The ids (or positions, as in the command) of the dead letters that this step redrove or purged.

    A missing id had no dead letter, or the step reached `PAGE_BYTES` first. If `ids` is not empty, send the missing
    ones again.
    """

    ids: tuple[str, ...]


class DeadPositions(NamedTuple):
    """Positions of dead letters, the oldest first: see `position_of_dead_letter`."""

    positions: tuple[str, ...]


QueueCommand = (
    Publish
    | Join
    | ConsumerHeartbeat
    | Leave
    | Receive
    | RecordOutcomes
    | ReclaimExpired
    | TakeOver
    | ListKeys
    | ListDeadLetters
    | ListDeadPositions
    | GetDeadLetter
    | Redrive
    | Purge
    | GetStats
    | ListConsumers
    | Peek
    | CheckConsistency
)
QueueAnswer = (
    Published
    | PublishRefused
    | Received
    | LeaveUnfinished
    | NotTakenOver
    | KeysHeld
    | OutcomesRecorded
    | Reclaimed
    | DeadLetterPage
    | DeadLettersRemoved
    | DeadPositions
    | QueueCounts
    | ConsumerList
    | Peeked
    | ConsistencyPage
    | ConsistencyChecked
)
