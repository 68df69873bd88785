"""A process that has no descriptor or thread left gets `Unavailable` with the reason, and needs no restart later."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import holdfast
from holdfast import Unavailable
from holdfast.testing import eventually
from holdfast.testing.servers import Server, missing

CHILD = Path(__file__).with_name("exhausted_child.py")


@pytest.fixture(params=["valkey", "sqlite", "file", "memory"])
def url(request, tmp_path):
    if request.param != "valkey":
        yield {"sqlite": f"sqlite:///{tmp_path}/x.db", "file": f"file://{tmp_path}", "memory": "memory://"}[
            request.param
        ]
        return
    if missing("valkey"):
        pytest.skip(missing("valkey"))
    with Server("valkey") as server:
        yield server.url


@pytest.mark.finding("L17")
@pytest.mark.parametrize("face", ["blocking", "asyncio"])
def test_without_a_descriptor_every_call_says_so_and_later_calls_succeed(url, face):
    """No error of the system reaches the caller, nothing that was granted is lost, and nothing leaks."""
    done = subprocess.run([sys.executable, CHILD, url, face], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])

    other = {"InvalidConfig"} if url.startswith("file") else set()  # shared directories have no queues
    assert set(seen["without"].values()) <= {"out of descriptors", "NotAcquired"} | other
    assert seen["again"] == {"wait": "NotAcquired"} | ({"publish": "InvalidConfig"} if other else {})
    assert seen["leaked"] <= 2, "after four more rounds, at most the keeper's connection is new"
    assert seen["threads"] <= (1 if face == "blocking" else 2)
    if not url.startswith("memory"):
        assert "out of descriptors" in seen["without"].values()


@pytest.fixture
def no_threads(monkeypatch):
    """Refuse new threads as the system does, while `refuse` is set."""
    refuse = threading.Event()
    start = threading.Thread.start

    def refused(thread):
        if refuse.is_set():
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    return refuse


def test_no_lease_is_requested_without_a_keeper(url, no_threads):
    """The caller learns at once that the lease could not be renewed; the same client works later."""
    with holdfast.connect(url) as hf:
        hf.show("x")
        no_threads.set()
        with pytest.raises(Unavailable) as refused:
            hf.lock("x").acquire(timeout=5)
        assert (refused.value.reason, refused.value.outcome) == ("out of threads", "not started")
        no_threads.clear()
        assert hf.show("x").holder is None
        with hf.lock("x", timeout=0) as lease:
            lease.check()


def test_a_waiter_without_a_listener_thread_gets_the_lease(url, no_threads):
    """Wake-ups only make things faster."""
    with holdfast.connect(url) as hf, holdfast.connect(url) as other:
        held = other.lock("x", ttl=30).acquire()
        hf.lock("y").acquire().release()  # starts the keeper
        waiting = threading.Thread(target=lambda: got.append(hf.lock("x").acquire(timeout=20)))
        got = []
        waiting.start()
        no_threads.set()
        eventually(lambda: len(other.show("x").waiters) == 1, 10, "a waiter")
        held.release()
        waiting.join(20)
        no_threads.clear()
        assert [lease.fence > held.fence for lease in got] == [True]
        got[0].release()


def test_handlers_run_without_a_thread_of_their_own(tmp_path, no_threads):
    """A worker that cannot start a thread handles its messages one after the other, and loses none."""
    with holdfast.connect(f"sqlite:///{tmp_path}/x.db") as hf:
        hf.lock("y").acquire().release()
        queue, done = hf.queue("q"), []
        queue.publish_many([1, 2, 3])
        no_threads.set()
        queue.worker(lambda message: done.append(message.body), concurrency=2).run_until_idle()
        no_threads.clear()
        assert sorted(done) == [1, 2, 3]
        assert queue.stats().counts["acked"] == 3
