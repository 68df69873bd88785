"""The length of a run: rounds and seconds of a full run and of a quick one."""

from __future__ import annotations

from typing import NamedTuple


class Scale(NamedTuple):
    """Rounds, and seconds per candidate and round."""

    name: str
    pair_rounds: int
    pair_s: float
    fan_rounds: int
    fan_s: float
    callers: int
    contended_rounds: int
    contended_s: float
    count_s: float
    single_waiter_s: float
    kills: int
    kill_longest_s: float
    leases: int
    peer_leases: int
    leases_s: float
    peer_leases_s: float
    names: int
    fence_memory_s: float
    pool_items: tuple[int, ...]
    pool_rounds: int
    pool_s: float
    store_writers: tuple[int, ...]
    store_rounds: int
    store_s: float
    messages: int
    message_rounds: int
    queue_s: float
    owner_streams: tuple[int, ...]
    owner_killed: int
    owner_rounds: int
    owner_s: float
    owner_ttl_s: float
    imports: int


FULL = Scale(
    name="full",
    pair_rounds=9,
    pair_s=0.4,
    fan_rounds=7,
    fan_s=1.0,
    callers=100,
    contended_rounds=3,
    contended_s=6.0,
    count_s=2.0,
    single_waiter_s=6.0,
    kills=5,
    kill_longest_s=40.0,
    leases=10_000,
    peer_leases=500,
    leases_s=40.0,
    peer_leases_s=40.0,
    names=1_000_000,
    fence_memory_s=60.0,
    pool_items=(100, 2_000, 100_000),
    pool_rounds=3,
    pool_s=3.0,
    store_writers=(1, 10, 50, 200),
    store_rounds=3,
    store_s=3.0,
    messages=10_000,
    message_rounds=5,
    queue_s=15.0,
    owner_streams=(1, 100, 5_000),
    owner_killed=1_000,
    owner_rounds=3,
    owner_s=12.0,
    owner_ttl_s=2.0,
    imports=15,
)
QUICK = Scale(
    name="quick",
    pair_rounds=3,
    pair_s=0.12,
    fan_rounds=2,
    fan_s=0.4,
    callers=100,
    contended_rounds=1,
    contended_s=0.8,
    count_s=0.2,
    single_waiter_s=1.0,
    kills=1,
    kill_longest_s=6.0,
    leases=10_000,
    peer_leases=100,
    leases_s=11.0,
    peer_leases_s=2.0,
    names=20_000,
    fence_memory_s=3.0,
    pool_items=(100, 2_000, 100_000),
    pool_rounds=1,
    pool_s=0.5,
    store_writers=(1, 10, 50, 200),
    store_rounds=1,
    store_s=0.5,
    messages=2_000,
    message_rounds=2,
    queue_s=3.0,
    owner_streams=(1, 100, 5_000),
    owner_killed=200,
    owner_rounds=1,
    owner_s=4.0,
    owner_ttl_s=2.0,
    imports=3,
)
