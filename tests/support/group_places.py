"""Places on groups of servers, for tests: a primary behind sentinels, and a cluster.

Every worker discovers the servers itself, as a program would; so there is no link of a single worker that a test could
break.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.engines.redis.keys import PREFIX
from holdfast.testing import servers
from tests.support.clusters import Cluster
from tests.support.places import Place
from tests.support.sentinels import Sentinels

if TYPE_CHECKING:
    import os

    from tests.support.groups import Group

GROUPS: dict[str, type[Sentinels | Cluster]] = {"sentinel": Sentinels, "cluster": Cluster}


class GroupPlace(Place):
    """Leases on a new group of servers, which loses its data if all of them restart."""

    def __init__(self, engine: str, folder: str | os.PathLike[str]) -> None:
        super().__init__(folder)
        self.engine = engine
        kind = next(iter(servers.available()), "valkey")
        self.group: Group = GROUPS[engine](kind).__enter__()

    def url(self, worker: str = "") -> str:
        return self.group.url

    def left(self) -> list[str]:
        found = []
        for server in self.group.servers:
            if server.command("ROLE")[0] == b"master":
                endless = [key for key in server.command("KEYS", "*") if server.command("PTTL", key) == -1]
                found += [f"the key {key.decode(errors='replace')!r} without an end" for key in endless]
            channels = server.command("PUBSUB", "CHANNELS", f"{PREFIX}:*")
            if channels:
                found.append(f"{len(channels)} subscriptions")
        return found

    def close(self) -> None:
        self.group.close()
