"""The targets, and whether a run reached them. Nothing here is a result: every figure is looked up in the run.

A target is reached if the median over the rounds reaches it. What was not measured is not reached.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from bench import contenders as who
from bench.contenders import DIRECTORY, FILE, FLOOR, OURS, PEER, Contender

AT_MOST, AT_LEAST = "at most", "at least"


class Target(NamedTuple):
    """One promise about one figure of one contender."""

    what: str
    part: str
    ours: Contender
    figure: str
    side: str
    goal: float


_PAIR, _FAN = "uncontended pair", "100 asyncio tasks, different names, one process"
_EIGHT, _SIXTEEN = "contended, 2 processes x 4 callers, 1 ms section", "contended, 16 processes, 5 ms section"
_POOL, _CROWD = "pool of 100,000 items, beside one of 100", "pool of 2,000 items, 50 workers, 5 processes"
_KEPT, _FILE = "10,000 leases held by one process, ttl 30", "SQLite, 8 contending processes, 1 ms section"
_STREAMS, _HEIRS = "5,000 streams owned by one process", "streams of a killed pod, 1,000 in a full run, two heirs"
_DIRECTORY = "shared directory, 8 contending processes"

TARGETS = (
    Target(f"{_PAIR}, blocking", "pair", who.HOLDFAST, "times_floor", AT_MOST, 1.5),
    Target(f"{_PAIR}, asyncio", "pair", who.HOLDFAST_ASYNCIO, "times_floor", AT_MOST, 2.5),
    Target(f"{_PAIR}, uvloop", "pair", who.HOLDFAST_UVLOOP, "times_floor", AT_MOST, 2.0),
    Target(f"{_PAIR}, blocking", "pair", who.HOLDFAST, "round_trips", AT_MOST, 2.01),
    Target(f"{_PAIR}, asyncio", "pair", who.HOLDFAST_ASYNCIO, "round_trips", AT_MOST, 2.01),
    Target(f"{_PAIR}, sentinels", "groups", who.HOLDFAST_SENTINEL, "times_alone", AT_MOST, 1.2),
    Target(f"{_PAIR}, sentinels", "groups", who.HOLDFAST_SENTINEL, "times_replicated", AT_MOST, 1.2),
    Target(f"{_PAIR}, cluster without replicas", "groups", who.HOLDFAST_BARE, "times_alone", AT_MOST, 1.2),
    Target(f"{_PAIR}, cluster", "groups", who.HOLDFAST_CLUSTER, "times_alone", AT_MOST, 1.2),
    Target(f"{_PAIR}, cluster", "groups", who.HOLDFAST_CLUSTER, "times_replicated", AT_MOST, 1.2),
    Target(_FAN, "fan_out", who.HOLDFAST_ASYNCIO, "pairs_per_s", AT_LEAST, 30_000),
    Target(_FAN, "fan_out", who.HOLDFAST_ASYNCIO, "times_peer", AT_LEAST, 3),
    Target(_EIGHT, "contended", who.HOLDFAST, "grants_per_s", AT_LEAST, 720),
    Target(_EIGHT, "contended", who.HOLDFAST, "gap_p50_us", AT_MOST, 220),
    Target(_EIGHT, "contended", who.HOLDFAST, "evenness", AT_LEAST, 0.95),
    Target(_EIGHT, "contended", who.HOLDFAST, "wait_max_ms", AT_MOST, 40),
    Target(_SIXTEEN, "sixteen", who.HOLDFAST, "of_ideal", AT_LEAST, 0.95),
    Target(_SIXTEEN, "sixteen", who.HOLDFAST, "jain", AT_LEAST, 0.99),
    Target(_SIXTEEN, "sixteen", who.HOLDFAST, "wait_of_fifo", AT_MOST, 3),
    Target(_SIXTEEN, "sixteen", who.HOLDFAST, "sent", AT_MOST, 6),
    Target("lone waiter learns of a release", "lone", who.HOLDFAST, "lag_p50_ms", AT_MOST, 0.5),
    Target("holder killed with 2 s of ttl left", "killed", who.HOLDFAST, "take_over_s", AT_MOST, 2.2),
    Target(_KEPT, "leases", who.HOLDFAST, "threads", AT_MOST, 1),
    Target(_KEPT, "leases", who.HOLDFAST, "cpu_share", AT_MOST, 0.05),
    Target(_KEPT, "leases", who.HOLDFAST, "bytes_each", AT_MOST, 2000),
    Target(_KEPT, "leases", who.HOLDFAST, "lost", AT_MOST, 0),
    Target("names used once, 1,000,000 in a full run", "names", who.NAMES, "left_share", AT_MOST, 0.05),
    Target(_POOL, "pool", who.borrowing("holdfast", 100_000), "growth", AT_MOST, 1.5),
    Target(f"SQLite, {_POOL}", "pool", who.borrowing("holdfast", 100_000, who.FILE), "growth", AT_MOST, 1.5),
    Target(_POOL, "pool", who.borrowing("holdfast", 100_000), "round_trips", AT_MOST, 6),
    Target(_CROWD, "pool_crowd", who.CROWDS[0], "p99_us", AT_MOST, 10_000),
    Target("limit, allowed decision", "limit", who.LIMIT[0], "round_trips", AT_MOST, 1.01),
    Target("limit, allowed decision, asyncio", "limit", who.LIMIT[1], "round_trips", AT_MOST, 1.01),
    Target("limit, refused decision", "refused", who.LIMIT_REFUSED[0], "times_allowed", AT_LEAST, 20),
    Target("directory, 10,000 keys of one process, ttl 15", "directory", who.OWNED, "round_trips", AT_MOST, 0.02),
    Target("directory, 10,000 keys of one process, ttl 15", "directory", who.OWNED, "lost", AT_MOST, 0),
    Target("directory, a list of 100 beside 100,000 foreign keys", "directory", who.LISTED, "slower", AT_MOST, 1.2),
    Target(
        "directory, a list of 100 beside 100,000 foreign keys", "directory", who.LISTED, "round_trips", AT_MOST, 1.01
    ),
    Target("once, a success", "directory", who.ONCE, "round_trips", AT_MOST, 2.01),
    *(
        Target(f"LanceDB, {writers} writers", "store", ours._replace(name=f"{ours.name}, {writers} writers"), *goal)
        for ours in (who.STORE_REDIS, who.STORE_SQLITE)
        for writers in (1, 10, 50, 200)
        for goal in (("times_locks", AT_LEAST, 1.0), ("succeeded", AT_LEAST, 1.0))
    ),
    Target("queue, one worker, batched", "queue", who.QUEUE, "commands", AT_MOST, 4),
    Target("queue, one worker, batched", "queue", who.QUEUE, "times_streams", AT_LEAST, 5),
    Target("queue, one worker, batched", "queue", who.QUEUE, "times_jobs", AT_LEAST, 8),
    Target("queue, a worker that waits", "queue_life", who.WAITING_WORKER, "asked_per_s", AT_MOST, 1),
    Target("queue, a worker killed with 100 in flight", "queue_life", who.RECOVERY, "beyond_s", AT_MOST, 1),
    Target(_STREAMS, "owner", who.owning(who.OWNER, 5_000), "times_one", AT_MOST, 1.2),
    Target(_STREAMS, "owner", who.owning(who.OWNER, 5_000), "lost", AT_MOST, 0),
    Target(_HEIRS, "owner_killed", who.OWNER, "take_over_s", AT_MOST, 3),
    Target(_HEIRS, "owner_killed", who.OWNER, "evenness", AT_LEAST, 0.5),
    Target(_HEIRS, "owner_killed", who.OWNER, "commands", AT_MOST, 4),
    Target(_HEIRS, "owner_killed", who.OWNER, "twice", AT_MOST, 0),
    Target("SQLite, uncontended pair", "pair_file", who.HOLDFAST_SQLITE, "pairs_per_s", AT_LEAST, 15_000),
    Target(_FILE, "contended_file", who.HOLDFAST_SQLITE, "wait_max_ms", AT_MOST, 40),
    Target(_FILE, "contended_file", who.HOLDFAST_SQLITE, "evenness", AT_LEAST, 0.95),
    Target("the command line, holdfast --help", "imports", who.HELP, "import_ms", AT_MOST, 200),
    Target("shared directory, holder killed", "killed", who.HOLDFAST_FILES, "take_over_s", AT_MOST, 0.05),
    Target(_DIRECTORY, "contended_file", who.HOLDFAST_FILES, "gap_p50_us", AT_MOST, 5000),
    Target(_DIRECTORY, "contended_file", who.HOLDFAST_FILES, "gap_p99_us", AT_MOST, 5000),
    Target("shared directory, lone waiter", "lone_file", who.HOLDFAST_FILES, "lag_p50_ms", AT_MOST, 5),
    Target("shared directory, lone waiter", "lone_file", who.HOLDFAST_FILES, "lag_p99_ms", AT_MOST, 5),
    Target("build_once finds it there", "built", who.HOLDFAST_FILES, "hit_us", AT_MOST, 100),
)
# Where blocking and asyncio are different races, a contender is compared with its own kind.
_BY_LOOP = ("pair", "pair_unix", "pair_file", "fan_out")


class Verdict(NamedTuple):
    """A target and what the run says about it."""

    target: Target
    ours: dict[str, float] | None
    peer: tuple[str, float] | None
    floor: tuple[str, float] | None

    @property
    def reached(self) -> bool:
        return self.ours is not None and reaches(self.target, self.ours["median"])


def reaches(target: Target, value: float) -> bool:
    return value <= target.goal if target.side == AT_MOST else value >= target.goal


def verdicts(results: dict[str, Any]) -> list[Verdict]:
    """Every target of the parts that ran, judged by this run."""
    parts = results["parts"]
    return [_judged(target, parts[target.part]) for target in TARGETS if target.part in parts]


def _ground(wire: str) -> str:
    """A directory of files is raced against files."""
    return FILE if wire == DIRECTORY else wire


def _streams(row: dict[str, Any]) -> float | None:
    """How many it has, where that is what differs: one with few is no peer of one with many."""
    count: float | None = row["figures"].get("streams", {}).get("median")
    return count


def _judged(target: Target, rows: list[dict[str, Any]]) -> Verdict:
    ours = next((row for row in rows if row["contender"] == target.ours.name), {"figures": {}})
    near = [
        row for row in rows if _ground(row["wire"]) == _ground(target.ours.wire) and _streams(row) == _streams(ours)
    ]
    same = [row for row in near if target.part not in _BY_LOOP or row["loop"] == target.ours.loop]
    return Verdict(target, ours["figures"].get(target.figure), _best(target, same, PEER), _best(target, same, FLOOR))


def _best(target: Target, rows: list[dict[str, Any]], role: str) -> tuple[str, float] | None:
    found = [
        (row["contender"], row["figures"][target.figure]["median"])
        for row in rows
        if row["role"] == role and target.figure in row["figures"]
    ]
    if not found:
        return None
    return (min if target.side == AT_MOST else max)(found, key=lambda pair: pair[1])


def overlapped(results: dict[str, Any]) -> list[str]:
    """Which of ours let two in at once: a run with one of these is worth nothing."""
    return [
        f"{row['contender']} ({part})"
        for part, rows in results["parts"].items()
        for row in rows
        if row["role"] == OURS and row["figures"].get("overlaps", {}).get("high")
    ]
