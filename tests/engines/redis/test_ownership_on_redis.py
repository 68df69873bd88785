"""Owners on a server that freezes or loses its data, and a dead owner behind many slow ones."""

import time

import pytest
from ownership_pods import Pod, all_owned, opened, streams
from redis_faces import paired

from holdfast import Assigned, AssignmentLost, LeaseLost
from holdfast.commands.queue import Join, Leave, Receive
from holdfast.testing import eventually

TTL_S, GRACE_S, LOOK_S = 1.0, 0.5, 0.2
SLOW = 200


@pytest.mark.acceptance("A1-14")
def test_a_dead_owner_is_found_behind_two_hundred_slow_ones(sync):
    """The slow owners came first and have expired, too; they do not use up a check."""
    queue, peer = streams(sync.connect(), parts=1, ttl=TTL_S, grace=GRACE_S), sync.peer()
    keys, tokens = opened(queue, SLOW + 1), [f"slow-{number}" for number in range(SLOW)]
    for token, ttl_s in (*((token, 60) for token in tokens), ("dead", TTL_S)):
        peer.send(Join(queue.name, token, "", token, round(ttl_s * 1000), keeps_messages=True))
        (held,) = peer.send(Receive(queue.name, token, 1)).deliveries
    began = time.monotonic()

    pod = Pod(sync, queue, "successor")
    (work,) = all_owned([pod], {f"stream-{SLOW}"}).values()

    took = time.monotonic() - began
    assert work.fence > held.fence
    assert took < TTL_S + GRACE_S + LOOK_S + 5, "its ttl, the grace, a look; and a margin for a busy machine"
    assert (queue.stats().in_flight, queue.stats().consumers) == (SLOW + 1, SLOW + 1)
    assert len(pod.told(Assigned)) == 1
    for token in tokens:
        peer.send(Leave(queue.name, token))
    for each in all_owned([pod], keys).values():
        each.ack()
    pod.end()
    assert queue.check()


@paired
def test_a_server_that_froze_for_three_ttls_costs_no_assignment(server, new_server, place_on):
    """All sessions have expired, but no heartbeat could arrive: so no owner is declared dead."""
    place = place_on(new_server(server.kind))
    queue, other = (streams(place.connect(), parts=1, ttl=TTL_S, grace=GRACE_S) for _ in range(2))
    pods = [Pod(place, each, name) for each, name in ((queue, "a"), (other, "b"))]
    keys = opened(queue, 20)
    works = all_owned(pods, keys)

    place.server.freeze()
    time.sleep(3 * TTL_S)
    assert all(work.lost for work in works.values()), "nobody can vouch for them meanwhile"
    place.server.thaw()

    eventually(lambda: not any(work.lost for work in works.values()), 30, "an end of the doubt")
    for work in works.values():
        work.verify()
    # Each pod learned of the doubt, and of its end.
    eventually(lambda: sum(len(pod.told(Assigned)) for pod in pods) == 2 * len(keys), 30, "the keys are assigned again")
    assert sorted(work.key for pod in pods for work in pod.told(AssignmentLost)) == sorted(keys)
    assert queue.stats().counts == {"published": len(keys), "received": len(keys)}
    assert place.kinds("lost", "reclaimed") == []
    for work in works.values():
        work.ack()
    for pod in pods:
        pod.end()
    assert queue.check()


@paired
def test_after_a_loss_of_all_data_every_owner_learns_its_losses(server, new_server, place_on):
    """The server has no streams any more, so none can be finished. Owners join again for new messages."""
    place = place_on(new_server(server.kind))
    queue, other = (streams(place.connect(), parts=1, ttl=TTL_S, grace=GRACE_S) for _ in range(2))
    pods = [Pod(place, each, name) for each, name in ((queue, "a"), (other, "b"))]
    keys = opened(queue, 20)
    works = all_owned(pods, keys)

    place.server.restart(keep_data=False)

    eventually(
        lambda: sum(len(pod.told(AssignmentLost)) for pod in pods) == len(keys),
        30,
        "everybody to be told of everything",
    )
    assert {work.key for pod in pods for work in pod.told(AssignmentLost)} == keys
    for work in works.values():
        with pytest.raises(LeaseLost):
            work.ack()
    assert queue.stats()[1:6] == (0, 0, 0, 0, 0)
    assert queue.check()
    again = all_owned(pods, opened(queue, 20))
    for key, work in again.items():
        assert work.fence > works[key].fence
        work.ack()
    for pod in pods:
        pod.end()
    assert queue.check()
