"""Processes that write a guarded file, and die."""

import itertools

from holdfast.guards import FileGuard, Stamp
from holdfast.testing import ready


def write(path, fence, token, content):
    """Once."""
    FileGuard(path).write(Stamp(fence, token), content)


def rewrite(path, first):
    """Again and again, until killed: each time under the next fence, and many times its number."""
    guard = FileGuard(path)
    for fence in itertools.count(first):
        guard.write(Stamp(fence, f"of {fence}"), f"{fence} " * 5000)
        if fence == first:
            ready()
