"""The benchmark in small: every measurement runs, has its figures, and detects a broken lock."""

import sys
from pathlib import Path

import pytest

from bench import __main__ as program
from bench import candidates as known
from bench import summary
from bench.__main__ import RESULTS
from bench.candidates import OURS, Candidate
from bench.environments import ROOT, Environment, names, pins
from bench.measurements.contended import Setting, contended, single_waiter
from bench.measurements.groups import groups
from bench.measurements.holder_killed import holder_killed
from bench.measurements.imports import imports
from bench.measurements.many_leases import leases
from bench.measurements.many_leases import names as used_names
from bench.measurements.owner import heartbeats, takeover
from bench.measurements.pair import fan_out, pairs
from bench.measurements.pool import contended as pool_contended
from bench.measurements.pool import sizes
from bench.measurements.queue import drained
from bench.measurements.queue_behaviour import queue_behaviour
from bench.measurements.registry import registry
from bench.measurements.store import stores
from bench.page import SECTIONS, page
from bench.scale import QUICK
from bench.stats import Spread
from bench.suite import MEASUREMENTS
from bench.targets import TARGETS, overlapped, verdicts
from bench.testbed import Testbed, WorkerFailed

HERE = Path(__file__).parent
TINY = QUICK._replace(
    pair_rounds=2,
    pair_s=0.02,
    fan_rounds=2,
    fan_s=0.05,
    callers=10,
    leases=1000,
    leases_s=0.1,
    names=300,
    fence_memory_s=1.0,
    pool_items=(10, 50),
    pool_rounds=1,
    pool_s=0.05,
    store_writers=(2,),
    store_rounds=1,
    store_s=0.1,
    messages=300,
    message_rounds=2,
    queue_s=0.3,
    owner_streams=(1, 20),
    owner_killed=60,
    owner_rounds=1,
    owner_s=1.0,
    owner_ttl_s=1.0,
    imports=1,
)
SMALL = Setting(2, 2, seconds=0.1, rounds=1, section=(0.001, 0.001))
BROKEN_LOCK = Candidate("broken lock", OURS, "broken_lock:blocking", "holdfast")
BROKEN = Candidate("never built", OURS, "broken_lock:blocking", "missing")
NO_MODULE = Candidate("no such module", OURS, "no_such_module:blocking", "holdfast")


@pytest.fixture(scope="module")
def testbed():
    """A testbed with the interpreter of the tests."""
    here = {name: Environment(name, sys.executable) for name in ("holdfast", "lancedb", "redis-py")}
    here["missing"] = Environment("missing", "", "its environment could not be built: no such thing")
    with Testbed(here, path=f"{ROOT}:{HERE}") as made:
        yield made


def figures(rows):
    """Return the medians, by candidate."""
    return {row["candidate"]: {key: value.median for key, value in row["figures"].items()} for row in rows}


def rounds(*rows):
    """Return the rounds of each row."""
    return [row["rounds"] for row in rows]


def test_groups_of_servers_are_measured_against_one_server_and_against_a_primary(testbed):
    """Every candidate uses its own group; a candidate compared with itself has the ratio 1."""
    rows = groups(testbed, TINY, known.GROUPS)
    found = figures(rows)

    assert set(found) == {each.name for each in known.GROUPS}
    assert found[known.HOLDFAST.name]["times_alone"] == 1.0
    assert found[known.HOLDFAST_PRIMARY.name]["times_replicated"] == 1.0
    assert all(each["pairs_per_s"] > 0 for each in found.values())
    assert len(set(testbed.urls.values())) == 4


def test_a_queue_is_published_to_and_drained(testbed):
    """By the server's own count one of our messages costs less than four commands."""
    one = known.QUEUES[1]
    rows = drained(testbed, TINY, known.QUEUES[:2], known.QUEUE, {"times_streams": (one,), "times_jobs": (one, BROKEN)})
    found = figures(rows)

    assert found[known.QUEUE.name]["times_slower"] == 1.0
    assert found[known.QUEUE.name]["commands"] < 4
    assert found[known.QUEUE.name]["times_streams"] == found[one.name]["times_slower"]
    assert "times_jobs" not in found[known.QUEUE.name], "one of them did not run"
    assert all(each["messages_per_s"] > 0 and each["published_per_s"] > 0 for each in found.values())


def test_the_behaviour_of_a_queue_is_measured(testbed):
    """Two workers, latency, a waiting worker, a holding consumer and a killed worker: no message is lost."""
    found = figures(queue_behaviour(testbed, TINY._replace(message_rounds=1)))

    assert found[known.OF_TWO.name]["messages_per_s"] > 0
    for candidate, _ in known.LATENCIES:
        assert found[candidate.name]["lost"] == 0
        assert 0 < found[candidate.name]["p50_ms"] <= found[candidate.name]["p99_ms"]
    assert found[known.WAITING_WORKER.name]["round_trips_per_s"] >= 0
    assert all(found[candidate.name]["lost"] == 0 for candidate, _ in known.HOLDING)
    assert found[known.RECOVERY.name]["recovery_s"] > 1
    assert found[known.RECOVERY.name]["attempts_used"] == 0


