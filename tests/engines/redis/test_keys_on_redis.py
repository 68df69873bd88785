"""Messages with keys on a real server: keys of other programs, no memory, lost scripts, and nothing left behind."""

import pytest
from redis_faces import Place

from holdfast import Unavailable
from holdfast.commands import Granted, Released
from holdfast.commands.queue import (
    ACK,
    BATCH_MAX,
    REJECT,
    RELEASE,
    RETRY,
    ConsumerHeartbeat,
    Join,
    KeysHeld,
    Leave,
    ListKeys,
    MessageOutcome,
    NewMessage,
    NotTakenOver,
    Publish,
    Published,
    Receive,
    Received,
    ReclaimExpired,
    RecordOutcomes,
    Redrive,
    TakeOver,
)
from holdfast.commands.queue_admin import GetStats
from holdfast.engines.redis.scripts import SCRIPTS
from holdfast.errors import UnreadableRecord
from holdfast.rules.queue.messages import UNKNOWN_CONSUMER
from holdfast.testing import eventually
from tests.support.proxy import script

KEY = "hf2:{q}:queue"
LONG_MS = 60_000
THREE = ("high", "", "low")
REAP = ReclaimExpired("q", 200, 100, 200, 3)
TAKE_OVERS = script(SCRIPTS[TakeOver].sha)


def keyed(call, *keys, lane=""):
    return Publish(
        "q", call, tuple(NewMessage(f"{call}-{at}", b"b", key=key, lane=lane) for at, key in enumerate(keys))
    )


def taken_by(peer, token, most=9, **how):
    return [each.entry for each in peer.send(Receive("q", token, most, **how)).deliveries]


def ended(token, *entries, kind=ACK):
    return RecordOutcomes("q", token, tuple(MessageOutcome(entry, kind) for entry in entries))


def dumped(server):
    return {key: server.command("DUMP", key) for key in server.command("KEYS", "*")}


def parts(server):
    """Return the keys of the queue, without those that expire by themselves."""
    return {
        key.decode().removeprefix(KEY) for key in server.command("KEYS", f"{KEY}*") if not key.endswith(b":published")
    }


@pytest.fixture
def peer(server, loop):
    """A client that sends plain commands to each kind of server."""
    place = Place(server, "blocking", loop)
    yield place.peer()
    place.close()
    server.command("FLUSHALL")


WRONG = [
    (":heads", keyed("2", "new")),
    (":heads", ended("t1", "held")),
    (":heads", ended("t1", "held", kind=RETRY)),
    (":heads", ended("t1", "held", kind=REJECT)),
    (":heads", Receive("q", "t1", 9)),
    (":heads", Leave("q", "t1")),
    (":heads", TakeOver("q", "t2", "ready", 3)),
    (":behind", keyed("2", "held")),
    (":behind", ended("t1", "held")),
    (":key_lines", keyed("2", "held")),
    (":key_lines", ended("t1", "held", kind=REJECT)),
    (":messages", TakeOver("q", "t2", "ready", 3)),
    (":delayed", TakeOver("q", "t2", "ready", 3)),
    (":delayed", TakeOver("q", "t2", "owned", 3)),
    (":ready:", TakeOver("q", "t2", "ready", 3)),
    (":ready:high", Receive("q", "t1", 1, lanes=("", "high"))),
    (":held:t2", TakeOver("q", "t2", "ready", 3)),
    (":held:t3", TakeOver("q", "t2", "owned", 3)),
    (":waiting", TakeOver("q", "t2", "ready", 3)),
    (":waiting", TakeOver("q", "t2", "owned", 3)),
    (":expiries", TakeOver("q", "t2", "owned", 3)),
    (":dead", TakeOver("q", "t2", "owned", 1)),
    (":dead_order", TakeOver("q", "t2", "owned", 1)),
    (":expiries", Leave("q", "t1")),
    (":waiting", Leave("q", "t1")),
    (":held:t1", ListKeys("q", "t1", 9)),
]


