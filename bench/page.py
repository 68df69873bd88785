"""From the results of a run to the page that people read. No figure is typed by hand."""

from __future__ import annotations

from typing import Any, NamedTuple

from bench.columns import COLUMNS, Column
from bench.targets import AT_MOST, Verdict, overlapped, verdicts

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
    """One part on the page: its heading, how to read it, and its columns; the first is shown with its spread."""

    title: str
    words: str
    columns: tuple[str, ...]


SECTIONS = {
    "pair": Section(
        "Uncontended, TCP",
        "One acquire and release after the other; server and client on one core. A new lock object for each pair.",
        _PAIR,
    ),
    "layers": Section(
        "Where the time of a pair goes",
        "Our own two scripts, with ever more of the library around them. The last step adds the lease: its object, the"
        " keeper, deadlines, the undo of what nobody owns.",
        ("times_floor", "times_floor_p50", "p50_us", "client_cpu_us", "server_cpu_us"),
    ),
    "pair_unix": Section(
        "Uncontended, Unix socket", "The same through a socket file, against a floor of its own.", _PAIR
    ),
    "pair_file": Section(
        "Uncontended, one host",
        "Engines that need no server, and redis-py on a socket file beside them. The floor is the kernel's lock.",
        _PAIR[:6],
    ),
    "groups": Section(
        "Uncontended, on groups of servers",
        "A primary has its replicas to feed, whoever asks: so groups are also compared with a primary that is reached"
        " directly. Replicas and sentinels have the other core.",
        ("times_alone", "times_replicated", "pairs_per_s", "p50_us", "p99_us", "client_cpu_us"),
    ),
    "fan_out": Section(
        "100 tasks in one process",
        "Each task has a name of its own; server and client on a core each.",
        ("pairs_per_s", "times_peer", "p50_us", "p99_us", "client_cpu_us", "server_cpu_us", "round_trips", "commands"),
    ),
    "contended": Section(
        "Contended: 2 processes, 4 callers each, a section of 1 ms",
        "Gap: from the start of a release to the next grant, whoever gets it. The ideal rate is one section after the"
        " other, at their measured length; asyncio's own sleep is longer than a thread's.",
        _CONTENDED + _COST,
    ),
    "sixteen": Section("Contended: 16 processes, a section of 5 ms", "As above.", _CONTENDED + _COST),
    "hand_over": Section(
        "Where the time of a hand-over goes",
        "The same sixteen processes: a token on a list; our scripts behind the same pop, on a bare socket; then ever"
        " more of the library. Each process has slept for fifteen sections while others had its core: a step takes"
        " several times as long as the same step of a pair.",
        ("gap_p50_us", "gap_p99_us", "of_ideal", "client_cpu_us", "server_cpu_us", "sent", "commands"),
    ),
    "lone": Section(
        "A lone waiter",
        "Two processes, sections of 0 to 40 ms, rests of 0 to 20 ms. Lag: from the first release that the one who waits"
        " could see until it has the lock, overtaking by the other included.",
        ("lag_p50_ms", "lag_p99_ms", "samples", "round_trips"),
    ),
    "contended_file": Section(
        "Contended on one host: 8 processes, a section of 1 ms",
        "No server. A lock that goes back to itself has nobody to wake; ours go to whoever has waited longest, a"
        " process that has slept for seven sections. In a shared directory most of the gap is one file written to give"
        " the lease and one to take it, which a reader can rely on though its writer is killed; the rest is the"
        " wake-up. Files that have no name until they are linked, and a rename in place of the link, took as long.",
        (*_CONTENDED, "client_cpu_us"),
    ),
    "lone_file": Section(
        "A lone waiter on one host",
        "As above, without a server. Where eight contend, most locks on files go back to whoever has just given them"
        " back; this is how long the other one waits.",
        ("lag_p50_ms", "lag_p99_ms", "samples", "client_cpu_us"),
    ),
    "killed": Section(
        "The holder is killed with 2 s of its ttl left",
        "SIGKILL while another waits. Locks that the kernel holds for a process end with it.",
        ("takeover_s", "in_time"),
    ),
    "built": Section(
        "`build_once` finds it there",
        "One file is open_driver and read; no lease, no engine.",
        ("hit_us",),
    ),
    "leases": Section(
        "Many leases held by one process, ttl 30",
        "A peer with a thread per lease is asked for fewer.",
        ("cpu_share", "leases", "threads", "client_cpu_share", "server_cpu_share", "bytes_each", "lost"),
    ),
    "names": Section(
        "Many names, each used once",
        "A name's last fence is remembered for `fence_memory` after its last use; then nothing stays.",
        ("left_share", "names", "names_per_s", "grown_mb", "bytes_each", "fence_memory_s", "forgotten_after_s"),
    ),
    "pool": Section(
        "A pool: borrow and return, one borrower",
        "Times are those of the borrow. Two-phase is the algorithm in use elsewhere: list the locks, read the map of"
        " last uses, claim one.",
        ("growth", "pairs_per_s", "p50_us", "p99_us", "round_trips", "commands", "server_cpu_us"),
    ),
    "pool_crowd": Section(
        "A pool of 2,000: 50 borrowers in 5 processes, holding 20 ms each",
        "Items are always free: what a borrow takes is the algorithm's own, and the wait for a core. The floor, ZPOPMIN"
        " and ZADD on bare sockets, shows how much the second is.",
        ("p99_us", "p50_us", "pairs_per_s", "round_trips", "commands", "server_cpu_us"),
    ),
    "limit": Section(
        "A limit: allowed decisions",
        "One key, a limit that is never reached; server and client on one core. The floor counts and decides nothing."
        " What a window is differs: only ours and `moving-window` of limits are exact.",
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
    "refused": Section(
        "A limit: refused decisions",
        "One key that is over its limit, beside the rate of allowed decisions.",
        ("decisions_per_s", "times_allowed", "allowed_share", "client_cpu_us", "round_trips"),
    ),
    "directory": Section(
        "Directories, and work that is done once",
        "Round trips are those of one renewal, one list, one success. The list is compared with the same one on a"
        " server that has nothing else.",
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
        "Single rows, from up to four processes; a lock is waited for 10 s. Without a lock appends are merged by Lance"
        " itself, which is no help for anything but appends. Ours shares leases and commits within a process.",
        ("rows_per_s", "times_locks", "succeeded", "failures", "rows_lost", "rows_twice"),
    ),
    "queue": Section(
        "A queue: published, and handled by one worker that does nothing",
        "Ours is as reliable as it is by default. Results are off where a peer can do without; taskiq-redis and"
        " FastStream delete nothing that is done, and count no attempts.",
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
    "queue_life": Section(
        "The life of a queue",
        "Two processes on one queue; how old a message is when its handler begins, in another process; what a worker"
        " that waits and a consumer that holds ask of the server; and a worker that is killed: seconds until another"
        " has done the last of what it had, and how many beyond its ttl and grace.",
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
        "Streams owned by one process that does nothing else, ttl 2",
        "The sequence of redis-stream-client-go is ported as straight as it can be, on bare sockets: a lock for each"
        " stream, which a script extends twice in its time. Ours has one lease for all; once a minute, and not in these"
        " seconds, it also says in one command what it has.",
        ("times_one", "streams", "scripts_per_s", "commands_per_s", "cpu_share", "lost"),
    ),
    "owner_killed": Section(
        "A pod that owns 1,000 streams is killed; two others find them by looking, ttl 2",
        "SIGKILL. Seconds from the end of the last lease until the last stream has an owner; ours waits for a grace of"
        " 2 s in these. The other one scans at once and every 2 s here, where its default is 60: with it, 50 in a scan,"
        " which is its default and its limit, take thirty times as long. Commands are for each stream, from the kill"
        " on, our heartbeats included and its extensions not. A quick run has fewer streams.",
        ("takeover_s", "streams", "least", "most", "evenness", "twice", "commands", "server_cpu_us"),
    ),
    "imports": Section(
        "Import",
        "In a fresh interpreter, with compiled files; then up to a client, before any contact.",
        ("import_ms",),
    ),
}

_HOW = """\
How it is measured: everybody in the same run, each in a process and an environment of its own, interleaved in an order
that changes with every round; medians, in brackets the least and the most of the rounds. Ratios are taken round by
round. Commands and CPU time are the server's own counters. Every contended run is checked for two holders at once.
[A record](decisions/README.md) says why. Read ratios first: absolute figures are this machine's."""


def page(results: dict[str, Any], picture: str = "") -> str:
    """The whole page."""
    scale = results["scale"]
    command = "make bench" if scale["name"] == "full" else "make bench QUICK=1"
    told = [
        "# Benchmarks",
        f"<!-- Made by `{command}` from its results; edit bench/page.py, never this page. -->",
        ""
        if scale["name"] == "full"
        else "**A quick run: few rounds, short bursts. It shows that the race runs, no more.**",
        f"One command repeats it: `{command}`. `BENCH_PYTHON=...` chooses the interpreter of all candidates.",
        _where(results["facts"]),
        _HOW,
        "## The targets",
        _targets(verdicts(results)),
        *([f"![the race in pictures]({picture})"] if picture else []),
        *(_section(part, rows, results.get("added", {}).get(part, "")) for part, rows in results["parts"].items()),
        "## Not run",
        _not_run(results["not_run"]),
    ]
    if overlapped(results):
        told.insert(2, f"**Two holders at once: {', '.join(overlapped(results))}. Nothing here counts.**")
    return "\n\n".join(block for block in told if block) + "\n"


def _where(facts: dict[str, Any]) -> str:
    python = facts["python"]
    optimised = "yes" if python["optimised"] else "not stated by its build"
    pins = sorted({pin for each in facts["pins"].values() for pin in each})
    lines = {
        "day": f"{facts['day']}, commit {facts['commit']}{' with changes' if facts['changed'] else ''}",
        "interpreter": f"{python['implementation']} {python['version']}, {python['compiler']};"
        f" built with optimisations: {optimised}; a million turns of a loop take {python['loop_ms']:.0f} ms",
        "machine": f"{facts['processor']}, {facts['cores']} cores, {facts['system']};"
        f" load before {facts['load_before']}",
        "server": f"{facts['server']}, loopback, no persistence",
        "libraries": ", ".join(pin.replace("==", " ") for pin in pins),
        "took": f"{facts['minutes']:.1f} minutes",
    }
    return _table(("", ""), list(lines.items()))


def _targets(found: list[Verdict]) -> str:
    rows = []
    for verdict in found:
        target, column = verdict.target, COLUMNS[verdict.target.figure]
        goal = f"{'<=' if target.side == AT_MOST else '>='} {column.shown(target.goal)}"
        ours = "not measured" if verdict.ours is None else _spread(column, verdict.ours)
        other = [f"{column.shown(each[1])} ({each[0]})" if each else "" for each in (verdict.peer, verdict.floor)]
        said = "reached" if verdict.reached else "**not reached**"
        rows.append((f"{target.what}: {column.title}", goal, ours, *other, said))
    reached = sum(verdict.reached for verdict in found)
    heads = ("what", "target", "ours", "best peer", "floor", "")
    return _table(heads, rows) + f"\n\n{reached} of {len(found)} reached."


def run_of(facts: dict[str, Any]) -> str:
    """Which run it was, for a part that was measured in another one than the rest."""
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
    words = f"{section.words} {run}".rstrip()
    return f"## {section.title}\n\n{words}\n\n" + (_table(heads, lines) if lines else "Nobody could run.")


def _cells(row: dict[str, Any], columns: list[str]) -> list[str]:
    figures = row["figures"]
    if figures.get("overlaps", {}).get("high"):
        return [f"two holders at once, {figures['overlaps']['high']:,.0f} times", *[""] * (len(columns) - 1)]
    return [
        "" if key not in figures else _spread(COLUMNS[key], figures[key]) if at == 0 else _median(key, figures)
        for at, key in enumerate(columns)
    ]


def _median(key: str, figures: dict[str, Any]) -> str:
    return COLUMNS[key].shown(figures[key]["median"])


def _spread(column: Column, value: dict[str, float]) -> str:
    middle, low, high = (column.shown(value[key]) for key in ("median", "low", "high"))
    return middle if low == high else f"{middle} ({low} to {high})"


def _not_run(not_run: dict[str, str]) -> str:
    if not not_run:
        return "Everybody ran."
    return _table(("who", "why"), [(name, why.replace("|", "/")) for name, why in not_run.items()])


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
