"""Steps for the queue twin, and programs that show one law each."""

from queue_twin import Step

from holdfast.commands.queue import (
    ACK,
    BATCH_MAX,
    COSTLY_BATCH_MAX,
    REJECT,
    RELEASE,
    RETRY,
    VERIFY,
    ConsumerHeartbeat,
    GetDeadLetter,
    Join,
    Leave,
    Publish,
    Purge,
    Receive,
    ReclaimExpired,
    RecordOutcomes,
    Redrive,
    TakeOver,
)

INTERVAL_MS, GRACE_MS, POSTPONE_MS = 500, 200, 1000
FOUR = tuple((at, ACK, 0, "") for at in (1, 2, 3, 4))
THREE = ("high", "", "low")


def join(after_us, *tokens, ttl_ms=3000, keeps_messages=False, announce_expiry=False):
    return [Step(after_us, Join, token, (ttl_ms, keeps_messages, announce_expiry)) for token in tokens]


def publish(after_us, *messages, call=None, bound=0, many=0):
    messages = messages or ((0, "", ""),) * (many or 1)
    return Step(after_us, Publish, "c1", (call or f"call {id(messages)}", bound, messages))


def keyed(after_us, *keys, call, lane=""):
    """Publish a message with each of these keys."""
    return Step(after_us, Publish, "c1", (call, 0, tuple((0, "", lane, key) for key in keys)))


def receive(after_us, token, most=1, wait=False, idle=False, known=None, lanes=("",), fair_share=False, unseen=None):
    """`known`: how many of its entries it names. `unseen`: how many of the newest it has not seen."""
    return Step(after_us, Receive, token, (most, wait, idle, known, lanes, fair_share, unseen))


def take_over(after_us, token, key="k", attempts=2, dead_max=0):
    return Step(after_us, TakeOver, token, (key, attempts, dead_max))


def record(after_us, token, *outcomes, dead_max=0, resent=False):
    """Record outcomes of the last messages that it held, counted from the newest."""
    return Step(after_us, RecordOutcomes, token, (outcomes or ((1, ACK, 0, ""),), dead_max, resent))


def heartbeats(after_us, *tokens):
    return [Step(after_us, ConsumerHeartbeat, token, 3000) for token in tokens]


def reclaim(after_us, attempts=2, dead_max=0):
    return Step(after_us, ReclaimExpired, "c1", (INTERVAL_MS, GRACE_MS, POSTPONE_MS, attempts, dead_max))


def reclaims(ms, *alive, attempts=2):
    """Reclaim at every interval, while these consumers send heartbeats."""
    steps = []
    for _ in range(0, ms, INTERVAL_MS):
        steps += heartbeats(0, *alive)
        steps.append(reclaim(INTERVAL_MS * 1000, attempts))
    return steps


_CRASH = [*join(0, "a1", "b2"), publish(0, many=3, call="1")]