def test_owned_streams_are_compared_with_the_sequence_that_holdfast_replaces(testbed):
    """One lease for all streams or a lock for each, by the server's own count; every stream gets an owner."""
    kept = figures(heartbeats(testbed, TINY))
    ours, theirs = takeover(testbed, TINY, (*known.SUCCESSORS[:2], BROKEN))

    assert "could not be built" in testbed.not_run[BROKEN.name]
    assert all(each["lost"] == 0 for each in kept.values())
    assert kept["holdfast, 20 streams"]["times_one"] < 3
    assert kept[f"{known.OWNERS[1].name}, 20 streams"]["times_one"] > 3
    for row in (ours, theirs):
        found = figures([row])[row["candidate"]]
        assert found["least"] + found["most"] == 60 + found["twice"]
        assert found["commands"] > 1
    assert figures([ours])[known.OWNER.name]["twice"] == 0
    assert figures([ours])[known.OWNER.name]["takeover_s"] > 1, "its grace"


def test_a_pair_is_measured_against_the_floor_of_its_round(testbed):
    """A pair has two round trips, by the server's own count; the floor compared with itself is 1."""
    candidates = (known.RAW, known.HOLDFAST, known.HOLDFAST_ASYNCIO, known.REDIS_PY, known.RAW_ASYNCIO)

    rows = pairs(testbed, TINY, candidates)
    found = figures(rows)

    assert set(found) == {each.name for each in candidates}
    assert found["raw socket"]["times_floor"] == 1.0
    for row in rows:
        times = [floor["pairs_per_s"] / own["pairs_per_s"] for floor, own in zip(*rounds(rows[0], row), strict=True)]
        assert row["figures"]["times_floor"].low == pytest.approx(min(times))
        assert row["figures"]["times_floor"].high == pytest.approx(max(times))
    for each in found.values():
        assert each["round_trips"] == pytest.approx(2.0, abs=0.2)
        assert each["client_cpu_us"] > 0
        assert each["server_cpu_us"] > 0
    assert found["raw socket"]["commands"] == pytest.approx(4.0, abs=0.1)


def test_unix_sockets_and_files_are_reached_too(testbed):
    """The same worker serves every kind of connection."""
    candidates = (known.RAW.by(known.UNIX), known.HOLDFAST.by(known.UNIX), known.HOLDFAST_SQLITE, known.FLOCK)

    found = figures(pairs(testbed, TINY, candidates))

    assert set(found) == {each.name for each in candidates}


def test_many_tasks_of_one_process_are_compared_with_a_peer(testbed):
    """The ratio is taken within the same round."""
    rows = fan_out(testbed, TINY, (known.RAW_ASYNCIO, known.HOLDFAST_ASYNCIO, known.REDIS_ASYNCIO), known.REDIS_ASYNCIO)
    found = figures(rows)

    assert found["redis.asyncio Lock"]["times_peer"] == 1.0
    for row in rows:
        times = [own["pairs_per_s"] / peer["pairs_per_s"] for own, peer in zip(*rounds(row, rows[-1]), strict=True)]
        assert row["figures"]["times_peer"].low == pytest.approx(min(times))
        assert row["figures"]["times_peer"].high == pytest.approx(max(times))


def test_contention_counts_sent_commands_and_finds_no_overlap(testbed):
    """A correct lock passes the check for two holders; the proxy counts the commands that clients send."""
    candidates = (*known.HAND_OVER, known.HOLDFAST_ASYNCIO)

    rows = contended(testbed, SMALL._replace(seconds=1.2, count_s=0.1), candidates)
    found = figures(rows)

    assert set(found) == {each.name for each in candidates}
    assert {each["overlaps"] for each in found.values()} == {0}
    assert found["raw blocking pop"]["sent"] == pytest.approx(2.0, abs=0.5)
    for layer in (known.HANDED, known.HANDED_TRANSPORT, known.HOLDFAST):  # all of them send the same
        assert found[layer.name]["commands"] > found[layer.name]["sent"] > 3
    for each in found.values():
        assert each["grants"] > 0
        assert 0 < each["of_ideal"] < 1.2  # the last section may end after the run
    assert overlapped({"parts": {"contended": rows}}) == []


