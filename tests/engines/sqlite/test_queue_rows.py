"""Queues in a SQLite file: what dead, suspended and stopped processes, another boot and damage mean for them."""

import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import holdfast
from holdfast import LeaseLost, Unavailable
from holdfast.engines.sqlite import database, location, queue_check
from holdfast.engines.sqlite import queue as queues
from holdfast.testing import eventually, ready, send_line

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "stream_workers.py"


def hold(url, ttl):
    """In a child process: receive a message, report its fence, wait until it is lost, and ack it all the same."""
    with holdfast.connect(url) as hf, hf.queue("jobs", ttl=ttl, grace=0.2).consumer("killed") as consumer:
        ready()
        (message,) = consumer.receive(timeout=60)
        send_line(str(message.fence))
        message.lost.wait(120)
        try:
            message.ack()
        except LeaseLost:
            send_line("lost")
        else:
            send_line("acked")


def work(url):
    """In a child process: run ten handlers with ninety messages prefetched, until the worker is stopped."""
    over, begun = threading.Event(), threading.Semaphore(0)

    def handle(_):
        begun.release()
        over.wait(60)

    def count():
        for _ in range(10):
            begun.acquire()
        send_line("ten at work")

    with holdfast.connect(url) as hf:
        worker = hf.queue("jobs", ttl=20).worker(handle, concurrency=10, prefetch=90)
        threading.Thread(target=count, daemon=True).start()
        signal.signal(signal.SIGTERM, lambda *_: (worker.stop(), over.set()))
        ready()
        worker.run()
        send_line("stopped")


