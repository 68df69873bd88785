"""`build_once`: one process builds, and publishes a complete result in a shared directory."""

import os
import shutil
import time

import pytest

from holdfast import DomainMismatch, InvalidConfig, InvalidName, LeaseLost, NotAcquired, Unavailable
from holdfast.core.build import domain
from holdfast.testing import eventually
from holdfast.testing.conformance.faces import on_loop, together


@pytest.fixture
def store(tmp_path):
    """Return the build directory."""
    folder = tmp_path / "store"
    folder.mkdir()
    return folder


def builder(face, build):
    """Return a build function for the face."""
    return build if face.kind == "blocking" else on_loop(build)


def writing(runs, text="content"):
    """A build that writes one file and records each run."""

    def build(staging):
        runs.append(str(staging))
        (staging / "file").write_text(text)
        (staging / "folder").mkdir()
        (staging / "folder" / "link").symlink_to("../file")

    return build


def left_in(store):
    return sorted(path.name for path in (store / ".holdfast-staging").iterdir())


@pytest.mark.acceptance("A2-20")
def test_a_build_is_published_complete_with_a_record_and_runs_once(face, store):
    """A second call finds the result, no staging is left, and the record has key, time, holder and fence."""
    client, other, runs = face.connect(label="ann"), face.connect(), []
    build = builder(face, writing(runs))

    built = client.build_once(store, "tool_1", build)
    again = other.build_once(store, "tool_1", build)

    assert len(runs) == 1
    assert (built.fresh, again.fresh) == (True, False)
    assert again == built._replace(fresh=False)
    assert built.path == store / "tool_1"
    assert (built.path / "folder" / "link").read_text() == "content"
    assert "ann" in built.by
    assert built.fence > 0
    assert abs(built.at - time.time()) < 60
    assert left_in(store) == []


@pytest.mark.acceptance("A2-3", "A2-6")
def test_a_hit_sends_no_command(face, store):
    """A complete result is found without a lease, even in a read-only directory."""
    client, runs = face.connect(), []
    built = client.build_once(store, "tool_1", builder(face, writing(runs)))
    wire = face.wire(client)
    shutil.rmtree(store / ".holdfast-staging")
    (store / ".holdfast-domain").unlink()

    assert client.build_once(store, "tool_1", builder(face, writing(runs))).digest == built.digest

    assert wire.commands() == []
    assert sorted(path.name for path in store.iterdir()) == ["tool_1"]


@together
def test_one_of_many_callers_builds_and_all_get_the_result(face):
    """The others wait, check again under the lease, and skip the build."""
    store, runs = face.folder / "store", []
    store.mkdir()
    clients = [face.connect() for _ in range(3)]

    def build(staging):
        runs.append(str(staging))
        time.sleep(0.2)
        (staging / "file").write_text("content")

    running = [
        face.start(lambda client=client: client.build_once(store, "k", builder(face, build))) for client in clients
    ]
    built = [each.result() for each in running]

    assert len(runs) == 1
    assert sorted(each.fresh for each in built) == [False, False, True]
    assert len({each.digest for each in built}) == 1


@pytest.mark.acceptance("A2-4")
def test_a_build_that_fails_leaves_nothing_and_the_next_one_builds(face, store):
    """The error of the build passes unchanged, the lease is free, and nothing is published."""
    client, runs = face.connect(), []

    def fail(staging):
        (staging / "half").write_text("half")
        raise ZeroDivisionError("in the build")

    with pytest.raises(ZeroDivisionError):
        client.build_once(store, "k", builder(face, fail))
    assert not (store / "k").exists()
    assert left_in(store) == []
    built = client.build_once(store, "k", builder(face, writing(runs)), timeout=0)

    assert built.fresh


def test_a_builder_that_lost_its_lease_does_not_publish(face, store):
    """A builder may be paused for longer than its ttl; its late result must not replace its successor's."""
    client, other, runs = face.connect(), face.connect(), []

    def slow(staging):
        (staging / "file").write_text("late")
        name = f"build/{domain.read(store).id}/k"
        other.break_lease(name, "taken over")
        eventually(lambda: _is_lost(staging), timeout=10)

    with pytest.raises(LeaseLost):
        client.build_once(store, "k", builder(face, slow), ttl=0.6)
    assert not (store / "k").exists()
    built = other.build_once(store, "k", builder(face, writing(runs)))

    assert (built.path / "file").read_text() == "content"
    assert left_in(store) == []


