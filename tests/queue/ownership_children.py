"""Processes that own keys, and are killed, frozen and stopped."""

from __future__ import annotations

import os
import signal
import sqlite3

import holdfast
from holdfast import guards
from holdfast.testing import ready

TTL_S, GRACE_S = 1.5, 0.3


def sessions(hf):
    return hf.queue("sessions", ttl=TTL_S, grace=GRACE_S, max_attempts=3)


class FencedStore:
    """A store that owners of keys write to; it compares fences, in a transaction."""

    def __init__(self, path):
        self._db = sqlite3.connect(path, timeout=20)
        self._db.execute("PRAGMA synchronous = OFF")  # no machine fails in this test, and two hundred writes are quick
        self._guard = guards.SqlGuard()
        self._db.execute(self._guard.schema)
        self._db.commit()

    def write(self, assignment):
        """Return how the write went."""
        try:
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                self._guard.admit(assignment, self._db, assignment.key)
        except holdfast.Fenced:
            return "fenced"
        return "written"


def own(url, journal, pod, most=1000):
    """Own keys until stopped; each event is one line, written at once and whole. USR1 acks all keys."""
    os.environ["POD_NAME"] = pod
    asked = []
    store = FencedStore(f"{journal}.db")
    with holdfast.connect(url) as hf, sessions(hf).owner(most=most) as owner, open(journal, "ab", buffering=0) as file:
        signal.signal(signal.SIGTERM, lambda *_: owner.stop())
        signal.signal(signal.SIGUSR1, lambda *_: asked.append(True))
        ready()

        def note(word, assignment, *more):
            line = (word, assignment.key, assignment.fence, os.getpid(), owner.name, *more)
            file.write((" ".join(map(str, line)) + "\n").encode())

        while not isinstance(event := owner.next(0.05), holdfast.OwnerStopped):
            if isinstance(event, holdfast.Assigned):
                note("added", event.assignment, store.write(event.assignment), event.assignment.attempt)
                if event.assignment.key == "poison":
                    os.kill(os.getpid(), signal.SIGKILL)
            elif isinstance(event, holdfast.AssignmentLost):
                note("lost", event.assignment, accepted(event.assignment.ack), store.write(event.assignment))
            while asked:
                asked.pop()
                for assignment in owner.assignments.values():
                    note("done", assignment, accepted(assignment.ack))


def accepted(record):
    """Return whether the engine accepted the outcome."""
    try:
        record()
    except holdfast.LeaseLost:
        return "refused"
    return "accepted"
