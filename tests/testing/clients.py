"""Functions that run in worker processes: correct clients, and clients with a mistake."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from contextlib import contextmanager
from pathlib import Path

from holdfast import failpoints
from holdfast.errors import Fenced
from holdfast.testing import GuardedFile, Recorder, read_line, ready, send_line

NAME = "orders"
AFTER_GRANT = "clients.after-grant"


class LeaseFile:
    """A lease in a JSON file. It is correct, unless a test asks for a mistake."""

    def __init__(self, path, recorder, *, checks_token=True, fence_inside=True, reads_guarded=True, guarded=True):
        self.path = Path(path)
        self.recorder = recorder
        self.checks_token = checks_token
        self.fence_inside = fence_inside
        self.reads_guarded = reads_guarded and guarded
        self.guarded = guarded
        self.resource = GuardedFile(self.path.with_name("resource.json"))
        self.token = ""
        self.fence = 0
        self.seen = 0

    def acquire(self, ttl):
        token = uuid.uuid4().hex[:8]
        requested = self.recorder.record("requested", NAME, token=token)
        until_ns = requested.at_ns + int(float(ttl) * 1e9)
        with self.locked() as record:
            if record["until_ns"] > time.monotonic_ns():
                self.recorder.record("refused", NAME, token=token)
                return "busy"
            fence = record["fence"] + 1
            record.update(token=token, until_ns=until_ns)
            if self.fence_inside:
                record["fence"] = fence

        if self.fence_inside:
            failpoints.point(AFTER_GRANT)
        else:
            fence = self.next_fence_apart()
        self.token, self.fence = token, fence
        self.recorder.record("granted", NAME, fence=fence, token=token, since_ns=requested.at_ns, until_ns=until_ns)
        return "granted"

    def release(self):
        self.recorder.record("released", NAME, fence=self.fence, token=self.token)
        with self.locked() as record:
            if record["token"] == self.token or not self.checks_token:
                record["until_ns"] = 0
        return "released"

    def look(self):
        try:
            if self.reads_guarded:
                self.seen = self.resource.guarded_read(self.fence, self.token)
            else:
                self.seen = self.resource.read().value
        except Fenced:
            return "fenced"
        return "seen"

    def write(self):
        value = self.seen + 1
        sent_ns = time.monotonic_ns()
        accepted = True
        try:
            if self.guarded:
                self.resource.write(self.fence, self.token, lambda _: value)
            else:
                self.resource.unguarded_write(lambda _: value)
        except Fenced:
            accepted = False
        self.recorder.record(
            "write",
            NAME,
            fence=self.fence,
            token=self.token,
            value=value,
            accepted=accepted,
            since_ns=sent_ns,
        )
        return "accepted" if accepted else "fenced"

    def next_fence_apart(self):
        """Take the fence in a second step after the grant: that is the mistake."""
        counter = self.path.with_name("fence")
        number = int(counter.read_text()) if counter.exists() else 0
        failpoints.point(AFTER_GRANT)
        counter.write_text(str(number + 1))
        return number + 1

    @contextmanager
    def locked(self):
        with self.path.with_name("lease.lock").open("a") as sidecar:
            fcntl.flock(sidecar, fcntl.LOCK_EX)
            free = {"token": "", "fence": 0, "until_ns": 0}
            record = json.loads(self.path.read_text()) if self.path.exists() else free
            yield record
            # A kill in the middle must leave a whole file to the next.
            draft = self.path.with_name("lease.draft")
            draft.write_text(json.dumps(record))
            draft.replace(self.path)


def obey(lease, history, worker, **habits):
    """Apply the parent's commands to the lease, one command per line."""
    with Recorder(history, worker) as recorder:
        client = LeaseFile(lease, recorder, **habits)
        ready()
        while True:
            command, *arguments = read_line().split()
            send_line(getattr(client, command)(*arguments))


def count_under_lease(lease, history, worker, ttl, **habits):
    """Count in the resource under the lease, as often as possible, until killed."""
    with Recorder(history, worker) as recorder:
        client = LeaseFile(lease, recorder, **habits)
        ready()
        while True:
            if client.acquire(ttl) == "granted":
                if client.look() == "seen":
                    time.sleep(0.002)  # The work, in which most freezes shall fall.
                    client.write()
                client.release()
            else:
                time.sleep(0.001)


def record_forever(history, worker):
    """Write numbered events as fast as possible, with lines of many lengths."""
    with Recorder(history, worker) as recorder:
        ready()
        number = 0
        while True:
            recorder.record("write", "counter", value=number, detail="x" * (number % 97))
            number += 1


def record_and_die(history):
    """Die by SIGKILL right after an event was recorded."""
    recorder = Recorder(history, "short")
    recorder.record("granted", NAME, fence=7)
    os.kill(os.getpid(), signal.SIGKILL)


def beat(path, threads=2):
    """Let several threads each make a file of its own grow."""

    def grow(number):
        with Path(f"{path}.{number}").open("ab", buffering=0) as file:
            while True:
                file.write(b".")
                time.sleep(0.0005)

    for number in range(threads):
        threading.Thread(target=grow, args=(number,), daemon=True).start()
    ready()
    threading.Event().wait()


def beat_in_grandchild(path):
    """Start a grandchild in the same process group that makes files grow."""
    code = f"import sys; sys.path[:] = {sys.path!r}; import clients; clients.ready = int; clients.beat({path!r})"
    grandchild = subprocess.Popen([sys.executable, "-c", code])
    while not Path(f"{path}.0").exists():
        time.sleep(0.002)
    send_line(str(grandchild.pid))
    grandchild.wait()


def fork_many(count):
    """Start many grandchildren, which stay until killed."""
    pids = []
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            signal.pause()
        pids.append(str(pid))
    send_line(" ".join(pids))
    signal.pause()


def echo():
    """Answer each line with the same line in capitals."""
    while True:
        send_line(read_line().upper())


def wait_for_interrupt():
    """Report a Ctrl-C to the parent, and exit with 0."""
    try:
        ready()
        threading.Event().wait()
    except KeyboardInterrupt:
        send_line("interrupted")


def wait_forever():
    """Stay until killed."""
    ready()
    threading.Event().wait()


def leave(code):
    """Print a line and exit with a code."""
    print("goodbye")
    sys.exit(code)


def fail():
    """End with a traceback before being ready."""
    raise LookupError("the cause of it all")


def pass_point(name, mark):
    """Write a file after a pause point."""
    ready()
    failpoints.point(name)
    Path(mark).touch()
    send_line("passed")


def count_guarded(path, fence, token, times):
    """Count in a guarded file, without knowing how many others do."""
    resource = GuardedFile(path)
    ready()
    for _ in range(times):
        resource.write(fence, token, lambda value: value + 1)


def rewrite_guarded(path):
    """Store a long value again and again until killed."""
    resource = GuardedFile(path)
    first = resource.read().fence + 1
    for fence in itertools.count(first):
        resource.write(fence, "t", lambda _, fence=fence: [fence] * 2000)
        if fence == first:
            ready()
