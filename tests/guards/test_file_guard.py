"""Guarded files: whole or not at all, in the order of fences, whoever is killed, frozen or cancelled meanwhile."""

import asyncio
import fcntl
import os
import signal
import threading
import time

import pytest

from holdfast import Fenced, InvalidConfig, Unavailable, failpoints
from holdfast.aio import guards as aio_guards
from holdfast.guards import FileGuard, Stamp
from holdfast.testing import eventually

CHILDREN = f"{os.path.dirname(__file__)}/file_writers.py"
FIVE, SIX = Stamp(5, "of five"), Stamp(6, "of six")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "report.txt"


@pytest.mark.parametrize(
    ("point", "content", "newest"),
    [
        ("guard.before-replace", "old", FIVE),  # the record of the newer holder was not yet in place
        ("guard.admitted", "old", SIX),  # it was, and the content was not
    ],
)
def test_a_writer_that_is_killed_leaves_the_old_content_and_an_open_file(
    path, point, content, newest, holdfast_workers, holdfast_pauses
):
    """Nothing was acknowledged; nobody waits for the dead; and no older holder profits."""
    FileGuard(path).write(FIVE, "old")
    holdfast_pauses.arm(point)
    writer = holdfast_workers.start(f"{CHILDREN}:write", path=path, fence=6, token=SIX.token, content="new" * 9999)
    holdfast_pauses.wait_reached(point)
    writer.kill()

    assert path.read_text() == content
    assert FileGuard(path).newest() == newest
    FileGuard(path, timeout=5).write(SIX, "whole")
    assert path.read_text() == "whole"
    with pytest.raises(Fenced):
        FileGuard(path).write(FIVE, "late")


def test_writers_that_are_killed_at_random_never_leave_half_a_file(path, holdfast_workers):
    """Each content is one number, many times: a torn one would have two."""
    newest = written = 0
    for turn in range(4):
        writer = holdfast_workers.start(f"{CHILDREN}:rewrite", path=path, first=newest + 1).wait_ready()
        time.sleep(0.005 * turn)
        writer.kill()

        (number,) = set(path.read_text().split())
        stored = FileGuard(path).newest().fence
        assert written < int(number) <= stored <= int(number) + 1
        newest, written = stored, int(number)


def test_a_writer_frozen_inside_keeps_the_others_out_for_a_bounded_time(path, holdfast_workers, holdfast_pauses):
    """It may go on at any moment, so nobody can pass; but whoever waits is told, and nothing was written."""
    holdfast_pauses.arm("guard.admitted")
    writer = holdfast_workers.start(f"{CHILDREN}:write", path=path, fence=5, token=FIVE.token, content="slow")
    holdfast_pauses.wait_reached("guard.admitted")
    writer.freeze()
    holdfast_pauses.go("guard.admitted")

    with pytest.raises(Unavailable) as busy:
        FileGuard(path, timeout=0.3).write(SIX, "new")

    assert (busy.value.reason, busy.value.retryable) == ("busy", True)
    assert not path.exists()
    writer.thaw()
    assert writer.wait() == 0
    FileGuard(path).write(SIX, "new")
    assert path.read_text() == "new"


def test_one_who_waits_goes_on_when_the_other_is_done(path):
    """Threads of one process exclude each other as well."""
    inside, out = threading.Event(), threading.Event()

    def slow():
        inside.set()
        assert out.wait(20)

    failpoints.arm("guard.admitted", slow)
    first = threading.Thread(target=FileGuard(path).write, args=(FIVE, "first"))
    first.start()
    assert inside.wait(20)
    failpoints.disarm_all()
    second = threading.Thread(target=FileGuard(path, timeout=None).write, args=(SIX, "second"))
    second.start()
    time.sleep(0.1)
    assert second.is_alive()
    out.set()
    first.join(20)
    second.join(20)

    assert path.read_text() == "second"


def test_an_unreadable_fence_record_lets_no_writer_in(path):
    """Guessing would let late writers in; a person has to look."""
    guard = FileGuard(path)
    guard.write(FIVE, "old")
    record = path.with_name(".report.txt.guard")
    for text in ("", "{", "[]", '{"v": 2, "fence": 9, "token": "t"}', '{"v": 1, "fence": "9", "token": "t"}'):
        record.write_text(text)

        with pytest.raises(Unavailable) as refusal:
            guard.write(SIX, "new")

        assert (refusal.value.reason, refusal.value.retryable) == ("corrupt", False)
    assert path.read_text() == "old"


