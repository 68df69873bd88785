"""Random kills at random moments: the file stays valid and the leases of dead processes go to living ones."""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from itertools import pairwise

import pytest

from holdfast.testing import GuardedFile, assert_holds, lost_updates

KILLS = 300
WORKERS = 5
NAMES = ["ann", "bob", "cleo"]
TTL_S = 30  # as the workers have it


@pytest.mark.acceptance("G-1", "G-4", "G-6", "C-24")
def test_three_hundred_random_kills_break_nothing(start, url, path, connect, holdfast_history, tmp_path):
    """A process may die between any two instructions; whatever it held or was writing, the others go on."""
    counter = tmp_path / "counter"
    fire = start(
        "work_under_fire",
        url=url,
        counter=counter,
        history=holdfast_history.path,
        names=NAMES,
        workers=WORKERS,
        kills=KILLS,
        seed=20,
    )
    codes = json.loads(fire.read_line(timeout=100))["codes"]
    events = holdfast_history.read()
    final = {name: GuardedFile(f"{counter}.{name}").read().value for name in NAMES}

    assert codes == [0] * WORKERS, fire.output()
    assert sum(event.kind == "died" for event in events) == KILLS
    assert_holds(events)
    assert lost_updates(events, final) == []
    assert min(final.values()) > KILLS // 10
    assert longest_pause(events) < TTL_S / 2
    client = connect()
    for name in NAMES:
        client.lock(name).acquire(timeout=0).release()
    client.close()
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def longest_pause(events):
    """Return the longest time, in seconds, in which a name had no holder.

    It is mostly milliseconds; if the leases of dead processes were free only when they expire, it would be their ttl.
    """
    grants = defaultdict(list)
    for event in events:
        if event.kind == "granted":
            grants[event.name].append(event.at_ns)
    return max(later - earlier for times in grants.values() for earlier, later in pairwise(times)) / 1e9
