"""What is asked about queues of messages, and what is answered.

A message is in exactly one place: ready in a lane, delayed, with one consumer, behind another one of its key, or among
the dead letters. Each command moves messages from place to place in one step. A message has one id for its whole life;
its *entry* is new each time that it is put into a lane, so whoever still names an old entry has lost it.

Of the messages that share a key one comes first: it is ready, delayed or held. The others stand behind it in the order
in which they were sent, until it is done or dead.

No command names more than `BATCH_MAX` messages, and none moves many more: so no step is long. Those that cost most have
half of that.
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
# Of what is brought back from the dead, and of messages with keys that are settled: each costs twice as much, or more.
COSTLY_BATCH_MAX = BATCH_MAX // 2
# The lane of messages in whose company consumers have died; they are taken one at a time, by whoever has nothing else.
QUARANTINE = "!"
# What may become of a message: see `MessageOutcome`.
ACK, RETRY, RELEASE, REJECT, VERIFY = "ack", "retry", "release", "reject", "verify"
# Where a message may be.
READY, DELAYED, HELD, BEHIND, DEAD = "ready", "delayed", "held", "behind", "dead"
# Why most dead letters are dead.
ATTEMPTS_USED_UP = "attempts used up"


class NewMessage(NamedTuple):
    """A message that is to be sent. The sender makes its id.

    With a `dedup` key, only if no message was sent under that key in the last `dedup_ms`. With a `key` it waits for
    all that were sent with the same one; then it has no delay. The `lane` is for priority.
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
    """A message as it is kept: what was sent, and what has become of it so far.

    `attempts` have failed, and so many `crashes` of consumers were in its company. `first` and `last` are the labels of
    the consumers that failed with it; `why` is what the last one said.
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
    """Send these messages: all of them, or none where the queue would have more than `bound`; 0 is no bound.

    Everything counts but dead letters. The token is of this call: sent again within `RESULT_MEMORY_MS` it answers the same, and
    sends nothing.
    """

    name: str
    token: str
    messages: tuple[NewMessage, ...]
    bound: int = 0


class Join(NamedTuple):
    """This consumer lives, for so long from now. The token is its incarnation: new for each, never used again.

    It `keeps` what it takes for long: see `ReclaimExpired`. If it is `heard`, an engine that can tell everybody when it has
    ended does so. Answered like `Acquire`: `Granted`; sent again, with the same fence, and the ttl runs anew. `NotHeld`
    if it was taken for dead meanwhile.
    """

    name: str
    token: str
    holder: str
    label: str
    ttl_ms: int
    keeps_messages: bool = False
    announce_expiry: bool = False


class ConsumerHeartbeat(NamedTuple):
    """This consumer still lives. It may come late: whoever was not reaped meanwhile has lost nothing.

    `Renewed`, or `NotHeld` if the consumer is not known any more.
    """

    name: str
    token: str
    ttl_ms: int


class Leave(NamedTuple):
    """This consumer ends; what it still has is ready again, and no attempt was used.

    `Released`, or `NotHeld`. `LeaveUnfinished` if it has more than `BATCH_MAX`: so many are ready again, it still lives, and says
    so again.
    """

    name: str
    token: str


class Receive(NamedTuple):
    """Give me up to `most` messages, first from the first of these lanes; with `wait`, ring me if there are none now.

    Messages whose delay is over become ready first. `idle` says that the consumer has nothing that is new, and how
    many suspects it dares to take: it is given those alone, if there are any. `known` are the entries that it has: if
    given, whatever is with it by the engine's account and not among them comes first, because the answer that brought
    it was lost; and it is told which of them are not with it. With `share`, no more than its share of what is ready,
    if all consumers had the same. `seen` is the largest fence that it was given, if not -1: whatever is with it under a
    larger one comes first as well. So a question that comes late, after another one was asked in its place, takes
    nothing that nobody would hear of.

    `Received`, or `NotHeld` if the consumer is not known any more. Sent again it may take more: whoever lost an answer
    says what is `known`.
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
    """What has become of a delivered message.

    `ack`: done, it is gone. `retry`: an attempt has failed; ready again after the delay. `release`: given back unused;
    the same, but no attempt was used. `reject`: an attempt has failed, and there will be no other. `verify`: nothing, but
    tell me whether it is still mine. `keyed`: others may stand behind it.
    """

    entry: str
    kind: str
    delay_ms: int = 0
    reason: str = ""
    error: str = ""
    keyed: bool = False


class RecordOutcomes(NamedTuple):
    """So much has become of these messages; each is told apart from the others, and only if it is with this consumer.

    Dead letters beyond `dead_max` are dropped, the oldest first, and counted; 0 keeps all.
    """

    name: str
    token: str
    outcomes: tuple[MessageOutcome, ...]
    dead_max: int = 0


