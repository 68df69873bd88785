"""A forked child begins with nothing: no lease, no session, no thread; and it takes nothing from its parent."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback

import pytest

import holdfast
from holdfast.errors import LeaseLost
from holdfast.testing import eventually

# From Python 3.12 on, forking a process with threads warns; that it works all the same is what is shown here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


class Forked:
    """A child of this process that runs `work` and sends back its result."""

    def __init__(self, work):
        reads, writes = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            try:
                answer = {"result": work()}
            except BaseException:
                answer = {"trouble": traceback.format_exc()}
            os.write(writes, json.dumps(answer).encode() + b"\n")
            os._exit(0)
        os.close(writes)
        self._reads = reads

    def result(self, within=10.0):
        """Return the child's result; a child that hangs is killed and reported."""
        poll = select.poll()
        poll.register(self._reads, select.POLLIN)
        ready = poll.poll(within * 1000)
        if not ready:
            os.kill(self.pid, signal.SIGKILL)
        data = b"".join(iter(lambda: os.read(self._reads, 65536), b""))
        os.close(self._reads)
        os.waitpid(self.pid, 0)
        assert ready, f"the child hung for {within} s"
        answer = json.loads(data)
        assert "trouble" not in answer, answer["trouble"]
        return answer["result"]


def open_files():
    """Return the paths behind the descriptors of this process."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return found


def outcome(call):
    """Return the result or the error of a call, in a form that can be sent."""
    try:
        call()
    except holdfast.HoldfastError as error:
        return [type(error).__name__, getattr(error, "reason", "")]
    return "went well"


def test_a_forked_child_holds_nothing_and_harms_nothing(connect, url, prober):
    """Two processes with one lease would be two holders; a child that released it would rob its parent."""
    renewed = threading.Event()
    losses = []
    client = connect(observer=lambda event: renewed.set() if event.kind == "renewed" else None)
    lease = client.lock("parent's", ttl=1, on_loss=lambda _: losses.append("lost")).acquire()

    def be_a_child():
        answers = {
            "lost": [bool(lease.lost), lease.lost.reason, lease.remaining()],
            "check": outcome(lease.check),
            "release": outcome(lease.release),
            "own": outcome(lambda: client.lock("child's").acquire(timeout=0).release()),
            "parent's": outcome(lambda: client.lock("parent's").acquire(timeout=0).release()),
        }
        time.sleep(0.1)
        return {**answers, "losses": losses}

    answers = Forked(be_a_child).result()
    renewed.clear()

    assert answers["lost"] == [True, "forked", 0.0]
    assert answers["check"] == ["LeaseLost", "forked"]
    assert answers["release"] == ["LeaseLost", "forked"]
    assert answers["own"] == "went well"
    assert answers["parent's"] == ("went well" if url.startswith("memory") else ["NotAcquired", "busy"])
    assert answers["losses"] == []
    lease.check()
    assert renewed.wait(2)
    with pytest.raises(holdfast.NotAcquired):
        prober.seconds_to_get("parent's", patience=0)
    lease.release()


def test_a_child_that_leaves_the_block_of_its_parent_gets_lease_lost(connect):
    """The block was the parent's; the child's end of it must not look like a success."""
    client = connect()

    def leave():
        block.__exit__(None, None, None)

    block = client.lock("x")
    with block as lease:
        answer = Forked(lambda: outcome(leave)).result()
        lease.check()

    assert answer == ["LeaseLost", "forked"]


def test_a_child_does_not_enter_again_under_the_lease_of_its_parent(connect):
    """Entering again is for one thread of one process; a child's thread only has the same number."""
    lock = connect().lock("x", timeout=0, reentrant=True)

    def enter():
        with lock:
            return "inside"

    with lock, lock as lease:
        answer = Forked(lambda: outcome(enter)).result()
        lease.check()

    assert answer in (["LeaseLost", "forked"], ["NotAcquired", "busy"])


def test_the_child_of_a_child_begins_anew_as_well(connect):
    """A second fork works like the first."""
    client = connect()
    lease = client.lock("x").acquire()

    def nest():
        mine = client.lock("child's").acquire(timeout=0)
        inner = Forked(
            lambda: [mine.lost.reason, lease.lost.reason, outcome(client.lock("y").acquire(timeout=0).release)]
        )
        answer = inner.result()
        mine.check()
        mine.release()
        return answer

    assert Forked(nest).result() == ["forked", "forked", "went well"]
    lease.release()


