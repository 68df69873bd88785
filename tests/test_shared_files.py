"""Files in places that other users can write to: what is trusted, and which mode new files get."""

from __future__ import annotations

import os
import pickle
import stat

import pytest

from holdfast import shared_files
from holdfast.shared_files import Folder, UntrustedFile, opened
from tests.support.other_users import ANN, BEN, MALLORY, TEAM, as_user, give_to, need_root, public_directory


@pytest.mark.finding("S2", "S12")
@pytest.mark.parametrize(
    ("mode", "readable", "folders", "files"),
    [
        (0o700, False, 0o700, 0o600),
        (0o755, False, 0o700, 0o600),
        (0o755, True, 0o755, 0o644),
        (0o770, False, 0o2770, 0o660),
        (0o775, True, 0o2775, 0o664),
        (0o777, False, 0o700, 0o600),
        (0o777, True, 0o755, 0o644),
        (0o1777, True, 0o755, 0o644),
        (0o2755, True, 0o2755, 0o644),
    ],
)
@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_new_files_have_the_mode_of_their_directory(tmp_path, mode, readable, folders, files, umask):
    """The umask does not count, and no file is writable for all users."""
    tmp_path.chmod(mode)
    before = os.umask(umask)
    try:
        with Folder(tmp_path, readable=readable) as folder, folder.make_folder("a") as inside:
            inside.make_folder("b").close()
            inside.write_new("file", b"content")
            os.close(inside.open_fifo("fifo"))
    finally:
        os.umask(before)

    modes = {name: stat.S_IMODE((tmp_path / name).lstat().st_mode) for name in ("a", "a/b", "a/file", "a/fifo")}
    assert modes == {"a": folders, "a/b": folders, "a/file": files, "a/fifo": files}


@pytest.mark.finding("S6")
@pytest.mark.parametrize(
    ("mode", "owner", "trusted"),
    [
        (0o755, ANN, True),  # the owner of the directory
        (0o755, 0, True),
        (0o755, MALLORY, False),
        (0o775, MALLORY, True),  # a member of the group: no other user could create it
        (0o777, MALLORY, False),
        (0o1777, MALLORY, False),
        (0o777, ANN, True),
    ],
)
def test_the_directory_decides_whose_files_are_trusted(mode, owner, trusted):
    """A user who could have planted the file, and has no right to it otherwise, is not trusted."""
    need_root()
    with public_directory(mode) as path:
        os.chown(path, ANN, TEAM)
        (path / "file").write_text("content")
        give_to(owner, path / "file", 0o644)

        def use():
            with Folder(path) as folder:
                folder.read("file", 10)

        assert as_user(BEN, use, gid=TEAM) == (0 if trusted else 1)
        assert as_user(owner, use, gid=TEAM) == 0


def test_a_file_server_may_show_another_user_for_own_files(monkeypatch):
    """With `root_squash` or `all_squash` the files of this process belong to another user there."""
    need_root()
    with public_directory(0o777) as path:

        def reads(kind):
            monkeypatch.setattr(shared_files, "filesystem", lambda _: kind)
            monkeypatch.setattr(os, "geteuid", lambda: BEN)
            with Folder(path) as folder:
                assert folder.read("file", 10) == b"content"
            assert os.listdir(path) == ["file"]

        def write():
            (path / "file").write_bytes(b"content")
            (path / "file").chmod(0o600)

        assert as_user(ANN, write) == 0
        assert as_user(ANN, lambda: reads("nfs4")) == 0
        assert as_user(ANN, lambda: reads("ext4")) == 1


@pytest.mark.finding("S2")
def test_a_path_inside_is_followed_without_links(tmp_path):
    """A link in the middle of a path leads out of the directory."""
    (tmp_path / "elsewhere" / "b").mkdir(parents=True)
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "a").symlink_to(tmp_path / "elsewhere")

    for make in (False, True):
        with pytest.raises(UntrustedFile, match="symbolic link"), opened(tmp_path / "shared", "a", "b", make=make):
            pass

    assert [path.name for path in tmp_path.rglob("*")].count("b") == 1


@pytest.mark.finding("S4")
def test_removing_a_tree_removes_no_file_behind_a_link(tmp_path):
    """The link is removed, and the files that it leads to stay."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "thesis").write_text("years of work")
    (tmp_path / "tree" / "inside").mkdir(parents=True)
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")

    with Folder(tmp_path) as folder:
        folder.remove_tree("tree")
        folder.remove_tree("link")
        folder.remove_tree("missing")

    assert sorted(path.name for path in tmp_path.rglob("*")) == ["elsewhere", "thesis"]


def test_a_write_that_fails_leaves_no_file(tmp_path, monkeypatch):
    """A half-written file would be read later."""
    monkeypatch.setattr(os, "write", lambda descriptor, body: len(body) - 1)

    with Folder(tmp_path) as folder, pytest.raises(OSError, match="No space left"):
        folder.write_new("file", b"content")

    assert list(tmp_path.iterdir()) == []


def test_the_error_survives_pickling(tmp_path):
    """Errors travel between processes."""
    (tmp_path / "file").symlink_to("nowhere")
    with Folder(tmp_path) as folder, pytest.raises(UntrustedFile) as caught:
        folder.read("file", 10)

    copy = pickle.loads(pickle.dumps(caught.value))

    assert (str(copy), copy.filename) == (str(caught.value), str(tmp_path / "file"))
    assert "remove it if no program needs it" in str(copy)
    assert pickle.loads(pickle.dumps(UntrustedFile("x", "why", planted=True))).planted
