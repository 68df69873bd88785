"""Places and faults: each fault has its effect, is healed, and is recorded in the history."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

import holdfast
from chaos.injectors import granted
from holdfast.testing import Recorder, eventually, read_history, servers
from tests.support import wallclock
from tests.support.fault_windows import fault_windows
from tests.support.faults import Faults
from tests.support.places import SERVER, open_place, unavailable_engines
from tests.support.wallclock import WallClock

needs_server = pytest.mark.skipif("valkey" not in servers.available(), reason=servers.missing("valkey"))
needs_compiler = pytest.mark.skipif(not wallclock.available(), reason=wallclock.missing())


@pytest.fixture
def redis(tmp_path):
    with open_place("redis", tmp_path / "place") as place:
        yield place


@pytest.fixture
def recorder(holdfast_history):
    return holdfast_history.recorder("faults")


@needs_compiler
def test_one_program_has_a_clock_of_its_own(tmp_path):
    """Its wall clock moves, the monotonic clock does not."""
    clock = WallClock(tmp_path, "one")
    clock.set(-3600)
    program = "import time; print(time.time(), time.monotonic())"

    done = subprocess.run([sys.executable, "-c", program], env=clock.env, capture_output=True, text=True, check=True)

    wall, monotonic = map(float, done.stdout.split())
    assert wall - time.time() == pytest.approx(-3600, abs=60)
    assert monotonic == pytest.approx(time.monotonic(), abs=60)


@needs_server
@needs_compiler
def test_the_clock_of_a_running_server_can_be_set(redis, recorder, holdfast_history):
    """It is right again afterwards, and the history has the span."""
    faults = Faults(recorder, redis)

    def ahead():
        return int(redis.server.command("TIME")[0]) - time.time()

    with faults.server_clock(5000):
        eventually(lambda: ahead() > 4000, 10)
    eventually(lambda: abs(ahead()) < 1000, 10)
    [window] = fault_windows(holdfast_history.read())
    assert (window.kind, window.target) == ("server clock", "")
    assert window.end_ns > window.start_ns


@needs_server
@needs_compiler
def test_a_server_whose_clock_is_set_forward_lets_a_second_holder_in(redis):
    """Its wall clock decides expiry, and no client can see it jump. The fence grows."""
    with holdfast.connect(redis.url("a")) as one, holdfast.connect(redis.url("b")) as other:
        first = one.lock("x", ttl=20).acquire()
        redis.clock(SERVER).set(60)
        second = eventually(other.lock("x", ttl=20).try_acquire, 10)

        assert first.remaining() > 0
        assert second.fence > first.fence
        one.close(timeout=0)
        second.release()


@needs_server
def test_a_fault_of_one_link_leaves_the_others_alone(redis, recorder, holdfast_history):
    """Each worker has its own link."""
    faults = Faults(recorder, redis)
    with holdfast.connect(redis.url("a")) as one, holdfast.connect(redis.url("b")) as other:
        with one.lock("x", ttl=5), other.lock("y", ttl=5):
            pass
        with faults.refused("a"):
            with pytest.raises(holdfast.Unavailable):
                one.lock("x", ttl=5).acquire(timeout=0)
            with other.lock("y", ttl=5, timeout=2):
                pass
        eventually(lambda: one.lock("x", ttl=5).acquire(timeout=2).release() is None, 10)
    [window] = fault_windows(holdfast_history.read())
    assert (window.kind, window.target) == ("refused", "a")


@needs_server
def test_the_answer_that_grants_can_be_lost_and_new_connections_refused(redis):
    """The client cannot resend until the proxy accepts again: then it gets the same grant."""
    link = redis.link("a")
    with holdfast.connect(redis.url("a")) as hf:
        hf.lock("warm", ttl=5).acquire().release()
        link.drop_answer(granted, refuse=True)
        attempt = Later(lambda: hf.lock("x", ttl=20).acquire(timeout=20))
        eventually(lambda: link.dropped, 10)
        assert redis.server.command("EXISTS", "hf2:{x}") == 1
        assert not attempt.done

        link.accept()
        lease = attempt.result()

        assert lease.fence == int(link.dropped[0])
        lease.release()


@needs_server
@pytest.mark.parametrize("keep_data", [True, False])
def test_a_server_comes_back_with_or_without_its_data(redis, recorder, keep_data):
    """`keep_data` decides."""
    redis.server.command("SET", "mark", "1")

    with Faults(recorder, redis).server_down(keep_data=keep_data):
        assert not redis.server.alive

    assert redis.server.command("EXISTS", "mark") == int(keep_data)


@needs_server
def test_leaks_of_a_closed_place_are_listed(redis):
    """A key without expiry would stay for ever."""
    assert redis.left() == []

    redis.server.command("SET", "forgotten", "1")

    assert redis.left() == ["the key 'forgotten' without an end"]


def test_a_place_without_a_server_cannot_be_broken_like_one(tmp_path, recorder):
    """The fault raises at once; otherwise a test would pass without it."""
    with open_place("sqlite", tmp_path / "place") as place, pytest.raises(TypeError), Faults(recorder, place).cut("a"):
        pass


def enter_and_stay(url):
    """Request a lease; a test has armed the point inside the gate."""
    holdfast.connect(url).lock("x").acquire()


def test_a_process_stopped_inside_the_gate_of_sqlite_blocks_all_others(tmp_path, holdfast_workers, holdfast_pauses):
    """The engine lists this as a caveat; a test that stops processes has to know when it happened."""
    with open_place("sqlite", tmp_path / "place") as place, holdfast.connect(place.url()) as hf:
        hf.lock("y").acquire().release()
        holdfast_pauses.arm("sqlite.before-commit")
        worker = holdfast_workers.start(f"{__file__}:enter_and_stay", url=place.url())
        holdfast_pauses.wait_reached("sqlite.before-commit", 30)

        assert place.is_blocked_by(worker.pid)
        assert not place.is_blocked_by(os.getpid())

        holdfast_pauses.go("sqlite.before-commit")
        assert worker.wait(30) == 0
        assert not place.is_blocked_by(worker.pid)


@needs_server
def test_a_redis_server_on_the_path_will_do_where_there_is_no_wheel(tmp_path, monkeypatch):
    """Many machines have one, and no Valkey."""
    found = {"redis-server": next(iter(servers.available().values()))}
    monkeypatch.setattr(servers, "in_package", lambda *_: None)
    monkeypatch.setattr(servers, "_on_path", found.get)

    assert unavailable_engines(["memory", "redis"]) == []
    with open_place("redis", tmp_path / "place") as place, holdfast.connect(place.url("a")) as hf:
        assert place.server.kind == "redis"
        hf.lock("x").acquire(timeout=10).release()


def test_an_engine_that_needs_a_server_is_unavailable_without_one(monkeypatch):
    """Otherwise a report would name a test of Redis that never ran."""
    monkeypatch.setattr(servers, "available", dict)

    assert unavailable_engines(["memory", "sqlite", "redis"]) == ["redis"]


def test_an_unknown_engine_has_no_place(tmp_path):
    """A typing mistake must not choose an engine."""
    with pytest.raises(ValueError, match="sqlight"):
        open_place("sqlight", tmp_path)


def test_a_frozen_worker_is_thawed_and_its_time_is_known(holdfast_workers, holdfast_history, recorder):
    """The history has the start and the end, so that checkers excuse no more than that."""
    worker = holdfast_workers.start("holdfast.testing.child_process:read_line")

    with Faults(recorder).frozen(worker, "a"):
        time.sleep(0.05)

    [window] = fault_windows(holdfast_history.read())
    assert (window.kind, window.target) == ("freeze", "a")
    assert window.end_ns - window.start_ns >= 50_000_000
    worker.send_line("go")
    assert worker.wait() == 0


def test_a_block_under_a_lease_is_recorded_from_grant_to_end(tmp_path):
    """`granted` with its trusted deadline, then `released`, or `lost`."""
    path = tmp_path / "history.jsonl"
    with Recorder(path, "a") as recorder, holdfast.connect("memory://recorded") as hf:
        with hf.lock("x", ttl=5) as lease, recorder.holding(lease):
            pass
        with pytest.raises(holdfast.LeaseLost, match="by hand"), hf.lock("x", ttl=5) as lost, recorder.holding(lost):
            hf.break_lease("x", "by hand")
            eventually(lambda: lost.lost, 10)

    granted, released, again, ended = read_history(path)
    assert [event.kind for event in (granted, released, again, ended)] == ["granted", "released", "granted", "lost"]
    assert granted.fence == released.fence == lease.fence
    assert granted.until_ns > granted.at_ns


class Later:
    """A call in another thread."""

    def __init__(self, call):
        self._answer = []
        self._thread = threading.Thread(target=lambda: self._answer.append(call()))
        self._thread.start()

    @property
    def done(self):
        return not self._thread.is_alive()

    def result(self):
        self._thread.join(30)
        return self._answer[0]
