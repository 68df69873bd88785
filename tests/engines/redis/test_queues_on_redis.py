"""Queues on a server that misbehaves: lost replies, lost scripts, lost data, no memory, keys of other programs."""

import pytest
from redis_faces import Place, paired

from holdfast import Backoff, InvalidConfig, LeaseLost, Unavailable
from holdfast.commands import Granted, Released
from holdfast.commands.queue import (
    BATCH_MAX,
    REJECT,
    Join,
    Leave,
    MessageOutcome,
    NewMessage,
    Publish,
    Published,
    Receive,
    Received,
    ReclaimExpired,
    RecordOutcomes,
)
from holdfast.engines.redis.scripts import SCRIPTS
from holdfast.errors import UnreadableRecord
from holdfast.testing import eventually
from tests.support.proxy import script

KEY = "hf2:{q}:queue"


def calls_of(*kinds):
    return script(*(SCRIPTS[kind].sha for kind in kinds))


def drained(client, name="q"):
    """Receive and ack all ready messages; return their bodies."""
    with client.queue(name).consumer(prefetch=BATCH_MAX) as consumer:
        messages = consumer.receive(BATCH_MAX, timeout=0)
        for message in messages:
            message.ack()
        return [message.body for message in messages]


def test_a_publish_whose_reply_was_lost_publishes_once(place):
    """T9: the client resends it with its token, and it counts once."""
    proxy = place.proxy()
    client, other = place.connect(proxy.url), place.connect()
    proxy.drop_reply(when=calls_of(Publish))

    client.queue("q").publish_many(["a", "b"])

    assert proxy.count(calls_of(Publish)) >= 2
    assert other.queue("q").stats().counts == {"published": 2}
    assert drained(other) == ["a", "b"]


@pytest.mark.finding("L7")
def test_publishes_leave_no_key_each(place):
    """They would fill the slot of the queue for a minute, and make its move to another server long."""
    client = place.connect()
    for number in range(100):
        client.queue("q").publish(number)
    keys = place.server.command("KEYS", f"{KEY}*")
    assert sorted(keys) == [KEY.encode() + part for part in (b"", b":messages", b":published", b":ready:")]
    assert place.server.command("ZCARD", f"{KEY}:published") == 100
    assert place.server.command("PTTL", f"{KEY}:published") > 60_000
    assert drained(client) == list(range(100))


@pytest.mark.finding("T1")
@pytest.mark.parametrize("how", ["refuse", "half_open"])
def test_an_ack_of_a_consumer_that_is_cut_off_does_not_succeed_after_another_consumers_ack(place, how):
    """Its connections end, or stay open without an answer; for another consumer the server is healthy."""
    proxy = place.proxy()
    client, other = place.connect(proxy.url), place.connect().queue("q", ttl=1, grace=0)
    other.publish("x")
    with client.queue("q", ttl=1, grace=0).consumer() as consumer:
        (message,) = consumer.receive(timeout=5)
        getattr(proxy, how)()
        if how == "refuse":
            proxy.cut()
        with other.consumer() as successor:
            (taken,) = successor.receive(timeout=30)
            taken.ack()
        with pytest.raises(LeaseLost):
            message.ack()
        assert message.lost
        assert not message.finished
        proxy.reset()
        proxy.accept()
    assert other.stats().counts["acked"] == 1


def test_a_receive_whose_reply_was_lost_is_repeated_for_the_same_consumer(place):
    """T8: the server has delivered the messages; only the consumer knows that it did not get them."""
    proxy = place.proxy()
    client = place.connect(proxy.url)
    queue = client.queue("q")
    queue.publish_many(["a", "b", "c"])
    proxy.drop_reply(when=calls_of(Receive))

    with queue.consumer(prefetch=2) as consumer:
        messages = consumer.receive(2, timeout=10)
        assert [message.body for message in messages] == ["a", "b"]
        assert [message.attempt for message in messages] == [1, 1]
        for message in messages:
            message.ack()
    assert place.kinds("lost") == []
    assert queue.stats().ready == 1
    assert queue.check()
    drained(client)


def test_an_ack_whose_reply_was_lost_was_an_ack(place):
    """T10: the second copy finds no message, and that is no loss."""
    proxy = place.proxy()
    client, other = place.connect(proxy.url), place.connect()
    client.queue("q").publish("a")
    with client.queue("q").consumer() as consumer:
        [message] = consumer.receive(1, timeout=5)
        proxy.drop_reply(when=calls_of(RecordOutcomes))
        message.ack()

    assert place.kinds("lost") == []
    assert other.queue("q").stats().counts["acked"] == 1
    assert other.queue("q").check()