def test_a_lock_that_excludes_no_one_is_detected(testbed):
    """The figures of a broken lock are dropped, and the page and the exit code say so."""
    rows = contended(testbed, SMALL, (known.TOKEN, BROKEN_LOCK))
    (broken,) = (row for row in rows if row["candidate"] == BROKEN_LOCK.name)
    results = made({"contended": rows})

    assert set(broken["figures"]) == {"overlaps"}
    assert broken["figures"]["overlaps"].low > 0
    assert overlapped(results) == ["broken lock (contended)"]
    assert "Two holders at once: broken lock (contended)" in page(results)


def test_a_single_waiter_has_a_lag(testbed):
    """With sections longer than rests, one process waits nearly always."""
    setting = Setting(2, 1, seconds=0.5, rounds=1, section=(0.005, 0.015), rest=(0.0, 0.004))

    found = figures(single_waiter(testbed, setting, (known.TOKEN, known.HOLDFAST)))

    for each in found.values():
        assert each["samples"] > 0
        assert 0 < each["lag_p50_ms"] <= each["lag_p99_ms"]


def test_a_killed_holder_is_replaced_and_the_time_is_taken(testbed):
    """A lease takes its ttl, a kernel lock no time; a takeover beyond the bound says so."""
    scale = TINY._replace(kills=1, kill_longest_s=20.0)
    candidates = (known.HOLDFAST._replace(ttl=2.2), known.FLOCK._replace(ttl=2.2))

    found = figures(holder_killed(testbed, scale, candidates))
    late = figures(holder_killed(testbed, TINY._replace(kills=1, kill_longest_s=0.2), candidates[:1]))

    assert 1.5 < found["holdfast"]["takeover_s"] < 10
    assert found["flock(2)"]["takeover_s"] < 1.5
    assert found["holdfast"]["in_time"] == 1.0
    assert late["holdfast"] == {"takeover_s": 0.2, "in_time": 0.0}


def test_many_leases_are_held_and_none_is_lost(testbed):
    """Threads, CPU and memory of many leases, and of names that the engine forgets."""
    (held,) = figures(leases(testbed, TINY, (known.HOLDFAST._replace(ttl=30),))).values()
    (used,) = figures(used_names(testbed, TINY, known.NAMES)).values()

    assert (held["leases"], held["lost"], held["threads"]) == (1000, 0, 1)
    assert held["bytes_each"] > 0
    assert used["names"] == 300
    assert used["left"] == 0
    assert used["forgotten_after_s"] < TINY.fence_memory_s + 30


def test_imports_are_timed_in_new_interpreters(testbed):
    """A module that loads on first use costs time when a client is made."""
    statements = {name: what for name, what in known.IMPORTS.items() if what[0] == "holdfast"}

    rows = imports(testbed, TINY, statements)
    found = figures(rows)
    (verdict,) = verdicts(made({"imports": rows}))

    assert (verdict.target.ours, verdict.target.goal, verdict.peer) == (known.HELP, 200, None)
    assert verdict.ours.median == found["holdfast --help"]["import_ms"]
    assert set(found) == set(statements)
    assert found["holdfast, a SQLite client"]["import_ms"] > found["import holdfast"]["import_ms"]


def test_a_candidate_that_cannot_run_is_named_with_the_reason(testbed):
    """No candidate is left out silently, whether its environment is missing or it fails during the run."""
    rows = pairs(testbed, TINY, (known.RAW, BROKEN, NO_MODULE))

    assert [row["candidate"] for row in rows] == ["raw socket"]
    assert "could not be built" in testbed.not_run["never built"]
    assert "no_such_module" in testbed.not_run["no such module"]
    text = page(made({"pair": rows}, not_run=dict(testbed.not_run)))
    assert "| no such module | ModuleNotFoundError" in text


def test_a_failed_worker_reports_its_error(testbed):
    """The reason is the last line of its standard error."""
    with testbed.start(known.RAW) as worker, pytest.raises(WorkerFailed, match="KeyError"):
        worker.run("no such workload")


def test_pools_are_compared_with_the_algorithm_that_they_replace(testbed):
    """A borrow and a return are two round trips for every size; the two-phase algorithm needs many more."""
    by_size, by_borrowers = figures(sizes(testbed, TINY)), figures(pool_contended(testbed, TINY))

    assert by_size["holdfast, 10 items"]["growth"] == 1
    assert 1.9 < by_size["holdfast, 50 items"]["round_trips"] < 2.5
    assert by_size["two-phase, 50 items"]["round_trips"] > 8
    assert by_size["holdfast, SQLite, 50 items"]["pairs_per_s"] > 0
    assert by_borrowers["holdfast, 50 workers"]["p99_us"] > 0
    assert by_borrowers["two-phase, 50 workers"]["p99_us"] > 0


