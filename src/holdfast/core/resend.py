"""Questions that are settled at once: those of no lease, and those of a lease for which nobody stands in line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.clock import NS_PER_MS
from holdfast.commands import Granted
from holdfast.core.keeper.keeper import WIRE_NS
from holdfast.core.lease import acquire as lifecycle
from holdfast.core.lease.confirm import confirmed
from holdfast.errors import ReplyLost, Unavailable

if TYPE_CHECKING:
    from holdfast.commands import Answer, Command
    from holdfast.core.client import Client
    from holdfast.core.lease.lease import LeaseBase

_RETRY_NS = 50 * NS_PER_MS


async def ask_again(client: Client, command: Command) -> Answer:
    """Ask until it is answered, for the wire timeout at most, if the first answer was lost.

    The command carries its token, so that a second copy changes nothing. An engine that was never reached is told at
    once.
    """
    until_ns, reached = client.clock.now_ns() + WIRE_NS, False
    while True:
        try:
            return await client.send(command)
        except Unavailable as error:
            reached = reached or isinstance(error.__cause__, ReplyLost)
            if not reached or client.clock.now_ns() >= until_ns:
                raise
            await client.transport.waker().wait(client.clock.now_ns() + _RETRY_NS)


async def ask_confirmed(client: Client, command: Command) -> Answer:
    """The same, but it counts only once every replica that is known has heard of it.

    `Unavailable` with the reason `not confirmed` if one has not: then it may have been done all the same.
    """
    return await confirmed(client, command, client.clock.now_ns() + WIRE_NS)


async def decision(lease: LeaseBase, began_ns: int, until_ns: int = 0) -> Answer:
    """One decision, for those who do not stand in line: what the engine says, and nobody else is waited for.

    `Granted` means that the lease is the caller's. A grant that comes too late is asked for again. Whoever has patience
    waits so long for an engine that is in trouble or was replaced.
    """
    give_up_ns = until_ns if until_ns > began_ns else began_ns + WIRE_NS
    while True:
        answer = await lifecycle._send(lease, began_ns, give_up_ns)
        if not isinstance(answer, Granted) or lifecycle._is_granted(lease, answer, give_up_ns):
            return answer
        await lifecycle._wait_out(lease, answer, began_ns, max(began_ns, until_ns))
