"""Who takes part, and in what.

Ours runs with everything on. A floor shows what could not be beaten; a peer is what people use today, with its default
settings. Each runs in the environment of its requirements file.
"""

from __future__ import annotations

from typing import Any, NamedTuple

FLOOR, OURS, PEER = "floor", "ours", "peer"
TCP, UNIX, FILE, DIRECTORY = "tcp", "unix", "file", "directory"


class Contender(NamedTuple):
    """One way to lock. `loop` names the event loop's module, or is empty for a blocking one."""

    name: str
    role: str
    opener: str
    environment: str
    loop: str = ""
    wire: str = TCP
    options: dict[str, Any] = {}  # noqa: RUF012 - never changed
    ttl: float = 10

    def by(self, wire: str) -> Contender:
        """The same, reached another way."""
        return self._replace(wire=wire, name=f"{self.name}, {wire} socket")


def _one(name: str, role: str, opener: str, environment: str, **more: Any) -> Contender:
    return Contender(name, role, f"bench.openers.{opener}", environment, **more)


RAW = _one("raw socket", FLOOR, "floor:pair", "holdfast")
RAW_ASYNCIO = _one("raw asyncio", FLOOR, "floor:aio", "holdfast", loop="asyncio")
RAW_UVLOOP = _one("raw uvloop", FLOOR, "floor:aio", "holdfast", loop="uvloop")
TOKEN = _one("raw blocking pop", FLOOR, "floor:token", "holdfast")
FLOCK = _one("flock(2)", FLOOR, "floor:flock", "holdfast", wire=FILE)

HOLDFAST = _one("holdfast", OURS, "ours:blocking", "holdfast")
HOLDFAST_ASYNCIO = _one("holdfast.aio", OURS, "ours:aio", "holdfast", loop="asyncio")
HOLDFAST_UVLOOP = _one("holdfast.aio on uvloop", OURS, "ours:aio", "holdfast", loop="uvloop")
HOLDFAST_SQLITE = _one("holdfast, SQLite", OURS, "ours:blocking", "holdfast", wire=FILE)
HOLDFAST_FILES = _one("holdfast, shared directory", OURS, "ours:blocking", "holdfast", wire=DIRECTORY)

REDIS_PY = _one("redis-py Lock", PEER, "redis_py:blocking", "redis-py")
REDIS_ASYNCIO = _one("redis.asyncio Lock", PEER, "redis_py:aio", "redis-py", loop="asyncio")
REDIS_UVLOOP = _one("redis.asyncio Lock on uvloop", PEER, "redis_py:aio", "redis-py", loop="uvloop")
PYTHON_REDIS_LOCK = _one("python-redis-lock", PEER, "python_redis_lock:blocking", "python-redis-lock")
POTTERY = _one("pottery Redlock", PEER, "pottery_redlock:blocking", "pottery")
POTTERY_ASYNCIO = _one("pottery AIORedlock", PEER, "pottery_redlock:aio", "pottery", loop="asyncio")
FILELOCK = _one("filelock", PEER, "filelock_lock:blocking", "filelock", wire=FILE)
FILELOCK_SOFT = _one("filelock, soft", PEER, "filelock_lock:soft", "filelock", wire=FILE)
FLUFL = _one("flufl.lock", PEER, "flufl_lock:blocking", "flufl", wire=FILE)
PORTALOCKER = _one("portalocker", PEER, "portalocker_lock:blocking", "portalocker", wire=FILE)

_FLOORS = (RAW, RAW_ASYNCIO, RAW_UVLOOP)
_FACES = (HOLDFAST, HOLDFAST_ASYNCIO, HOLDFAST_UVLOOP)
_REDIS_PY = (REDIS_PY, REDIS_ASYNCIO, REDIS_UVLOOP)
_FILES = (FLOCK, HOLDFAST_SQLITE, HOLDFAST_FILES, FILELOCK, FILELOCK_SOFT, FLUFL, PORTALOCKER)

PAIRS = (*_FLOORS, *_FACES, *_REDIS_PY, PYTHON_REDIS_LOCK, POTTERY, POTTERY_ASYNCIO)
PAIRS_UNIX = tuple(each.by(UNIX) for each in (*_FLOORS, *_FACES, *_REDIS_PY, PYTHON_REDIS_LOCK))
PAIRS_FILE = (*_FILES, REDIS_PY.by(UNIX))
FAN_OUT = (RAW_ASYNCIO, RAW_UVLOOP, HOLDFAST_ASYNCIO, HOLDFAST_UVLOOP, REDIS_ASYNCIO, REDIS_UVLOOP, POTTERY_ASYNCIO)
CONTENDED = (TOKEN, HOLDFAST, HOLDFAST_ASYNCIO, REDIS_PY, REDIS_ASYNCIO, PYTHON_REDIS_LOCK, POTTERY)
SIXTEEN = (TOKEN, HOLDFAST, HOLDFAST_ASYNCIO, REDIS_PY, PYTHON_REDIS_LOCK, POTTERY)
LONE = CONTENDED
CONTENDED_FILE = _FILES
# Two seconds of the ttl are left when the holder dies; python-redis-lock takes whole seconds only.
KILLED = tuple(
    each._replace(ttl=3 if each is PYTHON_REDIS_LOCK else 2.5)
    for each in (
        HOLDFAST,
        HOLDFAST_ASYNCIO,
        REDIS_PY,
        PYTHON_REDIS_LOCK,
        POTTERY,
        HOLDFAST_SQLITE,
        HOLDFAST_FILES,
        FILELOCK,
        FLUFL,
    )
)
LEASES = (
    HOLDFAST._replace(ttl=30),
    PYTHON_REDIS_LOCK._replace(ttl=30, options={"renew": True}),
)
NAMES = HOLDFAST_ASYNCIO._replace(ttl=30)
# What is timed when something is there already: the URL of the leases.
BUILT = {"holdfast, shared directory": "file://{folder}/leases", "holdfast, SQLite": "sqlite://{folder}/built.db"}
_HELP = "[sys.executable, '-m', 'holdfast.cli', '--help']"
# Which environment, and what is timed there.
IMPORTS = {
    "import holdfast": ("holdfast", "import holdfast"),
    "holdfast, a SQLite client": ("holdfast", "import holdfast; holdfast.connect('sqlite://' + file)"),
    "holdfast, a Redis client": ("holdfast", "import holdfast; holdfast.connect('redis://127.0.0.1:1')"),
    "holdfast --help": ("holdfast", f"import subprocess; subprocess.run({_HELP}, stdout=-3, check=True)"),
    "import redis": ("redis-py", "import redis"),
    "import redis_lock": ("python-redis-lock", "import redis_lock"),
    "import pottery": ("pottery", "import pottery"),
    "import filelock": ("filelock", "import filelock"),
    "import portalocker": ("portalocker", "import portalocker"),
}
