"""Child processes that write a guarded file and die."""

import itertools
import os
import time

from holdfast import failpoints
from holdfast.guards import FileGuard, Stamp
from holdfast.testing import ready, send_line


def write(path, fence, token, content):
    """Write once."""
    FileGuard(path).write(Stamp(fence, token), content)


def rewrite(path, first):
    """Write until killed, each time under the next fence, a content that repeats its number."""
    guard = FileGuard(path)
    for fence in itertools.count(first):
        guard.write(Stamp(fence, f"of {fence}"), f"{fence} " * 5000)
        if fence == first:
            ready()


def fork_inside(path):
    """Stop while holding the lock, with a forked child."""

    def fork():
        child = os.fork()
        if child == 0:
            os.closerange(0, 3)
            time.sleep(100)
            os._exit(0)
        os.setpgid(child, child)  # it survives the process group of its parent
        send_line(str(child))
        time.sleep(100)

    failpoints.arm("guard.admitted", fork)
    FileGuard(path).write(Stamp(5, "of five"), "old")
