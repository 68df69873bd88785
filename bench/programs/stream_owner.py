"""One process that owns streams, for the parts about owners: `python -m bench.programs.stream_owner JOB`.

It says in lines of JSON what it owns and loses, each with the moment, and answers each line that it is sent with how it
stands. Two ways: Holdfast's, and the sequence that it replaces (see `stream_sequence`). Both recover by looking alone,
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


def say(what: str, **facts: Any) -> None:
    """One line, whole: two threads may speak."""
    os.write(1, (json.dumps({"what": what, "at": time.monotonic(), **facts}) + "\n").encode())


def added(stream: str) -> None:
    say("added", stream=stream)


def lost(stream: str) -> None:
    say("lost", stream=stream)


def answering(owned: Callable[[], int], extensions: Callable[[], int]) -> None:
    """Answer whoever asks, meanwhile."""

    def answer() -> None:
        for _ in sys.stdin:
            facts = {"owned": owned(), "extensions": extensions(), "cpu_s": time.process_time()}
            say("state", **facts)

    threading.Thread(target=answer, daemon=True).start()


def holdfast_way(url: str, name: str, ttl: float, fill: int, batch: int) -> None:  # noqa: ARG001 - a step has its size
    import holdfast  # noqa: PLC0415 - only this way needs it

    with holdfast.connect(url) as hf:
        queue = hf.queue("bench", ttl=ttl)
        with queue.owner(name, most=MOST) as owner:
            answering(lambda: owner.owned, lambda: 0)
            say("ready")
            queue.publish_many(range(fill), key="stream-{}".format)
            for event in owner:
                if isinstance(event, holdfast.Assigned):
                    added(event.assignment.key)
                elif isinstance(event, holdfast.AssignmentLost):
                    lost(event.assignment.key)


def sequence_way(url: str, name: str, ttl: float, fill: int, batch: int) -> None:
    from bench.programs.stream_sequence import Pod  # noqa: PLC0415 - only this way needs it

    pod = Pod(url, name, ttl, batch, added, lost)
    answering(lambda: len(pod.owned), lambda: pod.extensions)
    asyncio.run(pod.live(fill, lambda: say("ready")))


WAYS = {"holdfast": holdfast_way, "sequence": sequence_way}

if __name__ == "__main__":
    job = json.loads(sys.argv[1])
    WAYS[job.pop("way")](**job)
