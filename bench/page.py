"""From the summary of a run to the page that people read. No figure is typed by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from bench.columns import COLUMNS, Column
from bench.targets import AT_MOST, Verdict, overlapped, verdicts

if TYPE_CHECKING:
    from bench.stats import Spread

_PAIR = (
    "times_floor",
    "times_floor_p50",
    "pairs_per_s",
    "p50_us",
    "p99_us",
    "client_cpu_us",
    "server_cpu_us",
    "round_trips",
    "commands",
)
_CONTENDED = (
    "grants_per_s",
    "of_ideal",
    "gap_p50_us",
    "gap_p99_us",
    "to_itself",
    "least",
    "most",
    "jain",
    "wait_p50_ms",
    "wait_max_ms",
    "wait_of_fifo",
)
_COST = ("sent", "commands", "round_trips", "client_cpu_us", "server_cpu_us")


class Section(NamedTuple):
    """One measurement on the page: heading, explanation, and columns; the first column also shows the range."""

    title: str
    text: str
    columns: tuple[str, ...]


SECTIONS = {
    "pair": Section(
        "Uncontended, TCP",
        "One acquire and release after the other; server and client on one core. A new lock object for each pair.",
        _PAIR,
    ),
    "layers": Section(
        "Where the time of a pair goes",
        "Our two scripts, with more and more of the library around them. The last row adds the lease: its object, the"
        " keeper, deadlines, and the undo after an interrupted acquire.",
        ("times_floor", "times_floor_p50", "p50_us", "client_cpu_us", "server_cpu_us"),
    ),
    "pair_unix": Section("Uncontended, Unix socket", "The same over a Unix socket, with its own floor.", _PAIR),
    "pair_file": Section(
        "Uncontended, one host",
        "Engines without a server, and redis-py on a Unix socket for comparison. The floor is the kernel's lock.",
        _PAIR[:6],
    ),
    "groups": Section(
        "Uncontended, on groups of servers",
        "A primary has to feed its replicas, whatever the client does: so groups are also compared with a primary that"
        " the client reaches directly. Replicas and sentinels have the other core.",
        ("times_alone", "times_replicated", "pairs_per_s", "p50_us", "p99_us", "client_cpu_us"),
    ),
    "fan_out": Section(
        "100 tasks in one process",
        "Each task has its own name; server and client have a core each.",
        ("pairs_per_s", "times_peer", "p50_us", "p99_us", "client_cpu_us", "server_cpu_us", "round_trips", "commands"),
    ),
    "contended": Section(
        "Contended: 2 processes, 4 callers each, a section of 1 ms",
        "Gap: from the start of a release to the next grant of any worker. The ideal rate is one section after the"
        " other, at their measured length; a sleep in asyncio is longer than in a thread.",
        _CONTENDED + _COST,
    ),
    "contended_16": Section("Contended: 16 processes, a section of 5 ms", "As above.", _CONTENDED + _COST),
    "handover_layers": Section(
        "Where the time of a handover goes",
        "The same sixteen processes: a token on a list; our scripts behind the same blocking pop, on a bare socket;"
        " then more and more of the library. Each process has slept for fifteen sections while others used its core,"
        " so a step takes several times as long as the same step of an uncontended pair.",
        ("gap_p50_us", "gap_p99_us", "of_ideal", "client_cpu_us", "server_cpu_us", "sent", "commands"),
    ),
    "single_waiter": Section(
        "A single waiter",
        "Two processes, sections of 0 to 40 ms, rests of 0 to 20 ms. Lag: from the first release after the waiter's"
        " request until its grant, including the time in which the other process overtook it.",
        ("lag_p50_ms", "lag_p99_ms", "samples", "round_trips"),
    ),
    "contended_file": Section(
        "Contended on one host: 8 processes, a section of 1 ms",
        "No server. A lock that goes to the same process again wakes no process; ours go to the process that has waited"
        " longest and has slept for seven sections. In a shared directory most of the gap is one file written to"
        " release the lease and one to acquire it, which a reader can rely on even if the writer is killed; the rest is"
        " the wake-up. Files without a name until they are linked, and a rename instead of the link, took as long.",
        (*_CONTENDED, "client_cpu_us"),
    ),
    "single_waiter_file": Section(
        "A single waiter on one host",
        "As above, without a server. With eight processes, most file locks go to the process that has just released"
        " them; this is how long the other process waits.",
        ("lag_p50_ms", "lag_p99_ms", "samples", "client_cpu_us"),
    ),
    "holder_killed": Section(
        "The holder is killed with 2 s of its ttl left",
        "SIGKILL while another process waits. Kernel locks end with their process.",
        ("takeover_s", "in_time"),
    ),
    "build_once": Section(
        "`build_once` finds an existing build",
        "One file is opened and read; no lease, no engine.",
        ("hit_us",),
    ),
    "leases": Section(
        "Many leases held by one process, ttl 30",
        "A peer with a thread per lease holds fewer.",
        ("cpu_share", "leases", "threads", "client_cpu_share", "server_cpu_share", "bytes_each", "lost"),
    ),
    "names": Section(
        "Many names, each used once",
        "The engine remembers the last fence of a name for `fence_memory` after its last use; then nothing stays.",
        ("left_share", "names", "names_per_s", "grown_mb", "bytes_each", "fence_memory_s", "forgotten_after_s"),
    ),
    "pool": Section(
        "A pool: borrow and return, one borrower",
        "Times are those of the borrow. Two-phase is an algorithm that other projects use: list the locks, read the map"
        " of last uses, claim an item.",
        ("growth", "pairs_per_s", "p50_us", "p99_us", "round_trips", "commands", "server_cpu_us"),
    ),
    "pool_contended": Section(
        "A pool of 2,000: 50 borrowers in 5 processes, holding 20 ms each",
        "There are always free items: the time of a borrow is that of the algorithm, and the wait for a core. The"
        " floor, ZPOPMIN and ZADD on bare sockets, shows how much the second part is.",
        ("p99_us", "p50_us", "pairs_per_s", "round_trips", "commands", "server_cpu_us"),
    ),
    "limit": Section(
        "A rate limit: allowed decisions",
        "One key, a limit that is never reached; server and client on one core. The floor counts and decides nothing."
        " Libraries define a window differently: only ours and `moving-window` of limits are exact.",
        (
            "decisions_per_s",
            "of_floor",
            "p50_us",
            "p99_us",
            "client_cpu_us",
            "server_cpu_us",
            "round_trips",
            "commands",
        ),
    ),
    "limit_refused": Section(
        "A rate limit: refused decisions",
        "One key that is over its limit, compared with the rate of allowed decisions.",
        ("decisions_per_s", "times_allowed", "allowed_share", "client_cpu_us", "round_trips"),
    ),
    "registry": Section(
        "Registries and idempotency keys",
        "Round trips are those of one renewal, one list, one success. The list is compared with the same list on an"
        " otherwise empty server.",
        (
            "round_trips",
            "keys",
            "renewals",
            "cpu_share",
            "lost",
            "claims_per_s",
            "releases_per_s",
            "slower",
            "alone_us",
            "beside_us",
            "successes_per_s",
            "duplicates_per_s",
            "duplicate_round_trips",
        ),
    ),
    "store": Section(
        "Rows into one LanceDB table, by the number of concurrent writers",
        "Single rows, from up to four processes; writers wait up to 10 s for a lock. Without a lock Lance itself merges"
        " appends, which helps only with appends. Ours shares leases and commits within a process.",
        ("rows_per_s", "times_locks", "succeeded", "failures", "rows_lost", "rows_twice"),
    ),
    "queue": Section(
        "A queue: published, and handled by one worker that does nothing",
        "Ours runs with its default reliability. Results are off in peers that can run without; taskiq-redis and"
        " FastStream delete no handled message, and count no attempts.",
        (
            "messages_per_s",
            "times_slower",
            "times_streams",
            "times_jobs",
            "published_per_s",
            "commands",
            "server_cpu_us",
            "client_cpu_us",
        ),
    ),
    "queue_behaviour": Section(
        "Behaviour of a queue",
        "Two processes on one queue; the age of a message when its handler begins, in another process; the commands of"
        " a waiting worker and of a consumer that holds messages; and a killed worker: seconds until another worker has"
        " handled the last of its messages, and how many of them beyond ttl and grace.",
        (
            "messages_per_s",
            "commands",
            "sent_per_s",
            "p50_ms",
            "p99_ms",
            "lost",
            "round_trips_per_s",
            "commands_per_s",
            "recovery_s",
            "beyond_s",
            "attempts_used",
        ),
    ),
    "owner": Section(
        "Streams of one owner that does nothing else, ttl 2",
        "The sequence of redis-stream-client-go is ported directly, on bare sockets: a lock for each stream, which a"
        " script extends twice per ttl. Ours has one lease for all; once a minute, and not in these seconds, it also"
        " reports its keys in one command.",
        ("times_one", "streams", "scripts_per_s", "commands_per_s", "cpu_share", "lost"),
    ),
    "owner_killed": Section(
        "A pod that owns 1,000 streams is killed; two others take them over without notifications, ttl 2",
        "SIGKILL. Seconds from the end of the last lease until the last stream has an owner; ours includes a grace of"
        " 2 s. The sequence scans at once and every 2 s here, where its default is 60 s: with that default, 50 streams"
        " per scan (its default and limit) take thirty times as long. Commands are per stream, from the kill on,"
        " including our heartbeats and without its extensions. A quick run has fewer streams.",
        ("takeover_s", "streams", "least", "most", "evenness", "twice", "commands", "server_cpu_us"),
    ),
    "imports": Section(
        "Import",
        "In a new interpreter, with compiled files; then up to a client, before its first connection.",
        ("import_ms",),
    ),
}

_HOW = """\
Method: all candidates run in the same run, each in its own process and environment, interleaved in an order that
changes with every round. Figures are medians, with the least and the greatest round in brackets. Ratios are taken round
by round. Commands and CPU time are the server's own counters. Every contended run is checked for two holders at once.
The [decisions](decisions/README.md) have the reasons. Read ratios first: absolute figures depend on this machine."""

_BEFORE_AFTER = """\
## Before and after a change

