"""Files of other users in places that all users can write to: refused by name, never used, changed or deleted."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import stat
import threading
import time

import pytest

import holdfast
from holdfast.engines.files import admin
from holdfast.errors import Unavailable
from holdfast.guards import FileGuard, Stamp
from tests.support.other_users import ANN, BEN, MALLORY, TEAM, as_user, give_to, need_root, public_directory, snapshot

CHILDREN = f"{os.path.dirname(__file__)}/files/file_children.py"


@pytest.fixture(params=[0o777, 0o1777], ids=["0777", "sticky"])
def public(request):
    need_root()
    with public_directory(request.param) as path:
        yield path


def url_of(engine, path):
    return f"file://{path}" if engine == "file" else f"sqlite://{path}/hf.db"


def refusal(url):
    """Return the error of an acquire at this URL, and how long it took."""
    began = time.monotonic()
    with pytest.raises(Unavailable) as caught, holdfast.connect(url) as client:
        client.lock("deploy").acquire(timeout=0)
    assert time.monotonic() - began < 5
    return caught.value


@pytest.mark.finding("S6")
@pytest.mark.parametrize("engine", ["file", "sqlite"])
def test_a_user_never_shares_a_lock_with_the_owner_of_planted_files(public, engine):
    """The attacker could change them at any moment: attacker and victim would both hold the lock."""
    url = url_of(engine, public)
    attacker = holdfast.connect(url)
    held = attacker.lock("deploy", ttl=300).acquire(timeout=0)
    attacker.close(timeout=0)
    for each in list(public.iterdir()):
        give_to(MALLORY, each, 0o666)
    before = snapshot(public)

    error = refusal(url)

    assert error.reason == "no permission"
    assert f"belongs to user {MALLORY}" in error.detail
    assert str(public) in error.detail
    assert "Use a directory that only this user" in error.detail
    assert snapshot(public) == before
    assert held.fence > 0


@pytest.mark.finding("S6")
@pytest.mark.parametrize(
    ("suffix", "trap"),
    [
        (suffix, trap)
        for suffix in ("", "-wal", "-shm", "-journal", ".gate", ".live")
        for trap in ("file", "link", "fifo", "hard link", "mode")
        if (suffix, trap) != ("", "link")  # the links of a URL are followed, and the file that they lead to is checked
    ],
)
def test_each_planted_file_of_sqlite_is_refused_by_name(public, suffix, trap):
    """SQLite opens files by path and applies a log that it finds: every one of them is checked."""
    planted = public / f"hf.db{suffix}"
    secret = public.parent / "secret"
    secret.write_bytes(b"")
    if trap == "link":
        planted.symlink_to(secret)
    elif trap == "fifo":
        os.mkfifo(planted)
    elif trap == "hard link":
        os.link(secret, planted)
    else:
        planted.write_bytes(b"")
    if trap == "mode":
        planted.chmod(0o666)
    elif trap == "file":
        give_to(MALLORY, planted, 0o666)
    before = snapshot(public.parent)

    with pytest.raises((Unavailable, holdfast.InvalidConfig)) as caught, holdfast.connect(f"sqlite://{public}/hf.db"):
        pass

    assert str(planted) in str(caught.value)
    assert snapshot(public.parent) == before


@pytest.mark.finding("S6")
def test_a_database_that_is_swapped_while_sqlite_opens_it_is_refused(tmp_path, monkeypatch):
    """SQLite opens it by path: between the check and the open, another file may have come there."""
    other, path = tmp_path / "other.db", tmp_path / "hf.db"
    with holdfast.connect(f"sqlite://{other}") as client:
        client.lock("x").acquire().release()
    connect, swaps = sqlite3.connect, []

    def swapped(name, **options):
        if str(name) == str(path) and not swaps:
            swaps.append(path.rename(tmp_path / "moved"))
            shutil.copy(other, path)
        return connect(name, **options)

    monkeypatch.setattr(sqlite3, "connect", swapped)
    error = refusal(f"sqlite://{path}")

    assert len(swaps) == 1
    assert f"{path}: another process replaced the database while this process opened it" in error.detail


@pytest.mark.finding("S6")
def test_two_users_of_one_world_writable_directory_exclude_each_other(public, holdfast_workers):
    """The first user's files are for that user alone; the second one is told whose they are."""
    ann, ben = (
        holdfast_workers.start(f"{CHILDREN}:serve_as", url=f"file://{public}", uid=uid, gid=uid, umask=0).wait_ready()
        for uid in (ANN, BEN)
    )
    ann.send_line('{"do": "acquire", "timeout": 0}')
    assert "fence" in json.loads(ann.read_line())
    ben.send_line('{"do": "acquire", "timeout": 0}')
    answer = json.loads(ben.read_line(20))

    assert (answer["error"], answer["reason"]) == ("Unavailable", "no permission")
    assert f"{public}/.holdfast" in answer["detail"]


