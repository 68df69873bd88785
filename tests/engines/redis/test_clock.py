"""A server whose clock jumps: what it does to leases and fences, and that it is told."""

import time

import pytest

import holdfast
from holdfast import Fenced, LeaseLost
from holdfast.commands import Acquire, Busy, Granted
from holdfast.testing import GuardedFile, eventually
from tests.support import wallclock


class Shifted(wallclock.WallClock):
    """The wall clock of a server, and how a test waits until the server has looked at it: Valkey does so on a tick."""

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
    """A server whose clock is the test's, through one face."""
    return place_on(new_server(env=clock.env))


def jumps(place):
    return [event.seconds for event in place.events.copy() if event.kind == "clock_jumped"]


@pytest.mark.parametrize("face", ["blocking"])
def test_a_clock_set_forward_ends_leases_early_and_is_told(place, clock):
    """Expiry goes by the server's wall clock, so a second holder gets in, under a larger fence; and it is told."""
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
def test_a_clock_that_was_set_right_again_is_told_as_one_that_jumped_both_ways(place, clock):
    """Leases have ended early, and fences may have gone back: neither undoes the other."""
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
def test_a_jump_has_every_lease_renewed_at_once(place, clock):
    """One renewal notices it; the others, whose end came nearer, are not left to their turn. Nothing is lost."""
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
def test_a_clock_that_goes_on_is_not_suspected(place):
    """Round trips, pauses and greetings explain every reading: no event without a jump."""
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
    """A record that is there counts on; one that was forgotten is older than the memory, and so than the new time."""
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
    """The name was forgotten, and the clock that stands in for the memory is wrong. The promise says so afterwards."""
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
    """The other half of the limit: exclusion stands, and whoever waits for a dead holder waits for longer."""
    peer = place.peer()
    assert isinstance(peer.send(Acquire("x", "dead", "", 500, wait=False)), Granted)

    clock.shift(-30, place.server)
    time.sleep(0.7)

    busy = peer.send(Acquire("x", "heir", "", 1000, wait=False))
    assert isinstance(busy, Busy)
    assert busy.remaining_ms > 20_000


def test_a_failover_to_a_clock_that_is_behind_gives_smaller_fences(clock, new_server, tmp_path):
    """Which is why the promise of a server with replicas does not hold that fences grow; a guard fails closed."""
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
