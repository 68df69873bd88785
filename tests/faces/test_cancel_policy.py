"""A loss cancels the task that works under the lease, and no other task."""

from __future__ import annotations

import asyncio
import time

import pytest

import holdfast
from holdfast import aio
from holdfast.core.lease.state import HELD
from holdfast.errors import InvalidConfig, LeaseLost


async def broken_while(url, work, **options):
    """Run `work(lease)` in a block, break its lease from outside, and return the error that the block ended in."""
    async with await aio.connect(url) as client, await aio.connect(url) as other:
        entered = asyncio.Event()

        async def program():
            async with client.lock("x", ttl=0.6, **options) as lease:
                entered.set()
                await work(lease)

        task = asyncio.create_task(program())
        await entered.wait()
        await other.break_lease("x", "the test says so")
        try:
            async with asyncio.timeout(5):
                await task
        except BaseException as error:
            return error, task
        return None, task


@pytest.mark.acceptance("A0-8", "C-3")
def test_a_loss_cancels_the_work_and_the_block_raises_lease_lost(url):
    """Work that is no longer protected stops at its next await; the caller sees a loss and no cancellation."""
    stopped = []

    async def work(_lease):
        try:
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            stopped.append("in the middle")
            raise

    error, task = asyncio.run(broken_while(url, work, on_loss="cancel"))

    assert isinstance(error, LeaseLost)
    assert (error.reason, error.detail) == ("broken", "the test says so")
    assert stopped == ["in the middle"]
    assert not task.cancelled()
    assert task.cancelling() == 0


def test_the_work_may_clean_up_before_the_loss_is_raised(url):
    """Cleaning up takes awaits too: the block waits for them."""
    settled = []

    async def work(_lease):
        try:
            await asyncio.sleep(20)
        finally:
            await asyncio.sleep(0.05)
            settled.append("settled")

    error, _ = asyncio.run(broken_while(url, work, on_loss="cancel"))

    assert isinstance(error, LeaseLost)
    assert settled == ["settled"]


@pytest.mark.acceptance("A0-9")
def test_an_error_of_the_work_is_the_cause_of_the_loss(url):
    """Both happened; neither may hide the other."""

    async def work(lease):
        await lease.lost.wait(timeout=5)
        raise KeyError("the work's own")

    error, _ = asyncio.run(broken_while(url, work))

    assert isinstance(error, LeaseLost)
    assert isinstance(error.__cause__, KeyError)


def test_without_the_policy_a_loss_cancels_nothing(url):
    """Stopping is the work's own decision unless the program asked for more."""
    seen = []

    async def work(lease):
        seen.append(await lease.lost.wait(timeout=5))
        await asyncio.sleep(0.05)
        seen.append("went on")

    error, _ = asyncio.run(broken_while(url, work))

    assert isinstance(error, LeaseLost)
    assert seen == [True, "went on"]


def test_a_cancellation_from_outside_stays_one(url):
    """The code that cancelled the task waits for `CancelledError`; a lost lease must not swallow it."""

    async def program():
        async with await aio.connect(url) as client:
            entered = asyncio.Event()

            async def work():
                async with client.lock("x", on_loss="cancel"):
                    entered.set()
                    await asyncio.sleep(20)

            task = asyncio.create_task(work())
            await entered.wait()
            task.cancel("from outside")
            with pytest.raises(asyncio.CancelledError, match="from outside"):
                await task
            assert task.cancelled()
            await (await client.lock("x").acquire(timeout=1)).release()

    asyncio.run(program())


def test_a_cancellation_from_outside_outweighs_a_loss_at_the_same_time(url):
    """Both cancel the task; the one from outside counts, with a note about the loss."""

    async def program():
        async with await aio.connect(url) as client, await aio.connect(url) as other:
            entered = asyncio.Event()

            async def work():
                async with client.lock("x", ttl=0.6, on_loss="cancel"):
                    entered.set()
                    try:
                        await asyncio.sleep(20)
                    except asyncio.CancelledError:
                        asyncio.current_task().cancel("from outside")
                        raise

            task = asyncio.create_task(work())
            await entered.wait()
            await other.break_lease("x", "the test says so")
            with pytest.raises(asyncio.CancelledError) as caught:
                await task
            assert task.cancelled()
            assert any("was lost (broken)" in note for note in caught.value.__notes__)

    asyncio.run(program())


def test_a_loss_after_the_block_cancels_no_task(url):
    """The task has gone on to other work, which does not depend on the lease."""

    async def program():
        async with await aio.connect(url) as client:
            async with client.lock("x", on_loss="cancel") as lease:
                pass
            lease.state = HELD
            lease.lose("expired")
            await asyncio.sleep(0.05)
            return asyncio.current_task().cancelling()

    assert asyncio.run(program()) == 0


def test_a_timeout_around_the_block_is_still_a_timeout(url):
    """`asyncio.timeout` counts cancellations, and so must the lease: otherwise one takes the other's for its own."""

    async def program():
        async with await aio.connect(url) as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05), client.lock("x", on_loss="cancel"):
                    await asyncio.sleep(20)
            return asyncio.current_task().cancelling()

    assert asyncio.run(program()) == 0


def test_the_blocking_face_refuses_to_cancel(tmp_path):
    """A thread cannot be cancelled, so accepting the policy would promise too much."""
    with holdfast.connect("memory://policy") as client:
        with pytest.raises(InvalidConfig, match=r"only asyncio can cancel a task: .* or pass a function"):
            client.lock("x", on_loss="cancel")
        with pytest.raises(InvalidConfig, match=r"only asyncio can cancel a task: .* or pass a function"):
            client.leader("x", on_loss="cancel")


@pytest.mark.acceptance("A0-7", "G-4")
def test_a_blocked_event_loop_loses_no_lease(url):
    """The keeper is a thread: a forgotten `time.sleep` in the loop costs time, not the lease."""

    async def program():
        async with await aio.connect(url) as client, await aio.connect(url) as other:
            async with client.lock("x", ttl=0.5, on_loss="cancel") as lease:
                time.sleep(1.2)  # noqa: ASYNC251 - the very mistake
                lease.check()
                assert await other.lock("x").try_acquire() is None
                await asyncio.sleep(0)
            return "kept"

    assert asyncio.run(program()) == "kept"
