"""One process of one candidate: it opens the candidate, reports ready, and runs workloads, one line of JSON each.

It runs in the candidate's own environment, so it needs only the standard library.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from typing import Any

from bench.drivers import Driver, TaskDriver, ThreadDriver
from bench.workloads import WORKLOADS


def open_driver(job: dict[str, Any]) -> Driver:
    module, _, function = job["adapter"].partition(":")
    adapter = getattr(importlib.import_module(module), function)
    arguments = (adapter, job["url"], job["ttl"], job["options"])
    return TaskDriver(job["loop"], *arguments) if job["loop"] else ThreadDriver(*arguments)


def main() -> None:
    job = json.loads(sys.argv[1])
    signal.alarm(job["longest_s"])  # it ends even if its parent does not end it
    if job["cores"]:
        os.sched_setaffinity(0, job["cores"])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # text that a library prints must not look like an answer

    def answer(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    driver = open_driver(job)
    answer({"ready": os.getpid()})
    for line in sys.stdin:
        order = json.loads(line)
        workload = order.pop("workload")
        if workload == "open":  # the same candidate at another URL
            driver.close()
            driver = open_driver(job | order)
            answer({"ready": os.getpid()})
        else:
            answer(driver.run(WORKLOADS[workload](driver, **order)))
    driver.close()


if __name__ == "__main__":
    main()