def test_a_server_that_has_forgotten_the_scripts_gets_them_again(place):
    """NOSCRIPT, for each script."""
    client = place.connect()
    queue = client.queue("q")
    forget = lambda: place.server.command("SCRIPT", "FLUSH")  # noqa: E731 - said often
    forget()
    queue.publish_many([1, 2])
    forget()
    with queue.consumer() as consumer:
        forget()
        [message] = consumer.receive(1, timeout=5)
        forget()
        message.reject("bad")
        forget()
    assert queue.stats().dead == 1
    forget()
    assert queue.dlq.purge() == 1
    assert drained(client) == [2]
    assert queue.check()


@paired
def test_consumers_go_on_after_the_server_has_lost_everything(place):
    """T24: a flush deletes the messages, but no consumer has to be restarted, and none spins.

    Nobody rings a consumer of which the server knows nothing any more: with a short ttl it looks once a second.
    """
    client = place.connect()
    queue, seen = client.queue("q", ttl=2), []

    def work():
        with queue.consumer() as consumer:
            for message in consumer:
                with message:
                    seen.append(message.body)
                if message.body == "end":
                    return

    running = place.start(work)
    queue.publish("before")
    eventually(lambda: seen == ["before"], what="the first message")
    place.server.command("FLUSHALL")
    queue.publish("after")
    eventually(lambda: "after" in seen, 15, "the message after the flush")
    queue.publish("end")
    running.result()

    assert seen == ["before", "after", "end"]
    assert len(place.kinds("unavailable")) < 20
    assert queue.check()


@paired
@pytest.mark.acceptance("A1-17")
def test_a_restart_without_data_is_survived(server, new_server, place_on):
    """T13, without persistence: the messages are gone with the server; later ones are delivered."""
    server = new_server(server.kind)
    place = place_on(server)
    client, seen = place.connect(), []
    queue = client.queue("q", ttl=2)

    def work():
        with queue.consumer() as consumer:
            for message in consumer:
                with message:
                    seen.append(message.body)
                if message.body == "end":
                    return

    running = place.start(work)
    eventually(lambda: queue.stats().waiting == 1, what="a consumer that waits")
    server.restart(keep_data=False)
    eventually(lambda: _sent(queue, "end"), 15, "a server that answers")
    running.result(20)

    assert seen == ["end"]
    assert queue.check()


def _sent(queue, body):
    try:
        return queue.publish(body)
    except Unavailable:
        return None


def test_a_restart_with_its_data_loses_nothing(server, new_server, place_on):
    """T13, with an append-only file: messages in every place are back, and the consumer was never declared dead."""
    server = new_server(server.kind, appendonly=True)
    place = place_on(server)
    client = place.connect()
    queue = client.queue("q", ttl=20)
    queue.publish_many([1, 2, 3])
    queue.publish("later", delay=60)
    with queue.consumer(prefetch=2) as consumer:
        first, second = consumer.receive(2, timeout=5)
        second.reject("bad")
        server.restart()
        eventually(lambda: _stats(queue) == (1, 1, 1, 1), 15, "all messages")
        first.ack()
    assert queue.check()
    assert queue.stats().counts["acked"] == 1
    server.command("FLUSHALL")


def _stats(queue):
    try:
        now = queue.stats()
    except Unavailable:
        return None
    return now.ready, now.in_flight, now.delayed, now.dead


LATER = (NewMessage("y", b"y", lane="high"), NewMessage("z", b"z", delay_ms=9000))
SENT = (NewMessage("d", b"d"), NewMessage("e", b"e", delay_ms=9000))
WRONG = {
    "": Publish("q", "2", SENT),
    ":messages": Publish("q", "2", SENT),
    ":ready:": Publish("q", "2", SENT),
    ":delayed": Publish("q", "2", SENT),
    ":waiting": Publish("q", "2", SENT),
    ":ready:high": Receive("q", "t1", 1, lanes=("", "high")),
    ":held:t1": Receive("q", "t1", 9, wait=True),
    ":consumers": Join("q", "t2", "", "me", 60_000),
    ":expiries": Join("q", "t2", "", "me", 60_000),
    ":dead": RecordOutcomes("q", "t1", (MessageOutcome("?", "ack"), MessageOutcome("?", REJECT, reason="r"))),
    ":dead_order": RecordOutcomes("q", "t1", (MessageOutcome("?", "retry"), MessageOutcome("?", REJECT, reason="r"))),
}