@pytest.mark.parametrize(("part", "command"), WRONG, ids=[f"{part}-{type(ask).__name__}" for part, ask in WRONG])
def test_a_key_of_a_wrong_type_is_an_error_and_changes_nothing(one_server, one_peer, part, command):
    """T21, for messages with keys: another program has written there; the command fails and has changed nothing."""
    server, peer = one_server, one_peer
    for token in ("t1", "t2"):
        peer.send(Join("q", token, "", "me", LONG_MS))
    assert isinstance(peer.send(Join("q", "t3", "", "late soon", 1)), Granted)
    peer.send(keyed("1", "owned", "owned"))
    assert len(taken_by(peer, "t3")) == 1  # it was late, and lives for a moment more
    eventually(lambda: _late(server, "t3"), 5, "the end of the third")
    peer.send(keyed("3", "held", "held", "ready"))
    [held] = taken_by(peer, "t1", 1)
    peer.send(keyed("4", "urgent", lane="high"))
    if isinstance(command, RecordOutcomes):
        command = command._replace(outcomes=tuple(each._replace(entry=held) for each in command.outcomes))
    server.command("DEL", KEY + part)
    server.command("PFADD", KEY + part, "x")
    before = dumped(server)

    with pytest.raises(UnreadableRecord, match=r"another program wrote to one of the keys 'hf2:\{q\}\*'") as refused:
        peer.send(command)

    assert refused.value.reason == "corrupt"
    assert "WRONGTYPE" in str(refused.value.__cause__)
    assert dumped(server) == before


def _late(server, token):
    seconds, micros = map(int, server.command("TIME"))
    return seconds * 1_000_000 + micros > float(server.command("ZSCORE", f"{KEY}:expiries", token))


def test_a_full_server_still_acks_requeues_and_takes_over_keyed_messages(server, new_server, place_on):
    """At maxmemory nothing can be published; acks, releases and take-overs work as ever."""
    server = new_server(server.kind)
    peer = place_on(server, "blocking").peer()
    peer.send(Join("q", "t1", "", "me", LONG_MS, keeps_messages=True, announce_expiry=True))
    peer.send(Join("q", "t2", "", "dead soon", 200, announce_expiry=True))
    peer.send(keyed("1", "a", "a", "b", "b", "c", "c", "d", "d", "e", "e", "f"))
    assert len(taken_by(peer, "t2", 2)) == 2
    server.command("CONFIG", "SET", "maxmemory", "1")
    try:
        before = dumped(server)
        for refused in (keyed("2", "new"), keyed("3", "a")):
            with pytest.raises(Unavailable, match="OOM"):
                peer.send(refused)
        assert dumped(server) == before
        entries = taken_by(peer, "t1", 3)
        kinds = (ACK, RETRY, REJECT)
        outcomes = tuple(MessageOutcome(entry, kind, reason="r") for entry, kind in zip(entries, kinds, strict=True))
        assert peer.send(RecordOutcomes("q", "t1", outcomes)).lost == ()
        eventually(
            lambda: isinstance(peer.send(TakeOver("q", "t1", "a", 3)), Received), 10, "a take-over from the late one"
        )
        assert peer.send(ConsumerHeartbeat("q", "t2", 200)) == UNKNOWN_CONSUMER
        assert isinstance(peer.send(TakeOver("q", "t1", "f", 3)), Received)
        eventually(lambda: peer.send(REAP).consumers == 1, 10, "the end of the dead one")
        assert peer.send(ConsumerHeartbeat("q", "t1", LONG_MS)) is not UNKNOWN_CONSUMER
        assert peer.send(Leave("q", "t1")) == Released()
        assert peer.audit("q").faults == ()
    finally:
        server.command("CONFIG", "SET", "maxmemory", "0")
    assert peer.send(GetStats("q")).behind == 3
    server.command("FLUSHALL")


def test_finished_messages_with_keys_leave_no_keys_behind(server, peer):
    """T33 for keys: heads, lines and session keys end with their messages and sessions, for every outcome."""
    for kind in (ACK, REJECT, RELEASE, RETRY):
        peer.send(Join("q", "t1", "", "me", LONG_MS, announce_expiry=True))
        peer.send(keyed(kind, *(f"key {n % 40}" for n in range(120))))
        assert peer.send(GetStats("q")).behind == 80
        assert {":heads", ":behind", ":key_lines", ":alive:t1"} <= parts(server)
        first = taken_by(peer, "t1", BATCH_MAX)
        assert len(first) == 40
        peer.send(ended("t1", *first, kind=kind))
        while entries := taken_by(peer, "t1", BATCH_MAX):
            peer.send(ended("t1", *entries))
        letters = peer.send(GetStats("q")).dead
        assert letters == (40 if kind == REJECT else 0)
        peer.send(Leave("q", "t1"))
        assert parts(server) == ({"", ":dead", ":dead_order"} if letters else {""})
        if letters:
            assert peer.audit("q").faults == ()
            server.command("DEL", f"{KEY}:dead", f"{KEY}:dead_order")
    assert 0 < server.command("PTTL", KEY) <= 62_000


