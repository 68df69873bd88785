"""What a published tree is: where it is pointed at it is whole, and whoever may read the directory may read it."""

from __future__ import annotations

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

from holdfast.core.build import build_dir
from holdfast.core.build.build_dir import BuildDir, digest_of
from holdfast.errors import Unavailable
from holdfast.testing import eventually


@pytest.fixture
def umask():
    """A umask that shares nothing."""
    old = os.umask(0o077)
    yield
    os.umask(old)


@pytest.fixture
def group_ground():
    """A directory to which every user finds the way."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def whole(staging):
    (staging / "first").write_text("first")


def test_a_tree_that_its_frozen_builder_works_in_is_not_cleared_away(start, connect, store, points, tmp_path):
    """It stands where it is built, and its builder may only sleep: it goes when that one is told, or dead."""
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
    told = json.loads(sleeper.read_line(20))

    assert left == ["first", "second"]
    assert told["error"] == "LeaseLost"
    assert BuildDir(store, "k", relocatable=False).find().path == built.path


def test_a_pointer_to_a_tree_that_was_cleared_away_is_not_read(store, monkeypatch):
    """A builder of another host slept before it pointed at its tree; another one took that for left over."""
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


def test_folders_on_the_way_to_a_tree_are_as_open_as_the_directory(connect, store, umask):
    """Else whoever may read the directory would not find what was built, and build it again."""
    store.chmod(0o755)
    built = connect("memory://trees").build_once(store, "@scope/name", whole)

    for folder in (built.path, built.path.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o755


def test_nothing_is_made_writable_for_everybody(connect, store):
    """In a directory such as /tmp others may make files of their own, and not change ours."""
    store.chmod(0o1777)
    built = connect("memory://trees").build_once(store, "@scope/name", whole)

    for folder in (built.path, built.path.parent):
        assert folder.stat().st_mode & stat.S_IWOTH == 0


@pytest.mark.parametrize("how", ["copied", "linked"])
def test_a_tree_that_was_copied_to_another_name_is_not_taken_for_it(connect, store, how):
    """Its record says that it is complete, and what it is: not this."""
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
    """Its key is longer from there, and it is the same tree."""
    (store / "@scope").mkdir()
    built = connect("memory://trees").build_once(store, "@scope/name", whole)

    assert BuildDir(store / "@scope", "name", relocatable=True).find().digest == built.digest


def test_an_empty_folder_is_part_of_the_digest(tmp_path):
    """It is part of the tree."""
    (tmp_path / "file").write_text("x")
    before = digest_of(tmp_path)
    (tmp_path / "folder").mkdir()

    assert digest_of(tmp_path) != before


@pytest.mark.parametrize("relocatable", [True, False], ids=["moved", "pointed"])
def test_a_disk_that_is_full_at_any_moment_leaves_nothing_behind(connect, store, monkeypatch, relocatable):
    """Neither half of a marker nor half of a record; when there is room again it is built."""
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


def test_a_draft_that_is_cleared_away_while_it_is_written_is_no_error(connect, store, monkeypatch):
    """Whoever comes first clears up; over NFS the second hears of it as an error of the disk."""
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
def test_a_folder_that_its_maker_is_about_to_open_is_waited_for(holdfast_workers, group_ground, closed, key, mode):
    """Users who come at the same time: one has just made the folder, and not yet opened it to the others."""
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
    told = json.loads(worker.read_line(20))
    opened.join()

    assert told == {"fresh": True}
