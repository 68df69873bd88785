"""The primary is killed, frozen and cut off, on real groups of servers in a network that can be cut.

Each story is a process of its own, in a network of its own: see `storm` and `split`. Without such networks (a kernel
without user name spaces, no `ip`) servers are killed and frozen on loopback, and what needs a cut is skipped.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.testing.servers import available, missing
from tests.support import networks

HERE = Path(__file__).parent
ALL = os.environ.get("HOLDFAST_GROUPS") == "all"
KIND = next(iter(available()), None)
pytestmark = pytest.mark.skipif(KIND is None, reason=missing())

# `make matrix` has all of it; else one fault on each group, and fewer who hold and wait.
FAULTS = ["kill", "freeze", "partition"] if ALL else ["partition"]
LEASES, WAITERS = (1000, 50) if ALL else (200, 20)
VARIANTS = ["plain", "min-replicas", "confirm"] if ALL else ["plain"]
SPLIT_S = 7 if ALL else 5


@pytest.fixture(scope="module")
def no_network():
    """Return why this machine cannot cut a network; empty if it can."""
    return networks.missing()


def told(command, **env):
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=115, env=os.environ | env)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.parametrize("sort", ["sentinel", "cluster"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_storm_of_failovers_costs_no_lease_and_serves_every_waiter(sort, fault, no_network):
    """All leases were replicated: none is lost, none is granted twice, and nothing is left at the end."""
    if no_network and fault == "partition":
        pytest.skip(f"nothing can be cut here: {no_network}")
    story = [sys.executable, str(HERE / "storm.py"), sort, KIND, fault, str(LEASES), str(WAITERS)]

    seen = told(story, STORM_NETWORK="none") if no_network else told(networks.inside(*story))

    assert (seen["lost"], seen["intrusions"], seen["wrong fences"]) == (0, 0, 0)
    assert seen["served"] == WAITERS
    assert seen["refusals"] > 100, "nobody has tried to get in"


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_split_repeats_no_fence_and_overlaps_only_where_the_promise_says_so(variant, no_network, tmp_path):
    """Both sides grant for seconds. The textbook lock repeats its fences; a guard accepts none of ours from two tokens.

    Overlaps are excepted by the promise that both sides have printed before; where every grant is confirmed there are
    none. What has no cause in the split raises in the story itself.
    """
    if no_network:
        pytest.skip(f"nothing can be cut here: {no_network}")
    story = [sys.executable, str(HERE / "split.py"), variant, KIND, str(SPLIT_S), str(tmp_path)]

    seen = told(networks.inside(*story))

    assert seen["promises"] == [["survives client faults", False]] * 2
    assert seen["said so"]
    assert seen["grants"] > 100
    if variant == "plain":
        assert seen["repeated by the textbook"] > 10, "the textbook lock must show what is being avoided"
        assert seen["repeated by us"] * 20 < seen["repeated by the textbook"]
        assert seen["overlaps"] > 0, "without an overlap there was no split"
    if variant == "confirm":
        assert seen["overlaps"] == 0
