"""The child processes of these tests: they run orders, one line at a time, or work until they are killed."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import random
import signal
import sqlite3  # noqa: F401 - a child that gives up its rights may not be able to import it afterwards
import subprocess
import sys
import threading
import time

import holdfast
from holdfast import failpoints
from holdfast.errors import Fenced, HoldfastError, LeaseLost
from holdfast.testing import GuardedFile, Recorder, read_line, ready, send_line

CLONE_NEWNS = 0x00020000


class Orders:
    """The orders that a test can give to a child; each returns a value for JSON."""

    def __init__(self, url, options):
        self.client = holdfast.connect(url, **options)
        self.leases = {}

    def acquire(self, name, ttl=30, timeout=None):
        began = time.monotonic()
        lease = self.leases[name] = self.client.lock(name, ttl=ttl).acquire(timeout=timeout)
        return {"fence": lease.fence, "token": lease.token, "seconds": time.monotonic() - began}

    def release(self, name):
        self.leases[name].release()
        return {}

    def check(self, name):
        self.leases[name].check()
        return {}

    def wait(self, name, ttl=30, count=1):
        """Wait for the lease with so many threads; the thread that gets it keeps it, and `got` reports it."""
        for _ in range(count):
            threading.Thread(target=self._wait, args=(name, ttl), daemon=True).start()
        return {}

    def _wait(self, name, ttl):
        self.leases[name] = self.client.lock(name, ttl=ttl).acquire()

    def got(self, name):
        return {"fence": self.leases[name].fence if name in self.leases else None}

    def occupy(self):
        """Let no other thread of this process pass the gate until `vacate`, as a long check of a queue does."""
        self.vacant, occupied = threading.Event(), threading.Event()

        def stay():
            with self.client._client.engine.store.database.gate.mutex:
                occupied.set()
                self.vacant.wait()

        threading.Thread(target=stay, daemon=True).start()
        occupied.wait()
        return {}

    def vacate(self):
        self.vacant.set()
        return {}

    def fork(self):
        """Fork a child that lives on and does nothing."""
        pid = os.fork()
        if not pid:
            time.sleep(600)
        return {"pid": pid}

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

    def close(self, timeout=0):
        return {"left": self.client.close(timeout)}


def serve(url, **options):
    """Run orders until the test is gone."""
    orders = Orders(url, options)
    ready()
    while True:
        try:
            order = json.loads(read_line())
        except EOFError:
            return
        try:
            answer = getattr(orders, order.pop("do"))(**order)
        except HoldfastError as error:
            facts = {"reason": getattr(error, "reason", ""), "detail": getattr(error, "detail", "")}
            answer = {"error": type(error).__name__, **facts}
        send_line(json.dumps(answer))


def serve_as_nobody(url):
    """Run orders as a user without rights, who perhaps may not even read the interpreter's own modules."""
    holdfast.connect("memory://").close()
    importlib.import_module("holdfast.engines.sqlite.engine")
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    _serve_or_report(url)


def serve_on_small_disk(directory, kib):
    """Run orders with the file on a small disk of its own, which is gone with this process."""
    libc = ctypes.CDLL(None, use_errno=True)
    mount = ("mount", "-t", "tmpfs", "-o", f"size={kib}k", "none", directory)
    private = ("mount", "--make-rprivate", "/")
    if libc.unshare(CLONE_NEWNS) or any(
        subprocess.run(command, check=False, capture_output=True).returncode for command in (private, mount)
    ):
        send_line("no mount")
        return
    _serve_or_report(f"sqlite://{directory}/hf.db")


def _serve_or_report(url):
    try:
        serve(url)
    except HoldfastError as error:
        send_line(
            json.dumps({"error": type(error).__name__, "reason": getattr(error, "reason", ""), "detail": str(error)})
        )


