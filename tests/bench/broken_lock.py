"""A lock that excludes no one: the benchmark must detect it."""

from contextlib import contextmanager


@contextmanager
def blocking(url, ttl):
    """Grant every request at once."""
    yield lambda name: lambda: None
