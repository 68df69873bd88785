"""A published tree is complete, and every user of the directory may read it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import shutil
import stat
import tempfile
import threading
import time
from pathlib import Path

import pytest

from holdfast import failpoints
from holdfast.core.build import build_dir
from holdfast.core.build.build_dir import BuildDir, digest_of
from holdfast.errors import InvalidName, Unavailable
from holdfast.testing import eventually
from tests.support.other_users import MALLORY, TEAM, give_to, need_root, public_directory, snapshot


@pytest.fixture
def umask():
    """Set a umask that shares nothing."""
    old = os.umask(0o077)
    yield
    os.umask(old)


@pytest.fixture
def group_ground():
    """Return a directory that every user can reach."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def whole(staging):
    (staging / "first").write_text("first")


def test_the_tree_of_a_frozen_builder_is_not_removed(start, connect, store, points, tmp_path):
    """The builder may only sleep: its tree is removed when the builder learns of the loss, or is dead."""
    (tmp_path / "leases").mkdir()
    url = f"file://{tmp_path}/leases"
    points.arm("build.before-record")
    sleeper = start(url, env=points.env, ttl=0.6, relocatable=False)
    points.wait_reached("build.before-record", timeout=20)
    (tree,) = store.glob("k/[0-9]*")
    sleeper.freeze()
    built = connect(url).build_once(store, "k", whole, timeout=20, relocatable=False)
    left = sorted(path.name for path in tree.iterdir())
    points.go("build.before-record")
    sleeper.thaw()
    sleeper.wait_ready()
    report = json.loads(sleeper.read_line(20))

    assert left == ["first", "second"]
    assert report["error"] == "LeaseLost"
    assert BuildDir(store, "k", relocatable=False).find().path == built.path


def test_a_pointer_to_a_removed_tree_is_ignored(store, monkeypatch):
    """A builder of another host slept before it published its pointer, and another removed its tree."""
    late, next_one = (BuildDir(store, "k", relocatable=False) for _ in range(2))
    plot = late.stage(10)
    (plot.path / "first").write_text("first")
    monkeypatch.setattr(build_dir, "_is_in_use", lambda _: False)  # as between two hosts
    monkeypatch.setattr(build_dir, "_sync", lambda _: plots.append(next_one.stage(11)))
    plots = []

    with pytest.raises(Unavailable):
        late.publish(plot, 10, "late")

    assert list(store.glob("k/.at-*")) != []
    assert late.find() is None
    for each, of in ((plot, late), *((made, next_one) for made in plots)):
        of.withdraw(each)


