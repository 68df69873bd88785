"""Queues in a SQLite file: what dead, frozen and stopped processes, another boot and an older file mean for them."""

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
from holdfast.engines.sqlite import database
from holdfast.engines.sqlite import location as place
from holdfast.engines.sqlite import queue as queues
from holdfast.engines.sqlite import queue_check as audits
from holdfast.testing import eventually, ready, send_line

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "stream_workers.py"


def hold(url, ttl):
    """A child that takes a message, says so, waits until it is lost, and settles it all the same."""
    with holdfast.connect(url) as hf, hf.queue("jobs", ttl=ttl, grace=0.2).consumer("doomed") as consumer:
        ready()
        (message,) = consumer.receive(timeout=60)
        send_line(str(message.fence))
        message.lost.wait(120)
        try:
            message.ack()
        except LeaseLost:
            send_line("lost")
        else:
            send_line("settled")


def work(url):
    """A worker with ten hands and ninety messages more, whose handlers end when it is told to stop."""
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
    """What was sent is compared with what was done (T1); the program's exit code says what it found."""
    command = [sys.executable, str(EXAMPLE), url, "--messages", "400", "--workers", "4", "--kills", "5"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert told.returncode == 0, told.stdout + told.stderr
    assert re.search(r"sent 400, lost 0, done twice \d+, killed [1-5], sound True", told.stdout), told.stdout


def test_what_a_killed_process_had_comes_back_before_its_ttl_is_over(connect, url, holdfast_workers):
    """Its death is a question to the kernel; only the next look has to be waited for."""
    queue = connect().queue("jobs", ttl=60)
    doomed = holdfast_workers.start(f"{__file__}:hold", url=url, ttl=60).wait_ready()
    queue.publish("x")
    fence = int(doomed.read_line())
    doomed.kill()
    with queue.consumer() as consumer:
        (message,) = consumer.receive(timeout=30)
        assert (message.attempt, message.fence > fence) == (2, True)
        message.ack()
    assert queue.stats().counts["crashed"] == 1
    assert queue.check()


def test_a_frozen_process_is_replaced_and_its_late_word_is_refused(connect, url, holdfast_workers):
    """It lives, so that only its silence counts (T4): one more run, and the zombie learns of it."""
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


def test_a_worker_that_is_told_to_stop_ends_what_runs_and_gives_the_rest_back(connect, url, holdfast_workers):
    """Ten are done; ninety are ready for the next one at once, and none of them has lost an attempt (T25)."""
    queue = connect().queue("jobs", ttl=20)
    queue.publish_many(range(100))
    worker = holdfast_workers.start(f"{__file__}:work", url=url).wait_ready()
    assert worker.read_line(60) == "ten at work"
    eventually(lambda: queue.stats().in_flight == 100, 30, what="all of them in flight")
    worker.terminate()
    assert worker.read_line(60) == "stopped"
    counts = queue.stats().counts
    assert (counts["acked"], counts["released"], queue.stats().consumers) == (10, 90, 0)
    with queue.consumer(prefetch=100) as heir:
        got = heir.receive(90, timeout=10)
        assert len(got) == 90
        assert {message.attempt for message in got} == {1}
        for message in got:
            message.ack()
    assert queue.check()


def test_another_boot_keeps_the_messages_and_ends_the_consumers(connect, monkeypatch):
    """Its times mean nothing and its processes are gone: the next look brings back what they had."""
    client = connect()
    queue = client.queue("jobs")
    queue.publish("held")
    queue.publish("late", delay=3600)
    consumer = queue.consumer()
    consumer.__enter__()
    (held,) = consumer.receive(timeout=5)
    client.close(timeout=0)

    monkeypatch.setattr(place, "boot_id", lambda: "another boot")
    again = connect().queue("jobs")
    with again.consumer() as heir:
        (message,) = heir.receive(timeout=30)
        assert (message.body, message.fence > held.fence) == ("held", True)
        message.ack()
        assert again.stats()[1:6] == (0, 0, 1, 0, 0)
    assert again.check()


def test_a_file_of_a_version_without_queues_gets_them(connect, path):
    """Their tables are new ones, which an older version never looks at."""
    client = connect()
    with client.lock("x"):
        pass
    client.close()
    database._databases.clear()
    with sqlite3.connect(path) as link:
        link.execute("DELETE FROM meta WHERE key = 'queues'")
        for (table,) in link.execute(
            "SELECT name FROM sqlite_master WHERE name GLOB 'queue*' AND type = 'table'"
        ).fetchall():
            link.execute(f"DROP TABLE {table}")
    link.close()

    queue = connect().queue("jobs")
    queue.publish("x")
    assert queue.stats().ready == 1


def test_a_damaged_queue_is_nobody_elses_business(connect, path):
    """It is told as damaged, and nothing of it is changed; locks and other queues of the same file go on."""
    client = connect()
    queue, other = client.queue("jobs"), client.queue("other")
    queue.publish("x")
    other.publish("y")
    with sqlite3.connect(path) as link:
        link.execute("UPDATE queue SET lanes = 'what?' WHERE name = 'jobs'")
    link.close()
    with pytest.raises(Unavailable) as told:
        queue.publish("z")
    assert told.value.reason == "corrupt"
    assert other.stats().ready == 1
    with client.lock("x", timeout=0):
        pass


def test_a_check_finds_figures_that_are_wrong_and_messages_with_nobody(connect, path):
    """Whoever asks whether all is well is answered from the rows themselves."""
    queue = connect().queue("jobs")
    queue.publish_many(range(3))
    assert queue.check() == (3, ())
    with sqlite3.connect(path) as link:
        link.execute("UPDATE queue_message SET place = 'held', consumer = 'nobody' WHERE entry = 1")
        link.execute("UPDATE queue_message SET id = (SELECT id FROM queue_message WHERE entry = 2) WHERE entry = 3")
    link.close()
    messages, faults = queue.check()
    assert messages == 3
    assert len(faults) == 4
    assert any("is in 2 places" in fault for fault in faults)
    assert "1 messages are held by an unknown consumer" in faults
    assert "2 ready, and the queue counts 3" in faults


def test_a_check_is_of_one_instant_and_other_processes_go_on_meanwhile(connect, path, monkeypatch):
    """It may take seconds, and nobody else of this file must wait so long."""
    queue = connect().queue("jobs")
    queue.publish_many(range(3))
    look = audits.audit
    send = "import holdfast, sys; holdfast.connect(sys.argv[1]).queue('jobs').publish('meanwhile')"

    def at_length(link, *details):
        counted = link.execute("SELECT count(*) FROM queue_message").fetchone()
        subprocess.run([sys.executable, "-c", send, f"sqlite://{path}"], check=True, timeout=60)
        assert link.execute("SELECT count(*) FROM queue_message").fetchone() == counted
        return look(link, *details)

    monkeypatch.setattr(queues, "audit", at_length)
    assert queue.check() == (3, ())
    monkeypatch.undo()
    assert queue.check() == (4, ())
    assert connect().queue("another").check() == (0, ())


def test_another_thread_of_a_process_that_checks_at_length_is_told_so(connect, monkeypatch):
    """There is one connection in a process: whoever waits for it is told by whom it is used."""
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
    monkeypatch.setattr(queues, "audit", at_length)
    assert queue.check() == (1, ())
    assert [(error.reason, "another thread of this process" in str(error)) for error in told] == [("stalled", True)]


def test_a_queue_that_is_over_is_forgotten(connect, path):
    """Nothing of it stays, once its last call need not be remembered."""
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
        link.execute("UPDATE queue_known SET until_us = 1")
    link.close()
    with connect().lock("anything"):  # the first command of a client does its part of the housekeeping
        pass
    with sqlite3.connect(path) as link:
        for table in ("queue", "queue_message", "queue_known", "queue_consumer", "queue_letter"):
            assert link.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,), table
    link.close()


