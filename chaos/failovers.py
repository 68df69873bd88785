"""Faults of groups of servers: the server of the name fails, and another replaces it.

As in `injectors`, a generator breaks, waits and heals. The known limit `failover` covers what is not promised while
servers are replaced, and only where the history has the fault.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.workload import NAME
from tests.support.group_places import GroupPlace
from tests.support.groups import quietly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from chaos.runner import RoundRunner
    from chaos.schedule import Fault
    from holdfast.testing.servers import Server
    from tests.support.groups import Group

    Injector = Callable[[RoundRunner, str, Fault], Iterator[float]]

_LOOK_S = 0.2


def _strike(kind: str, hit: Callable[[Group, Server], None]) -> Injector:
    def strike(runner: RoundRunner, _label: str, fault: Fault) -> Iterator[float]:
        assert isinstance(runner.place, GroupPlace)
        group = runner.place.group
        server = quietly(lambda: group.server_of(NAME))()
        if server is None:
            return  # the servers have not agreed on their roles yet
        with runner.faults.window(kind):
            try:
                hit(group, server)
                yield fault.lasts_s
            finally:
                group.revive()
            while not group.whole():
                yield _LOOK_S

    return strike


INJECTORS: dict[str, Injector] = {
    "primary killed": _strike("primary killed", lambda _group, server: server.kill()),
    "primary frozen": _strike("primary frozen", lambda _group, server: server.freeze()),
    "failover": _strike("failover", lambda group, server: quietly(lambda: group.begin_failover(server))() and None),
}