def _is_lost(staging):
    try:
        staging.check()
    except LeaseLost:
        return True
    return False


@pytest.mark.acceptance("A2-19")
@pytest.mark.parametrize("damage", ["removed", "record removed", "record torn", "check says no"])
def test_a_damaged_result_is_built_again(face, store, damage):
    """A result without proof of completion does not count, and a new build replaces it."""
    client, runs = face.connect(), []
    build = builder(face, writing(runs))
    client.build_once(store, "a/k", build)
    check = None
    if damage == "removed":
        shutil.rmtree(store / "a" / "k")
    elif damage == "record removed":
        (store / "a" / "k" / ".holdfast-built").unlink()
    elif damage == "record torn":
        (store / "a" / "k" / ".holdfast-built").write_text('{"key": ')
    else:
        (store / "a" / "k" / "file").unlink()
        check = _has_file

    again = client.build_once(store, "a/k", build, check=check)

    assert again.fresh
    assert len(runs) == 2
    assert (again.path / "file").read_text() == "content"
    assert not client.build_once(store, "a/k", build, check=_has_file).fresh
    assert left_in(store) == []


def _has_file(path):
    return (path / "file").exists()


def test_trees_that_must_not_move_are_published_by_a_numbered_pointer(face, store):
    """Such trees stay where they were built; readers use the highest number, not that of an older builder."""
    client, other, runs = face.connect(), face.connect(), []
    build = builder(face, writing(runs))
    first = client.build_once(store, "venv", build, relocatable=False)
    found = other.build_once(store, "venv", build, relocatable=False)
    assert (found.path, found.fresh) == (first.path, False)
    assert runs == [str(first.path)]

    second = other.build_once(store, "venv", build, relocatable=False, check=lambda path: path != first.path)

    assert second.path != first.path
    assert second.fence > first.fence
    assert client.build_once(store, "venv", build, relocatable=False).path == second.path


@pytest.mark.finding("T2")
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("outer/inner", True), ("outer", True)),
        (("outer/deep/inner", False), ("outer", True)),
        (("outer/inner", True), ("outer", False)),
        (("outer/0000000000000005", True), ("outer", False)),
        (("top", True), ("top/sub", True)),
        (("top", True), ("top/folder/sub", False)),
        (("top", False), ("top/sub", True)),
        (("same", False), ("same", True)),
        (("same", True), ("same", False)),
    ],
    ids=lambda build: f"{build[0]}{'' if build[1] else ' pointed'}",
)
def test_no_build_removes_or_changes_another_published_build(face, store, first, second):
    """Keys do not nest, and one key is published in one way. The refusal comes before the build function runs."""
    client, runs = face.connect(), []
    build = builder(face, writing(runs))
    (key, relocatable), (other, otherwise) = first, second
    built = client.build_once(store, key, build, relocatable=relocatable)
    before = sorted(store.rglob("*"))

    with pytest.raises((InvalidName, InvalidConfig), match=r"published (build|with)"):
        client.build_once(store, other, build, relocatable=otherwise)

    assert len(runs) == 1
    assert sorted(store.rglob("*")) == before
    assert client.build_once(store, key, build, relocatable=relocatable) == built._replace(fresh=False)


@pytest.mark.acceptance("A2-13")
@pytest.mark.parametrize(
    "key", ["../x", "a/../../b", "/etc/x", "", ".", "a//b", "a/.", "nul\0", "x" * 300, ".holdfast-staging", 7]
)
def test_a_key_that_leads_out_of_the_directory_is_refused(engine, store, key):
    """The refusal comes before any write."""
    client = engine.connect()

    with pytest.raises(InvalidName):
        client.build_once(store, key, writing([]))

    assert list(store.iterdir()) == []


@pytest.mark.acceptance("A2-13")
@pytest.mark.parametrize("key", ["foo..bar", "@scope/name_1.0.0", "a b", "Ä"])
def test_a_key_inside_the_directory_is_accepted(engine, store, key):
    """A scope is a subdirectory."""
    built = engine.connect().build_once(store, key, writing([]))

    assert built.path == store / key


