"""The candidates, and the measurements in which each takes part.

Holdfast runs with all its features on. A floor is the least that could be done; a peer is a library that people use
today, with its default settings. Each runs in the environment of its requirements file.
"""

from __future__ import annotations

from typing import Any, NamedTuple

FLOOR, OURS, PEER = "floor", "ours", "peer"
TCP, UNIX, FILE, DIRECTORY = "tcp", "unix", "file", "directory"
PRIMARY, SENTINEL, CLUSTER, BARE_CLUSTER = "primary", "sentinel", "cluster", "bare cluster"


class Candidate(NamedTuple):
    """One way to lock. `loop`: the module of the event loop, or empty for a blocking candidate."""

    name: str
    role: str
    adapter: str
    environment: str
    loop: str = ""
    wire: str = TCP
    options: dict[str, Any] = {}  # noqa: RUF012 - never changed
    ttl: float = 10

    def by(self, wire: str) -> Candidate:
        """Return the same candidate over another connection."""
        return self._replace(wire=wire, name=f"{self.name}, {wire} socket")


def _one(name: str, role: str, adapter: str, environment: str, **more: Any) -> Candidate:
    return Candidate(name, role, f"bench.adapters.{adapter}", environment, **more)


RAW = _one("raw socket", FLOOR, "floor:pair", "holdfast")
RAW_FRESH = _one("raw socket, a new token each time", FLOOR, "floor:fresh", "holdfast")
RAW_ASYNCIO = _one("raw asyncio", FLOOR, "floor:aio", "holdfast", loop="asyncio")
RAW_UVLOOP = _one("raw uvloop", FLOOR, "floor:aio", "holdfast", loop="uvloop")
TOKEN = _one("raw blocking pop", FLOOR, "floor:token", "holdfast")
FLOCK = _one("flock(2)", FLOOR, "floor:flock", "holdfast", wire=FILE)

SCRIPTS = _one("our scripts on a bare socket", FLOOR, "layers:scripts", "holdfast")
SCRIPTS_POLLED = _one("the same, the socket has a timeout", FLOOR, "layers:polled", "holdfast")
SCRIPTS_FRESH = _one("the same, a new token each time", FLOOR, "layers:fresh", "holdfast")
_TRANSPORT = "holdfast's transport: connections, retries, answers"
TRANSPORT = _one(_TRANSPORT, OURS, "layers:transport", "holdfast")
HANDED = _one("the same pop, our scripts on a bare socket", FLOOR, "layers:handed", "holdfast")
HANDED_TRANSPORT = _one(_TRANSPORT, OURS, "layers:handed_transport", "holdfast")

HOLDFAST = _one("holdfast", OURS, "ours:blocking", "holdfast")
HOLDFAST_ASYNCIO = _one("holdfast.aio", OURS, "ours:aio", "holdfast", loop="asyncio")
HOLDFAST_UVLOOP = _one("holdfast.aio on uvloop", OURS, "ours:aio", "holdfast", loop="uvloop")
HOLDFAST_SQLITE = _one("holdfast, SQLite", OURS, "ours:blocking", "holdfast", wire=FILE)
HOLDFAST_FILES = _one("holdfast, shared directory", OURS, "ours:blocking", "holdfast", wire=DIRECTORY)

HOLDFAST_PRIMARY = HOLDFAST._replace(wire=PRIMARY, name="holdfast, a primary with two replicas")
HOLDFAST_SENTINEL = HOLDFAST._replace(wire=SENTINEL, name="holdfast, the same through sentinels")
HOLDFAST_BARE = HOLDFAST._replace(wire=BARE_CLUSTER, name="holdfast, a cluster of three masters")
HOLDFAST_CLUSTER = HOLDFAST._replace(wire=CLUSTER, name="holdfast, a cluster, a replica for each")

