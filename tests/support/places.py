"""Places where leases live, for tests: an engine with everything about it that can be broken.

The rule: each worker has a way of its own to the engine, so that one worker's link, or one worker's clock, can be
broken alone. What a place has started is gone when it is closed.

    with open_place("redis", folder) as place:
        hf = holdfast.connect(place.url("w0"))
        place.link("w0").cut()
"""

from __future__ import annotations

import fcntl
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Self

from holdfast.testing import servers
from tests.support import wallclock
from tests.support.proxy import Proxy
from tests.support.wallclock import WallClock

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

ENGINES = ("memory", "sqlite", "file", "redis", "sentinel", "cluster")
WITHOUT_SERVER = frozenset({"memory", "sqlite", "file"})
SERVER = "server"

_numbers = itertools.count(1)


class Place:
    """What all places share: a folder, and a clock for each worker where there is a compiler."""

    engine = ""
    one_process = False

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._clocks: dict[str, WallClock] = {}

    def url(self, worker: str = "") -> str:
        """What this worker connects to."""
        raise NotImplementedError

    def env(self, worker: str) -> dict[str, str]:
        """What this worker's process needs in its environment, so that its clock can be turned."""
        return self.clock(worker).env if wallclock.available() else {}

    def clock(self, whose: str) -> WallClock:
        """The wall clock of one worker, or of the `SERVER`."""
        if whose not in self._clocks:
            self._clocks[whose] = WallClock(self.folder / "clocks", whose)
        return self._clocks[whose]

    def is_held_up_by(self, pid: int) -> bool:
        """Whether nobody gets anything from this engine while that process stands still."""
        return False

    def left(self) -> list[str]:
        """What is in the engine that should not be, once all its clients have closed."""
        return []

    def close(self) -> None:
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class MemoryPlace(Place):
    """Leases of one process: all its workers are threads or tasks."""

    engine = "memory"
    one_process = True

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        super().__init__(folder)
        self._name = f"place-{next(_numbers)}"

    def url(self, worker: str = "") -> str:
        return f"memory://{self._name}"


class SqlitePlace(Place):
    """Leases in a file of the folder."""

    engine = "sqlite"

    def url(self, worker: str = "") -> str:
        return f"sqlite://{self.folder.absolute()}/leases.db"

    def is_held_up_by(self, pid: int) -> bool:
        """It is inside the gate; the kernel's table of locks tells, without a descriptor of ours on that file."""
        gate = self.folder / "leases.db.gate"
        if not gate.exists():
            return False
        inode = gate.stat().st_ino
        return any(
            fields[1] != "->" and int(fields[4]) == pid and int(fields[5].rpartition(":")[2]) == inode
            for fields in (line.split() for line in Path("/proc/locks").read_text().splitlines())
        )


class FilePlace(Place):
    """Leases in the folder itself."""

    engine = "file"

    def url(self, worker: str = "") -> str:
        return f"file://{self.folder.absolute()}"

    def left(self) -> list[str]:
        clients = self.folder / ".holdfast" / "clients"
        return [f"the client {path.name}" for path in clients.glob("*") if not is_left_by_the_dead(path)]


def is_left_by_the_dead(client: Path) -> bool:
    """What a killed client left proves its death for a while; only what is still somebody's is too much."""
    try:
        with client.with_suffix("").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


class RedisPlace(Place):
    """Leases on a server of its own that keeps its data; every worker comes through a proxy of its own."""

    engine = "redis"

    def __init__(self, folder: str | os.PathLike[str], kind: str | None = None) -> None:
        """Without a `kind`, on the first one that this machine has."""
        super().__init__(folder)
        self._links: dict[str, Proxy] = {}
        kind = kind or next(iter(servers.available()), "valkey")
        env = self.env(SERVER)
        # A program under a clock of its own may not read the time past it.
        self.server = servers.Server(kind, appendonly=True, env=env).start()

    def url(self, worker: str = "") -> str:
        return self.link(worker).url

    def link(self, worker: str) -> Proxy:
        """The way of one worker to the server."""
        if worker not in self._links:
            self._links[worker] = Proxy("127.0.0.1", self.server.port)
        return self._links[worker]

    @property
    def links(self) -> list[Proxy]:
        return list(self._links.values())

    def left(self) -> list[str]:
        endless = [key for key in self.server.command("KEYS", "*") if self.server.command("PTTL", key) == -1]
        found = [f"the key {key.decode(errors='replace')!r} without an end" for key in endless]
        channels = self.server.command("PUBSUB", "CHANNELS")
        if channels:
            found.append(f"{len(channels)} subscriptions")
        return found

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        self.server.close()


def not_here(engines: Iterable[str]) -> list[str]:
    """Those of these engines that need a server, on a machine that has none."""
    return [] if servers.available() else [engine for engine in engines if engine not in WITHOUT_SERVER]


def open_place(engine: str, folder: str | os.PathLike[str]) -> Place:
    """A new place of this engine; `FileNotFoundError` if it needs a server that is not here."""
    places = {"memory": MemoryPlace, "sqlite": SqlitePlace, "file": FilePlace, "redis": RedisPlace}
    if engine in ("sentinel", "cluster"):
        from tests.support.group_places import GroupPlace

        return GroupPlace(engine, folder)
    if engine not in places:
        raise ValueError(f"there is no place for {engine!r}; there are {', '.join(ENGINES)}")
    place: Place = places[engine](folder)
    return place
