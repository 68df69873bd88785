"""Keys and tsuccessor owners in a SQLite file: what a killed process, another boot and a damaged file mean for them."""

import sqlite3
import threading

import pytest

import holdfast
from holdfast import NotAcquired
from holdfast.commands.queue import ConsumerHeartbeat, Join, NewMessage, Publish, Receive, ReclaimExpired
from holdfast.engines.sqlite.queue import StoredQueue
from holdfast.engines.sqlite.queue_tables import SCHEMA, end_previous_boot
from holdfast.rules import Moment
from holdfast.rules.table import RULES
from holdfast.testing import ready, send_line

TTL_MS = 3000
START_US = 1_700_000_000_000_000


def own(url):
    """In a child process: own a key, report its fence, and wait to be killed."""
    with holdfast.connect(url) as hf, hf.queue("chats", ttl=60).owner("killed") as owner:
        ready()
        send_line(str(owner.next(timeout=60).assignment.fence))
        threading.Event().wait(120)


def test_a_key_whose_process_was_killed_is_claimed_at_once(connect, url, holdfast_workers):
    """The kernel knows that it is dead: a claim waits neither for the ttl nor for the next check."""
    queue = connect().queue("chats", ttl=60)
    killed = holdfast_workers.start(f"{__file__}:own", url=url).wait_ready()
    queue.publish("first", key="chat")
    fence = int(killed.read_line())
    queue.publish("second", key="chat")
    with queue.owner("successor") as owner:
        with pytest.raises(NotAcquired) as told:
            owner.claim("chat")
        assert (told.value.holder, told.value.fence) == ("killed", fence)
        killed.kill()
        work = owner.claim("chat")
        assert (work.info, work.attempt, work.fence > fence) == ("first", 2, True)
        work.ack()
        assert owner.next(timeout=20).assignment.info == "second"
    assert queue.stats().counts["crashed"] == 1
    assert queue.check() == (1, ())


def test_after_another_boot_messages_that_an_owner_kept_for_long_get_no_blame():
    """Times of the boot before mean nothing, but the span between two of them does."""
    link = sqlite3.connect(":memory:", isolation_level=None)
    link.executescript(SCHEMA)
    now_us = 7_200_000_000

    def send(command, moment_us):
        state = StoredQueue(link.cursor(), "q")
        answer = RULES[type(command)].apply(state, command, Moment(moment_us, START_US, "1")).answer
        state.save(START_US, 1)
        return answer

    def hand_out(token, *keys):
        send(Publish("q", f"call of {keys}", tuple(NewMessage(key, b"", key=key) for key in keys)), now_us)
        assert len(send(Receive("q", token, 10), now_us).deliveries) == len(keys)

    for token, keeps in (("keeper", True), ("plain", False)):
        send(Join("q", token, "", token, TTL_MS, keeps), now_us)
    hand_out("keeper", "old", "older")
    now_us += TTL_MS * 1000
    send(ConsumerHeartbeat("q", "keeper", TTL_MS), now_us)
    hand_out("keeper", "new")
    hand_out("plain", "short")
    for _ in range(2):  # no client came in between
        end_previous_boot(link.cursor())
    assert send(ReclaimExpired("q", 500, 200, 0, 9), 20_000_000).consumers == 2
    send(Join("q", "successor", "", "successor", TTL_MS), 20_000_000)

    back = {each.message.id: each.message for each in send(Receive("q", "successor", 10), 20_000_000).deliveries}
    assert {one: (each.attempts, each.crashes) for one, each in back.items()} == {
        "old": (0, 0),
        "older": (0, 0),
        "new": (1, 0),
        "short": (1, 0),
    }
    link.close()


def test_the_file_itself_refuses_a_second_head_of_a_key(connect, path):
    """A unique index enforces it, whatever a faulty program does."""
    queue = connect().queue("jobs")
    queue.publish_many(["a", "b"], key="k")
    with pytest.raises(sqlite3.IntegrityError), sqlite3.connect(path) as link:
        link.execute("UPDATE queue_message SET place = 'ready' WHERE place = 'behind'")
    link.close()
    assert queue.check() == (2, ())


def test_a_check_finds_keys_that_are_out_of_order(connect, path):
    """The faults are worded as in every engine."""
    queue = connect().queue("jobs")
    queue.publish_many(["a", "b"], key="k")
    queue.publish_many(["c", "d"], key="l")
    with sqlite3.connect(path) as link:
        link.execute("DROP INDEX queue_message_first")
        link.execute("UPDATE queue_message SET place = 'ready' WHERE entry = 2")
        link.execute("DELETE FROM queue_message WHERE entry = 3")
    link.close()

    messages, faults = queue.check()
    assert messages == 3
    assert set(faults) == {
        "1 keys have more than one first message",
        "1 keys have no first message",
        "1 behind, and the queue counts 2",
    }
