"""The child processes of these tests: they run orders, one line at a time."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time

import holdfast
import holdfast.blocking  # so that no forked child that will be killed has to
from holdfast.clock import SystemClock
from holdfast.engines.files import admin, engine, log, root, sessions
from holdfast.errors import HoldfastError
from holdfast.testing import read_line, ready, send_line
from tests.support.kill_points import in_child, killed_at_every_line

CLONE_NEWNS = 0x00020000


class Orders:
    """The orders that a test can give to a child; each returns a value for JSON."""

    def __init__(self, url, **options):
        self.client = holdfast.connect(url, **options)
        self.leases = {}

    def warm(self):
        """Begin a session, so that the next command is the first to reach a pause point."""
        self.client.show("nothing")
        return {}

    def acquire(self, name="x", ttl=30, timeout=None):
        lease = self.leases[name] = self.client.lock(name, ttl=ttl).acquire(timeout=timeout)
        return {"fence": lease.fence}

    def release(self, name="x"):
        self.leases[name].release()
        return {}

    def churn(self, times, name="x"):
        """Acquire and release the lease, so many times."""
        for _ in range(times):
            self.client.lock(name).acquire(timeout=10).release()
        return {}

    def spawn(self, seconds):
        """Start a program with the liveness descriptor of this process."""
        program = subprocess.Popen(
            (sys.executable, "-c", f"import time; time.sleep({seconds})"),
            pass_fds=(self.client._client.engine.liveness_fd(),),
            start_new_session=True,
        )
        return {"pid": program.pid}

    def fill(self, directory):
        """Leave no byte free on that disk."""
        with open(f"{directory}/ballast", "wb", buffering=0) as ballast:
            try:
                while ballast.write(b"x" * 512):
                    pass
            except OSError:
                return {}

    def drain(self, directory):
        os.unlink(f"{directory}/ballast")
        return {}

    def listing(self, directory):
        return {"files": sorted(os.path.join(at, name) for at, _, names in os.walk(directory) for name in names)}


def serve(url, ahead_s=0, **options):
    """Run orders until the test is gone; `ahead_s` is by how much this process's calendar is wrong."""
    if ahead_s:
        right = SystemClock.wall_us
        SystemClock.wall_us = lambda clock: right(clock) + ahead_s * 1_000_000
    orders = Orders(url, **options)
    ready()
    while True:
        try:
            order = json.loads(read_line())
        except EOFError:
            return
        try:
            answer = getattr(orders, order.pop("do"))(**order)
        except HoldfastError as error:
            answer = {"error": type(error).__name__, "reason": getattr(error, "reason", ""), "detail": str(error)}
        send_line(json.dumps(answer))


def serve_as(url, uid, gid, umask=0o022):
    """Run orders as another user."""
    with tempfile.TemporaryDirectory() as folder:  # whatever has to be imported may not be readable afterwards
        client = holdfast.connect(f"file://{folder}")
        with client.lock("x", timeout=0), contextlib.suppress(HoldfastError):
            client.lock("x").acquire(timeout=0.05)
        client.close()
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    os.umask(umask)
    serve(url)


def serve_on_small_disk(directory, kib):
    """Run orders in a directory on a small disk of its own, which is gone with this process."""
    libc = ctypes.CDLL(None, use_errno=True)
    mount = ("mount", "-t", "tmpfs", "-o", f"size={kib}k", "none", directory)
    private = ("mount", "--make-rprivate", "/")
    if libc.unshare(CLONE_NEWNS) or any(
        subprocess.run(command, check=False, capture_output=True).returncode for command in (private, mount)
    ):
        send_line("no mount")
        return
    serve(f"file://{directory}")


def serve_on_second_mount(shared, other):
    """Run orders where the directory is mounted a second time under another path."""
    libc = ctypes.CDLL(None, use_errno=True)
    private = ("mount", "--make-rprivate", "/")
    bind = ("mount", "--bind", shared, other)
    if libc.unshare(CLONE_NEWNS) or any(
        subprocess.run(command, check=False, capture_output=True).returncode for command in (private, bind)
    ):
        send_line("no mount")
        return
    serve(f"file://{other}")


def lock_killed_at_every_line(url, step):
    """Acquire and release a lease, killed one line later each time; report what the next client finds.

    What each killed process left is removed before the next one: one more draft to list is a few more lines to run,
    and the next kill would get no further.
    """
    modules = (root, log, sessions, engine)
    for line in killed_at_every_line(lambda: _taken(url, ttl=300), *modules, step=step):
        in_child(lambda line=line: send_line(json.dumps({"line": line, **_taken(url, ttl=300)})))
        in_child(lambda: _sweep(url, times=3))
    in_child(lambda: _swept(url))
    send_line(json.dumps({"done": True}))


def _taken(url, ttl):
    with holdfast.connect(url) as client:
        began = time.monotonic()
        with client.lock("x", ttl=ttl, timeout=60) as lease:
            return {"fence": lease.fence, "seconds": time.monotonic() - began}


def _sweep(url, times):
    """Clean up as if an hour had passed since the files were left."""
    admin._HOUR_US = -1
    with holdfast.connect(url, fence_memory=1) as client:
        store = client._client.engine.store
        client.lock("x").acquire(timeout=0).release()
        for _ in range(times):
            admin.sweep(store.root, store._clocks, store._session.wall_us())


def _swept(url):
    """Report what is left after an hour in which clients used the directory now and then."""
    _sweep(url, times=0)
    time.sleep(1.05)
    with holdfast.connect(url, fence_memory=1) as client:
        client.show("x")
        store = client._client.engine.store
        for _ in range(200):
            admin.sweep(store.root, store._clocks, store._session.wall_us())
        home = store.root.home
        left = [str(path.relative_to(home)) for path in home.rglob("*") if store._session.client not in path.name]
        send_line(json.dumps({"left": sorted(left)}))
