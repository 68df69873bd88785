"""One process that owns streams, for the owner measurements: `python -m bench.programs.stream_owner JOB`.

It prints a line of JSON for each stream that it gets or loses, with the time, and answers each line of its input with
its state. Two variants: Holdfast's, and the sequence of commands that it replaces (see `stream_sequence`). Both recover
without notifications.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

MOST = 100_000


def report(what: str, **facts: Any) -> None:
    """Write one line in one system call: two threads may write."""
    os.write(1, (json.dumps({"what": what, "at": time.monotonic(), **facts}) + "\n").encode())


def added(stream: str) -> None:
    report("added", stream=stream)


def lost(stream: str) -> None:
    report("lost", stream=stream)


def start_answering(owned: Callable[[], int], extensions: Callable[[], int]) -> None:
    """Answer each line of standard input with the state, in a thread."""

    def answer() -> None:
        for _ in sys.stdin:
            facts = {"owned": owned(), "extensions": extensions(), "cpu_s": time.process_time()}
            report("state", **facts)

    threading.Thread(target=answer, daemon=True).start()


def holdfast_way(url: str, name: str, ttl: float, fill: int, batch: int) -> None:  # noqa: ARG001 - for the other variant only
    import holdfast  # noqa: PLC0415 - only this variant needs it

    with holdfast.connect(url) as hf:
        queue = hf.queue("bench", ttl=ttl)
        with queue.owner(name, most=MOST) as owner:
            start_answering(lambda: owner.owned, lambda: 0)
            report("ready")
            queue.publish_many(range(fill), key="stream-{}".format)
            for event in owner:
                if isinstance(event, holdfast.Assigned):
                    added(event.assignment.key)
                elif isinstance(event, holdfast.AssignmentLost):
                    lost(event.assignment.key)


def sequence_way(url: str, name: str, ttl: float, fill: int, batch: int) -> None:
    from bench.programs.stream_sequence import Pod  # noqa: PLC0415 - only this variant needs it

    pod = Pod(url, name, ttl, batch, added, lost)
    start_answering(lambda: len(pod.owned), lambda: pod.extensions)
    asyncio.run(pod.live(fill, lambda: report("ready")))


WAYS = {"holdfast": holdfast_way, "sequence": sequence_way}

if __name__ == "__main__":
    job = json.loads(sys.argv[1])
    WAYS[job.pop("way")](**job)
