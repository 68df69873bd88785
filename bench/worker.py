"""One process of one contender: it opens it, says so, and then does what it is told, one line of JSON at a time.

It runs in the contender's own environment, so it needs nothing but the standard library.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from typing import Any

from bench.deeds import DEEDS
from bench.stages import Stage, Tasks, Threads


def opened(job: dict[str, Any]) -> Stage:
    module, _, function = job["opener"].partition(":")
    opener = getattr(importlib.import_module(module), function)
    what = (opener, job["url"], job["ttl"], job["options"])
    return Tasks(job["loop"], *what) if job["loop"] else Threads(*what)


def main() -> None:
    job = json.loads(sys.argv[1])
    signal.alarm(job["longest_s"])  # whatever happens to the one who started it, it ends
    if job["cores"]:
        os.sched_setaffinity(0, job["cores"])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    stage = opened(job)
    say({"ready": os.getpid()})
    for line in sys.stdin:
        order = json.loads(line)
        deed = order.pop("deed")
        if deed == "open":  # the same contender, somewhere else
            stage.close()
            stage = opened(job | order)
            say({"ready": os.getpid()})
        else:
            say(stage.run(DEEDS[deed](stage, **order)))
    stage.close()


if __name__ == "__main__":
    main()