# What is asked of a queue, and by which index it has to be found, down to the last word that narrows it.
ASKED = {
    "_READY": "queue_message_ready (queue=? AND lane=?)",
    "_OLDEST": "queue_message_ready (queue=? AND lane=?)",
    "_RIPE": "queue_message_due (queue=? AND due_us<?)",
    "_DUE": "queue_message_due (queue=?)",
    "_DELAYED": "queue_message_due (queue=?)",
    "_HAS": "queue_message_held (queue=? AND consumer=?)",
    "_NEWEST": "queue_message_held (queue=? AND consumer=?)",
    "_NAMES": "queue_message_held (queue=? AND consumer=?)",
    "_FIND": "PRIMARY KEY (rowid=?)",
    "_TAKE": "PRIMARY KEY (rowid=?)",
    "_DROP": "PRIMARY KEY (rowid=?)",
    "_FIRST": "queue_message_first (queue=? AND key=?)",
    "_NEXT": "queue_message_next (queue=? AND key=?)",
    "_BEHIND": "queue_message_behind (queue=?)",
    "_LETTERS": "queue_letter_place (queue=? AND place>?)",
    "_LATE": "queue_consumer_ends (queue=? AND ends_us<?)",
    "_GONE": "queue_consumer_",
    "_SOONEST": "queue_consumer_ends (queue=?)",
    "_HUNGRIEST": "queue_consumer_hungry (queue=? AND hungry>?)",
    "_KNOWN": "PRIMARY KEY (queue=? AND kind=? AND key=?)",
    "_LOAD": "sqlite_autoindex_queue_1 (name=?)",
}


@pytest.mark.parametrize("ask", ASKED)
def test_whatever_is_asked_is_found_by_an_index(connect, path, ask):
    """A queue of a million messages answers like one of ten: nothing is scanned, and nothing sorted."""
    connect().queue("jobs").publish("x")
    text = getattr(queues, ask)
    with sqlite3.connect(path) as link:
        plan = [row[3] for row in link.execute(f"EXPLAIN QUERY PLAN {text}", ("0",) * text.count("?"))]
    link.close()
    (step,) = plan
    assert step.startswith("SEARCH")
    assert ASKED[ask] in step


def test_what_a_closed_client_left_at_work_is_left_to_its_ttl(connect):
    """Its handler may still run in this process: the session that says "dead" ends only when nothing stands."""
    client = connect()
    queue = client.queue("jobs", ttl=2, grace=0.2)
    queue.publish("x")
    consumer = queue.consumer()
    consumer.__enter__()
    consumer.receive(timeout=5)
    client.close(timeout=0)
    closed = time.monotonic()
    with connect().queue("jobs", ttl=2, grace=0.2).consumer() as heir:
        (message,) = heir.receive(timeout=20)
        assert time.monotonic() - closed > 1
        message.ack()
