"""Waiters behind a dead or frozen process: how long it holds them up."""

import itertools
import random
import threading
import time
from pathlib import Path

import pytest
from waiting_children import acquire

import holdfast
from holdfast.commands import HeartbeatReceived, PoolHeartbeat, WaiterHeartbeat
from holdfast.engines.redis.replies import answered
from holdfast.rules import trust
from holdfast.rules.lease import OFFER_MAX_US
from holdfast.testing import WorkerProcesses, eventually

CHILDREN = Path(__file__).with_name("waiting_children.py")
OFFER_S = OFFER_MAX_US / 1e6
NEAR_S = trust.NEAR_HEARTBEAT_EVERY_MS / 1000
DOUBT_S = (trust.NEAR_HEARTBEAT_MS - trust.DOUBT_MS) / 1000
FAR_DOUBT_S = (trust.HEARTBEAT_MS - trust.DOUBT_MS) / 1000
# For so long a thread that waits blocks on the server, with its next request behind: its connection acts for it.
BLOCKS_S = 1.8
LATE_S = 0.5  # of a busy machine


@pytest.fixture
def workers():
    with WorkerProcesses() as workers:
        yield workers


@pytest.fixture
def server(new_server):
    server = new_server()
    yield server
    server.command("FLUSHALL")  # the keys of dead processes


@pytest.fixture
def connect(server):
    with holdfast.connect(server.url) as holder, holdfast.connect(server.url) as waiter:
        yield holder, waiter


def waiting(client, kind, name):
    if kind == "lock":
        return len(client.show(name).waiters)
    if kind in ("read", "write"):
        return client.rwlock(name).stats().waiting
    return (client.pool(name) if kind == "pool" else client.semaphore(name, permits=1)).stats().waiting


def until_waiting(client, kind, name, count):
    eventually(lambda: waiting(client, kind, name) == count, 20, f"{count} waiters")


class Waiting(threading.Thread):
    """A waiter of this process, and when it got the lease."""

    def __init__(self, client, kind, name):
        super().__init__(daemon=True)
        self._wanted = client, kind, name
        self.got = None
        self.start()

    def run(self):
        lease = acquire(*self._wanted)
        self.got = time.monotonic()
        lease.release()


def strike(worker, fault):
    """Kill or freeze a process that waits; return when."""
    if fault == "freeze":
        time.sleep(BLOCKS_S)
    struck = time.monotonic()
    worker.kill() if fault == "kill" else worker.freeze()
    return struck


@pytest.mark.finding("L5")
@pytest.mark.parametrize("waiters", [1, 4])
@pytest.mark.parametrize("fault", ["kill", "freeze"])
@pytest.mark.parametrize("kind", ["lock", "semaphore", "pool"])
def test_a_dead_waiter_costs_one_offer_however_many_places_its_client_has(
    server, connect, workers, kind, fault, waiters
):
    """The first offer of a dead client lapses after a second; then all its waiters are passed over."""
    holder, waiter = connect
    name = f"{kind} {fault} {waiters}"
    if kind == "pool":
        holder.pool(name).set_items(["one"])
    lease = acquire(holder, kind, name)
    worker = workers.start(f"{CHILDREN}:wait", url=server.url, kind=kind, name=name, waiters=waiters).wait_ready()
    until_waiting(holder, kind, name, waiters)
    behind = Waiting(waiter, kind, name)
    until_waiting(holder, kind, name, waiters + 1)

    strike(worker, fault)
    released = time.monotonic()
    lease.release()
    behind.join(20)

    # Its client hears of the offer with its next heartbeat, and sends the one after that when the offer ends.
    far_s = trust.HEARTBEAT_EVERY_MS / 1000 if waiters > 1 else NEAR_S
    assert behind.got - released < max(OFFER_S, far_s) + LATE_S


