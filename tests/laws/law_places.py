"""The places on which this repository runs the laws: every engine, on real servers and groups of servers.

A new engine joins with one line in `PLACES` here and one in `tests/support/places.py` (`open_place`). The servers start
when the first law needs them.
"""

import itertools
import os
import threading
from dataclasses import dataclass

import pytest

from holdfast.testing.conformance.fixtures import FACES
from holdfast.testing.conformance.places import Place
from holdfast.testing.servers import Server, available, missing
from tests.support.clusters import Cluster
from tests.support.sentinels import Sentinels

# The kinds of servers that the laws run on; `make matrix` names them all. A skip names each one that is not installed.
WANTED = os.environ.get("HOLDFAST_SERVERS", "valkey,redis-6.2").split(",")
SERVERS = [kind for kind in WANTED if kind in available()] or WANTED[:1]

# With `make matrix` every group of servers keeps every law; otherwise one group of each sort keeps the `large` ones.
ALL_LAWS = os.environ.get("HOLDFAST_GROUPS") == "all"
GROUPS = {
    f"{sort}-{kind}": (group, kind)
    for sort, group in (("sentinel", Sentinels), ("cluster", Cluster))
    for kind in (SERVERS if ALL_LAWS else SERVERS[:1])
}
NOWHERE = {"s": "redis+sentinel://127.0.0.1:1,127.0.0.1:2/main", "c": "redis+cluster://127.0.0.1:1,127.0.0.1:2"}
ONLY_LEASES = frozenset({"pools", "limits", "budgets", "once", "registry", "queues"})


class Servers:
    """The servers and groups of servers that the laws have started; each URL is an empty place."""

    def __init__(self):
        self._started, self._numbers = {}, itertools.count()
        self._lock = threading.Lock()

    def fresh_url(self, label):
        """Return the URL of an empty place on the server or group with this label; skip the test if it is missing."""
        group, kind = GROUPS.get(label, (None, label))
        with self._lock:
            if kind not in available():
                pytest.skip(missing(kind))
            if label not in self._started:
                started = Server(kind, arguments=("--databases", "16384")) if group is None else group(kind)
                started.start()
                self._started[label] = started
            url, number = self._started[label].url, next(self._numbers)
        return f"{url}/{number}" if group is None else f"{url}?namespace=law{number}"

    def close(self):
        """End all of them."""
        for server in self._started.values():
            server.close()


STARTED = Servers()


@dataclass(frozen=True)
class ServerPlace(Place):
    """A place on servers that the laws start."""

    def fresh_url(self, folder, unique):
        """Return the URL of an empty database, or of a fresh namespace in a group."""
        return STARTED.fresh_url(self.label)


PLACES = [
    Place("memory", "memory://{unique}", manual_clock=True, fences_grow=True),
    Place(
        "sqlite",
        "sqlite://{folder}/x.db",
        unusable=("sqlite://{folder}/taken", "sqlite://{folder}/file/x.db"),
        fences_grow=True,
    ),
    Place(
        "file",
        "file://{folder}",
        unusable=("file://{folder}/file", "file://{folder}/absent"),
        lacks=ONLY_LEASES,
        fences_grow=True,
    ),
    *(ServerPlace("redis", "", unusable=("redis://127.0.0.1:1",), label=kind, fences_grow=True) for kind in SERVERS),
    *(
        ServerPlace("redis", "", unusable=(NOWHERE[label[0]],), large=True, label=label, fences_grow=False)
        for label in GROUPS
    ),
]


def faces_of(place):
    """Return the faces of a place; without `make matrix`, the second kind of server is tested through one face only."""
    return FACES if ALL_LAWS or place.label not in SERVERS[1:] else FACES[:1]
