"""Confirmation by replicas: a write counts once every replica of its server that this client knows has it.

WAIT covers the writes of its own connection. So the client resends the command on that connection, which is safe, and
sends WAIT behind it: a replica that has the copy has all writes before it. A replica that has gone stays known, so no
write counts without it, because no client can tell that this replica will not be the next primary. The client stores
replicas by the run of the server that the connection leads to: while another server takes its place, the replicas of
one server must not count for the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import hiredis

from holdfast.clock import NS, SYSTEM
from holdfast.engines.redis.connect import reply_error
from holdfast.engines.redis.redirects import error_code
from holdfast.engines.redis.resp import packed
from holdfast.engines.redis.routing import unknown_script
from holdfast.engines.redis.server_info import REPLICATION, Info
from holdfast.errors import Unavailable, UnavailableReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.commands import Command
    from holdfast.engines.redis.scripts import Packer
    from holdfast.engines.redis.transport_blocking import ConnectionPool

# A server ends a blocking command on its own tick, ten times a second. Its reply must arrive before the time is over.
_TICK_S = 0.15


def confirmed(
    packer: Packer, pool: ConnectionPool, commands: Sequence[Command], until_ns: int
) -> tuple[list[Any], Unavailable | None]:
    """Send the commands to one server and wait for its replicas; return the replies, and an error if a replica is late.

    `None` as the error: every known replica has the writes, also a replica that the client learned of during the call.
    """
    identity, with_text = pool.identity, False
    connection = pool.take(_left_s(until_ns))
    while True:
        left_s = _left_s(until_ns)
        wait_ms = max(1, round((left_s - min(_TICK_S, left_s / 2)) * 1000))
        wanted = len(identity.known_replicas(connection.run_id))
        sent = b"".join([packer.pack(command, with_text=with_text) for command in commands])
        sent += REPLICATION + packed("WAIT", str(wanted), str(wait_ms))
        *replies, info, confirming = connection.exchange(sent, len(commands) + 2, left_s)
        grown = identity.add_replicas(connection.run_id, Info(info).replicas())
        unknown = any(map(unknown_script, replies))
        if not grown and (with_text or not unknown):
            break
        with_text = with_text or unknown
    pool.give_back(connection)
    url = pool.node.url
    for reply in (info, confirming):
        if isinstance(reply, hiredis.ReplyError) and error_code(str(reply)) != "UNBLOCKED":
            return replies, reply_error(url, reply, packer.prefix)
    if isinstance(confirming, hiredis.ReplyError):
        cause = str(confirming)  # the server has become a replica itself
    elif wanted and confirming >= wanted:
        return replies, None
    else:
        cause = f"{confirming} of {wanted} replicas have it" if wanted else "no replica is known"
    return replies, Unavailable("redis", UnavailableReason.NOT_CONFIRMED, f"{url}: {cause}")


def _left_s(until_ns: int) -> float:
    return max(0.01, (until_ns - SYSTEM.now_ns()) / NS)
