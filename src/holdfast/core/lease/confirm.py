"""Confirmation by replicas: asked for again, with the same token, if its answer was lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.clock import NS_PER_MS
from holdfast.errors import Closed, ReplyLost, Unavailable

if TYPE_CHECKING:
    from holdfast.commands import Answer, Command
    from holdfast.core.client import Client

_RETRY_NS = 50 * NS_PER_MS


async def confirmed(client: Client, command: Command, until_ns: int) -> Answer:
    """The answer, which counts because every replica that is known has heard of it by then.

    `Unavailable` with the reason `not confirmed` if one has not: then it may have been done all the same.
    """
    while True:
        if client.closed:
            raise Closed
        (answer,) = await client.transport.confirm((command,), until_ns)
        if not isinstance(answer, Unavailable):
            return answer
        now_ns = client.clock.now_ns()
        if not isinstance(answer, ReplyLost) or now_ns + _RETRY_NS >= until_ns:
            raise Unavailable(answer.engine, answer.reason, answer.detail) from answer
        await client.transport.waker().wait(now_ns + _RETRY_NS)
