"""Faults of the shared directory: full, read-only, deleted, with planted files. Clear errors, nothing incomplete."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

import pytest

from holdfast import failpoints
from holdfast.commands import Acquire
from holdfast.engines.files import codec, root
from holdfast.errors import InvalidConfig, LeaseLost, ReplyLost, Unavailable
from holdfast.shared_files import Folder
from holdfast.testing import eventually


@pytest.fixture
def public():
    """A directory that every user of this machine can reach."""
    if os.getuid() != 0:
        pytest.skip("only root can become another user: run it as root")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        (Path(folder) / "shared").mkdir()
        yield Path(folder) / "shared"


@pytest.mark.acceptance("A2-18")
def test_a_directory_without_write_permission_is_reported_at_once_and_nothing_is_created(start, public):
    """The error names the path and the user."""
    shared = public
    shared.chmod(0o755)
    worker = start("serve_as", url=f"file://{shared}", uid=65534, gid=65534).wait_ready()
    worker.send_line('{"do": "acquire", "timeout": 0}')
    answer = worker.read_line()

    assert "no permission" in answer
    assert str(shared) in answer
    assert "65534" in answer
    assert list(shared.iterdir()) == []


@pytest.mark.acceptance("A2-18")
def test_a_full_disk_is_reported_and_leaves_nothing_incomplete(start, tmp_path):
    """A held lease stays held for its ttl; a new one is refused with the reason; when there is room again, all
    goes on."""
    folder = tmp_path / "small"
    folder.mkdir()
    worker = start("serve_on_small_disk", directory=str(folder), kib=256)
    if worker.read_line() == "no mount":
        pytest.skip("only root can mount a disk: run it as root")

    def ask(do, **order):
        worker.send_line(json.dumps({"do": do, **order}))
        return json.loads(worker.read_line(20))

    ask("churn", times=2)
    before = [path for path in ask("listing", directory=str(folder))["files"] if "/x/" not in path]
    ask("fill", directory=str(folder))
    refused = ask("acquire", name="new", timeout=0)
    again = ask("acquire", name="x", timeout=0)
    files = ask("listing", directory=str(folder))["files"]
    ask("drain", directory=str(folder))

    assert (refused["error"], refused["reason"]) == ("Unavailable", "full")
    assert (again["error"], again["reason"]) == ("Unavailable", "full")
    assert f"{folder}/.holdfast" in refused["detail"]
    assert [path for path in files if "/x/" not in path and "ballast" not in path] == before
    assert "fence" in ask("acquire", name="new", timeout=5)


def test_a_missing_directory_is_not_created(connect, tmp_path):
    """An empty mount point must not stand in for a volume that is not mounted."""
    with pytest.raises(Unavailable) as trouble:
        connect(f"file://{tmp_path}/absent")

    assert "absent" in str(trouble.value)
    assert not (tmp_path / "absent").exists()


def test_a_directory_that_was_deleted_loses_its_leases_and_its_holders_are_told(connect, shared):
    """Deleted and created again: the old lease is lost at once, and the old client takes no lease in the new one."""
    client, other = connect(), connect()
    lease = client.lock("x", ttl=1).acquire()
    assert other.lock("x").try_acquire() is None
    shutil.rmtree(shared / ".holdfast")
    with pytest.raises(Unavailable) as trouble:
        client.lock("y").acquire(timeout=0)
    fresh = connect()
    with fresh.lock("x", timeout=0) as successor:
        assert successor.fence > lease.fence
        with pytest.raises(Unavailable):
            other.lock("x").acquire(timeout=0)
        eventually(lambda: lease.lost, timeout=5)

    assert trouble.value.reason == "replaced"
    with pytest.raises(LeaseLost):
        lease.release()


def test_a_lease_whose_folder_was_deleted_is_lost_and_its_fences_grow(connect, shared):
    """A person removed it by hand: the holder learns of the loss, and the next fence is larger all the same."""
    client, other = connect(), connect()
    lease = client.lock("x", ttl=0.6).acquire()
    shutil.rmtree(shared / ".holdfast" / "leases" / "x")

    with other.lock("x", timeout=0) as successor:
        assert successor.fence > lease.fence
        eventually(lambda: lease.lost, timeout=5)
    with pytest.raises(LeaseLost):
        lease.release()


@pytest.mark.finding("S12")
@pytest.mark.parametrize("trap", ["file", "link", "link to nothing"])
def test_no_symbolic_link_is_followed_in_place_of_the_holdfast_directory(connect, shared, tmp_path, trap):
    """A planted link would make other users write where it points."""
    elsewhere = tmp_path / "elsewhere"
    if trap == "file":
        (shared / ".holdfast").write_text("mine")
    else:
        (shared / ".holdfast").symlink_to(elsewhere)
        if trap == "link":
            elsewhere.mkdir()
    client = connect()

    with pytest.raises(Unavailable):
        client.lock("x").acquire(timeout=0)

    assert not elsewhere.exists() or list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("trap", ["link", "pipe"])
def test_a_planted_id_file_is_not_followed(connect, shared, tmp_path, trap):
    """The content that it points to would be copied to a file that all may read."""
    (tmp_path / "secret").write_text("secret")
    client = connect()
    client.lock("x").acquire(timeout=0).release()
    planted = shared / ".holdfast" / "id"
    planted.symlink_to(tmp_path / "secret") if trap == "link" else os.mkfifo(planted)

    with pytest.raises(Unavailable, match=str(shared / ".holdfast")):
        client.domain(shared)

    assert "secret" not in "".join(path.read_text() for path in shared.glob(".holdfast-domain*"))


@pytest.mark.finding("S11", "S12")
@pytest.mark.parametrize("trap", ["garbage", "empty", "directory", "pipe", "link", "huge"])
def test_an_unreadable_version_counts_as_held_for_a_while_and_is_then_replaced(connect, shared, trap):
    """It may have been a lease, torn by a power cut: it counts as held for a minute, and then as free."""
    client = connect()
    client.lock("x").acquire().release()
    folder = shared / ".holdfast" / "leases" / "x"
    planted = folder / "0000000000000009"
    if trap == "directory":
        planted.mkdir()
    elif trap == "pipe":
        os.mkfifo(planted)
    elif trap == "link":
        planted.symlink_to("/etc/hostname")
    elif trap == "huge":
        with planted.open("wb") as file:
            file.truncate(1 << 30)
    else:
        planted.write_bytes(b"" if trap == "empty" else b"\xff{nonsense")
    began = time.monotonic()

    with pytest.raises(Unavailable):
        client.lock("x").acquire(timeout=0)
    assert time.monotonic() - began < 5
    os.utime(planted, (time.time() - 61, time.time() - 61), follow_symlinks=False)

    client.lock("x").acquire(timeout=0).release()


def planted_records():
    """Return records that holdfast did not write, each with one wrong value."""
    at = ["boot", 1, 1]
    good = {
        "layout": codec.LAYOUT,
        "name": "x",
        "fence": 5,
        "last": "",
        "at": at,
        "memory": 60_000_000,
        "holder": ["token", "client", "{}", 5, 1000, False, 1, at, at],
        "waiters": [["token2", "client2", "{}", 1000, at]],
        "tombstones": [["token3", 1, "released", "", at]],
    }
    wrong = [None, 7, -1, 2**80, 0.5, True, "x", [], ["x"], {}, [[]], [[1, 2, 3]], "../../../etc/passwd"]
    places = [("layout",), ("name",), ("fence",), ("last",), ("at",), ("at", 0), ("at", 1), ("memory",), ("holder",)]
    places += [("holder", number) for number in range(9)] + [("waiters",), ("tombstones",)]
    places += [("waiters", 0)] + [("waiters", 0, number) for number in range(5)]
    places += [("tombstones", 0)] + [("tombstones", 0, number) for number in range(5)]
    yield "[" * 200_000
    yield '{"layout": 2, "holder": ' + "[" * 200_000
    yield from (
        "null",
        "[]",
        "7",
        '"x"',
        "{}",
        f'{{"layout": {codec.LAYOUT}}}',
        f'{{"layout":{codec.LAYOUT + 1},"x":0}}',
    )
    yield json.dumps({**good, "last": "\ud800"}, separators=(",", ":"))  # half of a character cannot be stored again
    for place in places:
        for value in wrong:
            record = inside = json.loads(json.dumps(good))
            for key in place[:-1]:
                inside = inside[key]
            inside[place[-1]] = value
            yield json.dumps(record, separators=(",", ":"))


@pytest.mark.finding("S11")
def test_no_planted_version_raises_a_raw_error(connect, shared):
    """The caller gets an answer or `Unavailable`; a neighbour is not affected, and the names can be listed."""
    client = connect()
    client.lock("x").acquire().release()
    folder = shared / ".holdfast" / "leases" / "x"
    outcomes = set()
    for body in planted_records():
        for version in folder.iterdir():
            version.unlink()
        (folder / "0000000000000009").write_text(body)
        try:
            lease = client.lock("x").try_acquire()
            outcomes.add("held" if lease is None else "granted")
            if lease is not None:
                lease.release()
        except Unavailable as error:
            outcomes.add(error.reason if "'x'" in error.detail else error.detail)

    client.lock("neighbour").acquire(timeout=0).release()
    assert "neighbour" in client._client.engine.store.names("", 10).names
    assert {"corrupt", "other layout"} <= outcomes <= {"corrupt", "other layout", "held", "granted"}


@pytest.mark.finding("S11", "S12")
def test_an_unreadable_version_counts_as_free_a_minute_after_it_was_written(connect, shared):
    """A process that lives for a second learns that from the file; otherwise the name were held for ever."""
    connect().lock("x").acquire().release()
    planted = shared / ".holdfast" / "leases" / "x" / "0000000000000009"
    planted.write_text("nonsense")
    with pytest.raises(Unavailable) as caught:
        connect().lock("x").acquire(timeout=0)
    os.utime(planted, (time.time() - 61, time.time() - 61))

    connect().lock("x").acquire(timeout=0).release()

    assert "counts as held for another" in caught.value.detail


def tear_newest(shared, age_s):
    """Overwrite the newest version of "x", as a power cut of the file server may, this long ago."""
    newest = max((shared / ".holdfast" / "leases" / "x").glob("[0-9]*"))
    newest.write_bytes(b"\0" * 100)
    os.utime(newest, (time.time() - age_s, time.time() - age_s))


@pytest.mark.finding("S11")
def test_a_torn_lease_counts_as_held_for_the_longest_ttl_in_its_older_versions(connect, shared):
    """A healthy holder with a ttl of 600 s renews every 200 s, so a version that is 100 s old may be its lease."""
    holder, other = connect(), connect()
    holder.lock("x", ttl=600).acquire().release()
    lease = holder.lock("x", ttl=600).acquire()
    tear_newest(shared, 100)

    with pytest.raises(Unavailable) as caught:
        other.lock("x").acquire(timeout=0)
    assert "counts as held for another 500 s" in caught.value.detail
    tear_newest(shared, 601)
    with other.lock("x", timeout=0) as later:
        assert later.fence > lease.fence


@pytest.mark.finding("S11")
def test_a_torn_lease_counts_as_held_for_a_minute_if_no_older_version_tells_its_ttl(connect, shared, monkeypatch):
    """The minute begins when a process first sees the version, and may end before the ttl: a caveat of the promise."""
    holder, other = connect(), connect()
    lease = holder.lock("x", ttl=600).acquire()
    tear_newest(shared, 100)

    with pytest.raises(Unavailable) as caught:
        other.lock("x").acquire(timeout=0)
    assert "counts as held for another 60 s" in caught.value.detail
    monkeypatch.setattr("holdfast.engines.files.engine._UNREADABLE_US", 1)
    with other.lock("x", timeout=0) as later:
        assert later.fence > lease.fence
        assert lease.remaining() > 500
    assert any("tears the newest version" in caveat.sentence for caveat in other.promise().caveats)


@pytest.mark.finding("S11")
def test_a_version_with_the_highest_number_grants_nothing(connect, shared):
    """No number is left for the next version: two clients would both write a version that no client reads."""
    client = connect()
    client.lock("x").acquire().release()
    planted = shared / ".holdfast" / "leases" / "x" / ("9" * 16)
    planted.write_text("nonsense")
    os.utime(planted, (0, 0))

    with pytest.raises(Unavailable) as caught:
        client.lock("x").acquire(timeout=0)

    assert caught.value.reason == "corrupt"
    assert f"{planted}: holdfast did not write this version" in caught.value.detail
    assert client._client.engine.names("", 9).names == ("x",), "doctor asks for every name that is listed"
    planted.unlink()
    client.lock("x").acquire(timeout=0).release()


@pytest.mark.finding("S11")
def test_a_file_whose_name_has_other_digits_is_no_version(connect, shared):
    """Python takes them for decimal digits; a file with that number does not exist."""
    client = connect()
    client.lock("x").acquire().release()
    (shared / ".holdfast" / "leases" / "x" / ("\u0669" * 16)).write_text("nonsense")

    client.lock("x").acquire(timeout=0).release()

    assert client.lock("x").try_acquire().release() is None


def test_a_record_of_another_layout_is_refused(connect, shared):
    """Its meaning is unknown to this version, so nothing is granted."""
    client = connect()
    client.lock("x").acquire().release()
    (shared / ".holdfast" / "leases" / "x" / "0000000000000009").write_text(f'{{"layout": {codec.LAYOUT + 1}}}')

    with pytest.raises(Unavailable) as trouble:
        client.lock("x").acquire(timeout=0)

    assert trouble.value.reason == "other layout"


def test_a_filesystem_without_a_needed_operation_is_refused_by_name(connect, monkeypatch):
    """The first open tests it: where two clients can win one link, no lease is safe."""

    def link(source, target, **where):
        if os.path.lexists(f"/dev/fd/{where['dst_dir_fd']}/{target}"):
            os.unlink(target, dir_fd=where["dst_dir_fd"])
        return real(source, target, **where)

    real = os.link
    monkeypatch.setattr(root.os, "link", link)
    client = connect()

    with pytest.raises(InvalidConfig) as refusal:
        client.lock("x").acquire(timeout=0)

    assert "link that only one can win" in str(refusal.value)


def test_a_machine_without_dev_fd_can_use_the_engine(connect, monkeypatch):
    """Small containers and other systems have no `/dev/fd`; the tests of the filesystem must not need it."""
    real = os.listdir

    def listdir(where="."):
        if str(where).startswith("/dev/fd"):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", where)
        return real(where)

    monkeypatch.setattr(root.os, "listdir", listdir)

    lease = connect().lock("x").acquire(timeout=0)
    assert lease.fence > 0
    lease.release()


def test_windows_shares_are_refused(connect, monkeypatch):
    """They were not tested; a lock that may not hold is worse than none."""
    monkeypatch.setattr(root, "filesystem", lambda _: "cifs")

    with pytest.raises(InvalidConfig) as refusal:
        connect()

    assert "cifs" in str(refusal.value)


def test_a_network_filesystem_gets_a_weaker_promise(connect, monkeypatch):
    """Other machines may change it, so the promise is weaker."""
    monkeypatch.setattr(root, "filesystem", lambda _: "nfs4")
    promise = connect().promise()

    assert (promise.scope, promise.fifo) == ("hosts", False)
    assert connect().promise() == promise


@pytest.mark.parametrize("umask", [0o077, 0o000])
def test_several_users_of_one_group_share_the_leases(start, public, umask):
    """Where the group may write, it may write all created files, whatever the umask; others may not even read."""
    shared = public
    os.chown(shared, 0, 4242)
    shared.chmod(0o2770)
    first, second = (
        start("serve_as", url=f"file://{shared}", uid=uid, gid=4242, umask=umask).wait_ready() for uid in (4001, 4002)
    )
    first.send_line('{"do": "acquire"}')
    assert "fence" in first.read_line()
    second.send_line('{"do": "acquire", "timeout": 20}')
    first.send_line('{"do": "release"}')
    first.read_line()
    assert "fence" in second.read_line(20)
    second.send_line('{"do": "release"}')
    second.read_line()

    for path in (shared / ".holdfast").rglob("*"):
        status = path.lstat()
        assert status.st_gid == 4242
        assert status.st_mode & 0o007 == 0
        if stat.S_ISDIR(status.st_mode):
            assert status.st_mode & 0o2770 == 0o2770


def test_a_disk_error_during_a_renewal_is_reported_and_the_renewal_repeated(connect, monkeypatch):
    """The keeper tries again; an incomplete write is never visible."""
    events = []
    client = connect(observer=events.append)
    real, fail = os.listdir, [True, True]

    def listdir(*where):
        if fail:
            fail.pop()
            raise OSError(errno.EIO, "Input/output error")
        return real(*where)

    with client.lock("x", ttl=1.5) as lease:
        monkeypatch.setattr("holdfast.engines.files.log.os.listdir", listdir)
        eventually(lambda: not fail and "renewed" in [event.kind for event in events], timeout=5)
        lease.check()

    assert "renewal_failed" in [event.kind for event in events]


@pytest.mark.parametrize("applied", [True, False])
def test_a_link_with_an_unknown_outcome_is_resolved_by_reading_again(connect, monkeypatch, versions, applied):
    """A server that does not answer may have made the link or not; the versions show it, and one lease is granted."""
    client, other = connect(), connect()
    client.lock("x").acquire().release()
    real, fail = os.link, [True]

    def link(*paths, **where):
        if fail and paths[1].isdecimal():
            fail.pop()
            if applied:
                real(*paths, **where)
            raise OSError(errno.EIO, "Input/output error", paths[1])
        return real(*paths, **where)

    monkeypatch.setattr("holdfast.engines.files.log.os.link", link)
    lease = client.lock("x").acquire(timeout=0)

    assert not fail
    assert other.show("x").fence == lease.fence
    assert other.lock("x").try_acquire() is None
    lease.release()
    other.lock("x").acquire(timeout=0).release()


def test_a_lease_that_outlives_its_process_is_visible_only_after_its_end_is_stored(connect, monkeypatch, versions):
    """An error of the session's file leaves no lease: the command was not started."""
    client = connect()
    client._client.engine.outlive_process()

    def pwrite(*_details):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("holdfast.engines.files.sessions.os.pwrite", pwrite)
        with pytest.raises(Unavailable) as caught:
            client.lock("x").acquire(timeout=0)

    assert (caught.value.outcome, versions()) == ("not started", [])
    client.lock("x").acquire(timeout=0).release()