def test_parent_directories_of_a_tree_have_the_permissions_of_the_directory(connect, store, umask):
    """Otherwise a user of the directory would not find the build, and build again."""
    store.chmod(0o755)
    built = connect("memory://trees").build_once(store, "@scope/name", whole)

    for folder in (built.path, built.path.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o755


@pytest.mark.finding("S12")
def test_nothing_becomes_world_writable(connect, store):
    """In a directory such as /tmp others may create files, but not change ours."""
    store.chmod(0o1777)
    built = connect("memory://trees").build_once(store, "@scope/name", whole)

    for folder in (built.path, built.path.parent):
        assert folder.stat().st_mode & stat.S_IWOTH == 0


@pytest.mark.parametrize("how", ["copied", "linked"])
def test_a_tree_copied_to_another_name_does_not_count(connect, store, how):
    """Its record names another key."""
    client = connect("memory://trees")
    old = client.build_once(store, "tool_1", whole)
    copy = store / "tool_2"
    shutil.copytree(old.path, copy) if how == "copied" else copy.symlink_to(old.path)

    built = client.build_once(store, "tool_2", lambda staging: (staging / "new").write_text("new"))

    assert (built.fresh, built.key) == (True, "tool_2")
    assert (copy / "new").exists()
    assert not copy.is_symlink()
    assert client.build_once(store, "tool_1", whole) == old._replace(fresh=False)


def test_a_tree_is_found_from_a_directory_above_it_too(connect, store):
    """The key is longer from there, but the tree is the same."""
    (store / "@scope").mkdir()
    built = connect("memory://trees").build_once(store, "@scope/name", whole)

    assert BuildDir(store / "@scope", "name", relocatable=True).find().digest == built.digest


def test_an_empty_folder_is_part_of_the_digest(tmp_path):
    """An empty directory is part of the tree."""
    (tmp_path / "file").write_text("x")
    before = digest_of(tmp_path)
    (tmp_path / "folder").mkdir()

    assert digest_of(tmp_path) != before


@pytest.mark.finding("T2")
@pytest.mark.parametrize("relocatable", [True, False], ids=["moved", "pointed"])
def test_a_build_that_is_published_inside_a_path_meanwhile_stays(connect, store, relocatable):
    """Two keys have two leases, so the builder of `outer` learns of `outer/inner` only when it publishes."""
    client, other = connect("memory://trees"), connect("memory://trees")
    inner = []

    def build(staging):
        whole(staging)
        inner.append(other.build_once(store, "outer/inner", whole))

    with pytest.raises(InvalidName, match="contains the published build"):
        client.build_once(store, "outer", build, relocatable=relocatable)

    assert digest_without_record(inner[0].path) == inner[0].digest
    assert list((store / ".holdfast-staging").iterdir()) == []
    assert [path.name for path in (store / "outer").iterdir()] == ["inner"]


@pytest.mark.finding("T2")
@pytest.mark.parametrize("point", ["build.before-publish", "build.before-aside", "build.aside"])
def test_a_build_that_is_published_at_the_last_moment_stays(connect, store, point):
    """The builder of `outer` has looked for other builds already, and is about to replace an incomplete tree."""
    client, other, inner = connect("memory://trees"), connect("memory://trees"), []
    if point != "build.before-publish":
        (store / "outer").mkdir()
        (store / "outer" / "junk").write_text("junk")

    def overtaken():
        failpoints.disarm(point)
        inner.append(other.build_once(store, "outer/inner", whole))

    failpoints.arm(point, overtaken)
    try:
        with pytest.raises(InvalidName, match="contains the published build"):
            client.build_once(store, "outer", whole)
    finally:
        failpoints.disarm(point)

    assert other.build_once(store, "outer/inner", whole) == inner[0]._replace(fresh=False)
    assert list((store / ".holdfast-staging").iterdir()) == []


@pytest.mark.finding("T2")
@pytest.mark.parametrize("relocatable", [True, False], ids=["moved", "pointed"])
@pytest.mark.parametrize("key", ["outer/inner", "outer/deep/inner"])
def test_a_build_withdraws_from_a_tree_that_was_published_meanwhile(connect, store, key, relocatable):
    """The builder of `outer/inner` is about to publish when `outer` gets its name."""
    client, other, outer = connect("memory://trees"), connect("memory://trees"), []

    def overtaken():
        failpoints.disarm("build.before-publish")
        outer.append(other.build_once(store, "outer", whole))

    failpoints.arm("build.before-publish", overtaken)
    try:
        with pytest.raises(InvalidName if relocatable else (InvalidName, Unavailable)):
            client.build_once(store, key, whole, relocatable=relocatable)
    finally:
        failpoints.disarm("build.before-publish")

    assert digest_without_record(outer[0].path) == outer[0].digest
    assert list((store / ".holdfast-staging").iterdir()) == []


@pytest.mark.finding("T2")
def test_a_tree_that_a_killed_builder_moved_away_with_a_build_in_it_comes_back(connect, store):
    """The killed builder had moved `outer` away and not yet seen that another process had published a build in it."""
    client = connect("memory://trees")
    inner = client.build_once(store, "outer/inner", whole)
    of_outer = BuildDir(store, "outer", relocatable=True)
    (store / "outer").rename(of_outer._private_path(1).with_suffix(".x.moved"))

    with pytest.raises(InvalidName, match="contains the published build"):
        client.build_once(store, "outer", whole)

    assert client.build_once(store, "outer/inner", whole) == inner._replace(fresh=False)


def digest_without_record(tree):
    """Return the digest of a published tree as its record has it: the record is written after the digest."""
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copytree(tree, Path(folder) / "copy", symlinks=True)
        (copy / build_dir.RECORD).unlink()
        return digest_of(copy)


@pytest.mark.parametrize("relocatable", [True, False], ids=["moved", "pointed"])
def test_a_full_disk_at_any_moment_leaves_nothing_behind(connect, store, monkeypatch, relocatable):
    """No marker and no record is incomplete; with room again the build succeeds."""
    client, sync, left = connect("memory://full"), os.fsync, 0

    def full(descriptor):
        nonlocal left
        if not left:
            raise OSError(errno.ENOSPC, "No space left on device")
        left -= 1
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    refused = 0
    for room in range(10):
        left = room
        try:
            built = client.build_once(store, "k", whole, relocatable=relocatable)
            break
        except Unavailable as error:
            refused += error.reason == "full"
            staged = list((store / ".holdfast-staging").iterdir()) if (store / ".holdfast-staging").exists() else []
            assert (staged, list(store.glob(".holdfast-domain.*"))) == ([], [])

    assert refused >= 2, "the marker and the record"
    assert built.fresh


def test_a_disk_that_reports_the_loss_at_the_end_gets_no_published_tree(connect, store, monkeypatch):
    """A network filesystem may accept all writes, and report at the final flush that the disk is full."""
    client, real = connect("memory://full"), ctypes.CDLL

    class Full:
        def syncfs(self, descriptor):
            ctypes.set_errno(errno.EDQUOT)
            return -1

    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Full())
    with pytest.raises(Unavailable) as trouble:
        client.build_once(store, "k", whole)
    monkeypatch.setattr(ctypes, "CDLL", real)

    assert trouble.value.reason == "full"
    assert not (store / "k").exists()
    assert client.build_once(store, "k", whole).fresh