def test_workers_that_are_killed_lose_nothing(url):
    """The example compares what was published with what was handled (T1), and reports it in its exit code."""
    command = [sys.executable, str(EXAMPLE), url, "--messages", "400", "--workers", "4", "--kills", "5"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert told.returncode == 0, told.stdout + told.stderr
    assert re.search(r"sent 400, lost 0, done twice \d+, killed [1-5], consistent True", told.stdout), told.stdout


def test_messages_of_a_killed_process_are_redelivered_before_its_ttl_ends(connect, url, holdfast_workers):
    """The kernel knows that it is dead; only the next check has to be waited for."""
    queue = connect().queue("jobs", ttl=60)
    killed = holdfast_workers.start(f"{__file__}:hold", url=url, ttl=60).wait_ready()
    queue.publish("x")
    fence = int(killed.read_line())
    killed.kill()
    with queue.consumer() as consumer:
        (message,) = consumer.receive(timeout=30)
        assert (message.attempt, message.fence > fence) == (2, True)
        message.ack()
    assert queue.stats().counts["crashed"] == 1
    assert queue.check()


def test_a_suspended_process_is_replaced_and_its_late_ack_is_refused(connect, url, holdfast_workers):
    """It lives, so that only its missing heartbeats count (T4): one more delivery, and the zombie learns of it."""
    queue = connect().queue("jobs", ttl=1, grace=0.2)
    zombie = holdfast_workers.start(f"{__file__}:hold", url=url, ttl=1).wait_ready()
    queue.publish("x")
    fence = int(zombie.read_line())
    zombie.freeze()
    with queue.consumer() as consumer:
        (message,) = consumer.receive(timeout=30)
        assert message.fence > fence
        zombie.thaw()
        assert zombie.read_line(60) == "lost"
        message.ack()
        eventually(lambda: queue.stats()[1:6] == (0, 0, 0, 0, 0), 20, what="an empty queue")
    counts = queue.stats().counts
    assert (counts["acked"], counts["received"], counts["crashed"]) == (1, 2, 1)


def test_a_worker_that_stops_finishes_running_handlers_and_releases_the_other_messages(connect, url, holdfast_workers):
    """Ten are acked; ninety are ready for the next consumer at once, and none of them has used an attempt (T25)."""
    queue = connect().queue("jobs", ttl=20)
    queue.publish_many(range(100))
    worker = holdfast_workers.start(f"{__file__}:work", url=url).wait_ready()
    assert worker.read_line(60) == "ten at work"
    eventually(lambda: queue.stats().in_flight == 100, 30, what="all of them in flight")
    worker.terminate()
    assert worker.read_line(60) == "stopped"
    counts = queue.stats().counts
    assert (counts["acked"], counts["released"], queue.stats().consumers) == (10, 90, 0)
    with queue.consumer(prefetch=100) as successor:
        got = successor.receive(90, timeout=10)
        assert len(got) == 90
        assert {message.attempt for message in got} == {1}
        for message in got:
            message.ack()
    assert queue.check()


def test_another_boot_keeps_the_messages_and_ends_the_consumers(connect, monkeypatch):
    """Its times mean nothing and its processes are gone: the next check reclaims their messages."""
    client = connect()
    queue = client.queue("jobs")
    queue.publish("held")
    queue.publish("late", delay=3600)
    consumer = queue.consumer()
    consumer.__enter__()
    (held,) = consumer.receive(timeout=5)
    client.close(timeout=0)

    monkeypatch.setattr(location, "boot_id", lambda: "another boot")
    again = connect().queue("jobs")
    with again.consumer() as successor:
        (message,) = successor.receive(timeout=30)
        assert (message.body, message.fence > held.fence) == ("held", True)
        message.ack()
        assert again.stats()[1:6] == (0, 0, 1, 0, 0)
    assert again.check()


def test_a_damaged_queue_affects_no_other_name(connect, path):
    """The queue is reported as damaged and not changed; locks and other queues of the same file go on."""
    client = connect()
    queue, other = client.queue("jobs"), client.queue("other")
    queue.publish("x")
    other.publish("y")
    with sqlite3.connect(path) as link:
        link.execute("UPDATE queue SET lanes = 'what?' WHERE name = 'jobs'")
    link.close()
    with pytest.raises(Unavailable) as caught:
        queue.publish("z")
    assert caught.value.reason == "corrupt"
    assert other.stats().ready == 1
    with client.lock("x", timeout=0):
        pass


def test_a_check_finds_wrong_totals_and_messages_without_a_consumer(connect, path):
    """The check counts the rows themselves."""
    queue = connect().queue("jobs")
    queue.publish_many(range(3))
    assert queue.check() == (3, ())
    with sqlite3.connect(path) as link:
        link.execute("UPDATE queue_message SET place = 'held', consumer = 'unknown' WHERE entry = 1")
        link.execute("UPDATE queue_message SET id = (SELECT id FROM queue_message WHERE entry = 2) WHERE entry = 3")
    link.close()
    messages, faults = queue.check()
    assert messages == 3
    assert len(faults) == 4
    assert any("is in 2 places" in fault for fault in faults)
    assert "1 messages are held by an unknown consumer" in faults
    assert "2 ready, and the queue counts 3" in faults


def test_a_check_reads_one_snapshot_while_other_processes_go_on(connect, path, monkeypatch):
    """It may take seconds, and no other client of this file must wait so long."""
    queue = connect().queue("jobs")
    queue.publish_many(range(3))
    check = queue_check.check
    send = "import holdfast, sys; holdfast.connect(sys.argv[1]).queue('jobs').publish('meanwhile')"

    def at_length(link, *details):
        counted = link.execute("SELECT count(*) FROM queue_message").fetchone()
        subprocess.run([sys.executable, "-c", send, f"sqlite://{path}"], check=True, timeout=60)
        assert link.execute("SELECT count(*) FROM queue_message").fetchone() == counted
        return check(link, *details)

    monkeypatch.setattr(queues, "check", at_length)
    assert queue.check() == (3, ())
    monkeypatch.undo()
    assert queue.check() == (4, ())
    assert connect().queue("another").check() == (0, ())


def test_another_thread_of_a_process_that_runs_a_long_check_gets_unavailable(connect, monkeypatch):
    """A process has one connection: the error says that another thread of this process uses it."""
    client = connect()
    queue = client.queue("jobs")
    queue.publish("x")
    told = []

    def at_length(*_):
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        return 1, []

    def ask():
        with pytest.raises(Unavailable) as refused:
            queue.stats()
        told.append(refused.value)

    monkeypatch.setattr(database, "STALL_S", 0.1)
    monkeypatch.setattr(queues, "check", at_length)
    assert queue.check() == (1, ())
    assert [(error.reason, "another thread of this process" in str(error)) for error in told] == [("stalled", True)]


def test_an_empty_queue_is_forgotten(connect, path):
    """Nothing of it stays, once its last result need not be remembered."""
    client = connect(fence_memory=1)
    queue = client.queue("jobs")
    queue.publish("x", dedup_key="once")
    with queue.consumer() as consumer:
        consumer.receive(timeout=5)[0].ack()
    client.close()  # its keeper may look for dead consumers once more

    later = time.time_ns() // 1000 + 3_600_000_000
    with sqlite3.connect(path) as link:
        assert link.execute("SELECT count(*) FROM queue WHERE forget_us < ?", (later,)).fetchone() == (1,)
        link.execute("UPDATE queue SET forget_us = 1")
        link.execute("UPDATE queue_result SET until_us = 1")
    link.close()
    with connect().lock("anything"):  # the first command of a client does its part of the housekeeping
        pass
    with sqlite3.connect(path) as link:
        for table in ("queue", "queue_message", "queue_result", "queue_consumer", "queue_dead_letter"):
            assert link.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,), table
    link.close()


