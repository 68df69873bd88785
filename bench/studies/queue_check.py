"""How long `queue.check()` takes, and how long it blocks a server.

    python bench/studies/queue_check.py [MESSAGES] [KEYS]

The longest step and the CPU time are the server's own figures (LATENCY, INFO). The queue has so many ready messages of
100 bytes; with KEYS, so many keys, and all messages but the first of each key are behind it.
"""

from __future__ import annotations

import resource
import sys
import time

import holdfast
from holdfast.testing import eventually
from holdfast.testing.resp import ServerError
from holdfast.testing.servers import Server, available

PART = 10_000


def main(messages: int, keys: int) -> None:
    with Server("valkey" if "valkey" in available() else available()[0]) as server, holdfast.connect(server.url) as hf:
        queue = hf.queue("jobs")
        for first in range(0, messages, PART):
            bodies = [f"{number:0100}" for number in range(first, min(messages, first + PART))]
            queue.publish_many(bodies, key=(lambda body: f"k{int(body) % keys}") if keys else None)
        server.command("CONFIG", "SET", "latency-monitor-threshold", "1")
        server.command("CONFIG", "RESETSTAT")
        server.command("LATENCY", "RESET")
        used = _processor(server)
        before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
        try:
            report: object = queue.check()
        except holdfast.HoldfastError as error:
            report = repr(error)
        seconds = time.monotonic() - began
        eventually(lambda: _answers(server), 120, "an end of the last step")
        memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        stops = {event[0].decode(): event[3] for event in server.command("LATENCY", "LATEST")}
        steps = next(
            line.partition("calls=")[2].partition(",")[0]
            for line in server.command("INFO", "commandstats").decode().split()
            if line.startswith("cmdstat_evalsha:")
        )
        print(f"{messages} messages, {keys} keys: {report}")
        longest, used = stops.get("command", "below 1"), _processor(server) - used
        print(
            f"{seconds:.1f} s, {steps} steps, the longest {longest} ms, {used:.1f} s of the server's processor, ",
            end="",
        )
        print(f"{memory:.0f} MB here")


def _answers(server: Server) -> bool:
    try:
        return bool(server.command("PING"))
    except ServerError:  # it is busy
        return False


def _processor(server: Server) -> float:
    facts = dict(line.partition(":")[::2] for line in server.command("INFO", "cpu").decode().split())
    return float(facts["used_cpu_user"]) + float(facts["used_cpu_sys"])


if __name__ == "__main__":
    main(*(int(word) for word in [*sys.argv[1:], *("100000", "0")[len(sys.argv) - 1 :]]))
