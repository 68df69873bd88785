"""The consistency check of a queue on a real server: page by page, correct while the queue changes, never blocking."""

import random
import re
import threading

import pytest
from queue_traffic import LONG_MS, Traffic
from redis_faces import Place

from holdfast.commands.queue import (
    ACK,
    BEHIND,
    READY,
    REJECT,
    Join,
    MessageOutcome,
    NewMessage,
    Publish,
    Receive,
    RecordOutcomes,
    TakeOver,
)
from holdfast.commands.queue_admin import PAGE
from holdfast.core.queue.queue import check_consistency
from holdfast.core.step import run
from holdfast.testing import eventually

KEY = "hf2:{q}:queue"


@pytest.fixture
def peer(one_server, loop):
    """A client that sends plain commands."""
    place = Place(one_server, "blocking", loop)
    yield place.peer()
    place.close()
    one_server.command("FLUSHALL")


def looked(peer, between, most):
    """Run a check, and call a function before each of its pages."""

    async def ask(page):
        between(page)
        return peer.send(page)

    return run(check_consistency(ask, "q", most=most))


@pytest.mark.parametrize("most", [2, 7])
def test_a_queue_in_use_is_never_reported_as_inconsistent(peer, most):
    """Whatever happens between two pages: publish, receive, ack, retry, take-over, leave, death, redrive."""
    by = random.Random(most)
    traffic = Traffic(peer, by)
    for _ in range(120):
        traffic.step()
    pages = 0

    def move(_):
        nonlocal pages
        pages += 1
        for _ in range(by.choice((0, 1, 1, 3))):
            traffic.step()

    for _ in range(12):
        assert looked(peer, move, most).faults == ()
    assert pages > 300


@pytest.mark.parametrize("robbed", [1, 2, 3, 5])
def test_no_entry_is_skipped_in_a_lane_that_others_take_from(peer, robbed):
    """A take-over removes an entry anywhere: the entries behind it move past a reader that reads from the end."""
    keys = [f"key {n}" for n in range(120)]
    peer.send(Join("q", "robber", "", "robber", LONG_MS))
    peer.send(Publish("q", "1", tuple(NewMessage(key, b"x", key=key) for key in keys)))

    def rob(page):
        for _ in range(robbed if page.part == READY and page.at != "1" and len(keys) > robbed else 0):
            assert peer.send(TakeOver("q", "robber", keys.pop(), 3)).deliveries

    assert looked(peer, rob, 5).faults == ()
    assert len(keys) < 90


def quiet(peer):
    """Create messages in lanes that are not used, a consumer that keeps its messages, and a dead letter."""
    drafts = [NewMessage(f"m{n}", b"x", lane="low") for n in range(6)]
    drafts += [NewMessage(f"{key}{n}", b"x", key=key, lane="low") for n in range(3) for key in ("k", "l")]
    drafts += [
        NewMessage("other", b"x", lane="other"),
        NewMessage("held", b"x", lane="own"),
        NewMessage("dies", b"x", lane="own"),
    ]
    peer.send(Publish("q", "quiet", (*drafts, NewMessage("late", b"x", delay_ms=LONG_MS))))
    for token in ("idle", "lazy"):
        peer.send(Join("q", token, "", token, LONG_MS))
    dies = peer.send(Receive("q", "idle", 2, lanes=("own",))).deliveries[1]
    peer.send(RecordOutcomes("q", "idle", (MessageOutcome(dies.entry, REJECT, reason="r"),)))


class Hand:
    """Changes the keys of a queue by hand; `of` has the entries of `quiet` by their ids."""

    def __init__(self, server):
        self._command = server.command
        self.of = {}
        for entry, text in zip(*[iter(server.command("HGETALL", f"{KEY}:messages"))] * 2, strict=True):
            head, _, tail = text.partition(b"\n")[2].partition(b"\n")
            self.of[tail[: int(head.split()[0])].decode()] = entry.decode()

    def __call__(self, command, part, *words):
        return self._command(command, f"{KEY}{part}", *words)

    def lead(self, id_):
        """Make a message behind another ready as well."""
        self("ZREM", ":behind", self.of[id_])
        self("ZREM", ":key_lines", f"1:{id_[0]}{self.of[id_]}")
        self("RPUSH", ":ready:low", self.of[id_])


