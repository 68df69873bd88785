"""One process of borrowers, for the pool measurements: `python -m bench.programs.borrower JOB` prints figures as JSON.

Three ways to borrow: Holdfast's; the two-phase algorithm of other projects (list the locks, read the map of last uses,
claim one item under a lock of its own), written directly on redis-py; and as a floor the least that a server can do,
ZPOPMIN and ZADD on bare sockets: no lease, no fence, and a borrower that dies takes its item with it.
"""

from __future__ import annotations

import json
import random
import secrets
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from typing import Any

Borrow = Callable[[], Callable[[], None]]
_ROUNDS, _CLAIM_MS, _TTL_MS = 30, 3_000, 30_000


@contextmanager
def holdfast_way(url: str, items: list[str]):
    import holdfast  # noqa: PLC0415 - only this way needs it

    with holdfast.connect(url) as hf:
        pool = hf.pool("bench", on_death=0, timeout=60)
        if items:
            pool.set_items(items)
        yield lambda: pool.borrow().release


class TwoPhase:
    """List the locks, read the map of last uses, claim one item under a lock of its own; otherwise begin again."""

    def __init__(self, url: str, items: list[str]) -> None:
        import redis  # noqa: PLC0415 - only this way needs it

        self.server: Any = redis.Redis.from_url(url, decode_responses=True)
        if items:
            self.server.set("seed:members", json.dumps(items))

    def borrow(self) -> Callable[[], None]:
        token = secrets.token_hex(16)
        for _ in range(_ROUNDS):
            for item in self._candidates():
                if self._claim(item, token):
                    return lambda: self._return(item, token)
            time.sleep(random.uniform(0.01, 0.03))
        raise TimeoutError("too many transactions queued")

    def _candidates(self) -> list[str]:
        members = json.loads(self.server.get("seed:members"))
        busy = {key.removeprefix("seed:in-use:") for key in self.server.scan_iter("seed:in-use:*", count=500)}
        used = json.loads(self.server.get("seed:lru-map") or "{}")
        free = [item for item in members if item not in busy]
        random.shuffle(free)
        return sorted(free, key=lambda name: used.get(name, 0))

    def _claim(self, item: str, token: str) -> bool:
        server = self.server
        if not server.set(f"seed:claim:{item}", token, nx=True, px=_CLAIM_MS):
            return False
        try:
            if server.exists(f"seed:in-use:{item}"):
                return False
            server.set(f"seed:in-use:{item}", token, px=_TTL_MS)
            used = json.loads(server.get("seed:lru-map") or "{}")
            used[item] = time.time()
            server.set("seed:lru-map", json.dumps(used))
            return True
        finally:
            server.delete(f"seed:claim:{item}")

    def _return(self, item: str, token: str) -> None:
        if self.server.get(f"seed:in-use:{item}") == token:
            self.server.delete(f"seed:in-use:{item}")


@contextmanager
def floor_way(url: str, items: list[str]):
    from bench.adapters.floor import Link, packed  # noqa: PLC0415 - only this way needs it

    own, links = threading.local(), []

    def ask(*words: str) -> Any:
        if not hasattr(own, "link"):
            own.link = Link(url)
            links.append(own.link)
        return own.link.ask(packed(*words))

    for item in items:
        ask("ZADD", "floor", "0", item)

    def borrow() -> Callable[[], None]:
        name = ask("ZPOPMIN", "floor")[0].decode()
        return lambda: ask("ZADD", "floor", str(time.time()), name)

    yield borrow
    for link in links:
        link.close()


@contextmanager
def two_phase_way(url: str, items: list[str]):
    way = TwoPhase(url, items)
    yield way.borrow
    way.server.close()


WAYS: dict[str, Callable[[str, list[str]], AbstractContextManager[Borrow]]] = {
    "floor": floor_way,
    "holdfast": holdfast_way,
    "two-phase": two_phase_way,
}


def measured(way: str, url: str, items: int, seconds: float, callers: int, hold_s: float) -> dict[str, Any]:
    """Let each caller borrow and return for so long. Each does so once before, so that all connections are open."""
    borrows: list[list[float]] = [[] for _ in range(callers)]
    pairs = [0] * callers
    warmed, started = threading.Barrier(callers + 1), threading.Barrier(callers + 1)
    with WAYS[way](url, [f"item {number}" for number in range(items)]) as borrow:
        warm = time.monotonic() + min(1.0, seconds)
        while time.monotonic() < warm:  # a server that has just received many items is busy for a while
            borrow()()

        def caller(number: int) -> None:
            own, give_back = borrows[number], borrow()
            warmed.wait()  # all have an item at the same time, so that each opens its own connection
            give_back()
            started.wait()
            while (requested := time.monotonic()) < until:
                give_back = borrow()
                own.append(time.monotonic() - requested)
                if hold_s:
                    time.sleep(random.random() * 2 * hold_s)
                give_back()
                pairs[number] += 1

        threads = [threading.Thread(target=caller, args=(number,)) for number in range(callers)]
        for thread in threads:
            thread.start()
        warmed.wait()
        print(json.dumps("ready"), flush=True)
        sys.stdin.readline()
        began = time.monotonic()
        until = began + seconds
        started.wait()
        for thread in threads:
            thread.join()
        elapsed = time.monotonic() - began
    return {"pairs": sum(pairs), "seconds": elapsed, "borrows": [each for own in borrows for each in own]}


if __name__ == "__main__":
    print(json.dumps(measured(**json.loads(sys.argv[1]))), flush=True)