def test_a_server_that_has_forgotten_the_scripts_of_owners_gets_them_again(one_server, one_peer):
    """NOSCRIPT, for each script of owners."""
    peer = one_peer
    peer.send(Join("q", "t1", "", "me", LONG_MS))
    peer.send(keyed("1", "a", "b"))
    one_server.command("SCRIPT", "FLUSH")
    assert isinstance(peer.send(TakeOver("q", "t1", "b", 3)), Received)
    one_server.command("SCRIPT", "FLUSH")
    assert peer.send(ListKeys("q", "t1", 9)) == KeysHeld(("b",), 1)
    assert peer.send(TakeOver("q", "t1", "c", 3)) == NotTakenOver("")


def test_a_take_over_whose_reply_was_lost_is_answered_in_the_same_way(place):
    """T8 for keys: the resent command finds that its consumer has the message, and answers the same fence."""
    proxy = place.proxy()
    client, other = place.connect(proxy.url), place.connect()
    queue = client.queue("q")
    queue.publish("mine", key="k")
    with queue.owner("pod", most=1) as owner:
        proxy.drop_reply(when=TAKE_OVERS)
        work = owner.claim("k")
        assert proxy.count(TAKE_OVERS) >= 2
        assert other.queue("q").stats().counts == {"published": 1, "received": 1}
        work.ack()
    assert place.kinds("lost") == []
    assert other.queue("q").check()


def test_a_session_that_announces_its_expiry_has_a_key_that_expires_with_it(server, peer):
    """The server publishes its expiry; other sessions cost no extra key."""
    life = f"{KEY}:alive:t1"
    peer.send(Join("q", "silent", "", "me", LONG_MS))
    peer.send(Join("q", "t1", "", "me", 20_000, announce_expiry=True))
    assert 10_000 < server.command("PTTL", life) <= 20_000
    peer.send(ConsumerHeartbeat("q", "t1", LONG_MS))
    assert 50_000 < server.command("PTTL", life) <= LONG_MS
    peer.send(Leave("q", "t1"))
    assert server.command("KEYS", f"{KEY}:alive:*") == []

    peer.send(keyed("1", "k"))
    peer.send(Join("q", "t1", "", "me", 100, announce_expiry=True))
    eventually(lambda: not server.command("EXISTS", life), 5, "the end of its life")
    assert len(taken_by(peer, "t1")) == 1  # it was late; now it lives again
    assert server.command("EXISTS", life) == 1
    eventually(lambda: isinstance(peer.send(TakeOver("q", "silent", "k", 3)), Received), 5, "the end of its time")
    # It is kept in milliseconds, and its time in microseconds: it may outlive that by one.
    eventually(lambda: not server.command("EXISTS", life), 5, "the end of its second life")
    eventually(lambda: peer.send(REAP).consumers == 1, 5, "the end of the fallen one")
    peer.send(Leave("q", "silent"))


def test_a_claim_frees_a_key_whose_head_was_deleted(server, peer):
    """Messages behind it would wait for ever for a message that does not exist."""
    peer.send(Join("q", "t1", "", "t1", LONG_MS))
    peer.send(keyed("1", "k", "k"))
    (entry,) = server.command("LRANGE", f"{KEY}:ready:", 0, -1)
    server.command("HDEL", f"{KEY}:messages", entry)
    server.command("DEL", f"{KEY}:ready:")

    assert peer.send(TakeOver("q", "t1", "k", 3)) == NotTakenOver("")
    (delivery,) = peer.send(Receive("q", "t1", 9)).deliveries
    assert delivery.message.id == "1-1"
    assert peer.send(ended("t1", delivery.entry)).lost == ()
    assert peer.audit("q").faults == ()


def test_a_keyed_message_without_a_valid_text_blocks_no_consumer(server, peer):
    """Another program has changed the data: consumers go on, and `check` reports the faults."""
    peer.send(Join("q", "t1", "", "me", LONG_MS))
    peer.send(keyed("1", "a", "a", "a", "b", "c"))
    first, second, third = (entry.decode() for entry in server.command("LRANGE", f"{KEY}:ready:", 0, -1))
    behind = server.command("ZRANGE", f"{KEY}:behind", 0, -1)
    server.command("HDEL", f"{KEY}:messages", behind[0])
    server.command("HSET", f"{KEY}:messages", second, "what is this?")
    server.command("HDEL", f"{KEY}:messages", third)

    assert peer.audit("q").faults == (
        "2 places name a message that is not stored",
        "2 keys are indexed with a message that is not their first",
        "1 messages are missing in the order of their key",
    )
    assert taken_by(peer, "t1") == [first, second]
    assert peer.send(ended("t1", first, second)).lost == ()
    [last] = peer.send(Receive("q", "t1", 9)).deliveries
    assert (last.message.id, last.message.key) == ("1-2", "a")
    assert peer.send(ended("t1", last.entry)).lost == ()
    assert peer.send(GetStats("q")).behind == 0


