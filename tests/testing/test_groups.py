"""Groups of real servers start healthy, fail over, heal, and end with the process that started them."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from holdfast.testing import eventually
from holdfast.testing.servers import available, missing
from tests.support.clusters import Cluster, slot_of
from tests.support.sentinels import Sentinels

KIND = next(iter(available()), None)
pytestmark = pytest.mark.skipif(KIND is None, reason=missing())


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("group", [Sentinels, Cluster])
def test_a_dead_server_is_replaced_and_a_healed_group_is_whole(group):
    """`heal` restores the group for the next test, and nothing is left of it at the end."""
    with group(KIND) as servers:
        pids = [server.pid for server in servers.all_servers()]
        owner = servers.server_of("x")
        owner.kill()
        successor = servers.wait_replaced(owner)
        assert successor is not owner
        assert servers.server_of("x") is successor

        servers.heal()
        assert all(server.alive for server in servers.all_servers())
        assert owner.command("ROLE")[0] == b"slave"
        pids += [owner.pid]

        successor.freeze()  # it ends all the same
    eventually(lambda: not any(alive(pid) for pid in pids), what="an end of all servers")


@pytest.mark.parametrize("group", ["sentinels.Sentinels", "clusters.Cluster"])
def test_a_group_ends_with_the_process_that_started_it(group):
    """Also if that process is killed and cannot clean up."""
    module, _, name = group.partition(".")
    program = f"""
        import time
        from tests.support.{module} import {name}
        group = {name}({KIND!r}).start()
        print(*(server.pid for server in group.all_servers()), flush=True)
        time.sleep(60)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    pids = [int(pid) for pid in process.stdout.readline().split()]
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()

    assert len(pids) == 6
    eventually(lambda: not any(alive(pid) for pid in pids), 10, "an end of all servers")


def test_a_slot_is_moved_with_its_keys():
    """As redis-cli does it: mark the slot, move key by key, then announce the new node."""
    with Cluster(KIND, replicas=0) as cluster:
        owner = cluster.server_of("x")
        target = next(server for server in cluster.masters() if server is not owner)
        owner.command("SET", "{x}:1", "one")
        owner.command("SET", "{x}:2", "two")

        assert cluster.move_slot(slot_of("x"), target) == 2

        assert cluster.server_of("x") is target
        assert target.command("GET", "{x}:2") == b"two"
        assert owner.command("CLUSTER", "KEYSLOT", "{x}:1") == slot_of("x")
        cluster.wait_stable()
