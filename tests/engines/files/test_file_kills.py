"""Random kills at random moments: no two holders, no update lost, and leases of dead processes go to living ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.testing import GuardedFile, assert_holds, lost_updates

KILLS = 60
WORKERS = 5
NAMES = ["ann", "bob"]
FIRE = Path(__file__).parents[1] / "sqlite" / "sqlite_children.py"


@pytest.mark.acceptance("G-1", "G-4", "G-6")
def test_sixty_random_kills_break_nothing(holdfast_workers, url, connect, holdfast_history, tmp_path):
    """A process may die between any two instructions; whatever it held or was writing, the others go on."""
    counter = tmp_path / "counter"
    fire = holdfast_workers.start(
        f"{FIRE}:work_under_fire",
        url=url,
        counter=str(counter),
        history=str(holdfast_history.path),
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
    client = connect()
    for name in NAMES:
        client.lock(name).acquire(timeout=0).release()