@pytest.mark.parametrize(
    ("careless", "fault"),
    [
        (("DEL", ":heads"), "2 keys are indexed with a message that is not their first"),
        (("HDEL", ":heads", "b"), "1 keys are indexed with a message that is not their first"),
        (("DEL", ":key_lines"), "1 messages are missing in the order of their key"),
        (("DEL", ":behind"), "1 messages are in no place"),
        (("DEL", ":ready:"), "1 keys have no first message"),
    ],
    ids=lambda each: each[1] if isinstance(each, tuple) else None,
)
def test_the_check_finds_a_broken_order_of_keys(one_server, one_peer, careless, fault):
    """A check that finds nothing proves nothing."""
    one_peer.send(keyed("1", "a", "a", "b"))
    assert one_peer.audit("q") == (3, ())

    command, part, *fields = careless
    one_server.command(command, KEY + part, *fields)

    assert fault in one_peer.audit("q").faults


def test_the_check_finds_two_heads_of_a_key(one_server, one_peer):
    """The state that must never be: two consumers with one key."""
    one_peer.send(keyed("1", "a"))
    one_server.command("DEL", f"{KEY}:heads")
    one_peer.send(keyed("2", "a"))

    assert "1 keys have more than one first message" in one_peer.audit("q").faults


def calls(server):
    """Return how often each command was run, also inside scripts."""
    lines = server.command("INFO", "commandstats").decode().split("\r\n")
    pairs = (line.removeprefix("cmdstat_").partition(":calls=") for line in lines if "calls=" in line)
    return {name: int(rest.partition(",")[0]) for name, _, rest in pairs if name not in ("config|resetstat", "info")}


def test_empty_lanes_and_unused_keys_cost_nothing(one_server, one_peer):
    """Every receive names three lanes: only lanes with messages cost commands."""
    peer = one_peer
    peer.send(Join("q", "t1", "", "me", LONG_MS))
    costs = []
    for call, lanes in enumerate((("",), ("",), THREE)):  # the first time, the server may have to learn the scripts
        peer.send(Publish("q", f"{call}", tuple(NewMessage(f"{call}{n}", b"x") for n in range(4))))
        one_server.command("CONFIG", "RESETSTAT")
        entries = taken_by(peer, "t1", 4, lanes=lanes)
        peer.send(Receive("q", "t1", 4, lanes=lanes))
        peer.send(ended("t1", *entries))
        costs.append(calls(one_server))

    assert costs[1] == costs[2]
    assert costs[1]["llen"] == 1
    assert not {"zrangebylex", "hlen"} & costs[1].keys()


def test_a_batch_of_keys_costs_less_than_four_commands_for_each_message(one_server, one_peer):
    """From publish to ack; the same bound as for messages without a key."""
    peer = one_peer
    peer.send(Join("q", "t1", "", "me", LONG_MS, keeps_messages=True))
    one_server.command("CONFIG", "RESETSTAT")
    for call in range(4):
        peer.send(keyed(f"{call}", *(f"key {n}" for n in range(32))))
        peer.send(ended("t1", *taken_by(peer, "t1", 32)))

    assert sum(calls(one_server).values()) / 128 < 4


def test_dead_letters_with_keys_are_redriven_in_order(server, peer):
    """A redriven message goes behind newer messages of its key; several of a key stay in order."""
    peer.send(Join("q", "t1", "", "me", LONG_MS))
    assert isinstance(peer.send(keyed("1", "k", "k", "k")), Published)
    for _ in range(2):
        peer.send(ended("t1", *taken_by(peer, "t1"), kind=REJECT))
    peer.send(Redrive("q", ("1-0", "1-1")))
    seen = []
    while deliveries := peer.send(Receive("q", "t1", 9)).deliveries:
        seen.append([each.message.id for each in deliveries])
        peer.send(ended("t1", *(each.entry for each in deliveries)))

    assert seen == [["1-2"], ["1-0"], ["1-1"]]
    assert peer.audit("q").faults == ()
    peer.send(Leave("q", "t1"))
    assert parts(server) == {""}