@pytest.mark.finding("L5")
@pytest.mark.parametrize("fault", ["kill", "freeze"])
def test_a_dead_writer_that_waits_holds_readers_up_for_two_seconds_at_most(server, connect, workers, fault):
    """It gets no offer while others read, so only its heartbeats show its death."""
    holder, waiter = connect
    name = f"index {fault}"
    reading = acquire(holder, "read", name)
    worker = workers.start(f"{CHILDREN}:wait", url=server.url, kind="write", name=name).wait_ready()
    until_waiting(holder, "write", name, 1)
    behind = Waiting(waiter, "read", name)
    until_waiting(holder, "read", name, 2)
    time.sleep(2 * NEAR_S)  # long enough for a heartbeat that knows its place
    assert behind.got is None

    struck = strike(worker, fault)
    behind.join(20)

    assert behind.got - struck < DOUBT_S + NEAR_S + LATE_S
    reading.release()


def watch(url, name, stop, seen):
    """Note which process has the lease or its offer, and when it will end at the earliest."""
    with holdfast.connect(url) as client:
        while not stop.wait(0.02):
            asked, status = time.monotonic(), client.show(name)
            if status.holder is not None:
                seen.append((asked, status.holder.pid, status.fence, asked + status.remaining))


@pytest.mark.finding("L16")
def test_work_goes_on_while_almost_two_waiters_a_second_are_killed(server, workers):
    """A dead holder costs its ttl, a dead waiter one offer at most, and only for a short time after its death.

    The dice may kill the next waiters in line one after another, so the server tells which process has the lease: the
    leases and offers of dead processes have to explain every pause.
    """
    dice, turns, died, stop = random.Random(3), [], {}, threading.Event()
    readers, seen = [], []

    def follow(worker):
        try:
            while not stop.is_set():
                turns.append(float(worker.read_line(30)))
        except (EOFError, TimeoutError, OSError, ValueError):
            return

    def start():
        worker = workers.start(f"{CHILDREN}:take_turns", url=server.url, ttl=1).wait_ready(30)
        readers.append(threading.Thread(target=follow, args=(worker,), daemon=True))
        readers[-1].start()
        return worker

    readers.append(threading.Thread(target=watch, args=(server.url, "turns", stop, seen), daemon=True))
    readers[-1].start()
    alive = [start() for _ in range(7)]
    eventually(lambda: len(turns) > 20, 20, "turns")
    until = time.monotonic() + 12
    while time.monotonic() < until:
        victim = alive.pop(dice.randrange(len(alive)))
        next_kill = time.monotonic() + 1 / 1.8
        victim.kill()
        died[victim.pid] = time.monotonic()
        alive.append(start())
        time.sleep(max(0, next_kill - time.monotonic()))
    last = len(turns)
    eventually(lambda: len(turns) > last + 20, 20, "turns after the kills")
    stop.set()
    for worker in alive:
        worker.kill()
    for reader in readers:
        reader.join(5)

    # The end of each lease or offer of a dead process, or a moment before it.
    ends = {(pid, fence): end for asked, pid, fence, end in seen if asked > died.get(pid, asked)}
    waited = [(pid, end) for (pid, _), end in ends.items()]
    gaps = [
        (later - earlier, sum(earlier < end < later + OFFER_S / 2 for _, end in waited))
        for earlier, later in itertools.pairwise(sorted(turns))
    ]
    print(f"{len(died)} kills, {len(turns)} turns, largest gaps and their dead {sorted(gaps)[-5:]}")
    assert len(died) >= 8
    assert len(waited) == len({pid for pid, _ in waited}), "a dead process got two offers"
    longest_s = FAR_DOUBT_S + OFFER_S + LATE_S
    assert all(end - died[pid] < longest_s for pid, end in waited), "an offer to a process that was long dead"
    assert all(gap < dead * OFFER_S + 1 for gap, dead in gaps), "a pause that no dead process explains"


@pytest.mark.finding("L5")
@pytest.mark.parametrize("kind", [WaiterHeartbeat, PoolHeartbeat])
@pytest.mark.parametrize("near", [0, 1])
def test_the_reply_to_a_heartbeat_tells_whether_a_waiter_is_near_the_front(kind, near):
    """A reply that is refused would make every heartbeat an outage, and the waiter would look dead."""
    assert answered(kind, ["heartbeat", 5, "", 0, near]) == HeartbeatReceived(5, "", 0, near == 1)
