"""Pods that own streams: on a thread of a test, and as processes that are killed."""

import json

import holdfast
from holdfast import Assigned, AssignmentLost
from holdfast.testing import eventually, send_line

PARTS = 3


def streams(client, parts=PARTS, **options):
    """Return a queue of streams in partitions, so that each of three masters has one."""
    queue = client.queue("streams", **{"ttl": 2, "grace": 0.5, **options})
    return queue.partitioned(parts) if parts > 1 else queue


def opened(queue, count, first=0):
    """Publish streams that need an owner; return their keys."""
    keys = [f"stream-{number}" for number in range(first, first + count)]
    for key in keys:
        queue.publish({"about": key}, key=key)
    return set(keys)


class Pod:
    """An owner on its own thread, and the events that it got."""

    def __init__(self, place, queue, name, **options):
        self.news = []
        self._owner = queue.owner(name, **options)
        self._entered = []
        self._running = place.start(self._run)
        eventually(lambda: self._entered or self._running.done(), 20, f"{name} to be there")

    def _run(self):
        with self._owner as owner:
            self._entered.append(True)
            for event in owner:
                self.news.append(event)

    def told(self, kind):
        """Return the assignments, or the keys, of all events of this kind."""
        return [getattr(event, "assignment", None) or event.key for event in self.news if isinstance(event, kind)]

    @property
    def assignments(self):
        """Return the assignments that it holds, by key."""
        lost = {work.fence for work in self.told(AssignmentLost)}
        return {work.key: work for work in self.told(Assigned) if work.fence not in lost}

    def claim(self, key):
        """Claim a key; raise `NotAcquired` if a live owner holds it."""
        work = self._owner.claim(key)
        self.news.append(Assigned(work))
        return work

    def end(self):
        """Stop, and give all keys back."""
        self._owner.stop()
        self._running.result(60)


def all_owned(pods, keys, longest_s=60):
    """Wait until every key has an owner; return the assignments of all pods by key."""
    owned = f"owners of {len(keys)} streams"
    eventually(lambda: {key for pod in pods for key in pod.assignments} == keys, longest_s, owned)
    return {key: work for pod in pods for key, work in pod.assignments.items()}


def own(url, parts, count, ttl, events=None):
    """Run as a process: own streams, print their fences, and keep them."""
    with holdfast.connect(url) as hf, streams(hf, parts, ttl=ttl).owner("doomed", events=events) as owner:
        fences = {}
        for event in owner:
            fences[event.assignment.key] = event.assignment.fence
            if len(fences) == count:
                send_line(json.dumps(fences))
