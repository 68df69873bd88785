"""What tests say to queues on both sides: single steps, and programs that show one law each."""

from queue_twin import Said

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

INTERVAL_MS, GRACE_MS, AMNESTY_MS = 500, 200, 1000
FOUR = tuple((at, ACK, 0, "") for at in (1, 2, 3, 4))
THREE = ("high", "", "low")


def join(after_us, *tokens, ttl_ms=3000, keeps_messages=False, announce_expiry=False):
    return [Said(after_us, Join, token, (ttl_ms, keeps_messages, announce_expiry)) for token in tokens]


def send(after_us, *drafts, call=None, bound=0, many=0):
    drafts = drafts or ((0, "", ""),) * (many or 1)
    return Said(after_us, Publish, "c1", (call or f"call {id(drafts)}", bound, drafts))


def keyed(after_us, *keys, call, lane=""):
    """A message of each of these keys."""
    return Said(after_us, Publish, "c1", (call, 0, tuple((0, "", lane, key) for key in keys)))


def take(after_us, token, most=1, wait=False, quarantine_max=False, known_entries=None, lanes=("",), fair_share=False, seen_fence=None):
    """`seen`: that many of what it has, the newest, it has not."""
    return Said(after_us, Receive, token, (most, wait, quarantine_max, known_entries, lanes, fair_share, seen_fence))


def over(after_us, token, key="k", attempts=2, dead_max=0):
    return Said(after_us, TakeOver, token, (key, attempts, dead_max))


def end(after_us, token, *outcomes, dead_max=0):
    """What becomes of the last ones that it had, counted from the newest."""
    return Said(after_us, RecordOutcomes, token, (outcomes or ((1, ACK, 0, ""),), dead_max))


def beats(after_us, *tokens):
    return [Said(after_us, ConsumerHeartbeat, token, 3000) for token in tokens]


def reap(after_us, attempts=2, dead_max=0):
    return Said(after_us, ReclaimExpired, "c1", (INTERVAL_MS, GRACE_MS, AMNESTY_MS, attempts, dead_max))


def looks(ms, *alive, attempts=2):
    """Looks at every interval, while these live."""
    steps = []
    for _ in range(0, ms, INTERVAL_MS):
        steps += beats(0, *alive)
        steps.append(reap(INTERVAL_MS * 1000, attempts))
    return steps


_CRASH = [*join(0, "a1", "b2"), send(0, many=3, call="1")]

