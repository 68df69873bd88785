"""What the children of these tests do: one write that may be frozen, or whatever their parent tells them."""

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
    """Tell how the write ended: the error, how many rows it says were written, and the error under it."""
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
    """Nobody else is in it while a process is between its last look at the lease and the commit."""

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
    """Do what comes, line by line, each in a store of its own."""
    ready()
    while True:
        order = json.loads(read_line(None))
        section = Section(order["scratch"])
        failpoints.arm("lancedb.before-commit", section)
        try:
            with lancedb.open_store(order["directory"], "memories", order["config"], schema=SCHEMA) as store:
                told = globals()[order["task"]](store, **order["arguments"])
                told = {
                    "told": told,
                    "passed": store.status().acquisitions,
                    "overtaken": store.status().foreign_commits,
                }
        except Exception as error:
            told = {"error": f"{type(error).__name__}: {error}"}
        failpoints.disarm_all()
        send_line(json.dumps({**told, "met": section.met, "entered": section.entered}))


def write_each(store, who, rows):
    """Single rows, one after the other."""
    for number in range(rows):
        store.add(row(f"{who}-{number}"))
    return rows


def write_at_once(store, who, writers):
    """Single rows, all at the same moment; the errors, if there are any."""
    answers = together([lambda n=n: store.add(row(f"{who}-{n}")) for n in range(writers)])
    return [repr(answer) for answer in answers if isinstance(answer, Exception)]


def count_up(store, times):
    """Read, add one, write."""
    for _ in range(times):
        store.transform("id = 'counter'", lambda found: {**found, "n": found["n"] + 1})
    return times


def tend(store, rounds):
    """Everything that is no write of rows."""
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
    """600 callers in chunks of 200, where no file of the second chunk can be written: it is larger than any may be."""
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
