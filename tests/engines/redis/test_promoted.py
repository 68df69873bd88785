"""Two well-known ways to lose a lock to a failover, tried on ours: what breaks is what the printed promise says.

The first is a partition: the old primary goes on granting while a replica has been promoted. The second is a grant that
one of two replicas has acknowledged (WAIT 1), and the other one is promoted.
"""

import threading
import time

import pytest

import holdfast
from holdfast import Fenced, NotAcquired, Unavailable
from holdfast.testing import GuardedFile, eventually

QUICKLY = ("--repl-diskless-sync-delay", "0")
SPLIT_S = 1.2


@pytest.fixture
def replicated(new_server):
    """A primary and its replicas, in sync."""

    def start(count):
        primary, *replicas = (new_server(arguments=QUICKLY) for _ in range(count + 1))
        for replica in replicas:
            replica.command("REPLICAOF", "127.0.0.1", str(primary.port))
        for replica in replicas:
            eventually(lambda r=replica: b"master_link_status:up" in r.command("INFO", "replication"), 20)
        return primary, *replicas

    return start


@pytest.fixture
def connect():
    """Clients whose leases may stay on a dead server."""
    clients = []

    def connect(server):
        clients.append(holdfast.connect(server.url))
        return clients[-1]

    yield connect
    for client in clients:
        client.close(timeout=0)


class Resource:
    """The protected resource: it compares fences, and keeps a list of accepted writes."""

    def __init__(self, path):
        self._file, self._lock = GuardedFile(path), threading.Lock()
        self.granted, self.accepted, self.textbook = [], [], []

    def write(self, lease):
        with self._lock:
            self.granted.append((lease.fence, lease.token))
            try:
                self._file.write(lease.fence, lease.token, lambda value: value + 1)
                self.accepted.append((lease.fence, lease.token))
            except Fenced:
                return  # the other side was here with a newer one


def take_turns(url, server, resource, seconds):
    """One side: acquire our lock and write under it; beside it a textbook lock, SET NX and a counter as the fence."""
    until = time.monotonic() + seconds
    with holdfast.connect(url) as client:
        while time.monotonic() < until:
            with client.lock("x", ttl=5, timeout=5) as lease:
                resource.write(lease)
            if server.command("SET", "textbook", "me", "NX", "PX", "5000") == b"OK":
                resource.textbook.append(server.command("INCR", "textbook:fence"))
                server.command("DEL", "textbook")


def test_a_partition_repeats_no_fence_that_a_guard_accepts(replicated, tmp_path):
    """Both sides grant and write for a second. A counter repeats hundreds of fences; the guard accepts none twice.

    Two primaries can pick the same microsecond, if seldom, so equal fences are refused by their token. That both sides
    hold at once is what the promise excepts; it is printed before anything happens.
    """
    primary, replica = replicated(1)
    resource = Resource(tmp_path / "guarded.json")
    with holdfast.connect(primary.url) as client:
        promise = client.promise()
    take_turns(primary.url, primary, resource, 0.2)

    replica.command("REPLICAOF", "NO", "ONE")  # promoted; the old primary does not know, and goes on
    sides = [
        threading.Thread(target=take_turns, args=(side.url, side, resource, SPLIT_S)) for side in (primary, replica)
    ]
    for side in sides:
        side.start()
    for side in sides:
        side.join()
    primary.command("REPLICAOF", "127.0.0.1", str(replica.port))  # healed: what the old one granted is forgotten
    take_turns(replica.url, replica, resource, 0.2)

    for server in (primary, replica):
        server.command("REPLICAOF", "NO", "ONE")
        server.command("DEL", "textbook:fence")
    repeated = len(resource.textbook) - len(set(resource.textbook))
    assert repeated > 10, "the textbook lock must show what is being avoided"
    ours = len(resource.granted) - len({fence for fence, _ in resource.granted})
    assert ours * 20 < repeated, "clocks do not count alike"
    fences = [fence for fence, _ in resource.accepted]
    assert len(fences) > 100
    assert fences == sorted(fences)
    assert len(set(fences)) == len(set(resource.accepted)), "a fence was accepted from two tokens"
    assert promise.level == "survives client faults"
    assert not promise.fences_grow
    assert any("failover" in limit.sentence for limit in promise.caveats)


def cut_off(primary, replica):
    """Cut a replica off from its primary, as a partition does."""
    replica.command("REPLICAOF", "127.0.0.1", "1")
    eventually(lambda: b"connected_slaves:1" in primary.command("INFO", "replication"), 10)


def promote(replica):
    replica.command("REPLICAOF", "NO", "ONE")


def test_a_grant_that_one_of_two_replicas_has_is_granted_again_by_the_other(replicated, connect, tmp_path):
    """WAIT 1 of 2 means: one replica has the grant, the other is promoted, and two clients hold. The guard sees it."""
    primary, told, promoted = replicated(2)
    guard = GuardedFile(tmp_path / "guarded.json")
    client, other = connect(primary), connect(promoted)
    promise = client.promise()
    cut_off(primary, promoted)
    first = client.lock("x", ttl=30).acquire(timeout=5)
    eventually(lambda: told.command("EXISTS", "hf2:{x}") == 1, 5)  # which is what WAIT 1 would have waited for

    told.kill()
    primary.kill()
    promote(promoted)
    second = other.lock("x", ttl=30).acquire(timeout=5)

    assert first.remaining() > 5
    guard.write(second.fence, second.token, lambda value: value + 1)
    with pytest.raises(Fenced):
        guard.write(first.fence, first.token, lambda value: value + 1)
    assert any("lets a second holder in" in limit.sentence for limit in promise.caveats)
    second.release()
    client.close(timeout=0)


def test_a_grant_that_all_replicas_confirmed_is_not_granted_again(replicated, connect):
    """With `confirm`, a grant on one of two replicas is withdrawn; a grant on both stands after the failover."""
    primary, told, promoted = replicated(2)
    client, other = connect(primary), connect(promoted)
    first = client.lock("x", ttl=30, confirm="replicas").acquire(timeout=5)
    cut_off(primary, promoted)
    with pytest.raises(Unavailable) as trouble:
        client.lock("y", ttl=30, confirm="replicas").acquire(timeout=5)
    assert trouble.value.reason == "not confirmed"

    told.kill()
    primary.kill()
    promote(promoted)

    assert first.remaining() > 5
    with pytest.raises(NotAcquired) as refusal:
        other.lock("x").acquire(timeout=0.2)
    assert refusal.value.fence == first.fence
    other.lock("y").acquire(timeout=5).release()
    client.close(timeout=0)


def test_a_replica_that_a_client_never_saw_is_not_waited_for(replicated, connect):
    """A limit of `confirm`: the client knows only the replicas that it has seen."""
    primary, told, promoted = replicated(2)
    cut_off(primary, promoted)
    client, other = connect(primary), connect(promoted)  # they come too late to know of both
    first = client.lock("x", ttl=30, confirm="replicas").acquire(timeout=5)

    told.kill()
    primary.kill()
    promote(promoted)
    second = other.lock("x", ttl=30).acquire(timeout=5)

    assert first.remaining() > 5
    assert second.fence > first.fence
    second.release()
    client.close(timeout=0)
