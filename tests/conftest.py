"""The order of test files among several processes, and where the children of tests find `tests.support`.

A file that takes long as a whole begins first: begun last, it would keep one process busy while the others have nothing
left to do. The rest stays in random order, so that tests that wait and tests that compute run side by side.
"""

import os
from pathlib import Path

import pytest

ROOT = str(Path(__file__).resolve().parents[1])
if ROOT not in os.environ.get("PYTHONPATH", "").split(os.pathsep):  # programs that tests start import tests.support too
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))

LONG = (
    "tests/campaign/test_kill_table.py",
    "tests/cli/test_run_faults.py",
    "tests/bench/test_suite.py",
    "tests/engines/redis/test_failover.py",
    "tests/docs/test_docs.py",
    "tests/campaign/test_short_campaign.py",
    "tests/engines/redis/test_storms.py",
    "tests/campaign/test_failovers.py",
    "tests/engines/redis/test_queues_in_groups.py",
    "tests/engines/redis/test_registry_fleet.py",
    "tests/queue/test_queue_faults.py",
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Sort the long files to the front; the sort is stable, so that nothing else changes."""
    order = {name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: order.get(item.nodeid.partition("::")[0], len(LONG)))
