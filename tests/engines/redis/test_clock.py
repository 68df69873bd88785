"""A server whose clock jumps: the effect on leases and fences, and the event."""

import time

import pytest

import holdfast
from holdfast import Fenced, LeaseLost
from holdfast.commands import Acquire, Busy, Granted
from holdfast.testing import GuardedFile, eventually
from tests.support import wallclock


class Shifted(wallclock.WallClock):
    """The wall clock of a server; a test waits until the server has read it, which Valkey does on a tick."""

    def shift(self, seconds, server):
        self.set(seconds)
        eventually(lambda: abs(time_of(server) - time.time() - seconds) < 0.3, 5, "the clock to be set")


def time_of(server):
    seconds, micros = server.command("TIME")
    return int(seconds) + int(micros) / 1e6


@pytest.fixture
def clock(tmp_path):
    if not wallclock.available():
        pytest.skip(wallclock.missing())
    return Shifted(tmp_path, "server")


@pytest.fixture
def place(clock, new_server, place_on):
    """Return a server with a test clock, through one face."""
    return place_on(new_server(env=clock.env))


def jumps(place):
    return [event.seconds for event in place.events.copy() if event.kind == "clock_jumped"]


@pytest.mark.parametrize("face", ["blocking"])
def test_a_clock_set_forward_ends_leases_early_and_emits_an_event(place, clock):
    """The server's clock decides expiry: a second holder gets in under a larger fence, and an event reports it."""
    client, other = place.connect(), place.connect()
    first = client.lock("x", ttl=4).acquire()
    place.until("renewed")

    clock.shift(+20, place.server)
    second = other.lock("x", timeout=0).acquire()

    assert first.remaining() > 0
    assert second.fence > first.fence
    place.until("clock_jumped")
    assert jumps(place)[0] == pytest.approx(20, abs=1)
    eventually(lambda: first.lost, 5)
    with pytest.raises(LeaseLost, match="before its ttl was over"):
        first.release()
    promise = client.promise()
    assert promise.level == "efficiency only"
    assert "jump forward by" in str(promise)
    second.release()


@pytest.mark.parametrize("face", ["blocking"])
def test_a_clock_that_was_corrected_again_has_jumped_both_ways(place, clock):
    """Leases ended early and fences may have gone back, and neither repairs the other."""
    client = place.connect(fence_memory=1)
    assert client.promise().fences_grow

    for seconds in (+20, 0):
        clock.shift(seconds, place.server)
        promise = client.promise()
        assert promise.level == "efficiency only"

    assert "jump forward by" in str(promise)
    assert "jump back by" in str(promise)
    assert not promise.fences_grow


@pytest.mark.parametrize("face", ["blocking"])
def test_a_clock_jump_renews_every_lease_at_once(place, clock):
    """One renewal notices the jump, and the keeper renews all leases at once, so that none is lost."""
    client = place.connect()
    short, long = client.lock("short", ttl=2).acquire(), client.lock("long", ttl=60).acquire()
    place.until("renewed")
    assert [event for event in place.events if event.kind == "renewed" and event.name == "long"] == []

    clock.shift(+1, place.server)

    eventually(lambda: [event for event in place.events if event.kind == "renewed" and event.name == "long"], 5)
    assert jumps(place) == [pytest.approx(1, abs=0.4)]
    short.release()
    long.release()
    assert place.kinds("lost") == []


@pytest.mark.parametrize("face", ["blocking"])
def test_a_steady_clock_emits_no_event(place):
    """Round trips and pauses explain every reading, so there is no event without a jump."""
    client = place.connect()
    leases = [client.lock(f"x{number}", ttl=0.6).acquire() for number in range(5)]
    place.until("renewed", 15)

    for lease in leases:
        lease.release()
    client.promise()

    assert jumps(place) == []


@pytest.mark.parametrize("face", ["blocking"])
@pytest.mark.parametrize("forgotten", [False, True])
def test_a_clock_set_back_by_less_than_the_memory_keeps_fences_growing(place, clock, forgotten):
    """A stored record continues its count; a forgotten one is older than the new time."""
    client = place.connect(fence_memory=1)
    first = client.lock("x").acquire()
    first.release()
    if forgotten:
        eventually(lambda: place.server.command("EXISTS", "hf2:{x}") == 0, 10)

    clock.shift(-0.7 if forgotten else -3600, place.server)
    second = client.lock("x").acquire()
    second.release()

    assert second.fence > first.fence


@pytest.mark.parametrize("face", ["blocking"])
def test_a_clock_set_back_by_more_than_the_memory_lets_fences_go_back(place, clock):
    """The name was forgotten and the clock is wrong; afterwards the promise says so."""
    client = place.connect(fence_memory=1)
    assert client.promise().fences_grow
    first = client.lock("x").acquire()
    first.release()
    eventually(lambda: place.server.command("EXISTS", "hf2:{x}") == 0, 10)

    clock.shift(-3600, place.server)
    second = client.lock("x").acquire()
    second.release()

    assert second.fence < first.fence
    promise = client.promise()
    assert not promise.fences_grow
    assert promise.level == "survives client faults"


@pytest.mark.parametrize("face", ["blocking"])
def test_a_clock_set_back_makes_a_dead_holders_lease_last(place, clock):
    """Exclusion holds, but a waiter for a dead holder waits longer."""
    peer = place.peer()
    assert isinstance(peer.send(Acquire("x", "dead", "", 500, wait=False)), Granted)

    clock.shift(-30, place.server)
    time.sleep(0.7)

    busy = peer.send(Acquire("x", "successor", "", 1000, wait=False))
    assert isinstance(busy, Busy)
    assert busy.remaining_ms > 20_000


def test_a_failover_to_a_clock_that_is_behind_gives_smaller_fences(clock, new_server, tmp_path):
    """Therefore a server with replicas does not promise growing fences; a guard fails closed."""
    clock.set(-60)
    quickly = ("--repl-diskless-sync-delay", "0")
    primary, replica = new_server(arguments=quickly), new_server(env=clock.env)
    replica.command("REPLICAOF", "127.0.0.1", str(primary.port))
    eventually(lambda: b"master_link_status:up" in replica.command("INFO", "replication"), 20)
    guard = GuardedFile(tmp_path / "guarded.json")
    with holdfast.connect(primary.url) as client, holdfast.connect(replica.url) as other:
        promise = client.promise()
        replica.command("REPLICAOF", "NO", "ONE")
        with client.lock("x") as first:
            guard.write(first.fence, first.token, lambda value: value + 1)
            with other.lock("x", timeout=0) as second:
                assert second.fence < first.fence
                with pytest.raises(Fenced):
                    guard.write(second.fence, second.token, lambda value: value + 1)

    assert not promise.fences_grow
