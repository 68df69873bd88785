"""In which order files of tests are begun, where several processes share them: what takes long as a whole comes first.

A long one that is begun last would keep one process busy while the others have nothing left. The rest is as random as
ever: those that wait and those that compute come side by side.
"""

import pytest

LONG = (
    "tests/campaign/test_kill_table.py",
    "tests/cli/test_run_faults.py",
    "tests/bench/test_race.py",
    "tests/engines/redis/test_failover.py",
    "tests/docs/test_docs.py",
    "tests/campaign/test_short_campaign.py",
    "tests/engines/redis/test_storms.py",
    "tests/campaign/test_failovers.py",
    "tests/engines/redis/test_queues_in_groups.py",
    "tests/engines/redis/test_registry_fleet.py",
    "tests/queues/test_queue_faults.py",
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """A stable sort: within a file, and behind the long ones, nothing changes."""
    places = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(LONG)))
