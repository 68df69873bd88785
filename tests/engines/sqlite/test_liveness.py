"""Which clients are dead, which are only suspended, and how soon the next waiter is served."""

from __future__ import annotations

import gc
import os
import time

import pytest

import holdfast
from holdfast.rules.trust import HEARTBEAT_MS
from holdfast.testing import eventually


def waiting(client, name):
    return len(client.show(name).waiters)


def seconds_to_get(client, name, **options):
    began = time.monotonic()
    client.lock(name).acquire(**options).release()
    return time.monotonic() - began


@pytest.mark.finding("S11")
@pytest.mark.parametrize("closed", [True, False], ids=["closed", "forgotten"])
def test_a_client_with_a_liveness_descriptor_leaves_none_behind(tmp_path, closed):
    """A program that connects for each task would run out of descriptors."""
    counts = []
    for _ in range(4):
        client = holdfast.connect(f"sqlite://{tmp_path}/hf.db")
        client._client.engine.liveness_fd()
        if closed:
            client.close()
        del client
        gc.collect()
        counts.append(len(os.listdir("/dev/fd")))

    assert counts[1:] == [counts[1]] * 3


def test_lock_files_of_closed_databases_do_not_stay_open(tmp_path):
    """Gate and live files cannot be closed with each client; but a process that opens one database after another
    must not run out of descriptors."""
    for number in range(30):
        with holdfast.connect(f"sqlite://{tmp_path}/{number}.db") as client, client.lock("x"):
            pass
        del client

    gc.collect()
    with holdfast.connect(f"sqlite://{tmp_path}/last.db") as client, client.lock("x"):
        opened = {target for entry in os.scandir("/proc/self/fd") if (target := os.path.realpath(entry.path))}

    lockable = {path for path in opened if path.startswith(f"{tmp_path}/") and path.endswith((".gate", ".live"))}
    assert lockable == {f"{tmp_path}/last.db.gate", f"{tmp_path}/last.db.live"}


@pytest.mark.acceptance("G-4", "C-24")
def test_a_dead_holder_is_replaced_at_once(child, connect):
    """The kernel knows of a death long before the ttl ends."""
    client = connect()
    client.lock("other").acquire().release()
    holder = child()
    fence = holder.ask("acquire", name="x", ttl=30)["fence"]

    holder.worker.kill()
    began = time.monotonic()
    successor = client.lock("x").acquire(timeout=0)

    assert successor.fence > fence
    assert time.monotonic() - began < 1
    successor.release()


@pytest.mark.acceptance("G-4", "G-5")
def test_a_waiter_is_served_within_a_second_of_its_holders_death(child, connect):
    """A dead process sends no wake-up, so the waiters watch its pid."""
    client = connect()
    seconds = []
    for _ in range(3):
        holder, successor = child(), child()
        holder.ask("acquire", name="x", ttl=30)
        successor.order("acquire", name="x", ttl=30)
        eventually(lambda: waiting(client, "x") == 1)
        time.sleep(0.1)
        holder.worker.kill()
        began = time.monotonic()
        assert successor.answer()["fence"]
        seconds.append(time.monotonic() - began)
        successor.worker.kill()

    assert max(seconds) < 1


@pytest.mark.acceptance("G-4")
def test_a_suspended_holder_keeps_its_lease_for_its_ttl_and_no_longer(child, connect):
    """It may resume at any moment before that; after that, no client waits for it."""
    client = connect()
    holder = child()
    holder.ask("acquire", name="x", ttl=2)

    holder.worker.freeze()
    frozen = time.monotonic()
    early = client.lock("x").try_acquire()
    successor = client.lock("x").acquire(timeout=5)
    seconds = time.monotonic() - frozen
    holder.worker.thaw()

    assert early is None
    assert 1.0 < seconds < 2.5
    lost = holder.ask("check", name="x")
    assert lost["error"] == "LeaseLost"
    successor.check()
    successor.release()


def test_closing_one_of_two_clients_leaves_the_leases_of_the_other(url, child, connect):
    """Closing a second descriptor of a file drops every lock of the process on it: this must never happen."""
    staying = connect()
    lease = staying.lock("x", ttl=30).acquire()
    leaving = holdfast.connect(url)
    leaving.lock("y").acquire().release()
    thief = child()

    leaving.close()

    assert thief.ask("acquire", name="x", timeout=0)["error"] == "NotAcquired"
    lease.check()
    lease.release()
    assert thief.ask("acquire", name="x", timeout=1)["fence"] > lease.fence


def test_a_client_closed_with_a_held_lease_lets_it_expire(child, connect):
    """Its work may still run: no other client gets the name before the ttl has passed."""
    client = connect()
    lease = client.lock("x", ttl=1.2).acquire()
    other = child()
    client.close(timeout=0)
    closed = time.monotonic()

    early = other.ask("acquire", name="x", timeout=0)
    late = other.ask("acquire", name="x", timeout=5)

    assert early["error"] == "NotAcquired"
    assert late["fence"] > lease.fence
    assert 0.5 < time.monotonic() - closed < 2.5


@pytest.mark.acceptance("G-5")
def test_fifty_dead_waiters_ahead_cost_nothing(child, connect):
    """They all leave the waiting line together, with the process that they belonged to."""
    client = connect()
    lease = client.lock("x", ttl=30).acquire()
    many, live = child(), child()
    many.ask("wait", name="x", count=50)
    eventually(lambda: waiting(client, "x") == 50)
    live.order("acquire", name="x")
    eventually(lambda: waiting(client, "x") == 51)

    many.worker.kill()
    lease.release()
    released = time.monotonic()

    assert live.answer()["fence"] > lease.fence
    assert time.monotonic() - released < 1


