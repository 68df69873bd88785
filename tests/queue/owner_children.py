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
        self._db.execute("PRAGMA synchronous = OFF")  # no machine fails here, and two hundred writes are quick
        self._guard = guards.SqlGuard()
        self._db.execute(self._guard.schema)
        self._db.commit()

    def write(self, work):
        """Return how the write went."""
        try:
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                self._guard.admit(work, self._db, work.key)
        except holdfast.Fenced:
            return "fenced"
        return "written"


def own(url, journal, pod, most=1000):
    """Own keys until stopped; each event is one line, written at once and whole. USR1 acks all keys."""
    os.environ["POD_NAME"] = pod
    asked = []
    ledger = FencedStore(f"{journal}.db")
    with holdfast.connect(url) as hf, sessions(hf).owner(most=most) as owner, open(journal, "ab", buffering=0) as file:
        signal.signal(signal.SIGTERM, lambda *_: owner.stop())
        signal.signal(signal.SIGUSR1, lambda *_: asked.append(True))
        ready()

        def note(word, work, *more):
            line = (word, work.key, work.fence, os.getpid(), owner.name, *more)
            file.write((" ".join(map(str, line)) + "\n").encode())

        while not isinstance(event := owner.next(0.05), holdfast.OwnerStopped):
            if isinstance(event, holdfast.Assigned):
                note("added", event.assignment, ledger.write(event.assignment), event.assignment.attempt)
                if event.assignment.key == "poison":
                    os.kill(os.getpid(), signal.SIGKILL)
            elif isinstance(event, holdfast.AssignmentLost):
                note("lost", event.assignment, accepted(event.assignment.done), ledger.write(event.assignment))
            while asked:
                asked.pop()
                for work in owner.assignments.values():
                    note("done", work, accepted(work.ack))


def accepted(word):
    """Return whether the engine accepted the outcome."""
    try:
        word()
    except holdfast.LeaseLost:
        return "refused"
    return "accepted"