DOUBLE = "message m2 is in 2 places"
UNLED = "1 keys have no first message"
NOTED = "1 keys are indexed with a message that is not their first"
SEVERAL = "1 keys have more than one first message"
UNLINED = "1 messages are missing in the order of their key"
STRAY = "8000000000000000"
PLANTS = {
    "in no place": (lambda do: do("LREM", ":ready:low", 1, do.of["m2"]), ["1 messages are in no place"]),
    "with a consumer that is not there": (lambda do: do("HDEL", ":consumers", "idle"), ["1 messages are in no place"]),
    "a lane is gone": (
        lambda do: do("DEL", ":ready:low"),
        ["8 messages are in no place", UNLED.replace("1", "2"), NOTED.replace("1", "2")],
    ),
    "ready and no message": (
        lambda do: do("HDEL", ":messages", do.of["m2"]),
        ["1 places name a message that is not stored"],
    ),
    "held and no message": (
        lambda do: do("HDEL", ":messages", do.of["held"]),
        ["1 places name a message that is not stored"],
    ),
    "delayed and no message": (
        lambda do: do("HDEL", ":messages", do.of["late"]),
        ["1 places name a message that is not stored"],
    ),
    "ready and delayed": (lambda do: do("ZADD", ":delayed", "8e15", do.of["m2"]), [DOUBLE]),
    "ready and held": (lambda do: do("ZADD", ":held:idle", 5, do.of["m2"]), [DOUBLE]),
    "held by two": (lambda do: do("ZADD", ":held:lazy", 5, do.of["held"]), [DOUBLE.replace("m2", "held")]),
    "in two lanes": (lambda do: do("RPUSH", ":ready:other", do.of["m2"]), [DOUBLE]),
    "under two entries": (
        lambda do: (
            do("HSET", ":messages", STRAY, do("HGET", ":messages", do.of["m2"])),
            do("RPUSH", ":ready:low", STRAY),
        ),
        [DOUBLE],
    ),
    "ready and dead": (
        lambda do: (
            do("HSET", ":dead", "m2", do("HGET", ":dead", "dies")),
            do("ZADD", ":dead_order", 0, do("ZRANGE", ":dead_order", 0, 0)[0].replace(b"dies", b"m2")),
        ),
        [DOUBLE],
    ),
    "twice in a lane, far away": (
        lambda do: do("RPUSH", ":ready:low", do.of["m0"]),
        ["1 ready messages are out of order"],
        [DOUBLE.replace("m2", "m0")],
    ),
    "twice in a lane": (lambda do: do("RPUSH", ":ready:low", do.of["l0"]), [DOUBLE.replace("m2", "l0")]),
    "two come first": (lambda do: do.lead("k1"), [SEVERAL]),
    "two come first, and none is noted": (
        lambda do: (do.lead("k1"), do("HDEL", ":heads", "k")),
        [SEVERAL, NOTED],
    ),
    "an entry that hides its key": (
        lambda do: (
            do("HSET", ":messages", STRAY, do("HGET", ":messages", do.of["l0"]).replace(b"l0", b"zz")),
            do("RPUSH", ":ready:low", STRAY),
        ),
        [SEVERAL],
    ),
    "none is noted": (lambda do: do("HDEL", ":heads", "k"), [NOTED]),
    "noted with somebody else": (lambda do: do("HSET", ":heads", "k", f"{do.of['k0']} idle"), [NOTED]),
    "another one is noted": (lambda do: do("HSET", ":heads", "k", do.of["l0"]), [NOTED]),
    "a key that nobody has": (lambda do: do("HSET", ":heads", "z", do.of["m2"]), [NOTED]),
    "none comes first": (
        lambda do: (do("LREM", ":ready:low", 1, do.of["k0"]), do("HDEL", ":messages", do.of["k0"])),
        [UNLED, NOTED],
    ),
    "not in line": (lambda do: do("ZREM", ":key_lines", f"1:k{do.of['k1']}"), [UNLINED]),
    "twice in line": (lambda do: do("ZADD", ":key_lines", 0, f"1:z{do.of['k1']}"), [UNLINED]),
    "nobody in line": (lambda do: do("ZADD", ":key_lines", 0, "what?"), [UNLINED]),
    "a letter without a place": (
        lambda do: do("ZREM", ":dead_order", do("ZRANGE", ":dead_order", 0, 0)[0]),
        ["1 dead letters are not in order"],
    ),
    "a place without a letter": (
        lambda do: do("HDEL", ":dead", "dies"),
        ["1 places name a message that is not stored"],
    ),
}


