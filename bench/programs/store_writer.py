"""One process of writers, for the LanceDB measurement: `python bench/programs/store_writer.py JOB` prints JSON.

Every writer adds single rows, one after the other, until the time is over. Holdfast's store uses its writer lock; the
others use LanceDB itself, with a lock around each write, or without one.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

Write = Callable[[dict[str, Any]], object]
_WIDTH = 32
_TTL_S = 30


def schema() -> Any:
    import pyarrow as pa  # noqa: PLC0415 - not every variant needs it

    return pa.schema([("id", pa.string()), ("text", pa.string()), ("vector", pa.list_(pa.float32(), _WIDTH))])


@contextmanager
def guarded(job: dict[str, Any]):
    """Holdfast's store."""
    from holdfast.contrib import lancedb  # noqa: PLC0415 - only this way needs it

    locking = {"mode": job["mode"], "timeout": job["timeout_s"]}
    locking |= {"url": job["url"]} if job["mode"] == "redis" else {}
    with lancedb.open_store(job["directory"], "memories", {"locking": locking}, schema=schema()) as store:
        yield store.add


@contextmanager
def bare(job: dict[str, Any]):
    """LanceDB's own table, with the chosen lock around each write."""
    import lancedb  # noqa: PLC0415 - as above

    locked = LOCKS[job["way"]](job)
    database = lancedb.connect(job["directory"])
    if job["creates"]:
        database.create_table("memories", schema=schema())
    table = database.open_table("memories")

    def write(row: dict[str, Any]) -> None:
        with locked():
            table.add([row])

    yield write


def redis_py(job: dict[str, Any]) -> Callable[[], AbstractContextManager[Any]]:
    import redis  # noqa: PLC0415 - as above

    server = redis.Redis.from_url(job["url"])
    return lambda: server.lock(job["directory"], timeout=_TTL_S, blocking_timeout=job["timeout_s"])


def file_lock(job: dict[str, Any]) -> Callable[[], AbstractContextManager[Any]]:
    import filelock  # noqa: PLC0415 - as above

    return lambda: filelock.FileLock(f"{job['directory']}/write.lock", timeout=job["timeout_s"])


LOCKS = {"none": lambda _: nullcontext, "redis-py": redis_py, "filelock": file_lock}


def written(job: dict[str, Any], write: Write) -> dict[str, Any]:
    """Run all writers at once; return successes, failures and the duration."""
    outcomes: list[tuple[int, int]] = []
    errors: list[str] = []
    begin = threading.Barrier(job["writers"] + 1)

    def one(number: int) -> None:
        begin.wait()
        done = failed = 0
        until = time.monotonic() + job["seconds"]
        while not done + failed or time.monotonic() < until:
            name = f"{job['writer']}-{number}-{done + failed}"
            try:
                write({"id": name, "text": f"memory {name}", "vector": [float(number)] * _WIDTH})
                done += 1
            except Exception as error:
                failed += 1
                errors.append(f"{type(error).__name__}: {error}"[:200])
        outcomes.append((done, failed))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(job["writers"])]
    for thread in threads:
        thread.start()
    begin.wait()
    began = time.monotonic()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - began
    done, failed = (sum(each) for each in zip(*outcomes, strict=True))
    return {"done": done, "failed": failed, "seconds": seconds, "errors": errors[:3]}


def counted(job: dict[str, Any]) -> dict[str, int]:
    """Count the rows of the table."""
    import lance  # noqa: PLC0415 - as above

    ids = lance.dataset(f"{job['directory']}/memories.lance").to_table(columns=["id"])["id"].to_pylist()
    return {"rows": len(ids), "distinct": len(set(ids))}


def main(job: dict[str, Any]) -> None:
    if job["way"] == "count":
        print(json.dumps(counted(job)))
        return
    with (guarded if job["way"] == "holdfast" else bare)(job) as write:
        print(json.dumps("ready"), flush=True)
        sys.stdin.readline()
        print(json.dumps(written(job, write)))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