@pytest.mark.finding("S6", "S12")
@pytest.mark.parametrize("engine", ["file", "sqlite"])
def test_no_file_in_a_world_writable_directory_is_open_to_other_users(public, engine):
    """Also with an empty umask, and for files that a guard, a build and a marker of a domain leave."""
    before = os.umask(0)
    try:
        client, other = (holdfast.connect(url_of(engine, public)) for _ in range(2))
        with client, other, client.lock("x"):
            assert other.lock("x").try_acquire() is None
            client.domain(public)
            FileGuard(public / "report").admit(Stamp(5, "t"))
            modes = {str(path): path.lstat().st_mode for path in public.rglob("*")}
    finally:
        os.umask(before)

    assert len(modes) >= 5
    assert {path: oct(mode) for path, mode in modes.items() if mode & 0o022} == {}
    secret = {path for path, mode in modes.items() if not mode & 0o077}
    assert set(modes) - secret <= {f"{public}/.holdfast-domain"}


@pytest.mark.finding("S12")
def test_new_parents_of_a_database_are_for_their_user_alone(tmp_path):
    """With an empty umask they would be writable for all users, who could replace the database."""
    before = os.umask(0)
    try:
        holdfast.connect(f"sqlite://{tmp_path}/a/b/hf.db").close()
    finally:
        os.umask(before)

    assert [stat.S_IMODE((tmp_path / each).stat().st_mode) for each in ("a", "a/b")] == [0o700, 0o700]


@pytest.mark.finding("S6")
@pytest.mark.parametrize("engine", ["file", "sqlite"])
def test_a_directory_whose_files_all_users_can_move_gets_a_caveat(engine, tmp_path):
    """No check of Holdfast can keep another user from moving the files away there."""
    found = []
    for mode in (0o755, 0o1777, 0o777):
        tmp_path.chmod(mode)
        with holdfast.connect(url_of(engine, tmp_path)) as client:
            found.append(any("no sticky bit" in caveat.sentence for caveat in client.promise().caveats))

    assert found == [False, False, True]


@pytest.mark.finding("S6")
def test_a_pipe_that_another_user_planted_gets_no_wake_up(public, caplog):
    """Its reader would learn tokens; the waiter is told that waiting is slower, and gets the lease all the same."""
    with holdfast.connect(f"sqlite://{public}/hf.db") as holder, holdfast.connect(f"sqlite://{public}/hf.db") as waiter:
        lease = holder.lock("x", ttl=1).acquire(timeout=0)
        waiter.lock("y").acquire(timeout=0).release()
        planted = public / f"hf.db.wake.{waiter._client.engine.store._session}"
        os.mkfifo(planted)
        give_to(MALLORY, planted, 0o666)
        reader = os.open(planted, os.O_RDONLY | os.O_NONBLOCK)
        lease.release()
        held = holder.lock("x", ttl=1).acquire(timeout=0)
        taken = []
        thread = threading.Thread(target=lambda: taken.append(waiter.lock("x").acquire(timeout=20)))
        thread.start()
        time.sleep(0.2)
        held.release()
        thread.join(20)

        assert len(taken) == 1
        taken[0].release()
        assert os.read(reader, 100) == b""
        os.close(reader)
    assert planted.exists()


@pytest.mark.finding("S4", "S12")
def test_the_sweep_deletes_nothing_where_a_link_leads(tmp_path):
    """A member of the group swapped the directory for a link: files elsewhere that look like leftovers stay."""
    shared, private = tmp_path / "shared", tmp_path / "private"
    shared.mkdir()
    for folder in (".try.old", ".draft.old"):
        (private / folder / "d").mkdir(parents=True)
        (private / folder / "thesis").write_text("years of work")
        (private / folder / "d" / "x").write_text("more work")
        os.utime(private / folder, (0, 0))
    before = snapshot(private)
    with holdfast.connect(f"file://{shared}") as client:
        client.lock("x").acquire(timeout=0).release()
        store = client._client.engine.store
        (shared / ".holdfast").rename(shared / "moved")
        (shared / ".holdfast").symlink_to(private)
        (shared / "moved" / ".try.link").symlink_to(private / ".try.old")
        os.utime(shared / "moved" / ".try.link", (0, 0), follow_symlinks=False)

        admin.sweep(store.root, store._clocks, store._session.wall_us())

        assert snapshot(private) == before
        (shared / ".holdfast").unlink()
        (shared / "moved").rename(shared / ".holdfast")


@pytest.mark.finding("S4")
def test_the_sweep_deletes_only_the_files_that_a_trial_has(tmp_path):
    """Another user may have moved a folder with other files into the place of a trial: it stays whole."""
    with holdfast.connect(f"file://{tmp_path}") as client:
        client.lock("x").acquire(timeout=0).release()
        store, home = client._client.engine.store, tmp_path / ".holdfast"
        for folder in (home / ".try.old", home / "leases" / ".old"):
            (folder / "inside").mkdir(parents=True)
            (folder / "thesis").write_text("years of work")
            (folder / "inside" / "x").write_text("more work")
            os.utime(folder, (0, 0))
        (home / ".try.empty" / "d").mkdir(parents=True)
        (home / ".try.empty" / "d" / "x").write_text("")
        os.utime(home / ".try.empty", (0, 0))
        before = {**snapshot(home / ".try.old"), **snapshot(home / "leases" / ".old")}

        for _ in range(20):
            admin.sweep(store.root, store._clocks, store._session.wall_us())

        assert {**snapshot(home / ".try.old"), **snapshot(home / "leases" / ".old")} == before
        assert not (home / ".try.empty").exists()


