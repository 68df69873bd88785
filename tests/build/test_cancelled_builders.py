"""A task that is cancelled while it builds: visible results are complete, and no running thread loses its files."""

from __future__ import annotations

import asyncio
import threading

import pytest

from holdfast import aio, failpoints
from holdfast.core.build.build_dir import BuildDir

FILES = 40


async def many(staging):
    for number in range(FILES):
        (staging / f"{number:03}").write_text("content")


@pytest.fixture
def parked():
    """Return a function that arms a failpoint: a thread waits there until the test releases it."""
    reached, go = threading.Event(), threading.Event()

    def park(point):
        failpoints.arm(point, lambda: (reached.set(), go.wait(20)))
        return reached, go

    yield park
    go.set()
    failpoints.disarm_all()


@pytest.mark.parametrize("ends", ["cancelled", "loop closed"])
@pytest.mark.parametrize("step", ["build.before-record", "build.before-publish"])
def test_a_task_cancelled_while_it_publishes_waits_for_the_end(parked, store, tmp_path, step, ends):
    """Python cannot cancel a thread; removing files beside it would publish an incomplete tree."""
    reached, go = parked(step)
    (tmp_path / "leases").mkdir()

    async def main():
        client = await aio.connect(f"file://{tmp_path}/leases")
        task = asyncio.create_task(client.build_once(store, "k", many))
        await asyncio.to_thread(reached.wait, 20)
        asyncio.get_running_loop().call_later(0.3, go.set)
        if ends == "loop closed":
            return
        task.cancel()
        await asyncio.sleep(0.1)
        assert not task.done(), "it left while a thread was publishing for it"
        with pytest.raises(asyncio.CancelledError):
            await task
        await (await client.lock(await lease_name(client, store)).acquire(timeout=0)).release()
        await client.close(timeout=0)

    asyncio.run(main())

    found = BuildDir(store, "k", relocatable=True).find()
    assert found is not None
    assert len([path for path in found.path.iterdir() if path.name[0] != "."]) == FILES
    assert list((store / ".holdfast-staging").iterdir()) == []


async def lease_name(client, store):
    return f"build/{(await client.domain(store)).id}/k"


def test_a_task_cancelled_while_its_staging_is_created_leaves_none(parked, store, tmp_path):
    """The staging directory exists when the task is cancelled, and is removed with it."""
    reached, go = parked("build.staged")
    (tmp_path / "leases").mkdir()

    async def main():
        async with await aio.connect(f"file://{tmp_path}/leases") as client:
            task = asyncio.create_task(client.build_once(store, "k", many))
            await asyncio.to_thread(reached.wait, 20)
            task.cancel()
            go.set()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())

    assert list((store / ".holdfast-staging").iterdir()) == []
    assert not (store / "k").exists()
