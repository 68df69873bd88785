"""The gate: one writer at a time among processes, in turn, also when the process inside is suspended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time

import pytest

import holdfast
from holdfast import failpoints
from holdfast.clock import NS
from holdfast.core.resend import WIRE_NS
from holdfast.errors import HoldfastError, Unavailable
from holdfast.testing import eventually, read_line, ready, send_line

INSIDE = "sqlite.before-commit"


def report_wait():
    """Tell the test when a thread of this process waits for the gate."""
    eventually(lambda: any(each.name == "holdfast-gate" for each in threading.enumerate()), 20, "a wait for the gate")
    send_line("waiting")


def ack_on_order(url):
    """In a child process: receive a message, and ack it when the test says so."""
    with holdfast.connect(url) as hf, hf.queue("jobs", ttl=1, grace=0).consumer("frozen") as consumer:
        (message,) = consumer.receive(timeout=60)
        ready()
        read_line()
        threading.Thread(target=report_wait, daemon=True).start()
        try:
            message.ack()
        except HoldfastError as error:
            send_line(type(error).__name__)
        else:
            send_line("acked")


@pytest.fixture
def freeze_inside(child, holdfast_pauses):
    """Return a child that a real signal suspends while it has the gate; nothing but that signal keeps it there."""

    def freeze():
        one = child()
        one.ask("acquire", name="its own")
        holdfast_pauses.arm(INSIDE)
        one.order("acquire", name="another of its own")
        assert holdfast_pauses.wait_reached(INSIDE) == one.pid
        one.worker.freeze()
        holdfast_pauses.disarm(INSIDE)
        holdfast_pauses.go(INSIDE)
        return one

    return freeze


def test_a_process_suspended_inside_the_gate_is_named_within_the_bound(freeze_inside, connect):
    """The error names the pid, so that a person knows what to do. When the process resumes, everything goes on.

    Threads of one process wait for the gate together: each gets its answer in its own five seconds.
    """
    client = connect()
    mine = client.lock("mine").acquire()
    frozen = freeze_inside()

    told = []

    def ask():
        began = time.monotonic()
        with pytest.raises(Unavailable) as caught:
            client.lock("other").acquire()
        told.append((caught.value, time.monotonic() - began))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    frozen.worker.thaw()

    assert [error.reason for error, _ in told] == ["stalled"] * 3
    assert all(f"process {frozen.pid} " in error.detail for error, _ in told)
    assert all(4.5 <= seconds <= 7 for _, seconds in told)
    assert frozen.answer()["fence"] > 0
    assert client.lock("another of its own").try_acquire() is None
    mine.release()
    client.lock("other").acquire(timeout=1).release()


@pytest.mark.acceptance("A0-12")
def test_a_loss_is_reported_in_time_while_the_gate_is_blocked(freeze_inside, connect):
    """The deadline is on the holder's own clock: a blocked engine must not hide the loss."""
    told = []
    client = connect()
    lease = client.lock("x", ttl=1.5, on_loss=lambda _: told.append(time.monotonic())).acquire()

    def ask():
        """Another thread of this process waits for the gate too, as long as it may."""
        with contextlib.suppress(Unavailable):
            client.show("y")

    frozen = freeze_inside()
    trusted_until = time.monotonic() + lease.remaining()
    others = [threading.Thread(target=ask) for _ in range(3)]
    for other in others:
        other.start()
    eventually(lambda: told, timeout=4)
    frozen.worker.thaw()
    for other in others:
        other.join()

    assert told[0] - trusted_until < 0.5
    assert len(told) == 1
    assert lease.lost.reason == "expired"


@pytest.mark.finding("T1")
def test_an_ack_that_was_frozen_at_the_gate_does_not_succeed_after_another_consumers_ack(
    freeze_inside, connect, url, holdfast_workers
):
    """When it resumes, the time of the call is over, and its session can no longer be trusted."""
    queue = connect().queue("jobs", ttl=1, grace=0)
    queue.publish("x")
    acking = holdfast_workers.start(f"{__file__}:ack_on_order", url=url).wait_ready()
    inside = freeze_inside()
    acking.send_line("go")
    assert acking.read_line(30) == "waiting"
    acking.freeze()
    over = time.monotonic() + WIRE_NS / NS  # when the time of the call is over
    inside.worker.thaw()
    with queue.consumer() as successor:
        (message,) = successor.receive(timeout=30)
        message.ack()
    eventually(lambda: time.monotonic() > over, what="the end of the time that the call has")
    acking.thaw()
    assert acking.read_line(30) == "LeaseLost"
    assert queue.stats().counts["acked"] == 1