REDIS_PY = _one("redis-py Lock", PEER, "redis_py:blocking", "redis-py")
REDIS_ASYNCIO = _one("redis.asyncio Lock", PEER, "redis_py:aio", "redis-py", loop="asyncio")
REDIS_UVLOOP = _one("redis.asyncio Lock on uvloop", PEER, "redis_py:aio", "redis-py", loop="uvloop")
PYTHON_REDIS_LOCK = _one("python-redis-lock", PEER, "python_redis_lock:blocking", "python-redis-lock")
POTTERY = _one("pottery Redlock", PEER, "pottery_redlock:blocking", "pottery")
POTTERY_ASYNCIO = _one("pottery AIORedlock", PEER, "pottery_redlock:aio", "pottery", loop="asyncio")
FILELOCK = _one("filelock", PEER, "filelock_lock:blocking", "filelock", wire=FILE)
FILELOCK_SOFT = _one("filelock, soft", PEER, "filelock_lock:soft", "filelock", wire=FILE)
FLUFL = _one("flufl.lock", PEER, "flufl_lock:blocking", "flufl", wire=FILE)
_NODE = {"adapter": "proper_lockfile.js", "environment": "proper-lockfile", "wire": FILE}
# With the settings of tools that install npm packages under it; and with its own default for a dead holder.
PROPER = Candidate("proper-lockfile", PEER, **_NODE, options={"stale_s": 300, "update_s": 5, "poll_s": 2})
PROPER_SOON = Candidate(
    "proper-lockfile, stale after 10 s", PEER, **_NODE, options={"stale_s": 10, "update_s": 5, "poll_s": 0.05}
)
PORTALOCKER = _one("portalocker", PEER, "portalocker_lock:blocking", "portalocker", wire=FILE)

_MANY = 1_000_000
_RATE, _NONE = f"{_MANY}/second", "1/day"


def _limits(name: str, role: str, adapter: str, environment: str, **options: Any) -> tuple[Candidate, Candidate]:
    """Return a blocking and an asyncio candidate."""
    blocking = _one(name, role, f"{adapter}:blocking", environment, options=options)
    return blocking, blocking._replace(name=f"{name}, asyncio", adapter=f"bench.adapters.{adapter}:aio", loop="asyncio")


def _by_strategy(way: str, rate: str = _RATE) -> tuple[Candidate, Candidate]:
    return _limits(f"limits, {way}", PEER, "limits_limit", "limits", rate=rate, strategy=way)


def _by_algorithm(way: str, count: int = _MANY) -> tuple[Candidate, Candidate]:
    return _limits(f"throttled-py, {way}", PEER, "throttled_limit", "throttled", count=count, using=way)


COUNT = _limits("raw INCR", FLOOR, "floor_count", "holdfast")
LIMIT = _limits("holdfast, sliding window", OURS, "ours_limit", "holdfast", rate=_RATE)
LIMIT_TWO = _limits("holdfast, two windows", OURS, "ours_limit", "holdfast", rate=f"{_RATE}; {60 * _MANY}/minute")
LIMIT_SMOOTH = _limits("holdfast, gcra", OURS, "ours_limit", "holdfast", rate=_RATE, method="gcra")
LIMIT_REFUSED = _limits("holdfast, refused", OURS, "ours_limit", "holdfast", rate=_NONE)
_STRATEGIES = ("fixed-window", "sliding-window-counter", "moving-window")
_ALGORITHMS = ("fixed_window", "sliding_window", "token_bucket", "gcra")
LIMITS = (
    *COUNT, *LIMIT, *LIMIT_TWO, *LIMIT_SMOOTH,
    *(each for way in _STRATEGIES for each in _by_strategy(way)),
    *(each for way in _ALGORITHMS for each in _by_algorithm(way)),
    *_limits("pyrate-limiter", PEER, "pyrate_limit", "pyrate", count=_MANY),
)  # fmt: skip
REFUSED = (*LIMIT, *LIMIT_REFUSED, _by_strategy("fixed-window", _NONE)[0], _by_algorithm("fixed_window", 1)[0])


def _queue(name: str, role: str, adapter: str, environment: str, **options: Any) -> Candidate:
    return _one(name, role, f"{adapter}_queue:aio", environment, loop="asyncio", options=options)