@pytest.mark.finding("S12")
def test_a_folder_that_is_a_link_is_not_followed(engine, store, tmp_path):
    """An attacker could plant the link and choose the place of our writes."""
    (tmp_path / "elsewhere").mkdir()
    (store / "@scope").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(Exception, match="symbolic link"):
        engine.connect().build_once(store, "@scope/name", writing([]))

    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.acceptance("C-2", "A0-29")
def test_a_directory_that_another_engine_guards_is_refused_before_any_write(face, store, tmp_path):
    """Two engines would not exclude each other, so a client of another engine gets an error."""
    client, runs = face.connect(), []
    client.build_once(store, "k", builder(face, writing(runs)))
    before = sorted(store.rglob("*"))
    url = f"sqlite://{tmp_path}/other.db" if face.place.engine != "sqlite" else "memory://other"
    stranger = face.connect(url)

    with pytest.raises(DomainMismatch) as refusal:
        stranger.build_once(store, "other", builder(face, writing(runs)))
    with pytest.raises(DomainMismatch):
        stranger.domain(store)

    assert sorted(store.rglob("*")) == before
    assert len(runs) == 1
    assert client.domain(store).engine == face.place.engine
    assert "://" in refusal.value.guarded_by
    assert refusal.value.configured == url
    assert str(store / ".holdfast-domain") in str(refusal.value)


@pytest.mark.acceptance("C-2", "A0-30")
def test_a_directory_has_one_identity_through_every_path(face, store, tmp_path):
    """The directory contains its id, so a link or a second mount leads to the same leases."""
    (tmp_path / "link").symlink_to(store)
    client, other = face.connect(), face.connect()

    marked = client.domain(store)

    assert other.domain(tmp_path / "link") == marked
    assert marked.engine == face.place.engine


def test_an_unreadable_marker_stops_every_client(engine, store):
    """Without a readable marker the guarding engine is unknown."""
    (store / ".holdfast-domain").write_text("{")
    client = engine.connect()

    with pytest.raises(InvalidConfig):
        client.build_once(store, "k", writing([]))

    assert (store / ".holdfast-domain").read_text() == "{"


@pytest.mark.finding("T10")
def test_an_engine_that_does_not_answer_leaves_no_mark(face, store):
    """Otherwise one mistyped URL would refuse the right engine for ever."""
    absent, client = face.connect("redis://127.0.0.1:1"), face.connect()

    for attempt in (
        lambda: absent.build_once(store, "k", builder(face, writing([])), timeout=0),
        lambda: absent.domain(store),
    ):
        with pytest.raises(Unavailable):
            attempt()
        assert list(store.iterdir()) == []
    assert client.build_once(store, "k", builder(face, writing([]))).fresh


def test_the_error_names_a_missing_directory(engine, store):
    """The error names the missing directory, not the marker in it."""
    client = engine.connect()

    with pytest.raises(Unavailable, match=f"the directory {store}/slip does not exist"):
        client.build_once(store / "slip", "k", writing([]))

    assert not (store / "slip").exists()


def test_the_timeout_of_a_build_works_like_that_of_a_lock(face, store):
    """A caller whose timeout ends while another process builds gets the name of the builder."""
    client, other, runs = face.connect(label="slow"), face.connect(), []
    inside, go = [], []

    def build(staging):
        inside.append(staging)
        eventually(lambda: go, timeout=10)

    building = face.start(lambda: client.build_once(store, "k", builder(face, build)))
    eventually(lambda: inside)

    with pytest.raises(NotAcquired) as refusal:
        other.build_once(store, "k", builder(face, writing(runs)), timeout=0)
    go.append(True)

    assert "slow" in refusal.value.holder
    assert building.result().fresh
    assert runs == []


def test_a_build_of_the_other_face_is_refused(face, store):
    """A coroutine that is never awaited would build nothing."""
    client = face.connect()

    async def awaited(staging):
        return staging

    wrong = awaited if face.kind == "blocking" else os.fspath
    with pytest.raises(InvalidConfig):
        client.build_once(store, "k", wrong)