# The queries of a queue, and the index that each must use, down to the last column that narrows it.
QUERIES = {
    "_READY": "queue_message_ready (queue=? AND lane=?)",
    "_OLDEST": "queue_message_ready (queue=? AND lane=?)",
    "_DUE_NOW": "queue_message_due (queue=? AND due_us<?)",
    "_DUE": "queue_message_due (queue=?)",
    "_DELAYED": "queue_message_due (queue=?)",
    "_HELD_BY": "queue_message_held (queue=? AND consumer=?)",
    "_NEWEST": "queue_message_held (queue=? AND consumer=?)",
    "_HELD_ENTRIES": "queue_message_held (queue=? AND consumer=?)",
    "_FIND_HELD": "PRIMARY KEY (rowid=?)",
    "_DELIVER": "PRIMARY KEY (rowid=?)",
    "_DELETE": "PRIMARY KEY (rowid=?)",
    "_HEAD": "queue_message_first (queue=? AND key=?)",
    "_NEXT_OF_KEY": "queue_message_next (queue=? AND key=?)",
    "_BEHIND": "queue_message_behind (queue=?)",
    "_DEAD_LETTERS": "queue_dead_letter_position (queue=? AND place>?)",
    "_EXPIRED": "queue_consumer_expires (queue=? AND expires_us<?)",
    "_OF_CLIENT": "queue_consumer_",
    "_SOONEST": "queue_consumer_expires (queue=?)",
    "_FIRST_WAITING": "queue_consumer_waiting (queue=? AND waiting>?)",
    "_RESULT": "PRIMARY KEY (queue=? AND kind=? AND key=?)",
    "_LOAD": "sqlite_autoindex_queue_1 (name=?)",
}


@pytest.mark.parametrize("query", QUERIES)
def test_every_query_of_a_queue_uses_an_index(connect, path, query):
    """A queue of a million messages answers like one of ten: nothing is scanned, and nothing sorted."""
    connect().queue("jobs").publish("x")
    text = getattr(queues, query)
    with sqlite3.connect(path) as link:
        plan = [row[3] for row in link.execute(f"EXPLAIN QUERY PLAN {text}", ("0",) * text.count("?"))]
    link.close()
    (step,) = plan
    assert step.startswith("SEARCH")
    assert QUERIES[query] in step


def test_a_message_that_a_closed_client_still_handles_is_reclaimed_after_its_ttl(connect):
    """Its handler may still run in this process: its session stays until nothing is held."""
    client = connect()
    queue = client.queue("jobs", ttl=2, grace=0.2)
    queue.publish("x")
    consumer = queue.consumer()
    consumer.__enter__()
    consumer.receive(timeout=5)
    client.close(timeout=0)
    closed = time.monotonic()
    with connect().queue("jobs", ttl=2, grace=0.2).consumer() as successor:
        (message,) = successor.receive(timeout=20)
        assert time.monotonic() - closed > 1
        message.ack()


def take(url):
    """In a child process: receive all messages, report that, and wait to be killed."""
    with holdfast.connect(url) as hf, hf.queue("jobs").consumer("killed", prefetch=10) as consumer:
        consumer.receive(10, timeout=60)
        ready()
        threading.Event().wait(120)


def test_run_until_idle_handles_the_messages_of_a_killed_process(connect, url, holdfast_workers):
    """A periodic job finds nothing ready; the kernel knows that the last consumer is dead, so the job reclaims."""
    queue = connect().queue("jobs")
    queue.publish_many(range(3))
    killed = holdfast_workers.start(f"{__file__}:take", url=url).wait_ready()
    done = []
    worker = queue.worker(lambda message: done.append(message.body))

    worker.run_until_idle()
    assert done == []
    assert queue.stats().in_flight == 3, "it lives, and is only slow"
    killed.kill()
    worker.run_until_idle()

    assert sorted(done) == [0, 1, 2]
    assert queue.check()