def test_a_registry_is_renewed_in_batches_and_listed_by_its_index(testbed):
    """No key is lost, and both bounds are the server's own count."""
    rows = registry(testbed, TINY._replace(leases=100))
    found = figures(rows)

    assert set(found) == {known.OWNED.name, known.LISTED.name, known.ONCE.name}
    assert (found[known.OWNED.name]["keys"], found[known.OWNED.name]["lost"]) == (100, 0)
    assert found[known.LISTED.name]["round_trips"] == pytest.approx(1.0, abs=0.1)
    assert found[known.LISTED.name]["slower"] > 0
    assert found[known.ONCE.name]["round_trips"] == pytest.approx(2.0, abs=0.1)
    assert found[known.ONCE.name]["duplicate_round_trips"] == pytest.approx(1.0, abs=0.1)


def test_stores_are_compared_with_a_lock_around_each_write(testbed):
    """The rows are counted in the table itself; ours is also compared with the lock of the same round."""
    found = figures(stores(testbed, TINY, (known.STORE_REDIS, known.STORE_SQLITE, known.STORE_REDIS_PY)))
    lock = found.pop("redis-py Lock around each write, 2 writers")

    assert set(found) == {"holdfast, Redis, 2 writers", "holdfast, SQLite, 2 writers"}
    for ours in found.values():
        assert (ours["succeeded"], ours["rows_lost"], ours["rows_twice"]) == (1, 0, 0)
        assert ours["times_locks"] == pytest.approx(ours["rows_per_s"] / lock["rows_per_s"])


def test_the_page_is_made_from_the_figures_alone(testbed):
    """The verdict follows the median of the figures."""
    rows = pairs(testbed, TINY, (known.RAW, known.HOLDFAST))
    ours = next(row for row in rows if row["candidate"] == "holdfast")

    ours["figures"]["times_floor"] = Spread(1.5, 1.0, 9.0)
    reached = verdicts(made({"pair": rows}))[0]
    text = page(made({"pair": rows}))
    ours["figures"]["times_floor"] = Spread(1.51, 1.0, 9.0)
    missed = verdicts(made({"pair": rows}))[0]

    assert reached.target is missed.target is TARGETS[0]
    assert (reached.reached, missed.reached) == (True, False)
    assert "| uncontended pair, blocking: x floor | <= 1.50 | 1.50 (1.00 to 9.00) |" in text


def test_every_measurement_is_on_the_page_and_every_target_has_a_measurement():
    """The page shows every measurement, and every target is measured."""
    assert list(SECTIONS) == list(MEASUREMENTS)
    assert {target.part for target in TARGETS} <= set(MEASUREMENTS)


def test_every_candidate_has_pinned_requirements():
    """The figures of a peer belong to a version."""
    all_candidates = [
        each for each in (*vars(known).values(), *known.LIMITS, *known.QUEUES) if isinstance(each, Candidate)
    ]

    assert {each.environment for each in all_candidates} == set(names())
    assert [pin for name in names() for pin in pins(name) if "==" not in pin] == ["-e .[cli]", "-e ."]


def test_the_page_in_the_docs_is_made_from_the_committed_summary():
    """No figure is typed by hand: the test makes the page again from the summary."""
    file, kept = RESULTS / "full.json", ROOT / "docs" / "benchmarks.md"

    assert file.exists() == kept.exists()
    if kept.exists():
        assert kept.read_text(encoding="utf-8") == page(summary.read(file), "benchmarks.svg")
        assert len(file.read_text(encoding="utf-8").splitlines()) < 2000, "raw samples are not committed"


def test_measurements_of_a_later_run_are_merged_and_name_their_run(tmp_path, monkeypatch):
    """A measurement can run again without the others; the page says that it is from another run."""
    monkeypatch.setattr(program, "RESULTS", tmp_path)
    last, later = made({"imports": [], "pair": []}, {"a": "why"}), made({"layers": []})
    later["facts"]["commit"] = "def"
    summary.write(last, tmp_path / f"{TINY.name}.json")

    together = program.merged(later)
    text = page(together)

    assert list(together["parts"]) == ["pair", "layers", "imports"]
    assert together["facts"]["commit"] == "abc"
    assert together["not_run"] == {"a": "why"}
    assert text.count("Measured on today, commit def") == 1
    assert text.index("Measured on today") > text.index(SECTIONS["layers"].title)


def made(parts, not_run=None):
    """Return a summary as a run would write it."""
    python = {"version": "3", "implementation": "P", "compiler": "c", "optimised": False, "loop_ms": 1.0}
    facts = {
        "day": "today",
        "commit": "abc",
        "changed": False,
        "python": python,
        "processor": "p",
        "cores": 2,
        "system": "s",
        "load_before": 0.0,
        "server": "v",
        "pins": {},
        "minutes": 1.0,
    }
    return {"facts": facts, "scale": TINY._asdict(), "parts": parts, "not_run": not_run or {}}