QUEUE = _queue("holdfast.aio, 128 at a time", OURS, "ours", "holdfast", concurrency=128)
STREAM_QUEUES = (
    _queue("taskiq-redis, 100 at a time", PEER, "taskiq", "taskiq", concurrency=100),
    _queue("FastStream, one at a time", PEER, "faststream", "faststream"),
)
JOB_QUEUES = (
    _queue("arq, 100 at a time", PEER, "arq", "arq", concurrency=100),
    _queue("saq, 20 at a time", PEER, "saq", "saq", concurrency=20),
    _queue("streaq, 100 at a time", PEER, "streaq", "streaq", concurrency=100),
)
QUEUES = (
    QUEUE,
    _queue("holdfast.aio, one at a time", OURS, "ours", "holdfast", concurrency=1),
    *STREAM_QUEUES,
    *JOB_QUEUES,
)

_FLOORS = (RAW, RAW_ASYNCIO, RAW_UVLOOP)
_FACES = (HOLDFAST, HOLDFAST_ASYNCIO, HOLDFAST_UVLOOP)
_REDIS_PY = (REDIS_PY, REDIS_ASYNCIO, REDIS_UVLOOP)
_FILES = (FLOCK, HOLDFAST_SQLITE, HOLDFAST_FILES, FILELOCK, FILELOCK_SOFT, FLUFL, PORTALOCKER, PROPER, PROPER_SOON)

PAIRS = (*_FLOORS, RAW_FRESH, *_FACES, *_REDIS_PY, PYTHON_REDIS_LOCK, POTTERY, POTTERY_ASYNCIO)
LAYERS = (RAW, RAW_FRESH, SCRIPTS, SCRIPTS_POLLED, SCRIPTS_FRESH, TRANSPORT, HOLDFAST)
PAIRS_UNIX = tuple(each.by(UNIX) for each in (*_FLOORS, *_FACES, *_REDIS_PY, PYTHON_REDIS_LOCK))
GROUPS = (HOLDFAST, HOLDFAST_PRIMARY, HOLDFAST_SENTINEL, HOLDFAST_BARE, HOLDFAST_CLUSTER)
PAIRS_FILE = (*_FILES, REDIS_PY.by(UNIX))
FAN_OUT = (RAW_ASYNCIO, RAW_UVLOOP, HOLDFAST_ASYNCIO, HOLDFAST_UVLOOP, REDIS_ASYNCIO, REDIS_UVLOOP, POTTERY_ASYNCIO)
CONTENDED = (TOKEN, HOLDFAST, HOLDFAST_ASYNCIO, REDIS_PY, REDIS_ASYNCIO, PYTHON_REDIS_LOCK, POTTERY)
SIXTEEN = (TOKEN, HOLDFAST, HOLDFAST_ASYNCIO, REDIS_PY, PYTHON_REDIS_LOCK, POTTERY)
HAND_OVER = (TOKEN, HANDED, HANDED_TRANSPORT, HOLDFAST)
SINGLE_WAITER = CONTENDED
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
        FILELOCK_SOFT,
        FLUFL,
        PROPER,
        PROPER_SOON,
    )
)
LEASES = (
    HOLDFAST._replace(ttl=30),
    PYTHON_REDIS_LOCK._replace(ttl=30, options={"renew": True}),
)
NAMES = HOLDFAST_ASYNCIO._replace(ttl=30)
OF_TWO = _queue("two workers drain a queue", OURS, "ours", "holdfast", concurrency=128)
# Latencies of a queue, by the rate of messages.
LATENCIES = tuple(
    (_queue(f"a queue, {rate:,} messages per second", OURS, "ours", "holdfast", concurrency=32), rate)
    for rate in (5, 100, 2000)
)
WAITING_WORKER = _queue("a waiting worker", OURS, "ours", "holdfast", concurrency=32)
HOLDING = tuple(
    (_one(f"a consumer that holds {count:,} messages, ttl 3", OURS, "", "holdfast"), count) for count in (1, 100, 1000)
)
RECOVERY = _queue("a worker killed with 100 in flight, ttl 3", OURS, "ours", "holdfast", concurrency=128)
# Owners of streams: ours, and the sequence of commands that it replaces.
_SEQUENCE = "redis-stream-client-go's sequence"
OWNER = Candidate("holdfast", OURS, "holdfast", "holdfast")
OWNERS = (OWNER, Candidate(_SEQUENCE, PEER, "sequence", "holdfast", options={"batch": 50}))
SUCCESSORS = (
    OWNER,
    OWNERS[1]._replace(name=f"{_SEQUENCE}, 50 in a scan"),
    OWNERS[1]._replace(name=f"{_SEQUENCE}, all in a scan", options={"batch": 100_000}),
)
OWNED = _one("a registry, 10,000 keys of one process", OURS, "", "holdfast")
LISTED = _one("a list of 100, beside 100,000 foreign keys", OURS, "", "holdfast")
ONCE = _one("once", OURS, "", "holdfast")
# Not a lock, and without a peer: the first command that a person waits for.
HELP = Candidate("holdfast --help", OURS, "", "holdfast", wire="none")
# `build_once` with an existing build: the URL of the leases.
BUILT = {"holdfast, shared directory": "file://{folder}/leases", "holdfast, SQLite": "sqlite://{folder}/built.db"}
_HELP = "[sys.executable, '-m', 'holdfast', '--help']"
# The environment, and the statement that is timed there.
IMPORTS = {
    "import holdfast": ("holdfast", "import holdfast"),
    "holdfast, a SQLite client": ("holdfast", "import holdfast; holdfast.connect('sqlite://' + file)"),
    "holdfast, a Redis client": ("holdfast", "import holdfast; holdfast.connect('redis://127.0.0.1:1')"),
    HELP.name: ("holdfast", f"import subprocess; subprocess.run({_HELP}, stdout=-3, check=True)"),
    "import redis": ("redis-py", "import redis"),
    "import redis_lock": ("python-redis-lock", "import redis_lock"),
    "import pottery": ("pottery", "import pottery"),
    "import filelock": ("filelock", "import filelock"),
    "import portalocker": ("portalocker", "import portalocker"),
}