def test_forking_while_other_threads_acquire_never_hangs(connect):
    """A lock that a thread held at the moment of the fork would stay locked in the child for ever."""
    client = connect()
    over = threading.Event()
    troubles = []

    def hurry(number):
        try:
            while not over.is_set():
                with client.lock(f"name {number % 2}", timeout=5):
                    pass
        except BaseException as error:
            troubles.append(error)
            raise

    def be_a_child():
        with client.lock("name 0" if client.url.startswith("memory") else "child's", timeout=5):
            pass
        client.lock("another").acquire(timeout=5).release()
        return client.close(timeout=0)

    threads = [threading.Thread(target=hurry, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(25):
            assert Forked(be_a_child).result() == []
    finally:
        over.set()
        for thread in threads:
            thread.join(10)

    assert troubles == []


def test_nothing_of_sqlite_crosses_a_fork(sqlite_url):
    """SQLite would believe in locks that stay behind, so the connection is closed before the fork."""
    with holdfast.connect(sqlite_url) as client:
        lease = client.lock("x").acquire()
        database = client._client.engine.store.database

        def look():
            inherited = database._cursor is not None
            return [inherited, str(database.path) in open_files()]

        assert Forked(look).result() == [False, False]
        lease.check()
        lease.release()


def test_a_fork_leaves_the_waiters_of_the_parent_waiting(connect):
    """They stand in line for the parent's session; neither the fork nor the child's end may disturb them."""
    client = connect()
    lease = client.lock("x").acquire()
    got = []
    waiter = threading.Thread(target=lambda: got.append(client.lock("x").acquire(timeout=10)))
    waiter.start()
    eventually(lambda: len(client.show("x").waiters) == 1)

    answer = Forked(lambda: outcome(lambda: client.lock("y").acquire(timeout=1).release())).result()
    lease.release()
    released = time.monotonic()
    waiter.join(5)

    assert answer == "went well"
    assert time.monotonic() - released < 1
    got[0].check()
    got[0].release()


def test_parent_and_child_hand_a_lease_to_each_other(sqlite_url):
    """After the fork they are two processes like any others: they wait in one line and wake each other."""
    with holdfast.connect(sqlite_url) as client:
        client.lock("x").acquire().release()

        def hold():
            lease = client.lock("x").acquire()
            time.sleep(0.3)
            lease.release()
            released = time.monotonic()
            again = client.lock("x").acquire(timeout=5)
            again.release()
            return [released, time.monotonic()]

        child = Forked(hold)
        eventually(lambda: client.show("x").holder is not None)
        mine = client.lock("x").acquire(timeout=5)
        got = time.monotonic()
        time.sleep(0.1)
        mine.release()
        released, ended = child.result()

    assert got - released < 0.2
    assert ended - got < 1


_pool_client = None


def _add_one(path):
    """Do the work of a pool's process with the client of its module."""
    with _pool_client.lock("counter", timeout=20):
        with open(path, encoding="ascii") as file:
            value = int(file.read())
        with open(path, "w", encoding="ascii") as file:
            file.write(str(value + 1))
    return os.getpid()


@pytest.mark.acceptance("A0-21")
def test_a_pool_of_forked_workers_can_share_a_client_of_the_module(sqlite_url, tmp_path, monkeypatch):
    """Programs connect once, at import, and fork afterwards; that must simply work."""
    client = holdfast.connect(sqlite_url)
    client.lock("counter").acquire().release()
    monkeypatch.setattr(f"{__name__}._pool_client", client)
    path = tmp_path / "counter"
    path.write_text("0")

    with multiprocessing.get_context("fork").Pool(4) as pool:
        pids = pool.map(_add_one, [str(path)] * 200, chunksize=5)
        pool.close()
        pool.join()
    client.close()

    assert path.read_text() == "200"
    assert os.getpid() not in pids


def test_a_thread_of_the_parent_may_fork_in_the_middle_of_a_block(connect):
    """The lease belongs to no thread, and the child has none, whichever thread forked."""
    client = connect()
    answers = []

    def fork():
        answers.append(Forked(lambda: outcome(lease.check)).result())

    with client.lock("x") as lease:
        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()
        lease.check()

    assert answers == [["LeaseLost", "forked"]]


def test_a_child_that_ends_does_not_touch_the_parents_lease(connect):
    """A child that ends drops everything it inherited: without a warning, and without touching the lease."""
    client = connect()
    leases = [client.lock("x").acquire()]

    def drop():
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            leases.clear()
        return "dropped"

    assert Forked(drop).result() == "dropped"
    leases[0].check()
    with pytest.raises(LeaseLost):
        client.break_lease("x", "the end of this test")
        leases[0].release()


def test_a_process_copied_without_pythons_fork_hooks_draws_its_own_tokens():
    """A fork in C, or a restored snapshot, runs no hook of Python: two processes must never hold under one token."""
    program = (
        "import ctypes, os, sys\n"
        "from holdfast.names import new_token\n"
        "new_token()\n"
        "child = ctypes.PyDLL(None).fork()\n"
        "sys.stdout.write(' '.join(new_token() for _ in range(200)) + '\\n')\n"
        "sys.stdout.flush()\n"
        "os.waitpid(child, 0) if child else os._exit(0)\n"
    )
    printed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=30)

    tokens = printed.stdout.split()
    assert len(tokens) == len(set(tokens)) == 400
