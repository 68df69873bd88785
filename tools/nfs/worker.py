"""A worker on a client host of the lab: it reads one line of JSON per order and writes one line per answer.

It detects violations without any clock: two processes inside a lease at once meet in a file that only one can create,
and a counter that each holder reads and writes back shows every lost update.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import holdfast
from holdfast import shared_files

if TYPE_CHECKING:
    from holdfast import Lease
    from holdfast.core.build.build_once import Staging

TTL_S = 3.0
# Many workers at once are slow there: a turn that exceeds its ttl counts as late, and proves nothing else.
TURN_TTL_S = 8.0
_INSIDE_S = 0.01


def answer_with(**answer: Any) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


class Orders:
    """The orders that a worker executes; each returns a value for JSON."""

    def __init__(self, url: str) -> None:
        self._client = holdfast.connect(url, label=f"{os.environ['ADDRESS']}-{os.getpid()}")
        self._leases: dict[str, Lease] = {}

    def acquire(self, name: str, ttl: float = TTL_S, timeout: float | None = None) -> dict[str, Any]:
        began = time.monotonic()
        self._leases[name] = self._client.lock(name, ttl=ttl).acquire(timeout=timeout)
        return {"fence": self._leases[name].fence, "seconds": time.monotonic() - began}

    def release(self, name: str) -> dict[str, Any]:
        self._leases.pop(name).release()
        return {}

    def birth(self, name: str) -> dict[str, Any]:
        """Look up an unused name, so that this host caches its absence, and then use it."""
        self._client.show(name)
        answer = self.acquire(name, ttl=TURN_TTL_S, timeout=60)
        self.release(name)
        return answer

    def check(self, name: str) -> dict[str, Any]:
        self._leases[name].check()
        return {}

    def look(self, path: str) -> dict[str, Any]:
        """Look up a missing file, so that this host caches its absence."""
        return {"there": os.path.exists(path)}

    def build(self, store: str, key: str, seconds: float = 0.0) -> dict[str, Any]:
        def build(staging: Staging) -> None:
            _write(staging / "first")
            answer_with(building=os.getpid())
            time.sleep(seconds)
            _write(staging / "second")

        built = self._client.build_once(store, key, build, ttl=TTL_S, timeout=60)
        files = sorted(os.listdir(built.path))
        read = [(built.path / name).read_text() for name in files if not name.startswith(".")]
        return {"fresh": built.fresh, "files": files, "read": read, "fence": built.fence}

    def hammer(self, folder: str, times: int, dies: bool = False) -> dict[str, Any]:
        """Take the lease `times` times and increase the counter each time; with `dies`, die at the last time."""
        late = 0
        for number in range(times):
            try:
                with self._client.lock("hammer", ttl=TURN_TTL_S, timeout=300) as lease:
                    answer_with(**_count(Path(folder)), fence=lease.fence)
                    if dies and number == times - 1:
                        os.kill(os.getpid(), signal.SIGKILL)
            except holdfast.LeaseLost:
                late += 1
        return {"done": True, "late": late}


def _write(path: Path) -> None:
    """Write a file that contains its name, readable for the group: the builder decides the permissions."""
    path.write_text(path.name)
    path.chmod(0o640)


def _count(folder: Path) -> dict[str, Any]:
    """Increase the counter while holding the lease. It writes in place, because NFS keeps an open file consistent."""
    inside = folder / "inside"
    try:
        os.close(os.open(inside, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return {"overlap": True}
    counter = os.open(folder / "counter", os.O_RDWR | os.O_CREAT)
    if os.fstat(counter).st_uid == os.geteuid():  # for all users of the folder, whatever the umask
        os.fchown(counter, -1, folder.stat().st_gid)
        os.fchmod(counter, 0o660)
    value = int(os.pread(counter, 20, 0) or b"0") + 1
    time.sleep(_INSIDE_S)
    os.pwrite(counter, b"%d" % value, 0)
    os.close(counter)
    os.unlink(inside)
    return {"value": value}


def run_mortals(url: str, folder: str, times: int) -> None:
    """Start one process after the other that dies while it holds the lease."""
    order = json.dumps({"do": "hammer", "folder": folder, "times": 1, "dies": True})
    for _ in range(times):
        subprocess.run([sys.executable, __file__, url], input=order + "\n", text=True, check=False)
    answer_with(done=True)


def become(user: int, group: int, umask: int) -> None:
    """Continue as another user, in its own group and the given one. Import everything first, while it is readable."""
    with tempfile.TemporaryDirectory() as folder:
        client = holdfast.connect(f"file://{folder}")
        with client.lock("x", timeout=0), contextlib.suppress(holdfast.NotAcquired):
            client.lock("x").acquire(timeout=0.05)
        client.build_once(folder, "k", lambda staging: (staging / "first").touch())
        client.close()
    shared_files._TRIES = 250  # noqa: SLF001 - the test opens a folder more slowly than a user that has just created it
    os.setgroups([group])
    os.setgid(user)
    os.setuid(user)
    os.umask(umask)


def serve(url: str) -> None:
    """Execute the orders from standard input."""
    orders = Orders(url)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer_with(**getattr(orders, order.pop("do"))(**order))
        except holdfast.HoldfastError as error:
            answer_with(error=type(error).__name__, detail=str(error))


if __name__ == "__main__":
    if "BECOME" in os.environ:
        become(*(int(number, 8 if number.startswith("0") else 10) for number in os.environ["BECOME"].split(":")))
    if len(sys.argv) > 2:
        run_mortals(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    else:
        serve(sys.argv[1])