@pytest.mark.acceptance("G-5")
def test_a_suspended_waiter_ahead_costs_at_most_its_heartbeat_and_two_seconds(child, connect):
    """It may still resume, so it gets its chance; then the next waiter is served, and all its waiters leave at once.

    Each of the suspended ones would be offered the lease for a second, until the heartbeat that they share is overdue,
    5 s after it; then the current offer has to run out. That is 6 s on an idle machine, 7 are promised, and 5
    more are for a busy one. Served one by one, thirty would take 30 s.
    """
    client = connect()
    lease = client.lock("x", ttl=60).acquire()
    frozen, live = child(), child()
    frozen.ask("wait", name="x", count=30)
    eventually(lambda: waiting(client, "x") == 30)
    live.order("acquire", name="x")
    eventually(lambda: waiting(client, "x") == 31)

    frozen.worker.freeze()
    lease.release()
    released = time.monotonic()

    assert live.answer(timeout=40)["fence"] > lease.fence
    assert time.monotonic() - released < HEARTBEAT_MS / 1000 + 2 + 5
    frozen.worker.thaw()


@pytest.mark.acceptance("G-5", "C-16")
@pytest.mark.finding("L15")
def test_a_waiter_keeps_its_place_while_its_heartbeats_cannot_pass_the_gate(child, connect):
    """On a busy machine that may take longer than a heartbeat lasts; only a suspended process loses its place."""
    client = connect()
    lease = client.lock("x", ttl=60).acquire()
    first, second = child(), child()
    first.ask("wait", name="x")
    eventually(lambda: waiting(client, "x") == 1)
    second.ask("wait", name="x")
    eventually(lambda: waiting(client, "x") == 2)

    first.ask("occupy")
    time.sleep(HEARTBEAT_MS / 1000 + 0.5)
    lease.release()
    first.ask("vacate")

    eventually(lambda: first.ask("got", name="x")["fence"] is not None, 5)
    assert second.ask("got", name="x")["fence"] is None


@pytest.mark.parametrize("phase", [0.1, 0.45, 0.8])
def test_a_waiter_whose_wakeups_are_lost_is_served_within_two_seconds(child, connect, path, phase):
    """Wake-ups only save time: without the pipe it costs two seconds, not the ttl."""
    client = connect()
    lease = client.lock("x", ttl=30).acquire()
    waiter = child()
    waiter.order("acquire", name="x", ttl=30)
    eventually(lambda: waiting(client, "x") == 1)
    pipe = eventually(lambda: next(path.parent.glob("hf.db.wake.*"), None))
    time.sleep(0.1)
    pipe.unlink()
    time.sleep(phase)

    lease.release()
    released = time.monotonic()

    assert waiter.answer()["fence"] > lease.fence
    assert time.monotonic() - released < 2


def test_a_waiter_without_a_pipe_is_served_within_two_seconds(child, connect, path):
    """A filesystem without named pipes, or without a free inode, makes waiting slower and does not make it fail."""
    client = connect()
    lease = client.lock("x", ttl=30).acquire()
    for session in range(1, 10):
        path.with_name(f"hf.db.wake.{session}").mkdir()
    waiter = child()
    waiter.order("acquire", name="x", ttl=30)
    eventually(lambda: waiting(client, "x") == 1)
    time.sleep(0.3)

    lease.release()
    released = time.monotonic()

    assert waiter.answer()["fence"] > lease.fence
    assert time.monotonic() - released < 2


def test_a_wakeup_between_processes_takes_milliseconds(child, connect):
    """Without it, waiting would be polling."""
    client = connect()
    other = child()
    seconds = []
    for _ in range(10):
        lease = client.lock("x").acquire(timeout=1)
        other.order("acquire", name="x")
        eventually(lambda: waiting(client, "x") == 1)
        time.sleep(0.02)
        lease.release()
        released = time.monotonic()
        other.answer()
        seconds.append(time.monotonic() - released)
        other.ask("release", name="x")

    assert sorted(seconds)[5] < 0.05


def test_the_next_client_removes_what_dead_sessions_left(child, connect, path):
    """A killed process cannot clean up; the next client does."""
    client = connect()
    lease = client.lock("x").acquire()
    dead = child()
    dead.ask("wait", name="x")
    pipe = eventually(lambda: next(path.parent.glob("hf.db.wake.*"), None))
    dead.worker.kill()

    connect().lock("y").acquire().release()

    assert not pipe.exists()
    lease.release()
    sessions = "SELECT count(*) FROM session"
    database = client._client.engine.store.database
    assert database.transact(lambda link: link.execute(sessions).fetchone()[0]) == 2


@pytest.mark.acceptance("G-10")
def test_a_client_that_closed_normally_leaves_no_pipe_and_no_session(child, connect, path):
    """Only the database with its fences, the gate and the live file stay."""
    client = connect()
    lease = client.lock("x").acquire()
    other = child()
    other.order("acquire", name="x")
    eventually(lambda: waiting(client, "x") == 1)
    lease.release()
    other.answer()
    other.ask("release", name="x")

    assert other.ask("close") == {"left": []}
    client.close()

    assert sorted(file.name for file in path.parent.glob("hf.db*")) == ["hf.db", "hf.db.gate", "hf.db.live"]
