"""A coroutine handler that raises `SystemExit`: asyncio ends the event loop, and Holdfast loses no message."""

import asyncio

import pytest

import holdfast
from holdfast import aio


def test_a_coroutine_handler_that_exits_ends_the_loop_and_its_message_is_delivered_again(url):
    """asyncio passes an interruption of any task to the caller of the loop; the worker gives its messages back."""
    if url.startswith("file:"):
        pytest.skip("a shared directory has no queues")

    async def main():
        client = await aio.connect(url)
        queue = client.queue("jobs", ttl=1)
        await queue.publish("x")

        async def handle(_message):
            raise SystemExit(3)

        await queue.worker(handle).run()

    with holdfast.connect(url) as other:
        with pytest.raises(SystemExit):
            asyncio.run(main())
        with other.queue("jobs", ttl=1).consumer() as consumer:
            (message,) = consumer.receive(timeout=20)
            assert message.body == "x"
            message.ack()