def work_under_fire(url, counter, history, names, workers, kills, seed):
    """Fork workers from a warm parent, and kill one of them again and again; then let the last ones end well."""
    dice = random.Random(seed)
    recorder = Recorder(history, "killer")
    # Before the first fork, so that a worker that has just been started hears it too.
    # It may come again while it is heard, so that nothing with a lock of its own can take the note.
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    alive = {}
    started = 0

    def start_worker():
        nonlocal started
        label = f"worker-{started}"
        started += 1
        pid = os.fork()
        if not pid:
            _count_until_stopped(stopped, url, counter, history, names, label)
        alive[pid] = label

    for _ in range(workers):
        start_worker()
    with open(history, "rb") as seen:
        for _ in range(kills):
            _wait_for_progress(seen)
            time.sleep(dice.uniform(0, 0.04))
            pid = dice.choice(list(alive))
            recorder.died(alive[pid], pid)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            del alive[pid]
            start_worker()

    codes = [_end(pid) for pid in alive]
    send_line(json.dumps({"codes": codes}))


def _wait_for_progress(history):
    """Wait until a worker has counted since the last time: on a slow machine kills must not be faster than the work."""
    until = time.monotonic() + 10
    while b'"write"' not in history.read() and time.monotonic() < until:
        time.sleep(0.001)


def _end(pid):
    """Send SIGTERM until it ends: a signal in the middle of a fork is lost."""
    while True:
        os.kill(pid, signal.SIGTERM)
        time.sleep(0.01)
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)


def _count_until_stopped(stopped, url, counter, history, names, label):
    """Add one to a guarded counter under the lease of a random name, again and again."""
    try:
        dice = random.Random(label)
        recorder = Recorder(history, label)
        client = holdfast.connect(url, label=label)
        while not stopped:
            name = dice.choice(names)
            _count_once(client, GuardedFile(f"{counter}.{name}"), recorder, name)
        client.close()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def _count_once(client, file, recorder, name):
    since_ns = time.monotonic_ns()
    with client.lock(name, ttl=30) as lease:
        now_ns = time.monotonic_ns()
        until_ns = now_ns + int(lease.remaining() * 1e9)
        facts = {"fence": lease.fence, "token": lease.token}
        recorder.record("granted", name, since_ns=since_ns, until_ns=until_ns, **facts)
        value = file.guarded_read(lease.fence, lease.token)
        since_ns = time.monotonic_ns()
        value = file.write(lease.fence, lease.token, lambda _: value + 1)
        recorder.record("write", name, since_ns=since_ns, value=value, accepted=True, **facts)
        recorder.record("released", name, **facts)


def hurry(url, name, seconds, inside_ms):
    """Acquire and release one's own name as fast as possible; tell how often, and the longest time it took.

    Each transaction sleeps inside the gate for a while: so the gate decides who gets on, and not who gets a processor.
    """
    failpoints.arm("sqlite.before-commit", lambda: time.sleep(inside_ms / 1000))
    client = holdfast.connect(url)
    lock = client.lock(name)
    lock.acquire().release()
    ready()
    start = float(read_line())
    time.sleep(start - time.monotonic())
    count, worst = 0, 0.0
    while (began := time.monotonic()) < start + seconds:
        lock.acquire().release()
        count += 1
        worst = max(worst, time.monotonic() - began)
    send_line(json.dumps({"count": count, "worst": worst}))


def write_on_order(url, name, path, ttl):
    """Hold the lease; on each line, write under its fence without asking whether it is still held."""
    file = GuardedFile(path)
    client = holdfast.connect(url)
    try:
        with client.lock(name, ttl=ttl) as lease:
            send_line(json.dumps({"fence": lease.fence}))
            while read_line() == "write":
                send_line(_write(file, lease))
    except LeaseLost as lost:
        send_line(f"LeaseLost {lost.reason}")
    else:
        send_line("released")


def _write(file, lease):
    try:
        return f"wrote {file.write(lease.fence, lease.token, lambda _: lease.fence)}"
    except Fenced as fenced:
        return f"Fenced {fenced.newest}"
