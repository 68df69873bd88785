"""Faults of groups of servers: the one that answers for the name goes, and another takes its place.

The rule is that of `affects`: a generator breaks, waits and heals. While servers are being replaced much is not
promised; what that is has one name, and counts only where the history has its cause.
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
    def strike(stage: RoundRunner, _label: str, fault: Fault) -> Iterator[float]:
        assert isinstance(stage.place, GroupPlace)
        group = stage.place.group
        server = quietly(lambda: group.server_of(NAME))()
        if server is None:
            return  # they have not settled yet
        with stage.faults.window(kind):
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
