"""Questions of no lease that may safely be asked twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.clock import NS_PER_MS
from holdfast.core.keeper import WIRE_NS
from holdfast.errors import ReplyLost, Unavailable

if TYPE_CHECKING:
    from holdfast.commands import Answer, Command
    from holdfast.core.client import Client

_RETRY_NS = 50 * NS_PER_MS


async def ask_again(client: Client, command: Command) -> Answer:
    """Ask until it is answered, for the wire timeout at most, if the first answer was lost.

    The command carries its token, so that a second copy changes nothing. An engine that was never reached is told at
    once.
    """
    until_ns, reached = client.clock.now_ns() + WIRE_NS, False
    while True:
        try:
            return await client.ask(command)
        except Unavailable as error:
            reached = reached or isinstance(error.__cause__, ReplyLost)
            if not reached or client.clock.now_ns() >= until_ns:
                raise
            await client.form.bell().wait(client.clock.now_ns() + _RETRY_NS)
