"""Confirmation by replicas: a command counts once every replica of its server that this client knows has it.

WAIT asks for what was written on its own connection. So the command is sent again there, which is safe, and WAIT behind
it: a replica that has the copy has all that came before it. One that has gone stays known and is missed, because nobody
can tell from here that it will not be the next primary. Whose replicas they are goes by the run that the connection
leads to: while another server takes its place, what is known of the one must not count for the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import hiredis

from holdfast.clock import NS, SYSTEM
from holdfast.engines.redis.connect import refused
from holdfast.engines.redis.redirects import word
from holdfast.engines.redis.resp import packed
from holdfast.engines.redis.routing import unknown_script
from holdfast.engines.redis.server_info import REPLICAS, Info
from holdfast.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.commands import Command
    from holdfast.engines.redis.scripts import Packer
    from holdfast.engines.redis.transport_blocking import ConnectionPool

# A server ends a blocking command on its own tick, ten times a second. Its answer must come before the time is over.
_TICK_S = 0.15


def confirmed(
    packer: Packer, links: ConnectionPool, commands: Sequence[Command], until_ns: int
) -> tuple[list[Any], Unavailable | None]:
    """The replies of one server, and why they do not count unless all its known replicas have heard by then.

    A replica that is met only now is waited for as well.
    """
    sight, whole = links.sight, False
    link = links.take(_left_s(until_ns))
    while True:
        left_s = _left_s(until_ns)
        wait_ms = max(1, round((left_s - min(_TICK_S, left_s / 2)) * 1000))
        wanted = len(sight.known(link.run_id))
        sent = b"".join([packer.pack(command, whole=whole) for command in commands])
        sent += REPLICAS + packed("WAIT", str(wanted), str(wait_ms))
        *replies, info, heard = link.exchange(sent, len(commands) + 2, left_s)
        grown = sight.listed(link.run_id, Info(info).replicas())
        unknown = any(map(unknown_script, replies))
        if not grown and (whole or not unknown):
            break
        whole = whole or unknown
    links.give_back(link)
    url = links.node.url
    for reply in (info, heard):
        if isinstance(reply, hiredis.ReplyError) and word(str(reply)) != "UNBLOCKED":
            return replies, refused(url, reply, packer.prefix)
    if isinstance(heard, hiredis.ReplyError):
        why = str(heard)  # it has become a replica itself
    elif wanted and heard >= wanted:
        return replies, None
    else:
        why = f"{heard} of {wanted} replicas have it" if wanted else "no replica is known"
    return replies, Unavailable("redis", "not confirmed", f"{url}: {why}")


def _left_s(until_ns: int) -> float:
    return max(0.01, (until_ns - SYSTEM.now_ns()) / NS)
