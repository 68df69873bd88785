"""gevent and trio: a clear error at `connect`, before any I/O, instead of a call that never returns."""

import subprocess
import sys

import pytest
import trio

from holdfast import InvalidConfig, aio

CHILD = """
import sys
from gevent import monkey
monkey.patch_all(**{options})
import asyncio
import holdfast
from holdfast import aio
for connect in (holdfast.connect, lambda url: asyncio.run(aio.connect(url))):
    try:
        connect(sys.argv[1])
    except holdfast.InvalidConfig as error:
        print("refused", error)
"""


@pytest.mark.finding("L14")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("options", [{}, {"thread": False}, {"select": False, "socket": False}], ids=str)
@pytest.mark.parametrize("url", ["sqlite://{}/x.db", "file://{}", "memory://", "redis://127.0.0.1:1"])
def test_a_process_that_gevent_patched_is_refused(tmp_path, options, url):
    """`close(timeout=3)` never returned once a greenlet had waited; the keeper was a greenlet too."""
    child = [sys.executable, "-c", CHILD.replace("{options}", repr(options)), url.format(tmp_path)]
    done = subprocess.run(child, capture_output=True, text=True, timeout=50, check=False)

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("refused gevent.monkey=") and "real threads" in line for line in lines)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.finding("L14")
@pytest.mark.timeout(60)
def test_a_process_that_only_imports_gevent_is_not_refused(tmp_path):
    """Without the patch, threads are threads: a client waits, and closes within its timeout."""
    code = """
import sys, gevent, gevent.monkey
import holdfast
with holdfast.connect(sys.argv[1]) as client, holdfast.connect(sys.argv[1]) as other:
    with client.lock("x"):
        try:
            other.lock("x").acquire(timeout=0.2)
        except holdfast.NotAcquired:
            print("refused")
print("closed")
"""
    child = [sys.executable, "-c", code, f"sqlite://{tmp_path}/x.db"]
    done = subprocess.run(child, capture_output=True, text=True, timeout=50, check=False)

    assert done.stdout.split() == ["refused", "closed"], done.stderr


@pytest.mark.finding("L17")
@pytest.mark.parametrize("url", ["sqlite://{}/x.db", "file://{}", "memory://", "redis://127.0.0.1:1"])
def test_trio_gets_an_error_that_names_asyncio(tmp_path, url):
    """A bare "no running event loop" does not say what to do."""

    async def main():
        await aio.connect(url.format(tmp_path))

    with pytest.raises(InvalidConfig, match="needs asyncio"):
        trio.run(main)
    assert list(tmp_path.iterdir()) == []
