"""Pools, semaphores and read-write locks."""
