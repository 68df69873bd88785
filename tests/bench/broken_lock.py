"""A lock that lets everybody in: what the race must never take for a measurement."""

from contextlib import contextmanager


@contextmanager
def blocking(url, ttl):
    yield lambda name: lambda: None
