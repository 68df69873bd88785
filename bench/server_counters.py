"""The server's own counters: commands, reads, CPU time, memory.

`commands` includes the commands that scripts call; `round_trips` are the server's read events. The cost of reading the
counters is measured once and subtracted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from holdfast.testing.servers import Server

_SCRIPTS = ("eval", "evalsha")
_OWN = ("info", "flushall", "dbsize")


class Reading(NamedTuple):
    """The counters at one moment."""

    commands: int
    scripts: int
    reads: int
    cpu_s: float
    memory: int


class ServerCounters:
    """Reads the counters of one server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        first, second = self.read(), self.read()
        self._own_reads = second.reads - first.reads

    def read(self) -> Reading:
        """Return the counters now."""
        lines = self._server.command("INFO", "everything").decode().splitlines()
        info = dict(line.split(":", 1) for line in lines if ":" in line)
        calls = {
            key.removeprefix("cmdstat_"): int(value.split(",")[0].removeprefix("calls="))
            for key, value in info.items()
            if key.startswith("cmdstat_")
        }
        return Reading(
            commands=sum(count for name, count in calls.items() if name not in _OWN),
            scripts=sum(count for name, count in calls.items() if name in _SCRIPTS),
            reads=int(info["total_reads_processed"]),
            cpu_s=float(info["used_cpu_user"]) + float(info["used_cpu_sys"]),
            memory=int(info["used_memory"]) - int(info.get("mem_clients_normal", 0)),
        )

    def cpu_s(self) -> float:
        """Return the CPU time of the server so far, with as little work for it as possible."""
        lines = self._server.command("INFO", "cpu").decode().splitlines()
        info = dict(line.split(":", 1) for line in lines if ":" in line)
        return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])

    def per_operation(self, before: Reading, after: Reading, operations: int) -> dict[str, float]:
        """Return the cost of one operation for the server."""
        return {
            "round_trips": (after.reads - before.reads - self._own_reads) / operations,
            "commands": (after.commands - before.commands) / operations,
            "server_cpu_us": (after.cpu_s - before.cpu_s) / operations * 1e6,
        }
