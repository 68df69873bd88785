"""Confirmation by replicas: a command counts once every replica that this client knows has it.

WAIT asks for what was written on its own connection. So the command is sent again there, which is safe, and WAIT behind
it: a replica that has the copy has all that came before it. One that has gone stays known and is missed, because nobody
can tell from here that it will not be the next primary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import hiredis

from holdfast.clock import NS, SYSTEM
from holdfast.commands import Granted, Renewed
from holdfast.engines.redis.blocking import answers, unknown_script
from holdfast.engines.redis.dial import refused
from holdfast.engines.redis.facts import REPLICAS, Info
from holdfast.engines.redis.scripts import packed
from holdfast.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.commands import Command
    from holdfast.engines import Reply
    from holdfast.engines.redis.engine import RedisEngine
    from holdfast.engines.redis.link import Link

# A server ends a blocking command on its own tick, ten times a second. Its answer must come before the time is over.
_TICK_S = 0.15


def confirm(engine: RedisEngine, link: Link, commands: Sequence[Command], until_ns: int) -> list[Reply]:
    """The answers, if every known replica has heard by then; else, in their place, why they do not count.

    A replica that is met only now is waited for as well.
    """
    whole = False
    while True:
        left_s = max(0.01, (until_ns - SYSTEM.now_ns()) / NS)
        wait_ms = max(1, round((left_s - min(_TICK_S, left_s / 2)) * 1000))
        wanted = len(engine.witness.known)
        sent = b"".join([engine.packer.pack(command, whole=whole) for command in commands])
        sent += REPLICAS + packed("WAIT", str(wanted), str(wait_ms))
        *replies, info, heard = link.exchange(sent, len(commands) + 2, left_s)
        for reply in (info, heard):
            if isinstance(reply, hiredis.ReplyError):
                return [refused(engine.dialler.url, reply)] * len(commands)
        grown = engine.witness.listed(Info(info).replicas())
        unknown = any(map(unknown_script, replies))
        if not grown and (whole or not unknown):
            break
        whole = whole or unknown
    told = answers(engine.dialler.url, commands, replies)
    if wanted and heard >= wanted:
        return told
    why = f"{heard} of {wanted} replicas have it" if wanted else "no replica is known"
    short = Unavailable("redis", "not confirmed", f"{engine.dialler.url}: {why}")
    return [short if isinstance(answer, Granted | Renewed) else answer for answer in told]