WITNESSES = {
    "nobody has looked for long": [
        *join(0, "a1", "b1"), keyed(0, "k", call="1"), take(0, "b1"), reap(0), over(5_000_000, "a1"),
        Said(0, ReclaimExpired, "c1", (INTERVAL_MS, GRACE_MS, 3000, 2, 0)), over(2_999_999, "a1"), over(1, "a1"),
    ],
    "a look is just not too late": [
        *join(0, "a1"), *join(0, "b1", ttl_ms=600), keyed(0, "k", call="1"), take(0, "b1"), reap(0),
        over(1_500_000, "a1"),
    ],
    "a look is just too late": [
        *join(0, "a1"), *join(0, "b1", ttl_ms=600), keyed(0, "k", call="1"), take(0, "b1"), reap(0),
        over(1_500_001, "a1"),
    ],
    "first in, first out": [
        *join(0, "a1"), send(0, many=3, call="1"), take(0, "a1", 2), take(0, "a1", 2), end(0, "a1"),
    ],
    "whoever waits is rung": [
        *join(0, "a1", "b1"), take(0, "a1", wait=True), take(0, "b1", wait=True), take(0, "a1", wait=True),
        send(0, call="1"), take(0, "a1"), take(0, "a1", wait=True), send(0, many=3, call="2"), take(0, "b1"),
    ],
    "more is left than was taken": [
        *join(0, "a1", "b1"), take(0, "b1", wait=True, lanes=("high",)), send(0, (0, "", "high"), (0, "", "high"),
        call="1"), take(0, "b1", wait=True, lanes=("",)), take(0, "a1", lanes=("high", "")),
    ],
    "the late are not rung": [
        *join(0, "a1", "b1", ttl_ms=200), take(0, "a1", wait=True), take(100_000, "b1", wait=True),
        Said(0, ConsumerHeartbeat, "b1", 3000), send(100_000, many=2, call="1"), take(200_000, "a1", wait=True),
    ],
    "a copy of a publish": [
        *join(0, "a1"), send(0, call="1"), send(0, call="1"), send(59_999_000, call="1"), send(1_000, call="1"),
    ],
    "a key that was used": [
        send(0, (0, "x", ""), (0, "x", ""), call="1"), send(699_999, (0, "x", ""), call="2"),
        send(1, (0, "x", ""), call="3"),
    ],
    "a bound": [
        *join(0, "a1"), send(0, many=3, bound=4, call="1"), send(0, many=2, bound=4, call="2"), take(0, "a1", 3),
        send(0, many=2, bound=4, call="2"), end(0, "a1"), send(0, many=2, bound=4, call="2"),
        send(0, (300, "", ""), call="3", bound=4),
    ],
    "delays": [
        *join(0, "a1"), send(0, (300, "", ""), (200, "", "high"), (300, "", ""), call="1"), take(199_999, "a1", 9),
        take(1, "a1", 9, lanes=("", "high")), take(100_000, "a1", 9), end(0, "a1", (1, RETRY, 400, "e")),
        take(399_999, "a1", quarantine_max=True), take(1, "a1"), end(0, "a1", (1, RELEASE, 400, "")), take(400_000, "a1"),
    ],
    "all that may become of it": [
        *join(0, "a1"), send(0, many=4, call="1"), take(0, "a1", 4),
        end(0, "a1", (4, ACK, 0, ""), (3, RETRY, 0, "oh"), (2, RELEASE, 0, ""), (1, REJECT, 0, "")),
        end(0, "a1", (4, ACK, 0, ""), (9, VERIFY, 0, "")), take(0, "a1", 4), end(0, "a1", (1, VERIFY, 0, ""),
        (1, REJECT, 0, "no"), (2, REJECT, 0, "")), Said(0, GetDeadLetter, "a1", ((1,),)),
        Said(0, GetDeadLetter, "a1", ((3,),)),
    ],
    "told twice in one breath": [
        *join(0, "a1"), send(0, many=2, call="1"), take(0, "a1", 2), end(0, "a1", (1, ACK, 0, ""), (1, ACK, 0, "")),
    ],
    "no more letters than that": [
        *join(0, "a1"), send(0, many=4, call="1"), take(0, "a1", 4),
        end(0, "a1", *((at, REJECT, 0, "") for at in (4, 3, 2)), dead_max=2), end(1, "a1", (1, REJECT, 0, ""), dead_max=1),
    ],
    "an answer was lost": [
        *join(0, "a1"), send(0, many=4, call="1"), take(0, "a1", 2), take(0, "a1", 9, known_entries=1),
        take(0, "a1", 9, known_entries=2), take(0, "a1", 1, known_entries=0), take(0, "a1", 9, known_entries=9),
    ],
    "a question came late": [
        *join(0, "a1"), send(0, many=5, call="1"), take(0, "a1", 2, seen_fence=9), take(0, "a1", 2, seen_fence=2),
        take(0, "a1", 1, seen_fence=1), take(0, "a1", 9, seen_fence=1), take(0, "a1", 0, seen_fence=9), take(0, "a1", 2, seen_fence=0),
        end(0, "a1"), take(0, "a1", 9, seen_fence=0, wait=True), take(0, "a1", 9, seen_fence=9, wait=True),
    ],
    "a consumer leaves": [
        *join(0, "a1", "b1"), send(0, many=3, call="1"), take(0, "a1", 2), take(0, "b1", 9), take(0, "b1", wait=True),
        Said(0, Leave, "a1"), Said(0, Leave, "a1"), take(0, "b1", 9), end(0, "a1", *FOUR),
        take(0, "a1"), Said(0, ConsumerHeartbeat, "a1", 200), Said(0, Leave, "b1"),
        *join(0, "a2"), take(0, "a2", wait=True, lanes=("high",)), Said(0, Leave, "a2"),
    ],
    "a consumer leaves with much": [
        *join(0, "a1", "b1", "a2"), *(send(0, many=50, call=f"{n}") for n in range(8)), take(0, "a1", BATCH_MAX),
        take(0, "b1", BATCH_MAX + 1), take(0, "a2", 400), take(0, "a1", wait=True), take(0, "b1", wait=True),
        Said(0, Leave, "a1"), take(0, "b1", wait=True), Said(0, Leave, "b1"), Said(0, ConsumerHeartbeat, "b1", 200),
        Said(0, Leave, "b1"), Said(0, Leave, "b1"), Said(0, Leave, "a2"), Said(0, Leave, "a2"), Said(0, Leave, "a2"),
        *join(0, "a1"), take(0, "a1", 400),
    ],
    "a consumer dies alone": [
        *join(0, "a1", "b2"), send(0, call="1"), take(0, "a1"), reap(0), *looks(3500, "b2"), take(0, "b2"),
        end(0, "a1"), *join(0, "a2"), end(0, "b2", (1, RELEASE, 0, "")), take(0, "a2"), *looks(3500, "b2"),
    ],
    "a consumer dies in company": [
        *_CRASH, take(0, "a1", 3), reap(0), *looks(3500, "b2"), *join(0, "a2"), take(0, "a2", 3), *looks(3500, "b2"),
        take(0, "b2", 3), take(0, "b2", 3, quarantine_max=True), end(0, "b2", (1, RETRY, 0, "")), take(0, "b2", 3, quarantine_max=True),
        *join(0, "c1"), take(0, "c1", 3), take(30_000_000, "c1"), take(0, "b2", wait=True),
    ],
    "a suspect that kills is dead": [
        *_CRASH, take(0, "a1", 3), reap(0), *looks(3500, "b2"), *join(0, "a2"), take(0, "a2", 3), *looks(3500, "b2"),
        *join(0, "c1"), take(0, "c1", 1, quarantine_max=True), *looks(3500, "b2"), *join(0, "c2"), take(0, "c2", 1, quarantine_max=True),
        take(0, "c2", 1, quarantine_max=True), take(0, "c2", 1, quarantine_max=True), *looks(3500, "b2"), *looks(500, "b2", attempts=1),
        Said(0, Redrive, "b1", ((1, 2, 3), False)), Said(0, Redrive, "b1", ((1, 2, 3), True)),
    ],
    "nobody looked for long": [
        *_CRASH, take(0, "a1", 3), reap(0), reap(10_000_000), reap(500_000), Said(0, ConsumerHeartbeat, "b2", 3000), reap(600_000),
        reap(0), reap(500_000), reap(500_000), reap(-5_000_000), reap(1_000_000),
    ],
    "more than one look can do": [
        *join(0, "a1", "b2"), *(send(0, many=50, call=f"{n}") for n in range(3)), take(0, "a1", COSTLY_BATCH_MAX), reap(0),
        *looks(3500, "b2"), reap(0), reap(0), reap(0),
    ],
    "letters go again": [
        *join(0, "a1"), send(0, (0, "", "high"), (0, "", ""), call="1"), take(0, "a1", 2, lanes=("high", "")),
        end(0, "a1", (1, REJECT, 0, "e"), (2, REJECT, 0, "")), take(0, "a1", wait=True),
        Said(5, Redrive, "a1", ((1, 1), False, "call 1")), Said(5, Redrive, "a1", ((1, 1), False, "call 1")),
        Said(5, Redrive, "a1", ((1, 2), True)), take(0, "a1", 9),
        end(0, "a1", (1, REJECT, 0, "")), Said(0, Purge, "a1", ((1, 1, 5), "call 2")),
        Said(0, Purge, "a1", ((1, 1, 5), "call 2")), Said(0, Purge, "a1", ((1, 1, 5), "call 3")),
        Said(0, Leave, "a1"), take(0, "a1"),
    ],
    "the queue is forgotten": [
        *join(0, "a1"), send(0, call="1"), take(0, "a1"), end(0, "a1"), Said(0, Leave, "a1"), *join(61_000_000, "a1"),
    ],
    "one message of a key at a time": [
        *join(0, "a1", "b1"), keyed(0, "k", "k", "kk", "k1", "k", call="1"), take(0, "a1", 9), take(0, "b1", 9),
        take(0, "b1", 9, wait=True), end(0, "a1", (3, ACK, 0, "")), take(0, "b1", 9), take(0, "a1", 9),
        end(0, "b1", (1, ACK, 0, "")), take(0, "a1", 9), end(0, "a1", *FOUR), keyed(0, "k", call="2"), take(0, "b1", 9),
        end(0, "b1"), Said(0, Leave, "a1"), Said(0, Leave, "b1"),
    ],
    "a key waits while its first message is tried again": [
        *join(0, "a1", "b1"), keyed(0, "k", "k", call="1"), take(0, "a1", 9), end(0, "a1", (1, RETRY, 400, "e")),
        take(0, "b1", 9), take(399_999, "b1", 9), take(1, "b1", 9), end(0, "b1", (1, RELEASE, 0, "")),
        keyed(0, "k", call="2"), take(0, "a1", 9), Said(0, Leave, "a1"), take(0, "b1", 9), end(0, "b1"),
        take(0, "b1", 9), end(0, "b1", (1, REJECT, 0, "")), take(0, "b1", 9), end(0, "b1"), keyed(0, "k", call="3"),
    ],
    "a key in several lanes": [
        *join(0, "a1"), keyed(0, "k", call="1"), keyed(0, "k", call="2", lane="high"),
        keyed(0, "k", call="3", lane="low"), take(0, "a1", 9, lanes=THREE), end(0, "a1"),
        take(0, "a1", 9, lanes=("", "low")), take(0, "a1", 9, lanes=THREE),
        end(0, "a1"), take(0, "a1", 9, lanes=THREE), end(0, "a1"), take(0, "a1", 9, lanes=THREE),
    ],
    "a delayed message comes first of its key": [
        *join(0, "a1"), send(0, (300, "", "", "k"), (0, "", "", "k"), (0, "x", "", "k"), (0, "x", "", "k"), call="1"),
        over(0, "a1"), take(299_999, "a1", 9), take(1, "a1", 9), end(0, "a1"), take(0, "a1", 9),
    ],
    "a letter goes behind the others of its key": [
        *join(0, "a1"), keyed(0, "k", call="1"), take(0, "a1"), end(0, "a1", (1, REJECT, 0, "")),
        keyed(0, "k", "k", call="2"), take(0, "a1", wait=True), take(0, "a1", 9, wait=True),
        Said(0, Redrive, "a1", ((3,), True)), take(0, "a1", 9), end(0, "a1", *FOUR), take(0, "a1", 9), end(0, "a1"),
        take(0, "a1", 9), end(0, "a1", (1, REJECT, 0, "")), take(0, "a1", wait=True),
        Said(0, Redrive, "a1", ((3,), False)), take(0, "a1"), end(0, "a1"),
    ],
    "a key and a death": [
        *join(0, "a1", "b2"), keyed(0, "k", "k", call="1"), take(0, "a1"), reap(0), take(0, "b2", wait=True),
        *looks(3500, "b2", attempts=1), take(0, "b2"), end(0, "b2"), *join(0, "a1"), keyed(0, "k", "k", call="2"),
        take(0, "a1"), *looks(3500, "b2"), take(0, "b2"), end(0, "a1"), end(0, "b2"), take(0, "b2"),
    ],
    "somebody takes over": [
        *join(0, "a1", "b1"), keyed(0, "k", "k", call="1"), over(0, "b1", "none"), over(0, "b1"), over(0, "b1"),
        over(0, "a1"), over(0, "c2"), *beats(2_999_999, "a1"), over(0, "a1"), over(1, "a1"), over(0, "a1"),
        *beats(0, "b1"), take(0, "b1"), end(0, "b1"), Said(0, Leave, "b1"), *join(0, "b1"), over(0, "b1"),
        end(0, "a1"), take(0, "a1"), reap(0), *looks(500, "a1"), *join(0, "b1"), end(0, "a1"), over(0, "b1"),
    ],
    "a take-over of what kills": [
        *join(0, "a1", "b1"), keyed(0, "k", "k", call="1"), take(0, "a1"), *beats(3_000_000, "b1"),
        take(0, "b1", wait=True), over(0, "b1", attempts=1), over(0, "b1", attempts=1, dead_max=1),
        end(0, "b1", (1, REJECT, 0, "")), *looks(1000, "b1"), Said(0, Redrive, "b1", ((1, 2), True)), over(0, "b1"),
    ],
    "a take-over of one of many": [
        *join(0, "a1", "b1", announce_expiry=True), keyed(0, "k", "kk", "k1", "k", call="1"), take(0, "a1", 9),
        *beats(3_000_000, "b1"), over(0, "b1", "kk"), over(0, "b1", "k1"), *looks(500, "b1"), take(0, "b1", 9),
        *looks(500, "b1"), take(0, "b1", 9), end(0, "b1", *FOUR), take(0, "b1", 9),
    ],
    "a take-over from a lane": [
        *join(0, "a1", "b1"), send(0, call="0"), keyed(0, "kk", "k", call="1"),
        take(0, "b1", wait=True, lanes=("high",)), over(0, "b1"), take(0, "b1", 9, wait=True), over(0, "a1", "kk"),
        keyed(0, "k1", call="2", lane="high"),
        over(0, "a1", "k1"), take(0, "a1", 9, lanes=THREE), take(0, "b1", known_entries=9), end(0, "a1", *FOUR),
    ],
    "who has fallen cannot come back": [
        *join(0, "a1", "b1", announce_expiry=True), keyed(0, "k", "kk", call="1"), take(0, "a1", 9, wait=True),
        *beats(3_000_000, "b1"), over(0, "b1"), *beats(0, "a1"), take(0, "a1", known_entries=9), over(0, "a1", "kk"),
        Said(0, Leave, "a1"), *join(0, "a1"), end(0, "a1", (1, ACK, 0, ""), (2, VERIFY, 0, "")), *looks(500, "b1"),
        *join(0, "a1", announce_expiry=True), *beats(1000, "a1"), take(0, "a1", 9), Said(0, Leave, "a1"),
    ],
    "who keeps_messages messages is blamed for the new ones": [
        *join(0, "a1", "b2", keeps_messages=True), keyed(0, "k", "kk", "k1", call="1"), take(0, "a1", 2), reap(0),
        *looks(4000, "a1", "b2"), take(0, "a1"), *looks(3500, "b2"), take(0, "b2", 9), *join(0, "a2", keeps_messages=True),
        *looks(2000, "a2", "b2"), keyed(0, "x", "y", call="2"), take(0, "a2", 9), *looks(3500, "b2"), take(0, "b2", 9),
        *join(0, "c1", keeps_messages=True), end(0, "b2", (1, RELEASE, 0, "")), take(0, "c1"), *looks(2000, "c1", "b2"),
        *looks(3500, "b2"), take(0, "b2", 9), *join(0, "c2", keeps_messages=True), keyed(0, "z", "z2", call="3"), take(0, "c2"),
        *beats(600_000, "c2"), take(0, "c2"), *beats(600_000, "c2"), *looks(3500, "b2"),
    ],
    "an owner has many, and a look ends in between": [
        *join(0, "a1", keeps_messages=True, announce_expiry=True), *join(0, "b2"), *(
            keyed(0, *(f"{n}-{m}" for m in range(50)), call=f"{n}") for n in range(3)
        ), take(0, "a1", COSTLY_BATCH_MAX - 1), reap(0), *looks(2000, "a1", "b2"), take(0, "a1", 1), *looks(3500, "b2"),
        reap(0), *beats(0, "a1"), end(0, "a1"), take(0, "b2", 99), reap(0), reap(0),
    ],
    **{
        f"two owners with more than one look can do, the first has {many}": [
            *join(0, "a1", "a2"), *join(0, "b2"), *(send(0, many=50, call=f"{n}") for n in range(6)),
            take(0, "a1", many), take(0, "a2", 1), reap(0), *looks(3500, "b2"), reap(0), reap(0), reap(0),
        ]
        for many in (COSTLY_BATCH_MAX - 2, COSTLY_BATCH_MAX - 1, COSTLY_BATCH_MAX)
    },
    "an owner dares to take several suspects": [
        *join(0, "a1", ttl_ms=200, keeps_messages=True), send(0, many=4, call="1"), take(0, "a1", 4), *looks(3500, "c1"),
        *join(0, "a2", ttl_ms=200, keeps_messages=True), take(0, "a2", 4), *looks(3500, "c1"),
        *join(0, "b1", ttl_ms=200, keeps_messages=True), take(0, "b1", 9, quarantine_max=3), *looks(3500, "c1"),
        *join(0, "b2", ttl_ms=200, keeps_messages=True), take(0, "b2", 9, quarantine_max=1), *looks(3500, "c1"),
        *join(0, "c1"), take(0, "c1", 2, quarantine_max=9), take(0, "c1", 9, quarantine_max=1),
    ],
    "a share counts what one has": [
        *join(0, "a1", "b1", "c1"), send(0, many=12, call="1"),
        take(0, "a1", 9, fair_share=True), take(0, "a1", 9, fair_share=True), take(0, "b1", 9, fair_share=True),
        take(0, "b1", 9, fair_share=True), take(0, "a1", 9, fair_share=True), take(0, "c1", 9, fair_share=True),
        take(0, "a1", 9, fair_share=True), take(0, "b1", 9, fair_share=True),
    ],
    "whoever leaves in steps lives meanwhile": [
        *join(0, "a1", ttl_ms=800), *join(0, "b1"), send(0, many=BATCH_MAX + 5, call="1"), take(0, "a1", BATCH_MAX),
        take(0, "a1", BATCH_MAX), reap(0), reap(500_000), Said(0, Leave, "a1"), reap(500_000), reap(300_000),
        Said(0, Leave, "a1"),
    ],
    "a share counts what others have": [
        *join(0, "a1", "b1"), send(0, many=8, call="1"), take(0, "b1", 3), take(0, "a1"), take(0, "a1", 9, fair_share=True),
    ],
    "everybody has a share": [
        *join(0, "a1", "b1", "c1"), send(0, many=4, call="1"), send(0, (0, "", "high"), call="2"),
        take(0, "a1", 9, lanes=THREE, fair_share=True), take(0, "b1", 9, fair_share=True), take(0, "c1", 1, fair_share=True),
        take(0, "a1", 9, lanes=("", ""), fair_share=True), take(0, "c1", 9, wait=True, fair_share=True),
    ],
    "told what is gone": [
        *join(0, "a1", "b1", ttl_ms=200), send(0, many=3, call="1"), take(0, "a1", 3), end(0, "a1", (2, ACK, 0, "")),
        take(0, "a1", 0, known_entries=9), take(0, "a1", 9, known_entries=1), end(0, "a1", (1, RELEASE, 0, "")), take(0, "b1"),
        take(0, "a1", 9, known_entries=9), take(0, "a1", 9, known_entries=0),
    ],
    "what is delayed still comes first of its key": [
        *join(0, "a1"), keyed(0, "k", "k", call="1"), take(0, "a1", 9), end(0, "a1", (1, RETRY, 400, "e")),
    ],
    "what is given again has the fence that it had": [
        *join(0, "a1"), send(0, many=2, call="1"), take(0, "a1"), take(1000, "a1"), take(500, "a1", 9, known_entries=0),
        take(500, "a1", 1, known_entries=0), send(0, many=2, call="2"), take(5, "a1"), take(5, "a1", 9, known_entries=1),
    ],
}  # fmt: skip