def test_a_draft_that_is_removed_while_it_is_written_is_no_error(connect, store, monkeypatch):
    """The first process removes it; over NFS the second gets a disk error."""
    first, second, sync, marked = connect("memory://one"), connect("memory://one"), os.fsync, []

    def fsync(descriptor):
        if not marked:
            marked.append("soon")
            marked.append(first.domain(store).id)
            raise OSError(errno.EIO, "Input/output error")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)

    assert second.domain(store).id == marked[1]
    assert list(store.glob(".holdfast-domain.*")) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away: run it as root")
@pytest.mark.parametrize(
    ("closed", "key"),
    [
        ("leases/.holdfast", "k"),
        ("store/.holdfast-staging", "k"),
        ("store", "k"),
        ("store/a", "a/k"),
        ("store/a", "a/b/k"),
    ],
)
@pytest.mark.parametrize("mode", [0o700, 0o755], ids=["by nobody", "for reading"])
def test_a_builder_waits_for_a_directory_that_is_being_created(holdfast_workers, group_ground, closed, key, mode):
    """One user has just created the directory and not yet opened it to the others."""
    for name in ("leases", "store"):
        (group_ground / name).mkdir()
        os.chown(group_ground / name, 0, 4242)
        (group_ground / name).chmod(0o2770)
    folder = group_ground / closed
    folder.mkdir(exist_ok=True)
    folder.chmod(mode)
    opened = threading.Thread(target=lambda: (eventually(is_tried, timeout=20), folder.chmod(0o2770)))
    tried = group_ground / "tried"

    def is_tried():
        return tried.exists() and time.time() - tried.stat().st_mtime > 0.05

    opened.start()
    worker = holdfast_workers.start(
        f"{Path(__file__).with_name('build_children.py')}:build_beside",
        url=f"file://{group_ground}/leases",
        store=str(group_ground / "store"),
        key=key,
        tried=str(tried),
        uid=4001,
        gid=4242,
    )
    report = json.loads(worker.read_line(20))
    opened.join()

    assert report == {"fresh": True}


@pytest.mark.finding("S2", "S6")
@pytest.mark.parametrize("place", [".holdfast-staging", "@scope", "tree"])
def test_a_swapped_folder_never_opens_a_private_one(connect, monkeypatch, place):
    """A member of the group replaces a folder that was just created, before it gets its mode, by a link."""
    need_root()
    with public_directory(0o2770, gid=TEAM) as shared:
        private = shared.parent / "private"
        private.mkdir(0o700)
        make, swaps = os.mkdir, []

        def swapped(name, mode=0o777, *, dir_fd=None):
            make(name, mode, dir_fd=dir_fd)
            where = Path(os.readlink(f"/proc/self/fd/{dir_fd}")) if dir_fd is not None else Path(name).parent
            path = where / os.path.basename(name)
            is_tree = path.parent.name == ".holdfast-staging"
            if path.is_relative_to(shared) and (path.name == place or (place == "tree" and is_tree)) and not swaps:
                swaps.append(path)
                path.rename(path.with_name("away"))
                path.symlink_to(private)

        monkeypatch.setattr(os, "mkdir", swapped)
        # The tree has a new name at the next attempt, and the others have not: their error names the link.
        expected = contextlib.nullcontext() if place == "tree" else pytest.raises(Unavailable)
        with expected as caught:
            connect("memory://trees").build_once(shared, "@scope/name", whole)

        assert len(swaps) == 1
        assert caught is None or f"{swaps[0]}: this is a symbolic link of user 0" in caught.value.detail
        assert stat.S_IMODE(private.stat().st_mode) == 0o700
        assert private.stat().st_gid != TEAM
        assert list(private.iterdir()) == []


@pytest.mark.finding("S6")
@pytest.mark.parametrize("planted", ["tool_1", ".holdfast-staging", ".holdfast-domain"])
def test_files_of_an_untrusted_user_are_refused_by_name_and_stay(connect, planted):
    """In a directory such as /tmp another user could have published code under this name."""
    need_root()
    with public_directory(0o1777) as shared:
        connect("memory://trees").build_once(shared, "tool_1", whole)
        give_to(MALLORY, shared / planted)
        before = snapshot(shared)

        with pytest.raises(Unavailable) as caught:
            connect("memory://trees").build_once(shared, "tool_2" if planted != "tool_1" else "tool_1", whole)

        assert f"{shared / planted}: this belongs to user {MALLORY}" in caught.value.detail
        assert snapshot(shared) == before
