"""Functions that run under a lease: each face refuses what only the other one can run, before anything is done."""

import asyncio
import functools
import uuid

import pytest

import holdfast
from holdfast import InvalidConfig, aio

DONE = []


def plainly(*_):
    DONE.append("plainly")


async def awaited(*_):
    DONE.append("awaited")
    return "given"


def one_by_one(*_):
    DONE.append("one by one")
    yield


async def one_by_one_awaited(*_):
    DONE.append("one by one")
    yield


class Plain:
    def method(self, *_):
        DONE.append("plainly")

    def __call__(self, *_):
        return "not to be awaited"


@pytest.fixture(autouse=True)
def nothing_done():
    DONE.clear()


def on_aio(deed):
    async def with_client():
        async with await aio.connect(f"memory://{uuid.uuid4().hex}") as client:
            return await deed(client)

    return asyncio.run(with_client())


@pytest.mark.parametrize(
    "work",
    [plainly, functools.partial(plainly, 1), Plain().method, one_by_one, one_by_one_awaited],
    ids=["def", "partial", "method", "generator", "asynchronous generator"],
)
def test_the_asyncio_face_refuses_a_plain_function_before_it_runs(work):
    """Otherwise it would do its work, fail because there is nothing to await, and do it again at the next attempt."""

    async def deed(client):
        with pytest.raises(InvalidConfig):
            await client.once("payments").call("42", work)
        with pytest.raises(InvalidConfig):
            await client.leader("boss").run(work)
        assert not await client.once("payments").seen("42")

    on_aio(deed)
    assert DONE == []


@pytest.mark.parametrize("work", [lambda *_: 7, Plain()], ids=["lambda", "object"])
def test_a_call_that_returns_no_awaitable_is_no_success(work):
    """The result is known only after the call; then the caller gets an error, and no success is stored."""

    async def deed(client):
        with pytest.raises(InvalidConfig, match="cannot be awaited"):
            await client.once("payments").call("42", work)
        with pytest.raises(InvalidConfig, match="cannot be awaited"):
            await client.leader("boss").run(work)
        assert not await client.once("payments").seen("42")
        assert await client.leader("boss").current() is None

    on_aio(deed)


@pytest.mark.parametrize(
    "work",
    [awaited, functools.partial(awaited, 1), lambda *_: awaited(), lambda *_: asyncio.ensure_future(awaited())],
    ids=["async def", "partial", "lambda", "future"],
)
def test_the_asyncio_face_runs_everything_that_returns_an_awaitable(work):
    """It needs an awaitable, not a certain kind of function."""

    async def deed(client):
        assert await client.once("payments").call("42", work) == "given"
        assert await client.leader("boss").run(work) == "given"

    on_aio(deed)
    assert DONE == ["awaited", "awaited"]


@pytest.mark.parametrize("work", [awaited, functools.partial(awaited, 1), one_by_one, one_by_one_awaited])
def test_the_blocking_face_refuses_coroutines_and_generators(work):
    """A leader would lead, do nothing, and return something that runs without the lease."""
    with holdfast.connect(f"memory://{uuid.uuid4().hex}") as client:
        with pytest.raises(InvalidConfig):
            client.once("payments").call("42", work)
        with pytest.raises(InvalidConfig):
            client.leader("boss").run(work)
        assert not client.once("payments").seen("42")
        assert client.leader("boss").run(lambda _: 7) == 7
    assert DONE == []
