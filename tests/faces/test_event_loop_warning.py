"""A blocking call inside a running event loop warns once per client, and names the asyncio call to use."""

import asyncio
import warnings

import pytest

import holdfast


@pytest.fixture(params=["sqlite", "file"])
def client(request, tmp_path):
    """Return a blocking client of an engine that does I/O."""
    path = tmp_path / "x.db" if request.param == "sqlite" else tmp_path
    with holdfast.connect(f"{request.param}://{path}") as hf:
        yield hf


def test_the_first_blocking_call_in_a_loop_warns_with_the_line_of_the_caller(client):
    """One warning per client: the same mistake is usually repeated at once."""

    async def main():
        with client.lock("x"):
            client.show("x")
        with client.lock("x"):
            pass

    with client.lock("x"), warnings.catch_warnings(record=True) as before:
        warnings.simplefilter("always")
    with pytest.warns(RuntimeWarning, match=r"await holdfast\.aio\.connect") as seen:
        asyncio.run(main())
    assert before == []
    assert [warning.filename for warning in seen] == [__file__]


def test_a_thread_beside_the_loop_may_block(client):
    """`asyncio.to_thread` is the right way to use a blocking client."""

    def work():
        with client.lock("x") as lease:
            return lease.fence

    async def main():
        return await asyncio.to_thread(work)

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert asyncio.run(main()) > 0
    assert seen == []