class ReclaimExpired(NamedTuple):
    """Look for consumers that have died, unless somebody has looked just now; give others what they had.

    Dead is who has said nothing for its ttl and the grace. After a time in which nobody looked, or the clock went back,
    everybody gets `postpone_ms` to be heard of: it may be the engine that was away. A message that was alone with its
    consumer, and a suspect, lose an attempt; others become suspects by their second crash. With a consumer that keeps
    them for long, only what was new counts: see `ConsumerRecord.probation_us`.
    """

    name: str
    interval_ms: int
    grace_ms: int
    postpone_ms: int
    attempts_max: int
    dead_max: int = 0


class TakeOver(NamedTuple):
    """Give me the first message of this key, if nobody has it, or if the time of whoever has it is over.

    There is no grace: the consumer that had it is taken for dead, like by a `ReclaimExpired`, and will be told. `Received` with that
    one, `NotTakenOver` if it is not to be had, or `NotHeld` if the consumer that asks is not known any more. Sent again,
    the second answer is the same.
    """

    name: str
    token: str
    key: str
    attempts_max: int
    dead_max: int = 0


class ListKeys(NamedTuple):
    """The keys of what is with this consumer, the oldest first. `KeysHeld`."""

    name: str
    token: str
    limit: int


class ListDeadLetters(NamedTuple):
    """Dead letters after this place, the oldest death first."""

    name: str
    after: str
    limit: int


class GetDeadLetter(NamedTuple):
    """The dead letter of this message: `DeadLetterPage` with that one, or none."""

    name: str
    id: str


class Redrive(NamedTuple):
    """Make these dead letters messages again; with `reset`, as if they had never been tried. `DeadLettersRemoved`.

    With a token, which is of this call: sent again within `RESULT_MEMORY_MS` it answers the same, and moves nothing.
    """

    name: str
    ids: tuple[str, ...]
    reset: bool = True
    token: str = ""


class Purge(NamedTuple):
    """Forget these dead letters. `DeadLettersRemoved`. The token is as that of `Redrive`."""

    name: str
    ids: tuple[str, ...]
    token: str = ""


# Answers.


class Published(NamedTuple):
    """They are sent. The id of each: another than its own where the same `dedup` key was used before."""

    ids: tuple[str, ...]


class PublishRefused(NamedTuple):
    """Nothing was sent: the queue has so many messages already."""

    size: int


class Delivery(NamedTuple):
    """One message, now with this consumer. The fence is larger than that of every delivery before, and stays."""

    entry: str
    fence: int
    quarantined: bool
    message: StoredMessage


class Received(NamedTuple):
    """What there was. Of whoever waits, `position` counts the hungry ahead; `None` means: not waiting.

    The next delay is over in `next_ms`; 0 if there is none. `drain` asks this consumer to finish what it has and come
    back idle: there is a suspect for it. `gone` are entries that it had said it has, and has not.
    """

    deliveries: tuple[Delivery, ...]
    position: int | None
    next_ms: int
    drain: bool = False
    lost: tuple[str, ...] = ()


class LeaveUnfinished(NamedTuple):
    """A part of what it has is ready again: say so again for the rest."""


class NotTakenOver(NamedTuple):
    """It is not to be had: it is `delayed`, `dead`, or `held`: by whom, and under which fence. Empty: there is none."""

    place: str
    label: str = ""
    fence: int = 0


class KeysHeld(NamedTuple):
    """The first of the keys, and how many messages it has in all."""

    keys: tuple[str, ...]
    held: int


class OutcomesRecorded(NamedTuple):
    """Done, but for the entries that are `lost`: they were not with this consumer any more."""

    lost: tuple[str, ...]


class Reclaimed(NamedTuple):
    """What a look has found; it is worth looking again in `next_ms`.

    `looked` is false if it was too early; `amnesty`: consumers were found late, and were given time.
    """

    checked: bool
    postponed: bool
    consumers: int
    requeued: int
    dead_lettered: int
    next_ms: int


class StoredDeadLetter(NamedTuple):
    """A message that will not be tried again: why, since when, and all that is known of it."""

    reason: str
    died_us: int
    message: StoredMessage


class DeadLetterPage(NamedTuple):
    """Dead letters, the oldest death first. `last`: where to go on; empty if that was all."""

    dead_letters: tuple[StoredDeadLetter, ...]
    last: str


class DeadLettersRemoved(NamedTuple):
    """It was done with these; there are no dead letters of the others."""

    ids: tuple[str, ...]


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
    | QueueCounts
    | ConsumerList
    | Peeked
    | ConsistencyPage
    | ConsistencyChecked
)