@pytest.mark.finding("S2")
def test_a_swapped_folder_in_a_group_directory_never_opens_a_private_one(monkeypatch):
    """A member of the group replaces the new folder before it gets its mode: by a link, or by a private folder."""
    need_root()
    with public_directory(0o2770, gid=TEAM) as shared:
        private = shared.parent / "private"
        private.mkdir(0o700)
        (shared / "mine").mkdir(0o700)
        (shared / "mine" / "secret").write_text("secret")
        make = os.mkdir

        def swapped(name, mode=0o777, *, dir_fd=None):
            make(name, mode, dir_fd=dir_fd)
            if os.path.basename(name) == ".holdfast":
                (shared / ".holdfast").rename(shared / f"away{len(os.listdir(shared))}")
                how()

        monkeypatch.setattr(os, "mkdir", swapped)
        for how in (  # noqa: B007 - `swapped` uses it
            lambda: (shared / ".holdfast").symlink_to(private),
            lambda: (shared / "mine").rename(shared / ".holdfast"),
        ):
            with contextlib.suppress(Unavailable), holdfast.connect(f"file://{shared}") as client:
                client.lock("x").acquire(timeout=0).release()
            assert stat.S_IMODE(private.stat().st_mode) == 0o700
            found = shared / ".holdfast"
            assert found.is_symlink() or stat.S_IMODE(found.stat().st_mode) & 0o777 == 0o700
            found.unlink() if found.is_symlink() else found.rename(shared / "mine")


@pytest.mark.finding("S6")
def test_a_member_of_the_group_is_trusted_in_a_directory_of_the_group():
    """The documented sharing stays: any member may have created the files."""
    need_root()
    with public_directory(0o2770, gid=TEAM) as shared:
        status = as_user(ANN, lambda: os.mkdir(shared / ".holdfast", 0o2770), gid=TEAM)
        with holdfast.connect(f"file://{shared}") as client:
            client.lock("x").acquire(timeout=0).release()

        assert status == 0
        assert (shared / ".holdfast").stat().st_uid == ANN


def import_all(engine, path):
    """Import every module that a client needs: another user may not be able to read them."""
    with holdfast.connect(url_of(engine, path)) as client, client.lock("x"):
        assert client.lock("x").try_acquire() is None
        client.queue("jobs").publish("x") if engine == "sqlite" else None
    link = path / (".holdfast" if engine == "file" else "hf.db.gate")
    shutil.rmtree(link) if link.is_dir() else link.unlink()
    link.symlink_to("elsewhere")
    with pytest.raises(Unavailable), holdfast.connect(url_of(engine, path)) as client:
        client.lock("x").acquire(timeout=0)


def test_a_sqlite_file_in_a_directory_of_the_group_is_for_its_user_alone(tmp_path):
    """SQLite opens its log by path and believes it: members of the group share leases through `file://` or Redis."""
    need_root()
    import_all("sqlite", tmp_path)
    with public_directory(0o2770, gid=TEAM) as shared:
        url = f"sqlite://{shared}/hf.db"

        def use_as_ann():
            with holdfast.connect(url) as client:
                client.lock("x").acquire(timeout=0).release()

        def refuse_ben():
            with pytest.raises(Unavailable, match="no permission"), holdfast.connect(url) as client:
                client.lock("x").acquire(timeout=0)

        assert as_user(ANN, use_as_ann, gid=TEAM) == 0
        before = snapshot(shared)
        assert as_user(BEN, refuse_ben, gid=TEAM) == 0
        assert snapshot(shared) == before
        assert {facts[2] & 0o077 for facts in before.values()} == {0}


@pytest.mark.parametrize("engine", ["file", "sqlite"])
def test_another_user_can_neither_read_nor_hold_the_leases_of_a_private_directory(engine, tmp_path):
    """`0755`, the usual mode: all users may enter, and only the owner may write."""
    need_root()
    import_all(engine, tmp_path)
    with public_directory(0o755) as place:
        url = url_of(engine, place)
        give_to(ANN, place)

        def use():
            client = holdfast.connect(url)
            client.queue("jobs").publish("secret") if engine == "sqlite" else None
            client.lock("deploy", ttl=300).acquire(timeout=0)
            os._exit(0)  # without a release

        def attack():
            with pytest.raises(Unavailable, match="no permission"), holdfast.connect(url) as client:
                client.lock("deploy").acquire(timeout=0)
            for each in (place / name for name in names):
                with pytest.raises(PermissionError):
                    each.iterdir().__next__() if each.is_dir() else each.read_bytes()
                with pytest.raises(PermissionError):
                    each.rename(place / "moved")

        assert as_user(ANN, use) == 0
        names = [each.name for each in place.iterdir()]
        assert names
        before = snapshot(place)
        assert as_user(MALLORY, attack) == 0
        assert snapshot(place) == before
