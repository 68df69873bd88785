"""Leases after lost commits, another boot and damage; where the holder is unknown, nothing is granted."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import time
from pathlib import Path

import pytest

import holdfast
from holdfast.engines.sqlite import location
from holdfast.errors import LeaseLost, NotAcquired, Unavailable
from holdfast.testing import eventually


def parts(path):
    """The database with its log."""
    return [file for file in (path, Path(f"{path}-wal"), Path(f"{path}-shm")) if file.exists()]


def test_fences_grow_after_the_last_commits_were_lost(child, connect, path, tmp_path):
    """After a power cut the newest rows may be gone; a fence that was given out must still never come again."""
    before = child()
    early = before.ask("acquire", name="x")["fence"]
    before.ask("release", name="x")
    kept = tmp_path / "kept"
    kept.mkdir()
    for file in parts(path):
        shutil.copy(file, kept)
    fences = []
    for _ in range(20):
        fences.append(before.ask("acquire", name="x")["fence"])
        before.ask("release", name="x")
    before.worker.kill()

    for file in parts(path):
        file.unlink()
    for file in kept.iterdir():
        shutil.copy(file, path.parent)
    client = connect()
    known = client.show("x").fence
    fresh = client.lock("x").acquire(timeout=0)

    assert known == early
    assert fresh.fence > max(fences) > early
    fresh.release()


def test_another_boot_ends_leases_and_keeps_fences(connect, monkeypatch):
    """Times of another boot mean nothing and its processes are gone; only the fences are still valid."""
    first = connect()
    lease = first.lock("x", ttl=3600).acquire()
    first.close(timeout=0)
    second = connect()
    still_held = second.lock("x").try_acquire()
    second.close()

    monkeypatch.setattr(location, "boot_id", lambda: "another boot")
    monkeypatch.setattr("holdfast.clock.SystemClock.wall_us", lambda _: 1)
    third = connect()
    successor = third.lock("x").acquire(timeout=0)

    assert still_held is None
    assert successor.fence == lease.fence + 1
    successor.release()


def test_a_lease_outlives_a_restart_of_its_holders_client_within_one_boot(connect):
    """A close that does not wait lets the lease expire: no other client gets it under running work."""
    first = connect()
    lease = first.lock("x", ttl=3600).acquire()

    left = first.close(timeout=0)

    assert left == ("x",)
    assert lease.lost.reason == "closed"
    assert connect().lock("x").try_acquire() is None


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_a_client_notices_that_its_file_was_deleted_or_replaced(connect, child, path, how):
    """To go on with a file that has no name would be a second lock domain, invisible to other clients."""
    other = child()
    other.ask("acquire", name="y")
    client = connect()
    lease = client.lock("x", ttl=1).acquire()

    if how == "replaced":
        stranger = path.with_name("stranger.db")
        sqlite3.connect(stranger).close()
        stranger.touch()
        stranger.replace(path)
    else:
        for file in parts(path):
            file.unlink()

    for _ in range(2):
        with pytest.raises(Unavailable) as caught:
            client.lock("z").acquire()
        assert caught.value.reason == "replaced"
        assert str(path) in caught.value.detail
    assert other.ask("acquire", name="z", timeout=0)["reason"] == "replaced"
    assert lease.lost.wait(timeout=1)
    assert lease.lost.reason == "replaced"
    assert path.exists() == (how == "replaced")


def test_after_the_file_was_deleted_a_new_client_starts_with_higher_fences(connect, path):
    """The way out of a lost file is to connect again; the clock keeps the fences growing."""
    client = connect()
    lease = client.lock("x").acquire()
    for file in parts(path):
        file.unlink()
    client.close(timeout=0)

    again = connect().lock("x").acquire(timeout=1)

    assert again.fence > lease.fence
    again.release()


@pytest.mark.parametrize(
    "content", [b"this is no database at all\n" * 100, b"SQLite format 3\0" + bytes(range(256)) * 40]
)
def test_a_file_that_is_no_database_is_left_alone_and_the_error_says_what_to_do(connect, path, content):
    """An unreadable file is not deleted: a person decides."""
    path.write_bytes(content)
    client = connect()

    with pytest.raises(Unavailable) as caught:
        client.lock("x").acquire()

    assert caught.value.reason == "corrupt"
    assert f"stop every user of {path} and move it away" in caught.value.detail
    assert path.read_bytes() == content


def test_a_damaged_page_is_reported_and_nothing_is_granted(connect, path):
    """Half of a file does not prove who holds a lease."""
    client = connect()
    for number in range(300):
        client.lock(f"name {number}").acquire().release()
    client.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (size - 4096))

    with pytest.raises(Unavailable) as caught:
        connect().lock("name 7").acquire(timeout=0)

    assert caught.value.reason == "corrupt"


def database_of(client):
    return client._client.engine.store.database


def test_a_full_disk_changes_nothing_and_is_reported(connect):
    """SQLite's own limit makes it say that the disk is full; a half-made grant must not remain."""
    client = connect()
    lease = client.lock("x", ttl=30).acquire()
    connection = database_of(client)._cursor.connection
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")

    granted = {}
    with pytest.raises(Unavailable) as caught:
        for number in range(5000):
            granted[f"name {number}"] = client.lock(f"name {number}").acquire(timeout=0)
    refused = f"name {len(granted)}"

    assert caught.value.reason == "full"
    assert client.show(refused).holder is None
    assert not connection.in_transaction
    lease.check()
    lease.release()
    connection.execute("PRAGMA max_page_count = 1000000")
    client.lock(refused).acquire(timeout=1).release()
    for held in granted.values():
        held.release()


