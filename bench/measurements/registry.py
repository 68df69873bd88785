"""Registries: many keys of one process, and a list beside many other keys; and idempotency keys (`once`).

There is no peer to compare with: each figure is a bound, or is compared with itself.
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
_LISTS, _SUCCESSES = 200, 1_000


def registry(testbed: Testbed, scale: Scale) -> list[dict[str, Any]]:
    """Run all parts on the same server, in this process."""
    testbed.pin_server(())
    url = f"redis://127.0.0.1:{testbed.server.port}"
    owned = Run(OWNED, [_owned(testbed, url, scale.leases, scale.leases_s)], {})
    listed = Run(LISTED, [_listed(testbed, url) for _ in range(scale.pool_rounds)], {})
    once = Run(ONCE, [_once(testbed, url) for _ in range(scale.pool_rounds)], {})
    return [run.row() for run in (owned, listed, once)]


def _owned(testbed: Testbed, url: str, count: int, seconds: float) -> dict[str, Any]:
    """Claim keys one by one, let the keeper renew them in batches, release them."""
    testbed.server.command("FLUSHALL", "SYNC")
    events: list[str] = []
    with holdfast.connect(url, observer=lambda event: events.append(event.kind)) as hf:
        keys = hf.registry("bench", ttl=15)
        began = clock()
        leases = [keys.claim(f"{number:06}") for number in range(count)]
        claimed_s = clock() - began
        time.sleep(1.0)  # renewals that are due at once are done
        before, cpu_s, began, done = testbed.counters.read(), time.process_time(), clock(), events.count("renewed")
        time.sleep(seconds)
        passed, after = clock() - began, testbed.counters.read()
        cpu_s = time.process_time() - cpu_s
        renewals = events.count("renewed") - done
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
            **testbed.counters.per_operation(before, after, max(1, renewals)),
        }


def _listed(testbed: Testbed, url: str) -> dict[str, Any]:
    """List 100 keys, first alone on the server, then beside many keys of other programs and of another registry."""
    testbed.server.command("FLUSHALL", "SYNC")
    with holdfast.connect(url) as hf:
        keys = hf.registry("bench", ttl=600)
        leases = [keys.claim(f"{number:03}") for number in range(_LISTED)]
        alone = _median_list_us(keys)
        for first in range(0, _FOREIGN, _AT_ONCE):
            pairs = [word for number in range(first, first + _AT_ONCE) for word in (f"foreign:{number}", "1")]
            testbed.server.command("MSET", *pairs)
        others = [hf.registry("others", ttl=600).claim(str(number)) for number in range(_AT_ONCE)]
        before = testbed.counters.read()
        among_others = _median_list_us(keys)
        cost = testbed.counters.per_operation(before, testbed.counters.read(), _LISTS)
        for lease in (*leases, *others):
            lease.release()  # type: ignore[union-attr]
    return {"alone_us": alone, "beside_us": among_others, "slower": among_others / alone, **cost}


def _median_list_us(keys: holdfast.Registry) -> float:
    durations = []
    for _ in range(_LISTS):
        began = clock()
        found = keys.list()
        durations.append(clock() - began)
        assert len(found) == _LISTED
    return percentile(durations, 0.5) * 1e6


def _once(testbed: Testbed, url: str) -> dict[str, Any]:
    """Run empty work under many idempotency keys; then repeat all of them."""
    testbed.server.command("FLUSHALL", "SYNC")
    with holdfast.connect(url) as hf:
        once = hf.once("bench")
        once.call("warm", lambda: None)

        def all_keys() -> tuple[float, dict[str, float]]:
            before, began = testbed.counters.read(), clock()
            for number in range(_SUCCESSES):
                once.call(str(number), lambda: None)
            seconds = clock() - began
            return _SUCCESSES / seconds, testbed.counters.per_operation(before, testbed.counters.read(), _SUCCESSES)

        successes_per_s, success = all_keys()
        duplicates_per_s, duplicate = all_keys()
    return {
        "successes_per_s": successes_per_s,
        "duplicates_per_s": duplicates_per_s,
        "round_trips": success["round_trips"],
        "duplicate_round_trips": duplicate["round_trips"],
    }