@pytest.mark.parametrize("part", WRONG)
def test_a_key_of_a_wrong_type_is_an_error_and_nothing_is_changed(one_server, one_peer, part):
    """T21: another program has written to a key of the queue. The command fails and has changed nothing."""
    server, peer = one_server, one_peer
    peer.send(Join("q", "t1", "", "me", 60_000))
    peer.send(Publish("q", "1", (NewMessage("a", b"a"), NewMessage("b", b"b"), NewMessage("c", b"c"), *LATER)))
    entries = [each.entry for each in peer.send(Receive("q", "t1", 2)).deliveries]
    command = WRONG[part]
    if isinstance(command, RecordOutcomes):
        outcomes = zip(command.outcomes, entries, strict=True)
        command = command._replace(outcomes=tuple(each._replace(entry=entry) for each, entry in outcomes))
    key = KEY + part
    server.command("DEL", key)
    server.command("PFADD" if part else "RPUSH", key, "x")
    before = _dumped(server)

    with pytest.raises(UnreadableRecord, match=r"another program wrote to one of the keys 'hf2:\{q\}\*'") as refused:
        peer.send(command)

    assert refused.value.reason == "corrupt"
    assert "WRONGTYPE" in str(refused.value.__cause__)
    assert _dumped(server) == before


def _dumped(server):
    return {key: server.command("DUMP", key) for key in server.command("KEYS", "*")}


def test_foreign_messages_are_delivered_and_become_dead_letters(place):
    """T20: a text of another program becomes a dead letter, and the consumer goes on."""
    client = place.connect()
    queue = client.queue("q")
    queue.publish("ours")
    place.server.command("HSET", f"{KEY}:messages", "17", b"\xff\xfe what is this")
    place.server.command("HSET", f"{KEY}:messages", "18", b"1700 0 0 0 0 0\n999999 0 0 0\nshort")
    place.server.command("HSET", f"{KEY}:messages", "20", b'1700 0 0 0 0 0\n1 4 0 0\na{no}"body"')
    place.server.command("HSET", f"{KEY}:messages", "21", b'1700 0 0 0 0 0\n1 3 0 0\nb[1]"body"')
    place.server.command("LPUSH", f"{KEY}:ready:", "17", "18", "19", "20", "21")

    assert {seen.headers.get("unreadable") for seen in queue.peek()} == {None, "{no}", "[1]"}
    with queue.consumer(prefetch=9) as consumer:
        [message] = consumer.receive(9, timeout=10)
        assert message.body == "ours"
        message.ack()

    letters = queue.dlq.list()
    assert {letter.id for letter in letters} == {"foreign-17", "foreign-18", "a", "b"}
    assert {letter.headers.get("unreadable") for letter in letters} == {None, "{no}", "[1]"}
    assert {letter.reason for letter in letters} == {"unreadable"}
    assert queue.check()
    queue.dlq.purge()


HEADS = {
    "a word for attempts": b"1700 many 0 0 0 0\n1 0 0 0\na",
    "fewer than none": b"1700 -1 0 0 0 0\n1 0 0 0\na",
    "a part of one": b"1700 1.5 0 0 0 0\n1 0 0 0\na",
    "too few numbers": b"1700 2 0 0\n1 0 0 0\na",
    "no end of the line": b"1700 2 0 0 0 0",
    "lengths beyond the end": b"1700 2 0 0 0 99\n1 0 0 0\na",
    "nothing": b"",
}


@pytest.mark.acceptance("A1-28")
def test_an_unreadable_count_of_attempts_is_zero(sync):
    """Scripts and client parse it alike: the text is the body, and it has as many attempts as any other."""
    queue = sync.connect().queue("q", codec="bytes", backoff=Backoff(0, 1, 0, 0))
    queue.publish(b"ours")
    for number, text in enumerate(HEADS.values()):
        sync.server.command("HSET", f"{KEY}:messages", str(number), text)
        sync.server.command("RPUSH", f"{KEY}:ready:", str(number))
    for attempt in (1, 2):
        with queue.consumer(prefetch=9) as consumer:
            found = consumer.receive(9, timeout=10)
            assert [message.attempt for message in found] == [attempt] * (len(HEADS) + 1)
            assert {message.body for message in found} == {b"ours", *HEADS.values()}
            for message in found:
                message.retry() if attempt == 1 else message.ack()
    assert queue.check()


