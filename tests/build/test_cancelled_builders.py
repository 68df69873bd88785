"""A task that is cancelled while it builds: what is to be seen is whole, and nothing is cleared away under a thread."""

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
    """Arm a point: the thread that comes there waits until it is let go."""
    reached, go = threading.Event(), threading.Event()

    def park(point):
        failpoints.arm(point, lambda: (reached.set(), go.wait(20)))
        return reached, go

    yield park
    go.set()
    failpoints.disarm_all()


@pytest.mark.parametrize("ends", ["cancelled", "loop closed"])
@pytest.mark.parametrize("step", ["build.before-record", "build.before-publish"])
def test_a_task_cancelled_while_it_publishes_stays_until_that_is_over(parked, store, tmp_path, step, ends):
    """A thread cannot be cancelled: cleared up beside it, the tree would be published with half of it gone."""
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


def test_a_task_cancelled_while_its_place_is_made_leaves_none(parked, store, tmp_path):
    """The place is there by the time it hears of it, and goes with it."""
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
