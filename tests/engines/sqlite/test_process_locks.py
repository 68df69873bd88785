"""Kernel locks that nothing but their owner ends: not a backup of the files, and not a second copy of the package."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys

import pytest

import holdfast
from holdfast import failpoints
from holdfast.engines.sqlite import process_locks
from holdfast.testing import eventually

INSIDE = "sqlite.before-commit"


def run_program(program):
    """Run a Python program in its own process; return what it printed, and its errors."""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    return run.stdout, run.stderr


def read_every_file(path):
    """Read all files of the database, as a backup or a checksum does; return how many there were."""
    files = [file for file in path.parent.glob(f"{path.name}*") if stat.S_ISREG(file.stat().st_mode)]
    for file in files:
        file.read_bytes()
    return len(files)


@pytest.mark.finding("X1")
@pytest.mark.parametrize("work", ["hold", "wait"])
def test_a_holder_that_reads_the_files_of_the_engine_keeps_its_lease(work, path, child, connect):
    """Closing any descriptor of a file drops the POSIX locks of a process: the holder would look dead at once."""
    other = child()
    client = connect()
    lease = client.lock("x").acquire()
    if work == "wait":
        other.ask("wait", name="x")
        eventually(lambda: len(client.show("x").waiters) == 1)

    assert read_every_file(path) == 5  # database, log, shared memory, gate and live file

    if work == "hold":
        assert other.ask("acquire", name="x", timeout=0)["error"] == "NotAcquired"
    else:
        assert other.ask("got", name="x")["fence"] is None
    lease.check()
    assert client.show("x").fence == lease.fence
    lease.release()


@pytest.mark.finding("X1")
def test_a_process_that_reads_the_files_inside_the_gate_stays_alone_there(path, child, connect):
    """Two processes inside would write to the log at once, and one would lose its commit."""
    other, client = child(), connect()
    assert other.ask("acquire", name="its own")["fence"] > 0
    first = client.lock("mine").acquire()
    answers = []

    def inside():
        failpoints.disarm(INSIDE)
        read_every_file(path)
        other.order("acquire", name="y")
        with contextlib.suppress(TimeoutError):
            answers.append(other.answer(timeout=0.5))

    failpoints.arm(INSIDE, inside)
    mine = client.lock("x").acquire()

    assert answers == []
    assert other.answer()["fence"] > 0
    assert client.show("x").fence == mine.fence
    assert client.show("y").holder is not None
    first.release()
    mine.release()


@pytest.mark.finding("X1")
def test_commits_after_a_backup_by_the_same_process_are_not_lost(path, url, child, connect):
    """SQLite's own locks are POSIX locks: the next process to close its connection would delete the log in use."""
    client = connect()
    queue = client.queue("jobs")
    queue.publish("before")

    read_every_file(path)
    other = child()
    other.ask("acquire", name="y")
    other.ask("release", name="y")
    assert other.ask("close") == {"left": []}
    lease = client.lock("x").acquire()
    queue.publish("after")

    third = child()
    assert third.ask("acquire", name="x", timeout=0)["error"] == "NotAcquired"
    assert client.show("x").fence == lease.fence
    lease.release()
    program = f"import holdfast; print(holdfast.connect({url!r}).queue('jobs').stats().ready)"
    assert run_program(program) == ("2\n", "")


SECOND_COPY = """
import sys
import holdfast as first
lease = first.connect({url!r}).lock("x").acquire()
for name in [name for name in sys.modules if name.partition(".")[0] == "holdfast"]:
    del sys.modules[name]
import holdfast as second
assert second is not first
other = second.connect({url!r})
print(other.lock("x").try_acquire(), other.show("x").fence == lease.fence, bool(lease.lost))
lease.release()
print(other.lock("x").acquire(timeout=5).fence > lease.fence)
"""

SUBINTERPRETER = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
import holdfast
lease = holdfast.connect({url!r}).lock("x").acquire()
script = '''
import holdfast
client = holdfast.connect({url!r})
print(client.lock("x").try_acquire(), client.show("x").fence == {{fence}}, end=" ", flush=True)
client.close()
'''
try:  # an isolated interpreter may start no thread, or no daemon thread
    interpreter = interpreters.create("legacy")
except TypeError:
    interpreter = interpreters.create(isolated=False)
failed = interpreters.run_string(interpreter, script.format(fence=lease.fence))
assert failed is None, failed
print(bool(lease.lost))
lease.release()
print(True)
"""


@pytest.mark.finding("X2")
@pytest.mark.parametrize("program", [SECOND_COPY, SUBINTERPRETER], ids=["cleared sys.modules", "subinterpreter"])
def test_two_copies_of_the_package_in_one_process_exclude_each_other(program, url):
    """A process does not see its own POSIX locks, so that the first holder would look dead to the second copy."""
    printed, errors = run_program(program.format(url=url))

    assert printed == "None True False\nTrue\n", errors


POSIX_LOCKS = """
import fcntl
for name in ("F_OFD_GETLK", "F_OFD_SETLK", "F_OFD_SETLKW"):
    delattr(fcntl, name)
"""


def test_without_locks_by_descriptor_a_copy_of_the_package_counts_its_own_process_as_alive(url):
    """The fallback for systems that have POSIX locks only."""
    printed, errors = run_program(POSIX_LOCKS + SECOND_COPY.format(url=url))

    assert printed == "None True False\nTrue\n", errors


FALLBACK = """
import os, pathlib, signal
import holdfast
client = holdfast.connect({url!r})
caveats = [caveat.sentence for caveat in client.promise().caveats if "POSIX" in caveat.sentence]
print(len(caveats))
pid = os.fork()
if not pid:
    holdfast.connect({url!r}).lock("x").acquire()
    os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(pid, 0)
print(client.lock("x").acquire(timeout=0).fence > 0)
client.close()
"""


def test_without_locks_by_descriptor_the_promise_says_what_a_program_must_not_do(url):
    """There, reading the lock files still drops the locks; a dead holder is replaced at once as elsewhere."""
    printed, errors = run_program(POSIX_LOCKS + FALLBACK.format(url=url))

    assert printed == "1\nTrue\n", errors


def test_a_forked_child_neither_ends_nor_keeps_the_locks_of_its_parent(path, child, connect):
    """The child shares the descriptors, and with them the locks, until it closes them right after the fork."""
    client = connect()
    lease = client.lock("x").acquire()
    pid = os.fork()
    if not pid:
        mine = [file.descriptor for file in process_locks._files.values()]
        os._exit(0 if mine and set(mine) == {-1} else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    other = child()
    assert other.ask("acquire", name="x", timeout=0)["error"] == "NotAcquired"
    lease.release()


@pytest.mark.finding("S11")
def test_a_client_that_gave_out_its_liveness_descriptor_leaves_none_behind(url):
    """A process that connects again and again would run out of descriptors."""

    def count():
        return len(os.listdir("/proc/self/fd"))

    with holdfast.connect(url) as keeper:
        keeper.lock("x").acquire().release()
        counts = []
        for _ in range(3):
            with holdfast.connect(url) as client:
                client.lock("y").acquire().release()
                assert os.fstat(client._client.engine.liveness_fd())
            counts.append(count())

    assert counts[0] == counts[1] == counts[2]