def test_bodies_may_be_any_bytes_and_many_megabytes_go_in_parts(place):
    """A body is bytes; one command carries what fits, and no answer is much longer than necessary."""
    client = place.connect()
    queue = client.queue("q", codec="bytes")
    every = bytes(range(256)) * 1024
    bodies = [every, b"", b"\r\n", "✓".encode(), b"\xed\xa0\x80", *([every] * 20), every * 4]
    queue.publish_many(bodies)
    taken = []
    with queue.consumer(prefetch=BATCH_MAX) as consumer:
        while len(taken) < len(bodies):
            messages = consumer.receive(BATCH_MAX, timeout=10)
            assert sum(len(message.body) for message in messages) <= 12 * len(every)
            taken += [message.body for message in messages]
            for message in messages:
                message.ack()

    assert taken == bodies
    with pytest.raises(InvalidConfig, match="the maximum is"):
        queue.publish(every * 5)
    assert queue.check()


def test_a_full_server_refuses_new_messages_and_finishes_the_others(server, new_server, place_on):
    """At maxmemory nothing can be published, but messages are received, acked, released and reclaimed."""
    server = new_server(server.kind)
    peer = place_on(server, "blocking").peer()
    peer.send(Join("q", "t1", "", "me", 60_000))
    peer.send(Join("q", "t2", "", "dead soon", 200))
    drafts = tuple(NewMessage(f"{number}", b"x" * 100) for number in range(20))
    assert isinstance(peer.send(Publish("q", "1", drafts)), Published)
    peer.send(Receive("q", "t2", 3))
    server.command("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(Unavailable, match="OOM"):
            peer.send(Publish("q", "2", drafts))
        taken = peer.send(Receive("q", "t1", 10))
        assert isinstance(taken, Received)
        entries = [each.entry for each in taken.deliveries]
        kinds = ("ack", "retry", "release", REJECT, "ack")
        outcomes = tuple(MessageOutcome(entry, kind) for entry, kind in zip(entries, kinds, strict=False))
        assert peer.send(RecordOutcomes("q", "t1", outcomes)).lost == ()
        reap = ReclaimExpired("q", 200, 100, 200, 3)
        eventually(lambda: peer.send(reap).requeued == 3, 10, "what the dead one had")
        assert peer.send(Leave("q", "t1")) == Released()
        assert isinstance(peer.send(Join("q", "t3", "", "me", 60_000)), Granted)
        assert len(peer.send(Receive("q", "t3", 99)).deliveries) == 17
    finally:
        server.command("CONFIG", "SET", "maxmemory", "0")
    server.command("FLUSHALL")


def test_finished_messages_leave_no_keys_behind(slow):
    """T33 in small: lists and hashes end with their last entry; remembered results expire."""
    server, client = slow.server, slow.connect()
    queue = client.queue("q")

    def keys():
        return {key.decode().removeprefix(KEY).partition(":published")[0] for key in server.command("KEYS", f"{KEY}*")}

    for _ in range(3):
        queue.publish_many(["x" * 100] * 200)
        while drained(client):
            pass
    assert keys() == {""}
    assert queue.stats().counts["acked"] == 600
    assert 0 < server.command("PTTL", KEY) <= 62_000


def test_a_batch_costs_less_than_four_commands_for_each_message(one_server, loop):
    """Commands inside scripts count too, from publish to ack."""
    place = Place(one_server, "blocking", loop)
    peer = place.peer()
    peer.send(Join("q", "t1", "", "me", 60_000))
    one_server.command("CONFIG", "RESETSTAT")
    for call in range(4):
        peer.send(Publish("q", f"{call}", tuple(NewMessage(f"{call}-{n}", b"x" * 100) for n in range(32))))
        taken = peer.send(Receive("q", "t1", 32))
        peer.send(RecordOutcomes("q", "t1", tuple(MessageOutcome(each.entry, "ack") for each in taken.deliveries)))
    stats = one_server.command("INFO", "commandstats").decode()
    calls = sum(int(line.partition("calls=")[2].partition(",")[0]) for line in stats.split("\r\n") if "calls=" in line)
    peer.send(Leave("q", "t1"))
    place.close()

    assert calls / 128 < 1.5
