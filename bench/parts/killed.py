"""A holder is killed with SIGKILL while another waits: how long until that one has the lock?

The ttl of each contender is chosen so that two seconds of it are left at the kill, without a renewal in between. The
contenders do this at the same time, each with its own name: they mostly sleep.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from bench.arena import Broken, Run, clock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.arena import Arena
    from bench.contenders import Contender
    from bench.scale import Scale

LEFT_S = 2.0
_ASKS_AFTER_S = 0.2


def killed(arena: Arena, scale: Scale, contenders: Sequence[Contender]) -> list[dict[str, Any]]:
    """Rows with the seconds from the kill to the grant."""
    arena.pin_server(())
    runs = [Run(contender, [], {}) for contender in contenders]
    with ThreadPoolExecutor(len(contenders)) as pool:
        for _ in range(scale.kills):
            for run, figures in zip(runs, pool.map(lambda each: _once(arena, scale, each), contenders), strict=True):
                run.rounds.extend(figures)
    return [run.row() for run in runs if len(run.rounds) == scale.kills]


def _once(arena: Arena, scale: Scale, contender: Contender) -> list[dict[str, Any]]:
    try:
        return [_take_over(arena, scale, contender)]
    except Broken as why:
        arena.note(contender, f"{why}")
        return []


def _take_over(arena: Arena, scale: Scale, contender: Contender) -> dict[str, Any]:
    name = arena.new_name()
    with arena.start(contender) as holder, arena.start(contender) as waiter:
        granted = holder.do("hold", name=name)["granted"]
        time.sleep(max(0.0, granted + _ASKS_AFTER_S - clock()))
        waiter.tell("turn", name=name)
        time.sleep(max(0.0, granted + contender.ttl - LEFT_S - clock()))
        at = clock()
        holder.kill()
        try:
            return {"take_over_s": waiter.hear(scale.kill_longest_s)["granted"] - at, "in_time": 1.0}
        except Broken as why:
            if not isinstance(why.__cause__, TimeoutError):
                raise
            return {"take_over_s": scale.kill_longest_s, "in_time": 0.0}