`make bench BEFORE=main` compares Holdfast at that commit with the working tree, in about three minutes and without
peers; `QUICK=1` takes half a minute. Both versions run on the same server and disk, in processes of their own, in
batches that alternate. The table has the CPU time of client and server and the wall time of one operation: acquire and
release of a lease (Redis, Redis with asyncio, memory, SQLite, files), publish, receive and ack of a message (Redis,
memory, SQLite), an allowed hit of a rate limit (Redis, memory); and the memory of a held lease, in the server, in a
client of Redis and in the memory engine.

Each ratio is the median over pairs of neighbouring batches, with its 95 % range from a bootstrap. A row is `within` its
limit if the ratios of CPU time and wall time are; `above` if one of them is with its whole range; `unclear` if the run
was too short or the machine too busy to tell. The exit code is 0 if all rows are within. On a busy machine trust the
CPU time. Options go into `ARGS`: `--at-most 1.03` and `--memory-at-most 1.05` set the limits, `--workloads lease queue
limit memory` chooses rows, `--json` prints the figures."""


def page(results: dict[str, Any], picture: str = "") -> str:
    """Return the whole page."""
    scale = results["scale"]
    command = "make bench" if scale["name"] == "full" else "make bench QUICK=1"
    blocks = [
        "# Benchmarks",
        f"<!-- `{command}` made this page from its results: edit bench/page.py, never this page. -->",
        "" if scale["name"] == "full" else "**A quick run with few rounds: it only shows that the benchmark works.**",
        f"Repeat it with one command: `{command}`. `BENCH_PYTHON=...` chooses the interpreter of all candidates.",
        _where(results["facts"]),
        _HOW,
        "## Targets",
        _targets(verdicts(results)),
        *([f"![charts of the benchmark]({picture})"] if picture else []),
        *(_section(part, rows, results.get("added", {}).get(part, "")) for part, rows in results["parts"].items()),
        "## Not run",
        _not_run(results["not_run"]),
        _BEFORE_AFTER,
    ]
    if overlapped(results):
        blocks.insert(2, f"**Two holders at once: {', '.join(overlapped(results))}. The run is invalid.**")
    return "\n\n".join(block for block in blocks if block) + "\n"


def _where(facts: dict[str, Any]) -> str:
    python = facts["python"]
    optimised = "yes" if python["optimised"] else "not stated by its build"
    pins = sorted({pin for each in facts["pins"].values() for pin in each})
    lines = {
        "day": f"{facts['day']}, commit {facts['commit']}{' with changes' if facts['changed'] else ''}",
        "interpreter": f"{python['implementation']} {python['version']}, {python['compiler']};"
        f" built with optimisations: {optimised}; a loop of a million iterations takes {python['loop_ms']:.0f} ms",
        "machine": f"{facts['processor']}, {facts['cores']} cores, {facts['system']};"
        f" load before {facts['load_before']}",
        "server": f"{facts['server']}, loopback, no persistence",
        "libraries": ", ".join(pin.replace("==", " ") for pin in pins),
        "duration": f"{facts['minutes']:.1f} minutes",
    }
    return table(("", ""), list(lines.items()))


def _targets(found: list[Verdict]) -> str:
    rows = []
    for verdict in found:
        target, column = verdict.target, COLUMNS[verdict.target.figure]
        goal = f"{'<=' if target.side == AT_MOST else '>='} {column.shown(target.goal)}"
        ours = "not measured" if verdict.ours is None else _spread(column, verdict.ours)
        other = [f"{column.shown(each[1])} ({each[0]})" if each else "" for each in (verdict.peer, verdict.floor)]
        result = "reached" if verdict.reached else "**not reached**"
        rows.append((f"{target.what}: {column.title}", goal, ours, *other, result))
    reached = sum(verdict.reached for verdict in found)
    heads = ("what", "target", "ours", "best peer", "floor", "")
    return table(heads, rows) + f"\n\n{reached} of {len(found)} reached."


def run_of(facts: dict[str, Any]) -> str:
    """Return a sentence that names the run, for a measurement of another run than the rest."""
    changed = " with changes" if facts["changed"] else ""
    return f"Measured on {facts['day']}, commit {facts['commit']}{changed}, CPython {facts['python']['version']}."


def _section(part: str, rows: list[dict[str, Any]], run: str) -> str:
    section = SECTIONS[part]
    columns = [key for key in section.columns if any(key in row["figures"] for row in rows)]
    lines = [
        (f"**{row['candidate']}**" if row["role"] == "ours" else row["candidate"], *_cells(row, columns))
        for row in sorted(rows, key=lambda row: ("floor", "ours", "peer").index(row["role"]))
    ]
    heads = ("", *(COLUMNS[key].title for key in columns))
    text = f"{section.text} {run}".rstrip()
    return f"## {section.title}\n\n{text}\n\n" + (table(heads, lines) if lines else "No candidate could run.")


def _cells(row: dict[str, Any], columns: list[str]) -> list[str]:
    figures = row["figures"]
    if "overlaps" in figures and figures["overlaps"].high:
        return [f"two holders at once, {figures['overlaps'].high:,.0f} times", *[""] * (len(columns) - 1)]
    return [
        "" if key not in figures else _spread(COLUMNS[key], figures[key]) if at == 0 else _median(key, figures)
        for at, key in enumerate(columns)
    ]


def _median(key: str, figures: dict[str, Any]) -> str:
    return COLUMNS[key].shown(figures[key].median)


def _spread(column: Column, value: Spread) -> str:
    median, low, high = map(column.shown, value)
    return median if low == high else f"{median} ({low} to {high})"


def _not_run(not_run: dict[str, str]) -> str:
    if not not_run:
        return "All candidates ran."
    return table(("candidate", "reason"), [(name, why.replace("|", "/")) for name, why in not_run.items()])


def table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a table in Markdown."""
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
