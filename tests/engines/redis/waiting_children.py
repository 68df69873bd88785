"""Processes that wait for leases, to be killed or frozen at any moment."""

import threading
import time

import holdfast
from holdfast.testing import ready, send_line

TTL_S = 30


def acquirable(client, kind, name):
    """Return the object to acquire."""
    if kind == "lock":
        return client.lock(name, ttl=TTL_S)
    if kind == "semaphore":
        return client.semaphore(name, permits=1, ttl=TTL_S)
    if kind == "pool":
        return client.pool(name, ttl=TTL_S)
    return getattr(client.rwlock(name, ttl=TTL_S), kind)()


def acquire(client, kind, name):
    wanted = acquirable(client, kind, name)
    return wanted.borrow() if kind == "pool" else wanted.acquire()


def wait(url, kind, name, waiters=1):
    """Wait for a lease with so many threads of one client."""
    client = holdfast.connect(url)
    for _ in range(waiters):
        threading.Thread(target=acquire, args=(client, kind, name), daemon=True).start()
    ready()
    time.sleep(600)


def take_turns(url, ttl):
    """Acquire and release the same lock again and again, and say when."""
    client = holdfast.connect(url)
    lock = client.lock("turns", ttl=ttl)
    ready()
    while True:
        with lock:
            send_line(repr(time.monotonic()))
            time.sleep(0.01)
