"""The targets, and whether a run reached them. This module has no results: every figure comes from the run.

A run reaches a target if the median over its rounds reaches it. A figure that was not measured does not reach it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from bench import candidates as known
from bench.candidates import DIRECTORY, FILE, FLOOR, OURS, PEER, Candidate

if TYPE_CHECKING:
    from bench.stats import Spread

AT_MOST, AT_LEAST = "at most", "at least"


class Target(NamedTuple):
    """The target for one figure of one candidate."""

    what: str
    part: str
    ours: Candidate
    figure: str
    side: str
    goal: float


_PAIR, _FAN = "uncontended pair", "100 asyncio tasks, different names, one process"
_EIGHT, _SIXTEEN = "contended, 2 processes x 4 callers, 1 ms section", "contended, 16 processes, 5 ms section"
_POOL, _BORROWERS = "pool of 100,000 items, beside one of 100", "pool of 2,000 items, 50 workers, 5 processes"
_KEPT, _FILE = "10,000 leases held by one process, ttl 30", "SQLite, 8 contending processes, 1 ms section"
_STREAMS = "5,000 streams owned by one process"
_TAKEOVER = "streams of a killed pod, 1,000 in a full run, two successors"
_DIRECTORY = "shared directory, 8 contending processes"

TARGETS = (
    Target(f"{_PAIR}, blocking", "pair", known.HOLDFAST, "times_floor", AT_MOST, 1.5),
    Target(f"{_PAIR}, asyncio", "pair", known.HOLDFAST_ASYNCIO, "times_floor", AT_MOST, 2.5),
    Target(f"{_PAIR}, uvloop", "pair", known.HOLDFAST_UVLOOP, "times_floor", AT_MOST, 2.0),
    Target(f"{_PAIR}, blocking", "pair", known.HOLDFAST, "round_trips", AT_MOST, 2.01),
    Target(f"{_PAIR}, asyncio", "pair", known.HOLDFAST_ASYNCIO, "round_trips", AT_MOST, 2.01),
    Target(f"{_PAIR}, sentinels", "groups", known.HOLDFAST_SENTINEL, "times_alone", AT_MOST, 1.2),
    Target(f"{_PAIR}, sentinels", "groups", known.HOLDFAST_SENTINEL, "times_replicated", AT_MOST, 1.2),
    Target(f"{_PAIR}, cluster without replicas", "groups", known.HOLDFAST_BARE, "times_alone", AT_MOST, 1.2),
    Target(f"{_PAIR}, cluster", "groups", known.HOLDFAST_CLUSTER, "times_alone", AT_MOST, 1.2),
    Target(f"{_PAIR}, cluster", "groups", known.HOLDFAST_CLUSTER, "times_replicated", AT_MOST, 1.2),
    Target(_FAN, "fan_out", known.HOLDFAST_ASYNCIO, "pairs_per_s", AT_LEAST, 30_000),
    Target(_FAN, "fan_out", known.HOLDFAST_ASYNCIO, "times_peer", AT_LEAST, 3),
    Target(_EIGHT, "contended", known.HOLDFAST, "grants_per_s", AT_LEAST, 720),
    Target(_EIGHT, "contended", known.HOLDFAST, "gap_p50_us", AT_MOST, 220),
    Target(_EIGHT, "contended", known.HOLDFAST, "evenness", AT_LEAST, 0.95),
    Target(_EIGHT, "contended", known.HOLDFAST, "wait_max_ms", AT_MOST, 40),
    Target(_SIXTEEN, "contended_16", known.HOLDFAST, "of_ideal", AT_LEAST, 0.95),
    Target(_SIXTEEN, "contended_16", known.HOLDFAST, "jain", AT_LEAST, 0.99),
    Target(_SIXTEEN, "contended_16", known.HOLDFAST, "wait_of_fifo", AT_MOST, 3),
    Target(_SIXTEEN, "contended_16", known.HOLDFAST, "sent", AT_MOST, 6),
    Target("single waiter, from release to grant", "single_waiter", known.HOLDFAST, "lag_p50_ms", AT_MOST, 0.5),
    Target("holder killed with 2 s of ttl left", "holder_killed", known.HOLDFAST, "takeover_s", AT_MOST, 2.2),
    Target(_KEPT, "leases", known.HOLDFAST, "threads", AT_MOST, 1),
    Target(_KEPT, "leases", known.HOLDFAST, "cpu_share", AT_MOST, 0.05),
    Target(_KEPT, "leases", known.HOLDFAST, "bytes_each", AT_MOST, 2000),
    Target(_KEPT, "leases", known.HOLDFAST, "lost", AT_MOST, 0),
    Target("names used once, 1,000,000 in a full run", "names", known.NAMES, "left_share", AT_MOST, 0.05),
    Target(_POOL, "pool", known.borrowing("holdfast", 100_000), "growth", AT_MOST, 1.5),
    Target(f"SQLite, {_POOL}", "pool", known.borrowing("holdfast", 100_000, known.FILE), "growth", AT_MOST, 1.5),
    Target(_POOL, "pool", known.borrowing("holdfast", 100_000), "round_trips", AT_MOST, 6),
    Target(_BORROWERS, "pool_contended", known.POOL_CONTENDED[0], "p99_us", AT_MOST, 10_000),
    Target("rate limit, allowed decision", "limit", known.LIMIT[0], "round_trips", AT_MOST, 1.01),
    Target("rate limit, allowed decision, asyncio", "limit", known.LIMIT[1], "round_trips", AT_MOST, 1.01),
    Target("rate limit, refused decision", "limit_refused", known.LIMIT_REFUSED[0], "times_allowed", AT_LEAST, 20),
    Target("registry, 10,000 keys of one process, ttl 15", "registry", known.OWNED, "round_trips", AT_MOST, 0.02),
    Target("registry, 10,000 keys of one process, ttl 15", "registry", known.OWNED, "lost", AT_MOST, 0),
    Target("registry, a list of 100 beside 100,000 foreign keys", "registry", known.LISTED, "slower", AT_MOST, 1.2),
    Target(
        "registry, a list of 100 beside 100,000 foreign keys", "registry", known.LISTED, "round_trips", AT_MOST, 1.01
    ),
    Target("once, a success", "registry", known.ONCE, "round_trips", AT_MOST, 2.01),
    *(
        Target(f"LanceDB, {writers} writers", "store", ours._replace(name=f"{ours.name}, {writers} writers"), *goal)
        for ours in (known.STORE_REDIS, known.STORE_SQLITE)
        for writers in (1, 10, 50, 200)
        for goal in (("times_locks", AT_LEAST, 1.0), ("succeeded", AT_LEAST, 1.0))
    ),
    Target("queue, one worker, batched", "queue", known.QUEUE, "commands", AT_MOST, 4),
    Target("queue, one worker, batched", "queue", known.QUEUE, "times_streams", AT_LEAST, 5),
    Target("queue, one worker, batched", "queue", known.QUEUE, "times_jobs", AT_LEAST, 8),
    Target("queue, a waiting worker", "queue_behaviour", known.WAITING_WORKER, "round_trips_per_s", AT_MOST, 1),
    Target("queue, a worker killed with 100 in flight", "queue_behaviour", known.RECOVERY, "beyond_s", AT_MOST, 1),
    Target(_STREAMS, "owner", known.owning(known.OWNER, 5_000), "times_one", AT_MOST, 1.2),
    Target(_STREAMS, "owner", known.owning(known.OWNER, 5_000), "lost", AT_MOST, 0),
    Target(_TAKEOVER, "owner_killed", known.OWNER, "takeover_s", AT_MOST, 3),
    Target(_TAKEOVER, "owner_killed", known.OWNER, "evenness", AT_LEAST, 0.5),
    Target(_TAKEOVER, "owner_killed", known.OWNER, "commands", AT_MOST, 4),
    Target(_TAKEOVER, "owner_killed", known.OWNER, "twice", AT_MOST, 0),
    Target("SQLite, uncontended pair", "pair_file", known.HOLDFAST_SQLITE, "pairs_per_s", AT_LEAST, 15_000),
    Target(_FILE, "contended_file", known.HOLDFAST_SQLITE, "wait_max_ms", AT_MOST, 40),
    Target(_FILE, "contended_file", known.HOLDFAST_SQLITE, "evenness", AT_LEAST, 0.95),
    Target("the command line, holdfast --help", "imports", known.HELP, "import_ms", AT_MOST, 200),
    Target("shared directory, holder killed", "holder_killed", known.HOLDFAST_FILES, "takeover_s", AT_MOST, 0.05),
    Target(_DIRECTORY, "contended_file", known.HOLDFAST_FILES, "gap_p50_us", AT_MOST, 5000),
    Target(_DIRECTORY, "contended_file", known.HOLDFAST_FILES, "gap_p99_us", AT_MOST, 5000),
    Target("shared directory, single waiter", "single_waiter_file", known.HOLDFAST_FILES, "lag_p50_ms", AT_MOST, 5),
    Target("shared directory, single waiter", "single_waiter_file", known.HOLDFAST_FILES, "lag_p99_ms", AT_MOST, 5),
    Target("build_once finds an existing build", "build_once", known.HOLDFAST_FILES, "hit_us", AT_MOST, 100),
)
# In these measurements a blocking candidate is compared with blocking ones only, and an asyncio one with asyncio.
_BY_LOOP = ("pair", "pair_unix", "pair_file", "fan_out")


class Verdict(NamedTuple):
    """A target, our figure, the best peer and the floor."""

    target: Target
    ours: Spread | None
    peer: tuple[str, float] | None
    floor: tuple[str, float] | None

    @property
    def reached(self) -> bool:
        return self.ours is not None and reaches(self.target, self.ours.median)


def reaches(target: Target, value: float) -> bool:
    """Return whether the value reaches the target."""
    return value <= target.goal if target.side == AT_MOST else value >= target.goal


def verdicts(results: dict[str, Any]) -> list[Verdict]:
    """Return the verdicts for all targets of the measurements that ran."""
    parts = results["parts"]
    return [_judged(target, parts[target.part]) for target in TARGETS if target.part in parts]


def _comparable(wire: str) -> str:
    """Return the kind of connection: a shared directory is compared with locks on files."""
    return FILE if wire == DIRECTORY else wire


def _streams(row: dict[str, Any]) -> float | None:
    """Return the number of streams, if there are any: a row with few is not comparable with a row with many."""
    streams = row["figures"].get("streams")
    return streams.median if streams else None


def _judged(target: Target, rows: list[dict[str, Any]]) -> Verdict:
    ours = next((row for row in rows if row["candidate"] == target.ours.name), {"figures": {}})
    wire, streams = _comparable(target.ours.wire), _streams(ours)
    near = [row for row in rows if _comparable(row["wire"]) == wire and _streams(row) == streams]
    same = [row for row in near if target.part not in _BY_LOOP or row["loop"] == target.ours.loop]
    return Verdict(target, ours["figures"].get(target.figure), _best(target, same, PEER), _best(target, same, FLOOR))


def _best(target: Target, rows: list[dict[str, Any]], role: str) -> tuple[str, float] | None:
    found = [
        (row["candidate"], row["figures"][target.figure].median)
        for row in rows
        if row["role"] == role and target.figure in row["figures"]
    ]
    if not found:
        return None
    return (min if target.side == AT_MOST else max)(found, key=lambda pair: pair[1])


def overlapped(results: dict[str, Any]) -> list[str]:
    """Return our candidates that had two holders at once: a run with one of these is worthless."""
    return [
        f"{row['candidate']} ({part})"
        for part, rows in results["parts"].items()
        for row in rows
        if row["role"] == OURS and "overlaps" in row["figures"] and row["figures"]["overlaps"].high
    ]
