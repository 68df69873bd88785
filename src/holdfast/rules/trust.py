"""How long a holder may trust a lease, when it renews, and how long a waiter may sleep.

These numbers are the same on every engine and in both faces.
"""

from __future__ import annotations

from functools import lru_cache

MARGIN_MIN_MS = 50
RENEW_MIN_MS = 100
HEARTBEAT_MS = 5_000
# A client with a new waiter, or with a waiter near the front, sends heartbeats more often, so each of them is valid for
# a shorter time.
NEAR_HEARTBEAT_MS = 4_000
HEARTBEAT_EVERY_MS, NEAR_HEARTBEAT_EVERY_MS = HEARTBEAT_MS // 3, 500
# If less than this is left of a client's last heartbeat, the engine doubts the client: it keeps its places in line, but
# the engine offers leases to other waiters first.
DOUBT_MS = 2_500
WATCHERS = 2
FAR_MS = 10_000


def margin_ms(ttl_ms: int) -> int:
    """Return how long before the expiry on the engine the holder stops trusting: clocks drift and threads are late."""
    return max(MARGIN_MIN_MS, ttl_ms // 20)


def trusted_ms(ttl_ms: int) -> int:
    """Return how long after the command was *sent* the holder may trust the lease."""
    return ttl_ms - margin_ms(ttl_ms)


def renew_after_ms(ttl_ms: int) -> int:
    """Return how long after a grant or a renewal the next renewal is due: two may fail before the lease expires."""
    return max(RENEW_MIN_MS, ttl_ms // 3)


@lru_cache(maxsize=256)
def spans_ns(ttl_ms: int) -> tuple[int, int]:
    """Return `trusted_ms` and `renew_after_ms` in nanoseconds. Cached, because every grant needs them."""
    return trusted_ms(ttl_ms) * 1_000_000, renew_after_ms(ttl_ms) * 1_000_000


def recheck_after_ms(position: int, remaining_ms: int, ttl_ms: int) -> int:
    """Return how long a waiter sleeps before it sends its acquire again without a wake-up.

    The first two waiters watch the end of the present lease, so that a waiter replaces a dead holder at once. The
    others rely on wake-ups and on the heartbeats of their client; the further back they are in line, the longer they
    sleep.
    """
    if position < WATCHERS:
        return max(1, remaining_ms) + position * MARGIN_MIN_MS
    return max(FAR_MS, ttl_ms) * min(position, 4) // WATCHERS
