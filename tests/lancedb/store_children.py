"""The programs of child processes: one write that a test may freeze, or tasks that the parent sends."""

import fcntl
import json
import os
import resource
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import lance
from store_kit import SCHEMA, row, together

from holdfast import HoldfastError, failpoints
from holdfast.contrib import lancedb
from holdfast.testing import eventually, read_line, ready, send_line


def write_one(directory, config, number):
    """Report the result of the write: the error, the number of written rows, and the cause."""
    store = lancedb.open_store(directory, "memories", config, schema=SCHEMA)
    ready()
    try:
        send_line(f"written {store.add(row(number)).rows}")
    except HoldfastError as error:
        result = getattr(error, "result", None)
        under = type(error.__cause__).__name__ if error.__cause__ is not None else None
        send_line(f"{type(error).__name__} {result and result.rows} {under} {error}")
    store.close()


class Section:
    """A section between the last check of the lease and the commit; it detects a second process inside."""

    def __init__(self, directory):
        self._path = Path(directory) / "section"
        self.met = 0
        self.entered = 0

    def __call__(self):
        self.entered += 1
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            time.sleep(0.001)
        except BlockingIOError:
            self.met += 1
        finally:
            os.close(descriptor)


def obey():
    """Execute tasks line by line, each in its own store."""
    ready()
    while True:
        order = json.loads(read_line(None))
        section = Section(order["scratch"])
        failpoints.arm("lancedb.before-commit", section)
        try:
            with lancedb.open_store(order["directory"], "memories", order["config"], schema=SCHEMA) as store:
                result = globals()[order["task"]](store, **order["arguments"])
                answer = {
                    "result": result,
                    "passed": store.status().acquisitions,
                    "overtaken": store.status().foreign_commits,
                }
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        failpoints.disarm_all()
        send_line(json.dumps({**answer, "met": section.met, "entered": section.entered}))


def write_each(store, who, rows):
    """Add single rows, one after the other."""
    for number in range(rows):
        store.add(row(f"{who}-{number}"))
    return rows


def write_at_once(store, who, writers):
    """Add single rows at the same moment; return the errors."""
    answers = together([lambda n=n: store.add(row(f"{who}-{n}")) for n in range(writers)])
    return [repr(answer) for answer in answers if isinstance(answer, Exception)]


def count_up(store, times):
    """Read a counter, add one and write it, repeatedly."""
    for _ in range(times):
        store.transform("id = 'counter'", lambda found: {**found, "n": found["n"] + 1})
    return times


def tend(store, rounds):
    """Run every mutation that writes no rows."""
    for number in range(rounds):
        store.index_text("text")
        store.index_vectors(kind="IVF_FLAT", num_partitions=1)
        store.fold()
        store.optimize(timedelta(days=1))
        store.add_columns({f"extra_{number}": "1"})
    return rounds


def just_open(store):
    return store.count()


def break_middle(directory, config):
    """Run 600 callers in chunks of 200; a file size limit makes the second chunk fail."""
    hardest = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    go, there = threading.Event(), threading.Event()
    with lancedb.open_store(directory, "memories", config, schema=SCHEMA) as store, ThreadPoolExecutor(601) as callers:
        failpoints.arm("lancedb.before-commit", lambda: (there.set(), go.wait(60)))
        first = callers.submit(store.add, row("first"))
        there.wait(60)
        answers = []
        for number in range(600):
            text = os.urandom(20_000).hex() if 200 <= number < 400 else "small"
            answers.append(callers.submit(store.add, row(number, text)))
            eventually(lambda number=number: store.status().waiting == number + 1, 30, "a caller in the line")
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hardest))
        go.set()
        first.result(60)
        ended = [type(answer.exception(60)).__name__ for answer in answers]
        send_line(
            json.dumps(
                {
                    "ended": ended,
                    "ids": sorted(
                        each["id"] for each in lance.dataset(store._shared.writer_lock.uri).to_table().to_pylist()
                    ),
                }
            )
        )
