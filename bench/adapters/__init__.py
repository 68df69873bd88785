"""Adapters: how each candidate is opened and used.

An adapter is a context manager, made from a URL (or a folder) and a ttl, that yields `acquire(name)`. That function
blocks until the lock is held and returns the function that releases it; in asyncio both are awaited. Every pair makes a
new lock object. Each module imports its own library only, because no other library is installed in its environment.
"""