def test_a_deleted_file_still_knows_its_holders(path):
    """A late writer must not bring back what was removed."""
    guard = FileGuard(path)
    guard.write(FIVE, "old")
    guard.delete(SIX)
    guard.delete(SIX)

    assert not path.exists()
    with pytest.raises(Fenced):
        guard.write(FIVE, "late")
    with pytest.raises(Fenced):
        guard.delete(FIVE)
    assert not path.exists()


def test_a_link_leads_to_the_same_guard(path, tmp_path):
    """Otherwise there would be two records of one file, and the link would be replaced by a copy."""
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link"
    link.symlink_to(path)
    FileGuard(path).write(SIX, "new")

    with pytest.raises(Fenced):
        FileGuard(link).write(FIVE, "late")
    FileGuard(link).write(SIX, "newer")

    assert link.is_symlink()
    assert path.read_text() == "newer"


def test_rights_of_the_file_stay_and_nothing_else_is_left_beside_it(path):
    """A replaced file is a new one to the kernel, not to its readers."""
    path.write_bytes(b"\xff")
    path.chmod(0o640)

    FileGuard(path).write(FIVE, b"\xfe\x00")

    assert path.read_bytes() == b"\xfe\x00"
    assert path.stat().st_mode & 0o777 == 0o640
    assert sorted(os.listdir(path.parent)) == [".report.txt.guard", ".report.txt.guard.lock", "report.txt"]


def test_bad_paths_and_contents_are_refused_before_anything_is_made(tmp_path):
    """A mistake is told where it was made."""
    for path in ("", "a\0b", b"bytes", "x/..", f"{tmp_path}/", tmp_path, "x" * 250):
        with pytest.raises(InvalidConfig):
            FileGuard(path)
    for timeout in (-1, "soon", float("nan")):
        with pytest.raises(InvalidConfig):
            FileGuard(tmp_path / "x", timeout=timeout)
    for content in (None, 7, ["x"], bytearray(b"x")):
        with pytest.raises(InvalidConfig):
            FileGuard(tmp_path / "x").write(FIVE, content)

    assert os.listdir(tmp_path) == []


def test_a_write_that_is_cancelled_is_over_before_anything_else_happens(path):
    """Left alone in its thread it could write over what the same holder writes next."""
    inside, out = threading.Event(), threading.Event()

    def slow():
        inside.set()
        assert out.wait(20)

    async def story():
        guard = aio_guards.FileGuard(path)
        task = asyncio.create_task(guard.write(FIVE, "first"))
        await asyncio.to_thread(inside.wait, 20)
        task.cancel()
        await asyncio.sleep(0.05)
        task.cancel()
        assert not task.done()
        out.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert path.read_text() == "first"
        failpoints.disarm_all()
        await guard.write(FIVE, "second")

    failpoints.arm("guard.admitted", slow)
    try:
        asyncio.run(story())
    finally:
        failpoints.disarm_all()

    assert path.read_text() == "second"


def test_a_lock_that_a_forked_child_inherited_is_free_for_others(path):
    """A child that knows nothing of it has the descriptor; the end of the write is said to the kernel aloud."""
    children = []

    def fork():
        reads, writes = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(writes)
            os.read(reads, 1)
            os._exit(0)
        os.close(reads)
        children.append((pid, writes))

    failpoints.arm("guard.admitted", fork)
    try:
        FileGuard(path).write(FIVE, "x")
    finally:
        failpoints.disarm_all()
        try:
            with open(path.with_name(".report.txt.guard.lock")) as lock:
                eventually(lambda: fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB) is None, 5)
        finally:
            for pid, writes in children:
                os.close(writes)
                os.waitpid(pid, 0)
    assert len(children) == 1


def test_a_writer_that_is_killed_inside_leaves_nothing_to_its_children(path, holdfast_workers):
    """The lock goes with the writer: nobody waits for a child that was forked meanwhile."""
    writer = holdfast_workers.start(f"{CHILDREN}:fork_inside", path=path)
    child = int(writer.read_line(30))
    try:
        with pytest.raises(Unavailable):
            FileGuard(path, timeout=0).admit(SIX)
        writer.kill()

        FileGuard(path, timeout=20).write(SIX, "new")
    finally:
        os.kill(child, signal.SIGKILL)

    assert path.read_text() == "new"