def owning(candidate: Candidate, streams: int) -> Candidate:
    """Return a candidate that owns so many streams."""
    return candidate._replace(name=f"{candidate.name}, {streams:,} {'streams' if streams > 1 else 'stream'}")


def borrowing(way: str, items: int, wire: str = TCP) -> Candidate:
    """Return a candidate that borrows from a pool of that size."""
    where = "holdfast, SQLite" if wire == FILE else way
    role = {"holdfast": OURS, "floor": FLOOR}.get(way, PEER)
    return Candidate(f"{where}, {items:,} items", role, way, "holdfast", wire=wire)


STORE_REDIS = Candidate("holdfast, Redis", OURS, "holdfast", "lancedb", options={"mode": "redis"})
STORE_SQLITE = Candidate("holdfast, SQLite", OURS, "holdfast", "lancedb", wire=FILE, options={"mode": "embedded"})
STORE_FILES = Candidate("holdfast, files", OURS, "holdfast", "lancedb", wire=DIRECTORY, options={"mode": "file"})
STORE_BARE = Candidate("LanceDB without a lock", FLOOR, "none", "lancedb", wire="none")
STORE_REDIS_PY = Candidate("redis-py Lock around each write", PEER, "redis-py", "lancedb", options={"lock": True})
STORE_FILELOCK = Candidate("filelock around each write", PEER, "filelock", "lancedb", wire=FILE, options={"lock": True})
STORES = (STORE_BARE, STORE_REDIS, STORE_SQLITE, STORE_FILES, STORE_REDIS_PY, STORE_FILELOCK)


POOL_CONTENDED = tuple(
    borrowing(way, 2_000)._replace(name=f"{way}, 50 workers") for way in ("holdfast", "floor", "two-phase")
)