def test_a_holder_on_a_full_disk_keeps_its_lease_until_its_deadline_and_then_learns_of_the_loss(start, tmp_path):
    """A real disk without a free byte: no crash, no wrong answer, and when there is room again it goes on."""
    disk = tmp_path / "disk"
    disk.mkdir()
    worker = start("serve_on_small_disk", directory=disk, kib=256)
    if (line := worker.read_line()) == "no mount":
        pytest.skip("only root can mount a disk of its own: run it as root")
    assert line == "ready"
    from sqlite_child import Child

    small = Child(worker)
    assert small.ask("acquire", name="held", ttl=1)["fence"]

    small.ask("fill", directory=str(disk))
    # A file's last block may have room for a few writes more, renewals among them.
    names = (f"m{number}" for number in range(1000))
    eventually(lambda: small.ask("acquire", name=next(names), timeout=0).get("reason") == "full", timeout=10)
    answers = [small.ask("acquire", name=f"n{number}", timeout=0) for number in range(3)]
    lost = eventually(lambda: (told := small.ask("check", name="held")).get("error") and told, timeout=10)
    small.ask("drain", directory=str(disk))
    eventually(lambda: small.ask("acquire", name="held", timeout=0).get("fence"), timeout=3)

    assert {answer.get("reason") for answer in answers} == {"full"}
    assert (lost["error"], lost["reason"]) == ("LeaseLost", "expired")


@pytest.fixture
def closed_directory():
    """A directory that no user may write into; outside of pytest's own, which only its user may enter."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        yield directory
        directory.chmod(0o755)


@pytest.mark.parametrize("existing", [False, True])
def test_a_directory_without_write_permission_is_reported_as_no_permission(start, closed_directory, existing):
    """A person has to change permissions; the error names the file."""
    path = closed_directory / "hf.db"
    if existing:
        with holdfast.connect(f"sqlite://{path}") as client:
            client.lock("x").acquire().release()
    closed_directory.chmod(0o555)
    if os.getuid() != 0:
        for file in closed_directory.iterdir():
            file.chmod(0o444)

    worker = start("serve_as_nobody", url=f"sqlite://{path}")
    line = worker.read_line()

    assert '"error": "Unavailable"' in line
    assert '"reason": "no permission"' in line
    assert str(path) in line


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_a_live_holder_keeps_its_lease_when_the_live_file_is_gone(connect, child, path, how):
    """A free byte in another file proves no death: without proof the ttl decides."""
    client = connect()
    lease = client.lock("x", ttl=30).acquire()
    live = path.with_name("hf.db.live")
    if how == "deleted":
        live.unlink()
    else:
        other_file = path.with_name("other.live")
        other_file.touch()
        other_file.replace(live)

    other = child()
    answer = other.ask("acquire", name="x", timeout=0)

    assert answer["error"] == "NotAcquired"
    lease.check()
    lease.release()
    assert other.ask("acquire", name="x", timeout=1)["fence"] > lease.fence


def test_a_copy_of_the_database_takes_no_lease_from_a_live_holder(connect, child, path, tmp_path):
    """A copy elsewhere has its own gate and live file: a client that opens it finds no live session there."""
    client = connect()
    lease = client.lock("x", ttl=30).acquire()
    (tmp_path / "copy").mkdir()
    for file in parts(path):
        shutil.copy(file, tmp_path / "copy")

    elsewhere = holdfast.connect(f"sqlite://{tmp_path}/copy/hf.db")
    with pytest.raises(NotAcquired):
        elsewhere.lock("x").acquire(timeout=0)
    elsewhere.close()

    lease.check()
    lease.release()


def test_a_release_that_cannot_reach_the_engine_is_finished_later(connect):
    """On trouble the block ends with a warning within the wire timeout; the keeper resends until it is done."""
    events = []
    client = connect(observer=lambda event: events.append(event.kind))
    lease = client.lock("x", ttl=30).acquire()
    database = database_of(client)
    real, database._inside = database._inside, lambda *_: (_ for _ in ()).throw(Unavailable("sqlite", "full"))

    began = time.monotonic()
    lease.release()
    seconds = time.monotonic() - began
    database._inside = real

    assert 1 < seconds < 3
    assert "release_delayed" in events
    eventually(lambda: client.show("x").holder is None, timeout=2)
    with pytest.raises(LeaseLost):
        lease.check()


@pytest.mark.parametrize(
    "body",
    ["", "5\n\n1\n2\n0\n", "what\nis\nthis", f"{10**30}\n\n{10**30}\n60000000\n0\n\n", b"\xff\xfe\n\n1\n1\n0\n\n"],
    ids=["empty", "cut short", "nonsense", "too large", "not text"],
)
def test_a_damaged_record_affects_its_own_name_only(tmp_path, body):
    """Every client cleans up the records of others now and then: a damaged one must not fail its commands."""
    url = f"sqlite://{tmp_path}/leases.db"
    with holdfast.connect(url) as hf:
        for name in ("bad", "good"):
            hf.lock(name, ttl=5).acquire().release()
        with sqlite3.connect(tmp_path / "leases.db") as connection:
            connection.execute("UPDATE lease SET body = ?, look_us = 0 WHERE name = 'bad'", (body,))
        connection.close()

        for _ in range(200):
            hf.lock("good", ttl=5).acquire(timeout=5).release()

        with pytest.raises(Unavailable) as trouble:
            hf.lock("bad", ttl=5).acquire(timeout=0)
        assert trouble.value.reason == "corrupt"
    with holdfast.connect(url) as newcomer:
        newcomer.lock("good", ttl=5).acquire(timeout=5).release()
