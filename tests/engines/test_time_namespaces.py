"""Processes of two time namespaces share a boot id, but not the boot-time clock: no engine may compare their times."""

from __future__ import annotations

import json

import pytest

import holdfast
from holdfast.core.registry.registry import _is_dead, _where
from holdfast.errors import Unavailable
from holdfast.host import boot_id
from holdfast.names import Holder, this_process
from tests.support.time_namespaces import SHIFT_S, needs_time_namespaces, run_elsewhere, start_elsewhere

pytestmark = needs_time_namespaces

TRY = """
import holdfast
client = holdfast.connect({url!r})
try:
    lease = client.lock("x", ttl=30).try_acquire()
    print("held" if lease is None else lease.fence)
except holdfast.Unavailable as error:
    print(error)
{then}
"""


@pytest.mark.finding("X4")
def test_a_sqlite_file_is_used_with_one_clock_at_a_time(tmp_path):
    """The lease would look as if it had expired a day ago, and there would be two holders."""
    url = f"sqlite://{tmp_path}/hf.db"
    client = holdfast.connect(url)
    lease = client.lock("x", ttl=30).acquire()

    refused = run_elsewhere(TRY.format(url=url, then=""))

    assert "(other clock)" in refused
    assert f"with the clock {boot_id()}, and the clock here is {boot_id()}@boottime+{SHIFT_S}" in refused
    lease.check()
    lease.release()
    client.close()
    assert int(run_elsewhere(TRY.format(url=url, then="lease.release()"))) > lease.fence


@pytest.mark.finding("X4")
def test_a_process_that_kept_a_sqlite_file_open_respects_the_clock_of_the_next_one(tmp_path):
    """Its connection stays open between two clients. A killed process frees the file at once."""
    url = f"sqlite://{tmp_path}/hf.db"
    idle = holdfast.connect(url)  # it has no session yet, but keeps the connection of this process open
    with holdfast.connect(url) as client:
        client.lock("x").acquire().release()

    program = TRY.format(url=url, then="sys.stdout.flush(); sys.stdin.read()")
    with start_elsewhere(f"import sys\n{program}") as holder:
        fence = int(holder.stdout.readline())
        with pytest.raises(Unavailable) as caught:
            idle.lock("x").try_acquire()
        holder.kill()
        holder.wait()

    assert caught.value.reason == "other clock"
    assert f"process {holder.pid} " in caught.value.detail
    with idle.lock("x", timeout=0) as lease:
        assert lease.fence > fence
    idle.close()


@pytest.mark.finding("X4")
def test_a_holder_of_another_time_namespace_keeps_its_lease_in_a_directory(tmp_path):
    """Its timestamps count like those of another host: from the moment at which the waiter first sees them."""
    url = f"file://{tmp_path}"
    client = holdfast.connect(url)
    lease = client.lock("x", ttl=30).acquire()

    assert run_elsewhere(TRY.format(url=url, then="")) == "held"
    lease.check()
    lease.release()
    assert int(run_elsewhere(TRY.format(url=url, then="lease.release()"))) > lease.fence
    client.close()


@pytest.mark.finding("X4")
def test_a_registry_declares_no_owner_of_another_time_namespace_dead():
    """The start of a process is counted on that clock too: a living owner would look like a reused pid."""
    here = this_process()
    fields = {**here._asdict(), "info": {**here.info, "where": _where()}}

    dead = run_elsewhere(f"""
import json
from holdfast.core.registry.registry import _is_dead
from holdfast.names import Holder
print(_is_dead(Holder(**json.loads({json.dumps(fields)!r}))))
""")

    assert dead == "False"
    assert not _is_dead(Holder(**fields))
