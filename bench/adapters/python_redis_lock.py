"""python-redis-lock: a list wakes waiters. No fence; renewal by one thread per lock, if enabled."""

from __future__ import annotations

from contextlib import contextmanager

import redis
import redis_lock


@contextmanager
def blocking(url: str, ttl: float, renew: bool = False):
    with redis.StrictRedis.from_url(url) as client:

        def acquire(name: str):
            lock = redis_lock.Lock(client, name, expire=int(ttl), auto_renewal=renew)
            assert lock.acquire()
            return lock.release

        yield acquire