def test_writers_of_many_processes_get_even_shares(start, url):
    """SQLite alone lets writers poll, and some starve; the kernel serves them in order.

    Every worker sleeps inside the gate, so that the processors idle: what is shared out is the gate, and a busy machine
    takes from all alike. Without the gate one of eight gets several times as much as another, and waits for a second.
    """
    workers = [start("hurry", url=url, name=f"name {number}", seconds=3.0, inside_ms=1) for number in range(8)]
    for worker in workers:
        worker.wait_ready()
    begin = time.monotonic() + 0.2
    for worker in workers:
        worker.send_line(str(begin))
    answers = [json.loads(worker.read_line()) for worker in workers]

    counts = [answer["count"] for answer in answers]
    assert min(counts) > 20
    assert max(counts) < 1.5 * min(counts), counts
    assert max(answer["worst"] for answer in answers) < 0.5


@pytest.mark.acceptance("G-4")
def test_a_forked_child_that_lives_on_keeps_nothing_of_its_dead_parent(child, connect, holdfast_pauses):
    """Locks that a child inherits would keep a dead holder's leases, and the gate, for as long as the child lives."""
    parent = child()
    parent.ask("acquire", name="x", ttl=30)
    grandchild = parent.ask("fork")["pid"]
    holdfast_pauses.arm(INSIDE)
    parent.order("acquire", name="y")
    holdfast_pauses.wait_reached(INSIDE)
    holdfast_pauses.disarm(INSIDE)
    client = connect()

    os.kill(parent.pid, signal.SIGKILL)
    eventually(lambda: not parent.worker.alive)
    began = time.monotonic()
    client.lock("x").acquire(timeout=1).release()
    client.lock("y").acquire(timeout=1).release()

    assert time.monotonic() - began < 1
    os.kill(grandchild, 0)


def test_a_new_gate_beside_an_old_one_does_not_break_exclusion(path, child, connect):
    """A person may delete files that look like leftovers; SQLite's own lock still stands behind the gate."""
    client = connect()
    mine = client.lock("x").acquire()
    path.with_name("hf.db.gate").unlink()

    other = child()

    assert other.ask("acquire", name="x", timeout=0)["error"] == "NotAcquired"
    mine.release()
    assert other.ask("acquire", name="x", timeout=1)["fence"] > mine.fence


def wait_for_kernel_waiter(path):
    """Wait until a process waits for the gate in the kernel: such a lock stands behind an arrow in the list."""
    inode = path.with_name("hf.db.gate").stat().st_ino

    def is_waiting():
        with open("/proc/locks", encoding="ascii") as locks:
            return any(" -> " in line and f":{inode} " in line for line in locks)

    eventually(is_waiting, what="a process that waits for the gate")


@pytest.mark.finding("L9")
def test_a_process_suspended_while_it_waits_for_the_gate_stalls_no_other(path, child, connect, holdfast_pauses):
    """The kernel may give the turn to a process that no longer runs. It has begun nothing, so the others go on."""
    client, third = connect(), child()
    client.lock("mine").acquire().release()
    third.ask("acquire", name="its own")
    frozen = child()
    holdfast_pauses.arm("sqlite.gate-turn")

    def keep_inside():
        failpoints.disarm(INSIDE)
        frozen.order("acquire", name="x")
        wait_for_kernel_waiter(path)

    failpoints.arm(INSIDE, keep_inside)
    client.lock("other").acquire().release()
    assert holdfast_pauses.wait_reached("sqlite.gate-turn") == frozen.pid
    frozen.worker.freeze()
    holdfast_pauses.disarm("sqlite.gate-turn")
    holdfast_pauses.go("sqlite.gate-turn")

    began = time.monotonic()
    for number in range(20):
        client.lock(f"{number}").acquire().release()
        third.ask("acquire", name=f"third/{number}")
    assert time.monotonic() - began < 2

    frozen.worker.thaw()
    assert frozen.answer()["fence"] > 0
    assert third.ask("acquire", name="x", timeout=0)["error"] == "NotAcquired"