@pytest.mark.parametrize("plant", PLANTS)
def test_a_lasting_fault_is_found_while_the_queue_is_in_use(one_server, peer, plant):
    """In pages of any size, and no other fault is reported; a fault within one page has a better sentence."""
    spoil, faults, *in_one_page = PLANTS[plant]
    by = random.Random(plant)
    traffic = Traffic(peer, by)
    quiet(peer)
    hand = Hand(one_server)
    for _ in range(30):
        traffic.step()
    assert peer.audit("q").faults == ()
    spoil(hand)

    for most in (2, 5):
        assert list(looked(peer, lambda _: traffic.step(), most).faults) == faults, most
    assert list(looked(peer, lambda _: traffic.step(), PAGE).faults) == (in_one_page or [faults])[0]


MANY = 200_000
FILL = """
local time = redis.call('TIME')
local base = time[1] * 1000000 + time[2] - 1000000 * 60
for i = 1, tonumber(ARGV[1]) do
  local entry = string.format('%.0f', base + i)
  redis.call('HSET', KEYS[1] .. ':messages', entry, '1 0 0 0 0 0\\n' .. #entry .. ' 0 0 0\\n' .. entry .. 'x')
  redis.call('RPUSH', KEYS[1] .. ':ready:', entry)
end
"""


def test_no_step_is_long_however_many_messages_there_are(one_server, peer, loop):
    """A check of a large queue must not block the server: other clients are served between two pages."""
    one_server.command("EVAL", FILL, 1, KEY, MANY)
    other = Place(one_server, "blocking", loop)
    busy, over, served = other.peer(), threading.Event(), []
    busy.send(Join("q", "t", "", "t", LONG_MS))

    def work():
        while not over.is_set():
            busy.send(Publish("q", f"{len(served)}", (NewMessage(f"m{len(served)}", b"x"),)))
            taken = busy.send(Receive("q", "t", 1)).deliveries
            busy.send(RecordOutcomes("q", "t", tuple(MessageOutcome(each.entry, ACK) for each in taken)))
            served.append(1)

    pages = []

    async def ask(page):
        pages.append(peer.send(page))
        return pages[-1]

    running = other.start(work)
    try:
        eventually(lambda: served, 20, "somebody at work")
        before = len(served)
        one_server.command("CONFIG", "RESETSTAT")
        found = run(check_consistency(ask, "q"))
        meanwhile = len(served) - before
    finally:
        over.set()
        running.result()
        other.close()

    calls = one_server.command("INFO", "commandstats").decode().split("\r\n")
    inside = {
        name: int(count)
        for name, count in re.findall(r"cmdstat_(hscan|zscan|hexists|lrange|llen):calls=(\d+)", "\n".join(calls))
    }
    assert found.faults == ()
    assert found.messages >= MANY - len(served)
    assert len(pages) > 2 * MANY / (PAGE + 100)
    assert max(len(page.values) for page in pages) <= 2 * (PAGE + 100)
    assert sum(inside.values()) < len(pages) * (PAGE + 100)
    assert meanwhile > 50


def test_large_messages_make_short_pages(one_server, peer):
    """A page is limited in bytes as well: a server that copies gigabytes serves no other client."""
    body = b"x" * 30_000
    for n in range(0, 400, 20):
        peer.send(Publish("q", f"{n}", tuple(NewMessage(f"{m}", body, key=f"k{m % 200}") for m in range(n, n + 20))))
    pages = []

    async def ask(page):
        pages.append((page.part, peer.send(page)))
        return pages[-1][1]

    assert run(check_consistency(ask, "q")) == (400, ())
    for part, words in (("messages", 2), (READY, 1), (BEHIND, 1)):
        assert max(len(page.values) for each, page in pages if each == part) <= 40 * words


def test_a_check_reads_entries_and_keys_of_any_bytes(one_server, peer):
    """Entries, ids, keys and consumers that are not UTF-8 are sent back as the same bytes."""
    peer.send(Publish("q", "1", (NewMessage("ours", b"x", key="k"),)))
    one_server.command("HSET", f"{KEY}:messages", b"\xff\xfe", b"\xff what?", b"\xfd", b"nowhere")
    one_server.command("RPUSH", f"{KEY}:ready:", b"\xff\xfe")
    one_server.command("HSET", f"{KEY}:heads", b"\xfa", b"\xfb \xfc")
    one_server.command("ZADD", f"{KEY}:behind", 1, b"\xff\xfe")

    assert peer.audit("q", 2).faults == (
        "message foreign-\udcff\udcfe is in 2 places",
        "1 messages are in no place",
        NOTED,
        UNLINED,
    )
