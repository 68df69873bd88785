"""Places for tests: an engine at a URL, with everything about it that a test can break.

Each worker has its own link to the engine, so that a test can break the link or the clock of a single worker. Closing a
place ends everything that it started.

    with open_place("redis", folder) as place:
        hf = holdfast.connect(place.url("w0"))
        place.link("w0").cut()
"""

from __future__ import annotations

import fcntl
import itertools
from contextlib import suppress
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
    """The base of all places: a folder, and a clock for each worker where a C compiler is installed."""

    engine = ""
    one_process = False

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._clocks: dict[str, WallClock] = {}

    def url(self, worker: str = "") -> str:
        """Return the URL to which this worker connects."""
        raise NotImplementedError

    def env(self, worker: str) -> dict[str, str]:
        """Return the environment variables that let a test set the clock of this worker's process."""
        return self.clock(worker).env if wallclock.available() else {}

    def clock(self, worker: str) -> WallClock:
        """Return the wall clock of a worker, or of the `SERVER`."""
        if worker not in self._clocks:
            self._clocks[worker] = WallClock(self.folder / "clocks", worker)
        return self._clocks[worker]

    def is_blocked_by(self, pid: int) -> bool:
        """Return whether the engine answers no worker while that process is stopped."""
        return False

    def left(self) -> list[str]:
        """Return what is left in the engine after all its clients have closed."""
        return []

    def close(self) -> None:
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class MemoryPlace(Place):
    """Leases in the memory of one process: all workers are its threads or tasks."""

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

    def is_blocked_by(self, pid: int) -> bool:
        """Return whether the process holds the gate, by its locks: it opens no file of the engine."""
        gate = self.folder / "leases.db.gate"
        if not gate.exists():
            return False
        inode = gate.stat().st_ino
        # A lock of a descriptor has no pid in /proc/locks; the process's own list has it.
        lines = [line.split() for info in _descriptors(pid) for line in info.splitlines() if line.startswith("lock:")]
        return any(int(fields[-3].rpartition(":")[2]) == inode for fields in lines)


def _descriptors(pid: int) -> list[str]:
    """Return the kernel's text about each open descriptor of a process; nothing if the process has ended."""
    texts = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for file in Path(f"/proc/{pid}/fdinfo").iterdir():
            with suppress(FileNotFoundError):
                texts.append(file.read_text())
    return texts


class FilePlace(Place):
    """Leases in the folder itself."""

    engine = "file"

    def url(self, worker: str = "") -> str:
        return f"file://{self.folder.absolute()}"

    def left(self) -> list[str]:
        clients = self.folder / ".holdfast" / "clients"
        return [f"the client {path.name}" for path in clients.glob("*") if not is_left_by_the_dead(path)]


def is_left_by_the_dead(client: Path) -> bool:
    """Return whether the client of this file is dead: its files prove the death for a while and are no leak."""
    try:
        with client.with_suffix("").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


class RedisPlace(Place):
    """Leases on a new server that keeps its data; every worker connects through its own proxy."""

    engine = "redis"

    def __init__(self, folder: str | os.PathLike[str], kind: str | None = None) -> None:
        """Start a server; without a `kind`, the first that this machine has."""
        super().__init__(folder)
        self._links: dict[str, Proxy] = {}
        kind = kind or next(iter(servers.available()), "valkey")
        env = self.env(SERVER)
        # A program with its own clock must not read the time around it.
        self.server = servers.Server(kind, appendonly=True, env=env).start()

    def url(self, worker: str = "") -> str:
        return self.link(worker).url

    def link(self, worker: str) -> Proxy:
        """Return the proxy between one worker and the server."""
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


def unavailable_engines(engines: Iterable[str]) -> list[str]:
    """Return those of these engines that need a server, on a machine without one."""
    return [] if servers.available() else [engine for engine in engines if engine not in WITHOUT_SERVER]


def open_place(engine: str, folder: str | os.PathLike[str]) -> Place:
    """Return a new place of an engine; raise `FileNotFoundError` if it needs a server that is not installed."""
    places = {"memory": MemoryPlace, "sqlite": SqlitePlace, "file": FilePlace, "redis": RedisPlace}
    if engine in ("sentinel", "cluster"):
        from tests.support.group_places import GroupPlace

        return GroupPlace(engine, folder)
    if engine not in places:
        raise ValueError(f"there is no place for {engine!r}; there are {', '.join(ENGINES)}")
    place: Place = places[engine](folder)
    return place
