"""Owners while servers are replaced, slots are moved and pods die, in partitions on all masters of a cluster."""

import json
from pathlib import Path

import pytest
from ownership_pods import Pod, all_owned, opened, streams

from holdfast import Assigned, AssignmentExpired, AssignmentLost, NotAcquired, Unavailable
from holdfast.testing import WorkerProcesses, eventually
from tests.support.clusters import slot_of

PODS = Path(__file__).with_name("ownership_pods.py")
COUNT = 30
# Longer than a failover on a busy machine: nobody is taken for dead by it.
LONG_S = 30


def elsewhere(cluster, slot):
    owner = cluster.server_of_slot(slot)
    return next(server for server in cluster.masters() if server is not owner)


def all_done(whole, works):
    """Finish every assignment, and check that nothing is left."""
    for work in works.values():
        work.ack()
    assert whole.stats()[1:7] == (0, 0, 0, 0, 0, whole.stats().consumers)
    assert whole.check()


@pytest.mark.acceptance("A1-25")
def test_a_graceful_failover_costs_no_assignment(grouped):
    """Every master is replaced under thirty streams: none is lost or assigned to another, and each can be finished."""
    whole, other = (streams(grouped.connect(), ttl=LONG_S) for _ in range(2))
    pods = [Pod(grouped, each, name) for each, name in ((whole, "a"), (other, "b"))]
    works = all_owned(pods, opened(whole, COUNT))
    servers = {grouped.server.server_of(part.name) for part in whole.parts}
    assert len(servers) in (1, 3)

    for server in servers:
        grouped.server.wait_stable()
        grouped.server.failover(server)
        grouped.server.heal()  # a former primary goes on until somebody tells it: what it answers proves nothing
        assert server.command("ROLE")[0] == b"slave"

    for work in works.values():
        work.verify()
        work.check()
    grouped.until("renewed", len(grouped.kinds("renewed")) + 1, LONG_S)
    assert not servers & {grouped.server.server_of(part.name) for part in whole.parts}
    assert [work for pod in pods for work in pod.told(AssignmentLost)] == []
    assert sum(len(pod.told(Assigned)) for pod in pods) == COUNT
    stats = whole.stats()
    assert (stats.in_flight, stats.counts) == (COUNT, {"published": COUNT, "received": COUNT})
    all_done(whole, works)
    for pod in pods:
        pod.end()
    assert grouped.kinds("lost", "reclaimed") == []


@pytest.mark.acceptance("A1-22")
def test_all_streams_of_a_killed_pod_are_owned_again_on_every_master(grouped):
    """SIGKILL: no event reports the death, a check finds it. Each stream gets one new owner, under a larger fence."""
    whole, other = (streams(grouped.connect()) for _ in range(2))
    keys = opened(whole, COUNT)
    assert len({grouped.server.server_of(part.name) for part in whole.parts}) in (1, 3)
    with WorkerProcesses() as workers:
        doomed = workers.start(f"{PODS}:own", url=grouped.server.url, parts=3, count=COUNT, ttl=2)
        fences = json.loads(doomed.read_line(60))
        pods = [Pod(grouped, each, name) for each, name in ((whole, "a"), (other, "b"))]
        assert not any(pod.assignments for pod in pods)
        doomed.kill()
        works = all_owned(pods, keys)
    assert sum(len(pod.told(Assigned)) for pod in pods) == COUNT
    assert all(work.fence > fences[key] for key, work in works.items())
    all_done(whole, works)
    for pod in pods:
        pod.end()


def test_moving_slots_cost_no_assignment(clustered):
    """Commands wait while a slot moves. Messages that are published in the meantime find an owner too."""
    queue = streams(clustered.connect(), parts=1, ttl=LONG_S)
    pod = Pod(clustered, queue, "a")
    keys = opened(queue, COUNT)
    all_owned([pod], keys)
    slot, moved = slot_of(queue.name), 0

    for round_ in range(4):
        moved += clustered.server.move_slot(slot, elsewhere(clustered.server, slot))
        keys |= opened(queue, 1, COUNT + round_)
        works = all_owned([pod], keys)

    assert moved > 0
    for work in works.values():
        work.verify()
    assert pod.told(AssignmentLost) == []
    assert queue.stats().counts == {"published": COUNT + 4, "received": COUNT + 4}
    all_done(queue, works)
    pod.end()
    assert clustered.kinds("lost", "reclaimed") == []


def test_a_killed_master_costs_no_stream(clustered):
    """The promoted server has the replicated assignments."""
    whole = streams(clustered.connect(), ttl=LONG_S)
    pod = Pod(clustered, whole, "a")
    keys = opened(whole, COUNT)
    works = all_owned([pod], keys)
    clustered.server.wait_replicated()
    server = clustered.server.server_of(whole.parts[0].name)

    server.kill()
    clustered.server.wait_replaced(server)

    for work in works.values():
        eventually(lambda work=work: _touched(work), 30, f"an answer about {work!r}")
    assert pod.told(AssignmentLost) == []
    all_done(whole, works)
    pod.end()


def _touched(work):
    try:
        work.verify()
    except Unavailable:
        return False
    return True


def heard_and_claimed(place, parts):
    """Every survivor learns every stream of the dead pod; of those that claim one, one gets it at once."""
    whole, other = (streams(place.connect(), parts, grace=60) for _ in range(2))
    keys = opened(whole, COUNT)
    pods = []
    with WorkerProcesses() as workers:
        doomed = workers.start(f"{PODS}:own", url=place.server.url, parts=parts, count=COUNT, ttl=2, events="configure")
        fences = json.loads(doomed.read_line(60))
        pods += [Pod(place, each, name, events="configure") for each, name in ((whole, "a"), (other, "b"))]
        doomed.kill()
        for pod in pods:
            eventually(lambda pod=pod: len(pod.told(AssignmentExpired)) >= COUNT, 30, f"word of {COUNT} streams")
    assert [sorted(pod.told(AssignmentExpired)) for pod in pods] == [sorted(keys)] * 2
    assert not any(pod.assignments for pod in pods), "nobody has looked for the dead: its grace has not ended"

    for at, key in enumerate(sorted(keys)):
        first, second = pods[at % 2], pods[1 - at % 2]
        assert first.claim(key).fence > fences[key]
        with pytest.raises(NotAcquired, match="held by"):
            second.claim(key)

    assert [len(pod.assignments) for pod in pods] == [COUNT // 2] * 2
    all_done(whole, all_owned(pods, keys))
    tidy = Pod(place, streams(place.connect(), parts, grace=0.1), "whoever buries the dead one")
    eventually(lambda: whole.stats().consumers == 3 * parts, 30, "an end of the dead one")
    for pod in (*pods, tidy):
        pod.end()


@pytest.mark.acceptance("A1-22")
def test_every_survivor_learns_of_every_stream_on_every_master(grouped):
    """With events no owner waits for the grace: a stream is claimed as soon as its session has expired."""
    heard_and_claimed(grouped, 3)


@pytest.mark.acceptance("A1-22")
def test_every_survivor_learns_of_every_stream(sync):
    """It works on one server as on many."""
    heard_and_claimed(sync, 1)
