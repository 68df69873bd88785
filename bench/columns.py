"""The figures: title and format of each on the page."""

from __future__ import annotations

from typing import NamedTuple


class Column(NamedTuple):
    """Title and format of one figure."""

    title: str
    form: str
    factor: float = 1.0

    def shown(self, value: float) -> str:
        """Return the value as text."""
        return self.form.format(value * self.factor)


COLUMNS = {
    "pairs_per_s": Column("pairs/s", "{:,.0f}"),
    "times_floor": Column("x floor", "{:.2f}"),
    "times_floor_p50": Column("x floor, by p50", "{:.2f}"),
    "times_alone": Column("x one server", "{:.2f}"),
    "times_replicated": Column("x a primary with two replicas", "{:.2f}"),
    "times_peer": Column("x redis.asyncio", "{:.2f}"),
    "messages_per_s": Column("handled/s", "{:,.0f}"),
    "published_per_s": Column("published/s", "{:,.0f}"),
    "times_slower": Column("ours is x times as fast", "{:.1f}"),
    "times_streams": Column("x the faster of taskiq-redis and FastStream", "{:.1f}"),
    "times_jobs": Column("x the fastest of arq, saq and streaq", "{:.1f}"),
    "p50_us": Column("p50 us", "{:.0f}"),
    "p99_us": Column("p99 us", "{:.0f}"),
    "client_cpu_us": Column("client CPU us", "{:.1f}"),
    "server_cpu_us": Column("server CPU us", "{:.1f}"),
    "round_trips": Column("round trips", "{:.2f}"),
    "sent": Column("commands sent", "{:.2f}"),
    "commands": Column("commands, including those in scripts", "{:.1f}"),
    "grants_per_s": Column("grants/s", "{:,.0f}"),
    "of_ideal": Column("of the ideal rate", "{:.1f} %", 100),
    "section_ms": Column("section ms", "{:.2f}"),
    "gap_p50_us": Column("gap p50 us", "{:,.0f}"),
    "gap_p99_us": Column("gap p99 us", "{:,.0f}"),
    "to_itself": Column("granted to the same worker again", "{:.0f} %", 100),
    "least": Column("least per worker", "{:,.0f}"),
    "most": Column("most", "{:,.0f}"),
    "evenness": Column("least / most", "{:.3f}"),
    "jain": Column("Jain", "{:.3f}"),
    "wait_p50_ms": Column("wait p50 ms", "{:.1f}"),
    "wait_max_ms": Column("worst wait ms", "{:,.1f}"),
    "wait_of_fifo": Column("worst wait / FIFO ideal", "{:,.2f}"),
    "lag_p50_ms": Column("lag p50 ms", "{:.2f}"),
    "lag_p99_ms": Column("lag p99 ms", "{:,.2f}"),
    "samples": Column("samples", "{:.0f}"),
    "takeover_s": Column("takeover s", "{:.3f}"),
    "in_time": Column("within the bound", "{:.0f} %", 100),
    "leases": Column("leases", "{:,.0f}"),
    "threads": Column("threads", "{:,.0f}"),
    "client_cpu_share": Column("client, % of a core", "{:.2f} %", 100),
    "server_cpu_share": Column("server, % of a core", "{:.2f} %", 100),
    "cpu_share": Column("both, % of a core", "{:.2f} %", 100),
    "bytes_each": Column("server bytes each", "{:,.0f}"),
    "lost": Column("lost", "{:.0f}"),
    "names": Column("names", "{:,.0f}"),
    "names_per_s": Column("names/s", "{:,.0f}"),
    "grown_mb": Column("grown MB", "{:,.1f}"),
    "fence_memory_s": Column("fence_memory s", "{:.0f}"),
    "forgotten_after_s": Column("all records gone after s", "{:.1f}"),
    "left_share": Column("memory left, of the growth", "{:.1f} %", 100),
    "decisions_per_s": Column("decisions/s", "{:,.0f}"),
    "of_floor": Column("of the floor's rate", "{:.2f}"),
    "times_allowed": Column("x the rate of allowed decisions", "{:.1f}"),
    "allowed_share": Column("allowed", "{:.1f} %", 100),
    "rows_per_s": Column("rows/s", "{:,.0f}"),
    "times_locks": Column("x the better lock", "{:.2f}"),
    "succeeded": Column("succeeded", "{:.1f} %", 100),
    "failures": Column("failures", "{:,.0f}"),
    "rows_lost": Column("rows lost", "{:,.0f}"),
    "rows_twice": Column("rows twice", "{:,.0f}"),
    "import_ms": Column("ms", "{:.1f}"),
    "hit_us": Column("us", "{:.1f}"),
    "growth": Column("x the smallest pool", "{:.2f}"),
    "slower": Column("x alone", "{:.2f}"),
    "keys": Column("keys", "{:,.0f}"),
    "renewals": Column("renewals", "{:,.0f}"),
    "claims_per_s": Column("claims/s", "{:,.0f}"),
    "releases_per_s": Column("releases/s", "{:,.0f}"),
    "alone_us": Column("alone, us", "{:,.0f}"),
    "beside_us": Column("with other keys, us", "{:,.0f}"),
    "successes_per_s": Column("successes/s", "{:,.0f}"),
    "duplicates_per_s": Column("duplicates/s", "{:,.0f}"),
    "duplicate_round_trips": Column("round trips of a duplicate", "{:.2f}"),
    "sent_per_s": Column("sent/s", "{:,.0f}"),
    "p50_ms": Column("p50 ms", "{:.2f}"),
    "p99_ms": Column("p99 ms", "{:.2f}"),
    "round_trips_per_s": Column("round trips/s", "{:.2f}"),
    "commands_per_s": Column("commands/s, including those in scripts", "{:.1f}"),
    "recovery_s": Column("recovered, s", "{:.2f}"),
    "beyond_s": Column("beyond ttl and grace, s", "{:.2f}"),
    "streams": Column("streams", "{:,.0f}"),
    "scripts_per_s": Column("scripts sent/s", "{:,.1f}"),
    "times_one": Column("x one stream", "{:,.2f}"),
    "twice": Column("owned twice", "{:,.0f}"),
    "attempts_used": Column("attempts used", "{:,.0f}"),
}
