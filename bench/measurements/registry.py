"""Directories: many keys held by one process, a list beside many keys of others; and what is done once.

There is no peer to run beside: each figure is a bound, or is compared with itself.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import holdfast
from bench.candidates import LISTED, ONCE, OWNED
from bench.stats import percentile
from bench.testbed import Run, clock

if TYPE_CHECKING:
    from bench.scale import Scale
    from bench.testbed import Testbed

_LISTED, _FOREIGN, _AT_ONCE = 100, 100_000, 1_000
_LOOKS, _SUCCESSES = 200, 1_000


def registry(testbed: Testbed, scale: Scale) -> list[dict[str, Any]]:
    """All of it on the same server, in this process."""
    testbed.pin_server(())
    url = f"redis://127.0.0.1:{testbed.server.port}"
    owned = Run(OWNED, [_owned(testbed, url, scale.leases, scale.leases_s)], {})
    listed = Run(LISTED, [_listed(testbed, url) for _ in range(scale.pool_rounds)], {})
    once = Run(ONCE, [_once(testbed, url) for _ in range(scale.pool_rounds)], {})
    return [run.row() for run in (owned, listed, once)]


def _owned(testbed: Testbed, url: str, count: int, seconds: float) -> dict[str, Any]:
    """Claimed one by one, refreshed in batches, given back."""
    testbed.server.command("FLUSHALL", "SYNC")
    told: list[str] = []
    with holdfast.connect(url, observer=lambda event: told.append(event.kind)) as hf:
        keys = hf.registry("bench", ttl=15)
        began = clock()
        leases = [keys.claim(f"{number:06}") for number in range(count)]
        claimed_s = clock() - began
        time.sleep(1.0)  # what is due at once is over
        before, cpu_s, began, done = testbed.counters.read(), time.process_time(), clock(), told.count("renewed")
        time.sleep(seconds)
        passed, after = clock() - began, testbed.counters.read()
        cpu_s = time.process_time() - cpu_s
        renewals = told.count("renewed") - done
        share = (cpu_s + after.cpu_s - before.cpu_s) / passed
        lost = sum(bool(lease.lost) for lease in leases)  # type: ignore[union-attr]
        began = clock()
        keys.release_all()
        return {
            "keys": count,
            "claims_per_s": count / claimed_s,
            "renewals": renewals,
            "cpu_share": share,
            "lost": lost,
            "releases_per_s": count / (clock() - began),
            **testbed.counters.spent(before, after, max(1, renewals)),
        }


def _listed(testbed: Testbed, url: str) -> dict[str, Any]:
    """The same list, first alone on the server and then beside many keys of other programs and another registry."""
    testbed.server.command("FLUSHALL", "SYNC")
    with holdfast.connect(url) as hf:
        keys = hf.registry("bench", ttl=600)
        leases = [keys.claim(f"{number:03}") for number in range(_LISTED)]
        alone = _look(keys)
        for first in range(0, _FOREIGN, _AT_ONCE):
            pairs = [word for number in range(first, first + _AT_ONCE) for word in (f"foreign:{number}", "1")]
            testbed.server.command("MSET", *pairs)
        others = [hf.registry("others", ttl=600).claim(str(number)) for number in range(_AT_ONCE)]
        before = testbed.counters.read()
        beside = _look(keys)
        spent = testbed.counters.spent(before, testbed.counters.read(), _LOOKS)
        for lease in (*leases, *others):
            lease.release()  # type: ignore[union-attr]
    return {"alone_us": alone, "beside_us": beside, "slower": beside / alone, **spent}


def _look(keys: holdfast.Registry) -> float:
    taken = []
    for _ in range(_LOOKS):
        began = clock()
        found = keys.list()
        taken.append(clock() - began)
        assert len(found) == _LISTED
    return percentile(taken, 0.5) * 1e6


def _once(testbed: Testbed, url: str) -> dict[str, Any]:
    """Work that does nothing, each under a key of its own; then all of them once more."""
    testbed.server.command("FLUSHALL", "SYNC")
    with holdfast.connect(url) as hf:
        once = hf.once("bench")
        once.call("warm", lambda: None)

        def all_of_them() -> tuple[float, dict[str, float]]:
            before, began = testbed.counters.read(), clock()
            for number in range(_SUCCESSES):
                once.call(str(number), lambda: None)
            seconds = clock() - began
            return _SUCCESSES / seconds, testbed.counters.spent(before, testbed.counters.read(), _SUCCESSES)

        successes_per_s, success = all_of_them()
        duplicates_per_s, duplicate = all_of_them()
    return {
        "successes_per_s": successes_per_s,
        "duplicates_per_s": duplicates_per_s,
        "round_trips": success["round_trips"],
        "duplicate_round_trips": duplicate["round_trips"],
    }