WITNESSES = {
    "no check for long before a take-over": [
        *join(0, "a1", "b1"), keyed(0, "k", call="1"), receive(0, "b1"), reclaim(0), take_over(5_000_000, "a1"),
        Step(0, ReclaimExpired, "c1", (INTERVAL_MS, GRACE_MS, 3000, 2, 0)), take_over(2_999_999, "a1"),
        take_over(1, "a1"),
    ],
    "a check that is just not too late": [
        *join(0, "a1"), *join(0, "b1", ttl_ms=600), keyed(0, "k", call="1"), receive(0, "b1"), reclaim(0),
        take_over(1_500_000, "a1"),
    ],
    "a check that is just too late": [
        *join(0, "a1"), *join(0, "b1", ttl_ms=600), keyed(0, "k", call="1"), receive(0, "b1"), reclaim(0),
        take_over(1_500_001, "a1"),
    ],
    "first in, first out": [
        *join(0, "a1"), publish(0, many=3, call="1"), receive(0, "a1", 2), receive(0, "a1", 2), record(0, "a1"),
    ],
    "a waiting consumer is woken": [
        *join(0, "a1", "b1"), receive(0, "a1", wait=True), receive(0, "b1", wait=True), receive(0, "a1", wait=True),
        publish(0, call="1"), receive(0, "a1"), receive(0, "a1", wait=True), publish(0, many=3, call="2"),
        receive(0, "b1"),
    ],
    "more is ready than was received": [
        *join(0, "a1", "b1"), receive(0, "b1", wait=True, lanes=("high",)), publish(0, (0, "", "high"), (0, "", "high"),
        call="1"), receive(0, "b1", wait=True, lanes=("",)), receive(0, "a1", lanes=("high", "")),
    ],
    "an expired consumer is not woken": [
        *join(0, "a1", "b1", ttl_ms=200), receive(0, "a1", wait=True), receive(100_000, "b1", wait=True),
        Step(0, ConsumerHeartbeat, "b1", 3000), publish(100_000, many=2, call="1"), receive(200_000, "a1", wait=True),
    ],
    "a copy of a publish": [
        *join(0, "a1"), publish(0, call="1"), publish(0, call="1"), publish(59_999_000, call="1"),
        publish(1_000, call="1"),
    ],
    "a deduplication key that was used": [
        publish(0, (0, "x", ""), (0, "x", ""), call="1"), publish(699_999, (0, "x", ""), call="2"),
        publish(1, (0, "x", ""), call="3"),
    ],
    "a bound": [
        *join(0, "a1"), publish(0, many=3, bound=4, call="1"), publish(0, many=2, bound=4, call="2"),
        receive(0, "a1", 3), publish(0, many=2, bound=4, call="2"), record(0, "a1"),
        publish(0, many=2, bound=4, call="2"), publish(0, (300, "", ""), call="3", bound=4),
    ],
    "delays": [
        *join(0, "a1"), publish(0, (300, "", ""), (200, "", "high"), (300, "", ""), call="1"),
        receive(199_999, "a1", 9), receive(1, "a1", 9, lanes=("", "high")), receive(100_000, "a1", 9),
        record(0, "a1", (1, RETRY, 400, "e")), receive(399_999, "a1", idle=True), receive(1, "a1"),
        record(0, "a1", (1, RELEASE, 400, "")), receive(400_000, "a1"),
    ],
    "all outcomes": [
        *join(0, "a1"), publish(0, many=4, call="1"), receive(0, "a1", 4),
        record(0, "a1", (4, ACK, 0, ""), (3, RETRY, 0, "oh"), (2, RELEASE, 0, ""), (1, REJECT, 0, "")),
        record(0, "a1", (4, ACK, 0, ""), (9, VERIFY, 0, "")), receive(0, "a1", 4), record(0, "a1", (1, VERIFY, 0, ""),
        (1, REJECT, 0, "no"), (2, REJECT, 0, "")), Step(0, GetDeadLetter, "a1", ((1,),)),
        Step(0, GetDeadLetter, "a1", ((3,),)),
    ],
    "two outcomes for one message": [
        *join(0, "a1"), publish(0, many=2, call="1"), receive(0, "a1", 2),
        record(0, "a1", (1, ACK, 0, ""), (1, ACK, 0, "")),
    ],
    "the maximum of dead letters": [
        *join(0, "a1"), publish(0, many=4, call="1"), receive(0, "a1", 4),
        record(0, "a1", *((at, REJECT, 0, "") for at in (4, 3, 2)), dead_max=2),
        record(1, "a1", (1, REJECT, 0, ""), dead_max=1),
    ],
    "an answer was lost": [
        *join(0, "a1"), publish(0, many=4, call="1"), receive(0, "a1", 2), receive(0, "a1", 9, known=1),
        receive(0, "a1", 9, known=2), receive(0, "a1", 1, known=0), receive(0, "a1", 9, known=9),
    ],
    "a late copy of a receive": [
        *join(0, "a1"), publish(0, many=5, call="1"), receive(0, "a1", 2, unseen=9), receive(0, "a1", 2, unseen=2),
        receive(0, "a1", 1, unseen=1), receive(0, "a1", 9, unseen=1), receive(0, "a1", 0, unseen=9),
        receive(0, "a1", 2, unseen=0), record(0, "a1"), receive(0, "a1", 9, unseen=0, wait=True),
        receive(0, "a1", 9, unseen=9, wait=True),
    ],
    "a consumer leaves": [
        *join(0, "a1", "b1"), publish(0, many=3, call="1"), receive(0, "a1", 2), receive(0, "b1", 9),
        receive(0, "b1", wait=True), Step(0, Leave, "a1"), Step(0, Leave, "a1"), receive(0, "b1", 9),
        record(0, "a1", *FOUR), receive(0, "a1"), Step(0, ConsumerHeartbeat, "a1", 200), Step(0, Leave, "b1"),
        *join(0, "a2"), receive(0, "a2", wait=True, lanes=("high",)), Step(0, Leave, "a2"),
    ],
    "a consumer leaves with many messages": [
        *join(0, "a1", "b1", "a2"), *(publish(0, many=50, call=f"{n}") for n in range(8)),
        receive(0, "a1", BATCH_MAX), receive(0, "b1", BATCH_MAX + 1), receive(0, "a2", 400),
        receive(0, "a1", wait=True), receive(0, "b1", wait=True), Step(0, Leave, "a1"), receive(0, "b1", wait=True),
        Step(0, Leave, "b1"), Step(0, ConsumerHeartbeat, "b1", 200), Step(0, Leave, "b1"), Step(0, Leave, "b1"),
        Step(0, Leave, "a2"), Step(0, Leave, "a2"), Step(0, Leave, "a2"), *join(0, "a1"), receive(0, "a1", 400),
    ],
    "a consumer dies alone": [
        *join(0, "a1", "b2"), publish(0, call="1"), receive(0, "a1"), reclaim(0), *reclaims(3500, "b2"),
        receive(0, "b2"), record(0, "a1"), *join(0, "a2"), record(0, "b2", (1, RELEASE, 0, "")), receive(0, "a2"),
        *reclaims(3500, "b2"),
    ],
    "a consumer dies with several messages": [
        *_CRASH, receive(0, "a1", 3), reclaim(0), *reclaims(3500, "b2"), *join(0, "a2"), receive(0, "a2", 3),
        *reclaims(3500, "b2"), receive(0, "b2", 3), receive(0, "b2", 3, idle=True),
        record(0, "b2", (1, RETRY, 0, "")), receive(0, "b2", 3, idle=True), *join(0, "c1"), receive(0, "c1", 3),
        receive(30_000_000, "c1"), receive(0, "b2", wait=True),
    ],
    "a message in quarantine that kills becomes a dead letter": [
        *_CRASH, receive(0, "a1", 3), reclaim(0), *reclaims(3500, "b2"), *join(0, "a2"), receive(0, "a2", 3),
        *reclaims(3500, "b2"), *join(0, "c1"), receive(0, "c1", 1, idle=True), *reclaims(3500, "b2"), *join(0, "c2"),
        receive(0, "c2", 1, idle=True), receive(0, "c2", 1, idle=True), receive(0, "c2", 1, idle=True),
        *reclaims(3500, "b2"), *reclaims(500, "b2", attempts=1), Step(0, Redrive, "b1", ((1, 2, 3), False)),
        Step(0, Redrive, "b1", ((1, 2, 3), True)),
    ],
    "no check for long": [
        *_CRASH, receive(0, "a1", 3), reclaim(0), reclaim(10_000_000), reclaim(500_000),
        Step(0, ConsumerHeartbeat, "b2", 3000), reclaim(600_000), reclaim(0), reclaim(500_000), reclaim(500_000),
        reclaim(-5_000_000), reclaim(1_000_000),
    ],
    "more than one check can do": [
        *join(0, "a1", "b2"), *(publish(0, many=50, call=f"{n}") for n in range(3)),
        receive(0, "a1", COSTLY_BATCH_MAX), reclaim(0), *reclaims(3500, "b2"), reclaim(0), reclaim(0), reclaim(0),
    ],
    "dead letters are redriven": [
        *join(0, "a1"), publish(0, (0, "", "high"), (0, "", ""), call="1"), receive(0, "a1", 2, lanes=("high", "")),
        record(0, "a1", (1, REJECT, 0, "e"), (2, REJECT, 0, "")), receive(0, "a1", wait=True),
        Step(5, Redrive, "a1", ((1, 1), False, "call 1")), Step(5, Redrive, "a1", ((1, 1), False, "call 1")),
        Step(5, Redrive, "a1", ((1, 2), True)), receive(0, "a1", 9),
        record(0, "a1", (1, REJECT, 0, "")), Step(0, Purge, "a1", ((1, 1, 5), "call 2")),
        Step(0, Purge, "a1", ((1, 1, 5), "call 2")), Step(0, Purge, "a1", ((1, 1, 5), "call 3")),
        Step(0, Leave, "a1"), receive(0, "a1"),
    ],
    "the queue is forgotten": [
        *join(0, "a1"), publish(0, call="1"), receive(0, "a1"), record(0, "a1"), Step(0, Leave, "a1"),
        *join(61_000_000, "a1"),
    ],
    "one message of a key at a time": [
        *join(0, "a1", "b1"), keyed(0, "k", "k", "kk", "k1", "k", call="1"), receive(0, "a1", 9),
        receive(0, "b1", 9), receive(0, "b1", 9, wait=True), record(0, "a1", (3, ACK, 0, "")), receive(0, "b1", 9),
        receive(0, "a1", 9), record(0, "b1", (1, ACK, 0, "")), receive(0, "a1", 9), record(0, "a1", *FOUR),
        keyed(0, "k", call="2"), receive(0, "b1", 9), record(0, "b1"), Step(0, Leave, "a1"), Step(0, Leave, "b1"),
    ],
    "a key waits while its first message is tried again": [
        *join(0, "a1", "b1"), keyed(0, "k", "k", call="1"), receive(0, "a1", 9),
        record(0, "a1", (1, RETRY, 400, "e")), receive(0, "b1", 9), receive(399_999, "b1", 9), receive(1, "b1", 9),
        record(0, "b1", (1, RELEASE, 0, "")), keyed(0, "k", call="2"), receive(0, "a1", 9), Step(0, Leave, "a1"),
        receive(0, "b1", 9), record(0, "b1"), receive(0, "b1", 9), record(0, "b1", (1, REJECT, 0, "")),
        receive(0, "b1", 9), record(0, "b1"), keyed(0, "k", call="3"),
    ],
    "a key in several lanes": [
        *join(0, "a1"), keyed(0, "k", call="1"), keyed(0, "k", call="2", lane="high"),
        keyed(0, "k", call="3", lane="low"), receive(0, "a1", 9, lanes=THREE), record(0, "a1"),
        receive(0, "a1", 9, lanes=("", "low")), receive(0, "a1", 9, lanes=THREE),
        record(0, "a1"), receive(0, "a1", 9, lanes=THREE), record(0, "a1"), receive(0, "a1", 9, lanes=THREE),
    ],
    "a delayed message comes first of its key": [
        *join(0, "a1"),
        publish(0, (300, "", "", "k"), (0, "", "", "k"), (0, "x", "", "k"), (0, "x", "", "k"), call="1"),
        take_over(0, "a1"), receive(299_999, "a1", 9), receive(1, "a1", 9), record(0, "a1"), receive(0, "a1", 9),
    ],
    "a redriven message goes behind the others of its key": [
        *join(0, "a1"), keyed(0, "k", call="1"), receive(0, "a1"), record(0, "a1", (1, REJECT, 0, "")),
        keyed(0, "k", "k", call="2"), receive(0, "a1", wait=True), receive(0, "a1", 9, wait=True),
        Step(0, Redrive, "a1", ((3,), True)), receive(0, "a1", 9), record(0, "a1", *FOUR), receive(0, "a1", 9),
        record(0, "a1"), receive(0, "a1", 9), record(0, "a1", (1, REJECT, 0, "")), receive(0, "a1", wait=True),
        Step(0, Redrive, "a1", ((3,), False)), receive(0, "a1"), record(0, "a1"),
    ],
    "a key and a death": [
        *join(0, "a1", "b2"), keyed(0, "k", "k", call="1"), receive(0, "a1"), reclaim(0),
        receive(0, "b2", wait=True), *reclaims(3500, "b2", attempts=1), receive(0, "b2"), record(0, "b2"),
        *join(0, "a1"), keyed(0, "k", "k", call="2"), receive(0, "a1"), *reclaims(3500, "b2"), receive(0, "b2"),
        record(0, "a1"), record(0, "b2"), receive(0, "b2"),
    ],
    "a consumer takes over": [
        *join(0, "a1", "b1"), keyed(0, "k", "k", call="1"), take_over(0, "b1", "none"), take_over(0, "b1"),
        take_over(0, "b1"), take_over(0, "a1"), take_over(0, "c2"), *heartbeats(2_999_999, "a1"), take_over(0, "a1"),
        take_over(1, "a1"), take_over(0, "a1"), *heartbeats(0, "b1"), receive(0, "b1"), record(0, "b1"),
        Step(0, Leave, "b1"), *join(0, "b1"), take_over(0, "b1"), record(0, "a1"), receive(0, "a1"), reclaim(0),
        *reclaims(500, "a1"), *join(0, "b1"), record(0, "a1"), take_over(0, "b1"),
    ],
    "a take-over of a message that kills": [
        *join(0, "a1", "b1"), keyed(0, "k", "k", call="1"), receive(0, "a1"), *heartbeats(3_000_000, "b1"),
        receive(0, "b1", wait=True), take_over(0, "b1", attempts=1), take_over(0, "b1", attempts=1, dead_max=1),
        record(0, "b1", (1, REJECT, 0, "")), *reclaims(1000, "b1"), Step(0, Redrive, "b1", ((1, 2), True)),
        take_over(0, "b1"),
    ],
    "a take-over of one of many": [
        *join(0, "a1", "b1", announce_expiry=True), keyed(0, "k", "kk", "k1", "k", call="1"), receive(0, "a1", 9),
        *heartbeats(3_000_000, "b1"), take_over(0, "b1", "kk"), take_over(0, "b1", "k1"), *reclaims(500, "b1"),
        receive(0, "b1", 9), *reclaims(500, "b1"), receive(0, "b1", 9), record(0, "b1", *FOUR), receive(0, "b1", 9),
    ],
    "a take-over from a lane": [
        *join(0, "a1", "b1"), publish(0, call="0"), keyed(0, "kk", "k", call="1"),
        receive(0, "b1", wait=True, lanes=("high",)), take_over(0, "b1"), receive(0, "b1", 9, wait=True),
        take_over(0, "a1", "kk"), keyed(0, "k1", call="2", lane="high"), take_over(0, "a1", "k1"),
        receive(0, "a1", 9, lanes=THREE), receive(0, "b1", known=9), record(0, "a1", *FOUR),
    ],
    "a dead consumer cannot come back": [
        *join(0, "a1", "b1", announce_expiry=True), keyed(0, "k", "kk", call="1"), receive(0, "a1", 9, wait=True),
        *heartbeats(3_000_000, "b1"), take_over(0, "b1"), *heartbeats(0, "a1"), receive(0, "a1", known=9),
        take_over(0, "a1", "kk"), Step(0, Leave, "a1"), *join(0, "a1"),
        record(0, "a1", (1, ACK, 0, ""), (2, VERIFY, 0, "")), *reclaims(500, "b1"),
        *join(0, "a1", announce_expiry=True), *heartbeats(1000, "a1"), receive(0, "a1", 9), Step(0, Leave, "a1"),
    ],
    "a consumer that keeps messages is blamed for new messages only": [
        *join(0, "a1", "b2", keeps_messages=True), keyed(0, "k", "kk", "k1", call="1"), receive(0, "a1", 2),
        reclaim(0), *reclaims(4000, "a1", "b2"), receive(0, "a1"), *reclaims(3500, "b2"), receive(0, "b2", 9),
        *join(0, "a2", keeps_messages=True), *reclaims(2000, "a2", "b2"), keyed(0, "x", "y", call="2"),
        receive(0, "a2", 9), *reclaims(3500, "b2"), receive(0, "b2", 9), *join(0, "c1", keeps_messages=True),
        record(0, "b2", (1, RELEASE, 0, "")), receive(0, "c1"), *reclaims(2000, "c1", "b2"), *reclaims(3500, "b2"),
        receive(0, "b2", 9), *join(0, "c2", keeps_messages=True), keyed(0, "z", "z2", call="3"), receive(0, "c2"),
        *heartbeats(600_000, "c2"), receive(0, "c2"), *heartbeats(600_000, "c2"), *reclaims(3500, "b2"),
    ],
    "an owner holds many, and a check ends in between": [
        *join(0, "a1", keeps_messages=True, announce_expiry=True), *join(0, "b2"),
        *(keyed(0, *(f"{n}-{m}" for m in range(50)), call=f"{n}") for n in range(3)),
        receive(0, "a1", COSTLY_BATCH_MAX - 1), reclaim(0), *reclaims(2000, "a1", "b2"), receive(0, "a1", 1),
        *reclaims(3500, "b2"), reclaim(0), *heartbeats(0, "a1"), record(0, "a1"), receive(0, "b2", 99), reclaim(0),
        reclaim(0),
    ],
    **{
        f"two consumers with more than one check can do, the first holds {many}": [
            *join(0, "a1", "a2"), *join(0, "b2"), *(publish(0, many=50, call=f"{n}") for n in range(6)),
            receive(0, "a1", many), receive(0, "a2", 1), reclaim(0), *reclaims(3500, "b2"), reclaim(0), reclaim(0),
            reclaim(0),
        ]
        for many in (COSTLY_BATCH_MAX - 2, COSTLY_BATCH_MAX - 1, COSTLY_BATCH_MAX)
    },
    "an owner receives several messages from quarantine": [
        *join(0, "a1", ttl_ms=200, keeps_messages=True), publish(0, many=4, call="1"), receive(0, "a1", 4),
        *reclaims(3500, "c1"), *join(0, "a2", ttl_ms=200, keeps_messages=True), receive(0, "a2", 4),
        *reclaims(3500, "c1"), *join(0, "b1", ttl_ms=200, keeps_messages=True), receive(0, "b1", 9, idle=3),
        *reclaims(3500, "c1"), *join(0, "b2", ttl_ms=200, keeps_messages=True), receive(0, "b2", 9, idle=1),
        *reclaims(3500, "c1"), *join(0, "c1"), receive(0, "c1", 2, idle=9), receive(0, "c1", 9, idle=1),
    ],
    "a fair share counts the messages of the consumer": [
        *join(0, "a1", "b1", "c1"), publish(0, many=12, call="1"), receive(0, "a1", 9, fair_share=True),
        receive(0, "a1", 9, fair_share=True), receive(0, "b1", 9, fair_share=True),
        receive(0, "b1", 9, fair_share=True), receive(0, "a1", 9, fair_share=True),
        receive(0, "c1", 9, fair_share=True), receive(0, "a1", 9, fair_share=True),
        receive(0, "b1", 9, fair_share=True),
    ],
    "a consumer that leaves in steps stays alive": [
        *join(0, "a1", ttl_ms=800), *join(0, "b1"), publish(0, many=BATCH_MAX + 5, call="1"),
        receive(0, "a1", BATCH_MAX), receive(0, "a1", BATCH_MAX), reclaim(0), reclaim(500_000), Step(0, Leave, "a1"),
        reclaim(500_000), reclaim(300_000), Step(0, Leave, "a1"),
    ],
    "a fair share counts the messages of others": [
        *join(0, "a1", "b1"), publish(0, many=8, call="1"), receive(0, "b1", 3), receive(0, "a1"),
        receive(0, "a1", 9, fair_share=True),
    ],
    "every consumer has a fair share": [
        *join(0, "a1", "b1", "c1"), publish(0, many=4, call="1"), publish(0, (0, "", "high"), call="2"),
        receive(0, "a1", 9, lanes=THREE, fair_share=True), receive(0, "b1", 9, fair_share=True),
        receive(0, "c1", 1, fair_share=True), receive(0, "a1", 9, lanes=("", ""), fair_share=True),
        receive(0, "c1", 9, wait=True, fair_share=True),
    ],
    "a consumer learns what it lost": [
        *join(0, "a1", "b1", ttl_ms=200), publish(0, many=3, call="1"), receive(0, "a1", 3),
        record(0, "a1", (2, ACK, 0, "")), receive(0, "a1", 0, known=9), receive(0, "a1", 9, known=1),
        record(0, "a1", (1, RELEASE, 0, "")), receive(0, "b1"), receive(0, "a1", 9, known=9),
        receive(0, "a1", 9, known=0),
    ],
    "a delayed retry stays the head of its key": [
        *join(0, "a1"), keyed(0, "k", "k", call="1"), receive(0, "a1", 9), record(0, "a1", (1, RETRY, 400, "e")),
    ],
    "a repeated delivery has its old fence": [
        *join(0, "a1"), publish(0, many=2, call="1"), receive(0, "a1"), receive(1000, "a1"),
        receive(500, "a1", 9, known=0), receive(500, "a1", 1, known=0), publish(0, many=2, call="2"),
        receive(5, "a1"), receive(5, "a1", 9, known=1),
    ],
}  # fmt: skip