def test_an_error_after_a_visible_version_leaves_the_outcome_unknown(connect, monkeypatch, versions):
    """The waiter is in the line already: a caller that hears "not started" would leave it there."""
    holder, client = connect(), connect()
    lease = holder.lock("x").acquire()
    before, real = versions(), Folder.open

    def open_file(folder, name, **options):
        if versions() != before:
            raise OSError(errno.EMFILE, "Too many open files")
        return real(folder, name, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "open", open_file)
        [reply] = client._client.engine.store.answer_all([Acquire("x", "waiter", "{}", 1000, wait=True)], None)

    assert len(versions()) > len(before)
    assert type(reply) is ReplyLost
    lease.release()


def test_a_link_whose_lost_reply_looks_like_a_refusal_is_recognised_by_its_file(connect, monkeypatch):
    """The network filesystem sent it twice, and the second copy finds the number taken: by its own version."""
    client = connect()
    client.lock("x").acquire().release()
    before = client.show("x").fence
    real = os.link

    def link(*paths, **where):
        real(*paths, **where)
        if paths[1].isdecimal():
            raise FileExistsError(errno.EEXIST, "File exists", paths[1])

    monkeypatch.setattr("holdfast.engines.files.log.os.link", link)
    with client.lock("x", timeout=0) as lease:
        assert lease.fence > before
        assert client.lock("x").try_acquire() is None


