"""A task may be cancelled at any step of its loop: then either it has the lease, or no task has."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import threading

import pytest

import holdfast
from holdfast import aio
from tests.support.cancelled import cancel_reserves

TTL = 30
AT_ONCE = 2.0


def left_behind(client):
    """Return what is still pending, waited for or listened to on behalf of a task that has gone."""
    inner = client._client
    return (
        not inner.keeper.idle(),
        inner.keeper._heartbeats._schedules,
        inner.transport._listener.waiter_registry._wakers,
    )


async def until(condition):
    """Let the loop turn until the condition holds."""
    while not condition():  # noqa: ASYNC110 - what is waited for happens on other threads
        await asyncio.sleep(0)


async def assert_clean(client, other, name, where):
    """Check that another client gets the name at once, and that nothing is left of the cancelled task."""
    try:
        async with asyncio.timeout(AT_ONCE + 1):
            await until(lambda: not any(left_behind(client)) and not any(left_behind(other)))
            seen = await other.show(name)
            assert (seen.holder, seen.waiters) == (None, ()), f"after a cancellation {where}: {seen}"
            lease = await other.lock(name).acquire(timeout=AT_ONCE)
            await lease.release()
    except (TimeoutError, holdfast.HoldfastError) as error:
        raise AssertionError(f"after a cancellation {where}: {error!r}, {left_behind(client)}") from error


async def after_steps(operation, steps):
    """Run the operation and cancel it after so many steps of the loop; return false if it had ended before."""
    task = asyncio.ensure_future(operation)
    for _ in range(steps):
        if task.done():
            break
        await asyncio.sleep(0)
    in_time = not task.done() and task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return in_time and task.cancelled()


async def at_every_step(url, prepare, operation, *, atleast):
    """Cancel `operation(client, name)` after 0, 1, 2, ... steps, until it gets through a few times in a row."""
    async with await aio.connect(url) as client, await aio.connect(url) as other:
        through = 0
        for steps in itertools.count():
            name = f"name {steps}"
            prepared = await prepare(client, other, name)
            cancelled = await after_steps(operation(client, name, prepared), steps)
            if prepared is not None:
                await prepared.release()
            await assert_clean(client, other, name, f"after {steps} steps")
            through = 0 if cancelled else through + 1
            if through > 3:
                break
    assert steps >= atleast


async def nothing(_client, _other, _name):
    return None


def test_a_cancelled_acquire_leaves_no_lease_behind(url):
    """The answer may arrive after the task has gone; then the keeper undoes the lease."""

    async def operation(client, name, _):
        lease = await client.lock(name, ttl=TTL).acquire()
        await lease.release()

    asyncio.run(at_every_step(url, nothing, operation, atleast=1 if url.startswith("memory") else 5))


@pytest.mark.finding("T8")
@pytest.mark.parametrize("url", ["memory", "sqlite"], indirect=True)
def test_a_cancelled_reserve_leaves_nothing_reserved(url):
    """The answer may arrive after the task has gone; then the keeper gives the amount back, long before the hold."""
    assert asyncio.run(cancel_reserves(url)) >= 1


def test_a_cancelled_waiter_leaves_the_waiting_line(url):
    """The waiters behind it must not wait for it."""

    async def held(_client, other, name):
        return await other.lock(name, ttl=TTL).acquire(timeout=AT_ONCE)

    async def operation(client, name, _):
        with contextlib.suppress(holdfast.NotAcquired):
            await client.lock(name, ttl=TTL).acquire(timeout=0.001)

    asyncio.run(at_every_step(url, held, operation, atleast=5))


def test_a_waiter_cancelled_while_the_lease_is_handed_to_it_passes_it_on(url):
    """Between the wake-up and the confirmation the lease is an offer to a task that has gone."""

    async def held(_client, other, name):
        return await other.lock(name, ttl=TTL).acquire(timeout=AT_ONCE)

    async def operation(client, name, held):
        waiter = asyncio.ensure_future(client.lock(name, ttl=TTL).acquire())
        try:
            await until(lambda: client._client.keeper._heartbeats._schedules)
            await held.release()
            await (await waiter).release()
        finally:
            if not waiter.done():
                waiter.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await (await waiter).release()
            elif not waiter.cancelled() and waiter.result().remaining():
                await waiter.result().release()

    asyncio.run(at_every_step(url, held, operation, atleast=5))


def test_a_cancelled_release_is_finished_all_the_same(url):
    """A task that is cancelled while it releases must not keep the others waiting."""

    async def held(client, _other, name):
        return await client.lock(name, ttl=TTL).acquire(timeout=AT_ONCE)

    async def operation(_client, _name, held):
        await held.release()

    asyncio.run(at_every_step(url, held, operation, atleast=1))


def test_a_block_cancelled_at_any_step_ends(url):
    """Entering, inside, leaving."""

    async def operation(client, name, _):
        async with client.lock(name, ttl=TTL, timeout=AT_ONCE):
            await asyncio.sleep(0)

    asyncio.run(at_every_step(url, nothing, operation, atleast=2))


def test_a_term_cancelled_at_any_step_ends(url):
    """The successor is looked up while the term ends; a cancellation there must not keep the leadership."""

    async def operation(client, name, _):
        leader = client.leader(name, ttl=TTL, timeout=AT_ONCE, candidate="ann")
        async with leader:
            leader._candidacy.step_down("bob")

    asyncio.run(at_every_step(url, nothing, operation, atleast=1))


def test_a_timeout_of_asyncio_ends_a_wait_as_any_cancellation_does(url):
    """People write `async with asyncio.timeout(...)` around everything."""

    async def program():
        async with await aio.connect(url) as client, await aio.connect(url) as other:
            held = await other.lock("x", ttl=TTL).acquire()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await client.lock("x", ttl=TTL).acquire()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.lock("x", ttl=TTL).acquire(), 0.02)
            await held.release()
            await assert_clean(client, other, "x", "by a timeout")

    asyncio.run(program())


@pytest.mark.acceptance("G-1", "G-10")
def test_many_random_cancellations_leave_nothing_behind(url):
    """Five hundred tasks, cancelled at random: never two inside, and at the end nothing held, in line or pending."""
    dice = random.Random(11)
    inside, most, done = dict.fromkeys("abcde", 0), 0, 0

    async def work(client, name):
        nonlocal most, done
        async with client.lock(name, ttl=TTL):
            inside[name] += 1
            most = max(most, inside[name])
            try:
                await asyncio.sleep(dice.uniform(0, 0.002))
            finally:
                inside[name] -= 1
            done += 1

    async def program():
        async with await aio.connect(url) as client, await aio.connect(url) as other:
            tasks = [asyncio.create_task(work(client, dice.choice("abcde"))) for _ in range(500)]
            for task in dice.sample(tasks, 350):
                if dice.random() < 0.5:
                    await asyncio.sleep(dice.uniform(0, 0.003))
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            for name in "abcde":
                await assert_clean(client, other, name, "in the storm")
            return results

    results = asyncio.run(program())

    assert most == 1
    assert {type(result) for result in results} == {type(None), asyncio.CancelledError}
    assert done >= 150


def test_threads_of_a_closed_client_are_gone(url):
    """The loop ends with no task left in it, and no thread goes on outside of it."""
    before = set(threading.enumerate())

    async def program():
        async with await aio.connect(url) as client:
            async with client.lock("x"):
                waiter = asyncio.create_task(client.lock("x").acquire())
                await until(lambda: client._client.keeper._heartbeats._schedules)
            await (await waiter).release()

    asyncio.run(program())

    assert set(threading.enumerate()) <= before
