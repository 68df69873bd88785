"""A builder may die anywhere: readers see the old or the new result, never an incomplete one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

import pytest

from holdfast.core.build import build_dir
from holdfast.testing import eventually

STEP = int(os.environ.get("HOLDFAST_LINES", "23"))
CHILDREN = Path(__file__).with_name("build_children.py")
STEPS = ["build.staged", "build.before-record", "build.before-publish", "build.published"]
ASIDE = ["build.before-aside", "build.aside"]


def whole(staging):
    (staging / "first").write_text("first")
    (staging / "second").write_text("second")


def is_whole(path):
    return sorted(each.name for each in path.iterdir() if not each.name.startswith(".")) == ["first", "second"]


def private(store):
    return list((store / ".holdfast-staging").iterdir())


@pytest.mark.acceptance("A2-5", "A2-6", "A2-20", "C-10")
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("relocatable", [True, False], ids=["moved", "pointed"])
def test_a_builder_killed_at_any_step_leaves_the_old_or_the_new(start, connect, url, store, points, step, relocatable):
    """Before the publication nothing is visible, after it everything; the next builder finishes and cleans up."""
    points.arm(step)
    builder = start(url, env=points.env, ttl=1, relocatable=relocatable)
    points.wait_reached(step, timeout=20)
    seen = list(store.glob("k/.holdfast-built")) or list(store.glob("k/.at-*"))
    builder.kill()

    built = connect(url).build_once(store, "k", whole, timeout=20, relocatable=relocatable)

    assert bool(seen) is (step == "build.published")
    assert built.fresh is (step != "build.published")
    assert is_whole(built.path)
    assert private(store) == []
    if not relocatable:
        assert len(list(store.glob("k/[0-9]*"))) == 1


@pytest.mark.timeout(900)
@pytest.mark.acceptance("A2-5", "A2-6")
@pytest.mark.parametrize("found", ["nothing", "something bad"])
@pytest.mark.parametrize("relocatable", [True, False], ids=["moved", "pointed"])
def test_a_builder_killed_at_any_line_leaves_the_old_or_the_new(holdfast_workers, tmp_path, relocatable, found):
    """The next builder finishes after each death. `make trials` kills at every single line."""
    (tmp_path / "leases").mkdir()
    bad = found == "something bad"
    builder = holdfast_workers.start(
        f"{CHILDREN}:build_killed_at_every_line",
        url=f"file://{tmp_path}/leases",
        relocatable=relocatable,
        bad=bad,
        step=STEP,
    )
    deaths = list(iter(lambda: json.loads(builder.read_line(30)), {"done": True}))

    new = ["first", "second"]
    halves = [each for each in deaths if each["seen"] not in ([new, None] + [["first"]] * bad)]
    assert halves == []
    assert [each for each in deaths if each["fresh"] is (each["seen"] == new)] == []
    assert [each for each in deaths if not each["whole"]] == []
    # After the publication there is no builder, so a draft of the pointer may stay until the next build.
    assert [each for each in deaths if each["fresh"] and (each["private"] or each["drafts"])] == []
    assert max(each["trees"] for each in deaths) <= (0 if relocatable else 1 + bad)
    assert STEP > 1 or any(each["seen"] == new for each in deaths), "some died behind the publication"
    assert len(deaths) > 100 / STEP


@pytest.mark.parametrize("step", ASIDE)
def test_a_builder_killed_while_it_replaces_a_bad_tree_leaves_nothing_incomplete(
    start, connect, url, store, points, step
):
    """The bad tree is there or gone; the next builder builds and removes the tree that was moved aside."""
    client = connect(url)
    client.build_once(store, "k", lambda staging: (staging / "first").write_text("first"))
    points.arm(step)
    builder = start(url, env=points.env, ttl=1, bad=True)
    points.wait_reached(step, timeout=20)
    builder.kill()

    built = client.build_once(store, "k", whole, timeout=20, check=is_whole)

    assert built.fresh
    assert is_whole(built.path)


@pytest.mark.acceptance("A2-5")
def test_the_children_of_a_killed_builder_keep_its_lease_until_they_end(start, connect, store, tmp_path):
    """The orphan still writes into its own staging, and no second builder starts."""
    (tmp_path / "leases").mkdir()
    url = f"file://{tmp_path}/leases"
    client = connect(url)
    builder = start(url, program_seconds=60, ttl=30)
    builder.wait_ready()
    orphan = eventually(lambda: child_of(builder.pid))
    os.kill(builder.pid, signal.SIGKILL)
    eventually(lambda: not os.path.exists(f"/proc/{builder.pid}/fd/0"))
    try:
        with pytest.raises(TimeoutError):
            client.build_once(store, "k", whole, timeout=1)
    finally:
        os.kill(orphan, signal.SIGKILL)

    began = time.monotonic()
    built = client.build_once(store, "k", whole, timeout=20)

    assert built.fresh
    assert time.monotonic() - began < 10
    assert private(store) == []


def child_of(pid):
    path = f"/proc/{pid}/task/{pid}/children"
    with open(path) as children:
        return next((int(child) for child in children.read().split()), None)


@pytest.mark.acceptance("A2-10")
def test_a_builder_that_was_frozen_before_it_published_does_not_overwrite(start, connect, url, store, points):
    """The builder wakes after it lost its lease: it gets `LeaseLost`, and the tree of the other builder stands."""
    points.arm("build.before-publish")
    frozen = start(url, env=points.env, ttl=0.6)
    points.wait_reached("build.before-publish", timeout=20)
    frozen.freeze()
    built = connect(url).build_once(store, "k", whole, timeout=20)
    inode = (store / "k").stat().st_ino
    points.go("build.before-publish")
    frozen.thaw()

    frozen.wait_ready()
    report = json.loads(frozen.read_line(20))

    assert built.fresh
    assert report["error"] == "LeaseLost"
    assert (store / "k").stat().st_ino == inode
    assert private(store) == []


def test_a_tree_whose_staging_is_being_removed_is_never_published(start, connect, url, store, points, monkeypatch):
    """This host cannot see the other process, removes its staging, and it wakes when half of that is gone."""
    points.arm("build.before-publish")
    sleeper = start(url, env=points.env, ttl=0.6)
    points.wait_reached("build.before-publish", timeout=20)
    sleeper.freeze()
    remove, reports = build_dir.BuildDir._remove, []

    def half_way(builder, path):
        if not reports:
            (path / "second").unlink()
            points.go("build.before-publish")
            sleeper.thaw()
            sleeper.wait_ready()
            reports.append(json.loads(sleeper.read_line(20)) | {"seen": (store / "k").exists()})
        remove(builder, path)

    monkeypatch.setattr(build_dir, "_is_in_use", lambda _: False)
    monkeypatch.setattr(build_dir.BuildDir, "_remove", half_way)
    built = connect(url).build_once(store, "k", whole, timeout=20)

    assert (reports[0]["error"], reports[0]["seen"]) == ("LeaseLost", False)
    assert built.fresh
    assert is_whole(built.path)
    assert private(store) == []


def test_a_builder_that_moved_a_good_tree_aside_moves_it_back(start, connect, url, store, points):
    """The builder found a bad tree and slept; meanwhile another published a good one, which it must keep."""
    client = connect(url)
    client.build_once(store, "k", lambda staging: (staging / "first").write_text("first"))
    points.arm("build.before-aside")
    sleeper = start(url, env=points.env, ttl=0.6, bad=True)
    points.wait_reached("build.before-aside", timeout=20)
    sleeper.freeze()
    good = client.build_once(store, "k", whole, timeout=20, check=is_whole)
    inode = (store / "k").stat().st_ino
    points.go("build.before-aside")
    sleeper.thaw()
    sleeper.wait_ready()
    report = json.loads(sleeper.read_line(20))

    assert good.fresh
    assert report["error"] == "LeaseLost"
    assert (store / "k").stat().st_ino == inode
    assert client.build_once(store, "k", whole, check=is_whole).fence == good.fence


def test_without_any_lease_work_runs_twice_but_is_never_incomplete(start, points, store, tmp_path):
    """Two independent engines, as if every lock had failed: one publishes, the other finds the result."""
    builders = []
    points.arm("build.before-publish")
    for number in range(2):
        (tmp_path / f"leases{number}").mkdir()
        builders.append(start(f"file://{tmp_path}/leases{number}", env=points.env))
        builders[-1].wait_ready()
        (store / ".holdfast-domain").unlink()  # the marker would refuse the second engine
    points.go("build.before-publish")

    reports = [json.loads(builder.read_line(20)) for builder in builders]

    assert sorted(each["fresh"] for each in reports) == [False, True]
    assert is_whole(store / "k")
    assert (tmp_path / "store.runs").read_text() == "run\nrun\n"
    assert private(store) == []


def test_random_kills_of_builders_show_no_incomplete_tree(start, connect, url, store):
    """A reader that polls all the time sees nothing or a complete tree."""
    client, halves = connect(url), 0
    for round_ in range(6):
        builder = start(url, ttl=0.5, seconds=0.1)
        until = time.monotonic() + 0.25 + 0.05 * round_
        while time.monotonic() < until:
            found = store / "k" / ".holdfast-built"
            halves += found.exists() and not is_whole(store / "k")
        builder.kill()
    built = client.build_once(store, "k", whole, timeout=20)

    assert halves == 0
    assert is_whole(built.path)
    shutil.rmtree(built.path)
    assert client.build_once(store, "k", whole, timeout=20).fresh
    assert private(store) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user: run it as root")
def test_users_of_one_group_build_for_each_other_with_any_umask(holdfast_workers):
    """Each user finds the other's build and may build beside it."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        store = Path(folder) / "store"
        store.mkdir()
        (store / "warm").mkdir()
        os.chown(store, 0, 4242)
        store.chmod(0o2775)
        target = f"{Path(__file__).with_name('build_children.py')}:build_as"
        reports = []
        for uid in (4001, 4002):
            worker = holdfast_workers.start(
                target, url=f"file://{store}", store=str(store), uid=uid, gid=4242, umask=0o077
            )
            reports.append([json.loads(worker.read_line(20))["fresh"] for _ in range(2)])
            worker.wait()

    assert reports == [[True, True], [False, True]]
