"""Guarded files: complete or unchanged, in the order of fences, through kills, freezes and cancellations."""

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
from tests.support.other_users import ANN, MALLORY, TEAM, as_user, give_to, need_root, public_directory

CHILDREN = f"{os.path.dirname(__file__)}/file_writers.py"
FIVE, SIX = Stamp(5, "of five"), Stamp(6, "of six")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "report.txt"


@pytest.mark.parametrize(
    ("point", "content", "newest"),
    [
        ("guard.before-replace", "old", FIVE),  # the record of the newer holder was not written yet
        ("guard.admitted", "old", SIX),  # the record was written, the content was not
    ],
)
def test_a_killed_writer_leaves_the_old_content_and_a_usable_file(
    path, point, content, newest, holdfast_workers, holdfast_pauses
):
    """The write was not acknowledged; no writer waits for the dead one, and no older holder gets in."""
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
    """Each content repeats one number; a torn file would have two."""
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
    """The writer may continue at any moment, so no other can pass; waiting writers get an error and write nothing."""
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


def test_a_waiting_writer_continues_when_the_other_is_done(path):
    """Threads of one process exclude each other too."""
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
    """A guess would let late writers in, so a person must decide."""
    guard = FileGuard(path)
    guard.write(FIVE, "old")
    record = path.with_name(".report.txt.guard")
    for text in ("", "{", "[]", '{"v": 2, "fence": 9, "token": "t"}', '{"v": 1, "fence": "9", "token": "t"}'):
        record.write_text(text)

        with pytest.raises(Unavailable) as refusal:
            guard.write(SIX, "new")

        assert (refusal.value.reason, refusal.value.retryable) == ("corrupt", False)
    assert path.read_text() == "old"


def test_a_deleted_file_keeps_its_fence(path):
    """A late writer must not restore a removed file."""
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
    """Otherwise one file would have two records, and a copy would replace the link."""
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link"
    link.symlink_to(path)
    FileGuard(path).write(SIX, "new")

    with pytest.raises(Fenced):
        FileGuard(link).write(FIVE, "late")
    FileGuard(link).write(SIX, "newer")

    assert link.is_symlink()
    assert path.read_text() == "newer"


def test_the_permissions_of_the_file_stay_and_no_other_file_is_left(path):
    """A replaced file is new for the kernel, but not for its readers."""
    path.write_bytes(b"\xff")
    path.chmod(0o640)

    FileGuard(path).write(FIVE, b"\xfe\x00")

    assert path.read_bytes() == b"\xfe\x00"
    assert path.stat().st_mode & 0o777 == 0o640
    assert sorted(os.listdir(path.parent)) == [".report.txt.guard", ".report.txt.guard.lock", "report.txt"]


def test_invalid_paths_and_contents_are_refused_before_any_write(tmp_path):
    """The error comes where the mistake is made."""
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


def test_a_cancelled_write_ends_before_the_next_step(path):
    """A write that continues in its thread could overwrite the next write of the same holder."""
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
    """A forked child has the descriptor too, so the writer unlocks explicitly."""
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


def test_the_children_of_a_killed_writer_do_not_keep_its_lock(path, holdfast_workers):
    """The lock ends with the writer, and no other waits for its forked child."""
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


@pytest.mark.finding("S5")
def test_the_content_is_never_readable_for_more_users_than_the_file(path, monkeypatch):
    """Another user could read the draft of a private file before it got its mode."""
    path.write_text("old")
    path.chmod(0o600)
    created, open_file = {}, os.open

    def opened(name, flags, *mode, **where):
        descriptor = open_file(name, flags, *mode, **where)
        if flags & os.O_CREAT:
            created[os.path.basename(name)] = os.fstat(descriptor).st_mode & 0o777
        return descriptor

    monkeypatch.setattr(os, "open", opened)
    FileGuard(path).write(FIVE, "new")

    assert created == {".report.txt.guard.lock": 0o600, ".report.txt.guard.new": 0o600}
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.finding("S5")
def test_the_record_with_the_token_is_for_the_writers_of_the_directory_only(path, tmp_path):
    """The token of a live lease is no business of a reader of the file."""
    modes = []
    for mode in (0o755, 0o775, 0o777):
        tmp_path.chmod(mode)
        for file in tmp_path.glob(".report.txt.guard*"):
            file.unlink()
        FileGuard(path).write(FIVE, "content")
        modes.append({file.stat().st_mode & 0o777 for file in tmp_path.glob(".report.txt.guard*")})

    assert modes == [{0o600}, {0o660}, {0o600}]


@pytest.mark.finding("S5")
@pytest.mark.parametrize("trap", ["fifo", "link", "foreign"])
@pytest.mark.parametrize("name", ["report.txt", ".report.txt.guard", ".report.txt.guard.lock", ".report.txt.guard.new"])
def test_a_planted_file_is_refused_by_name_and_stays(name, trap):
    """A FIFO would hang the guard, a link would lead elsewhere, and another user could change the record."""
    if trap == "foreign":
        need_root()
    with public_directory(0o777) as folder:
        path, planted = folder / "report.txt", folder / name
        (folder.parent / "secret").write_text("secret")
        guard = FileGuard(path)
        if trap == "fifo":
            os.mkfifo(planted)
        elif trap == "link":
            planted.symlink_to(folder.parent / "secret")
        else:
            planted.write_text('{"v": 1, "fence": 0, "token": ""}')
            give_to(MALLORY, planted, 0o666)
        before = planted.lstat()
        raised = []

        def write():
            try:
                guard.write(FIVE, "new")
            except Unavailable as error:
                raised.append(error)

        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        writer.join(10)

        assert not writer.is_alive()
        assert [error.reason for error in raised] == ["no permission"]
        assert raised[0].detail.startswith(f"{planted}: this ")
        assert f"user {before.st_uid}" in raised[0].detail
        after = planted.lstat()
        assert (after.st_ino, after.st_mode, after.st_size) == (before.st_ino, before.st_mode, before.st_size)
        assert (folder.parent / "secret").read_text() == "secret"


def test_a_file_of_another_group_does_not_become_readable_for_the_writers_group():
    """A writer outside the group of the file cannot keep the group: its own group gets no more than all users get."""
    need_root()
    with public_directory(0o777) as folder:
        path = folder / "report.txt"
        path.write_text("old")
        os.chown(path, ANN, TEAM)
        path.chmod(0o640)
        status = as_user(ANN, lambda: FileGuard(path).write(FIVE, "new"))

        assert status == 0
        assert path.read_text() == "new"
        found = path.stat()
        assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (ANN, ANN, 0o600)