def test_a_process_that_was_suspended_between_reading_and_writing_gives_its_grant_back(connect, monkeypatch):
    """The name may have been used and forgotten meanwhile, and then the fence would be an old one: it is undone."""
    client, other = connect(), connect()
    client.lock("x").acquire().release()
    monkeypatch.setattr("holdfast.engines.files.engine._STEP_MAX_NS", 50_000_000)
    failpoints.arm("files.after-link", lambda: (time.sleep(0.1), failpoints.disarm("files.after-link")))

    with pytest.raises(Unavailable) as trouble:
        client.lock("x").acquire(timeout=0)

    assert trouble.value.reason == "stalled"
    other.lock("x").acquire(timeout=0).release()


@pytest.mark.acceptance("A0-30")
@pytest.mark.parametrize("way", ["link", "second mount"])
def test_two_paths_to_one_directory_share_tsuccessor_leases(start, connect, shared, tmp_path, way):
    """A symbolic link or a second mount changes the path, not the leases."""
    other = tmp_path / "other"
    client = connect()
    if way == "link":
        other.symlink_to(shared)
        elsewhere = connect(f"file://{other}")
        with client.lock("x"):
            assert elsewhere.lock("x").try_acquire() is None
        elsewhere.lock("x").acquire(timeout=5).release()
        return
    other.mkdir()
    worker = start("serve_on_second_mount", shared=str(shared), other=str(other))
    if worker.read_line() == "no mount":
        pytest.skip("only root can mount a directory: run it as root")
    with client.lock("x"):
        worker.send_line('{"do": "acquire", "timeout": 0}')
        assert "NotAcquired" in worker.read_line()
    worker.send_line('{"do": "acquire", "timeout": 5}')
    assert "fence" in worker.read_line()


def test_a_directory_of_the_layout_before_is_refused_and_nothing_changes(connect, shared):
    """No version converts it: the error names the directory, both layouts and what to do."""
    home = shared / ".holdfast"
    for folder in ("clients", "leases/x"):
        (home / folder).mkdir(parents=True)
    (home / "leases" / "x" / "0000000000000001").write_text('{"v":1,"name":"x"}')
    before = {path: (path.lstat().st_mtime_ns, path.is_file() and path.read_bytes()) for path in shared.rglob("*")}

    with pytest.raises(Unavailable) as caught:
        connect().lock("x").acquire(timeout=0)

    after = {path: (path.lstat().st_mtime_ns, path.is_file() and path.read_bytes()) for path in shared.rglob("*")}
    assert caught.value.reason == "other layout"
    assert f"{home} has layout 1, and this version of holdfast uses layout {codec.LAYOUT}" in caught.value.detail
    assert f"move {home} away" in caught.value.detail
    assert after == before
