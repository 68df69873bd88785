"""Where the file may lie, and what errors and logs say about it."""

from __future__ import annotations

import logging
import stat
from functools import partial
from pathlib import Path

import pytest

import holdfast
from holdfast.config import settings
from holdfast.engines.sqlite import location
from holdfast.errors import InvalidConfig

ROOT_LINE = "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw"


@pytest.fixture
def mounted(tmp_path, monkeypatch):
    """Make the system report these mounts, in the format of /proc/self/mountinfo."""

    def mounted(*lines):
        mounts = tmp_path / "mountinfo"
        mounts.write_bytes(b"".join(line.encode("utf-8", "surrogateescape") + b"\n" for line in (ROOT_LINE, *lines)))
        monkeypatch.setattr(location, "filesystem", partial(location.filesystem, mounts=mounts))

    return mounted


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "virtiofs", "fuse.sshfs", "ceph", "lustre", "glusterfs"]
)
def test_a_network_filesystem_is_refused_by_name(mounted, tmp_path, kind):
    """Over a network SQLite's log loses commits; the error names the filesystem, and no file is created."""
    share = tmp_path / "share"
    share.mkdir()
    mounted(f"99 27 0:50 / {share} rw,relatime shared:7 - {kind} server:/export rw")

    with pytest.raises(InvalidConfig, match=f"is {kind};"):
        holdfast.connect(f"sqlite://{share}/hf.db")

    assert list(share.iterdir()) == []


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "apfs"])
def test_a_disk_of_this_machine_is_accepted(mounted, tmp_path, kind):
    """Only the listed filesystems are refused; every other one is a local disk."""
    mounted(f"99 27 0:50 / {tmp_path} rw,relatime - {kind} /dev/sdb rw")

    with holdfast.connect(f"sqlite://{tmp_path}/hf.db") as client:
        client.lock("x").acquire().release()


def test_the_real_mounts_of_this_machine_are_read_correctly(tmp_path):
    """An invented list proves little about the real one."""
    assert location.filesystem(Path("/proc")) == "proc"
    assert location.filesystem(tmp_path) != ""
    if Path("/dev/shm").is_mount():
        assert location.filesystem(Path("/dev/shm")) == "tmpfs"


@pytest.mark.parametrize(
    ("shown", "directory"),
    [
        (r"/mnt/two\040words", "/mnt/two words"),
        (r"/mnt/back\134slash", "/mnt/back\\slash"),
        ("/mnt/Müller", "/mnt/Müller"),
        ("/mnt/\udcff", "/mnt/\udcff"),
    ],
)
def test_mount_points_with_any_characters_are_recognised(tmp_path, shown, directory):
    """A share is refused whatever it is called: the kernel escapes some characters and leaves the rest as bytes."""
    mounts = tmp_path / "mountinfo"
    line = f"99 27 0:50 / {shown} rw - nfs4 server:/export rw"
    mounts.write_bytes(f"{ROOT_LINE}\n{line}\n".encode("utf-8", "surrogateescape"))

    assert location.filesystem(Path(directory), mounts) == "nfs4"
    assert location.filesystem(Path(directory) / "deeper", mounts) == "nfs4"
    assert location.filesystem(Path(directory + "er"), mounts) == "ext4"


def test_the_last_of_several_mounts_on_one_point_counts(tmp_path):
    """The newer mount hides the older one."""
    mounts = tmp_path / "mountinfo"
    lines = ["98 27 0:50 / /mnt/a rw - nfs4 server:/export rw", "99 27 0:51 / /mnt/a rw - ext4 /dev/sdb rw"]
    mounts.write_text("\n".join([ROOT_LINE, *lines]))

    assert location.filesystem(Path("/mnt/a/b"), mounts) == "ext4"


def test_a_symlink_to_a_network_filesystem_is_refused(mounted, tmp_path):
    """The file would be on the network, whatever the path to it."""
    share = tmp_path / "share"
    share.mkdir()
    (tmp_path / "link").symlink_to(share)
    mounted(f"99 27 0:50 / {share} rw,relatime - nfs4 server:/export rw")

    with pytest.raises(InvalidConfig, match="nfs4"):
        holdfast.connect(f"sqlite://{tmp_path}/link/hf.db")


@pytest.mark.acceptance("A0-30")
def test_two_paths_to_one_file_mean_one_lease(tmp_path):
    """A symlink is another name for the same leases, not another place."""
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)

    with holdfast.connect(f"sqlite://{real}/hf.db") as one, holdfast.connect(f"sqlite://{link}/hf.db") as two:
        with one.lock("x"):
            assert two.lock("x").try_acquire() is None
        two.lock("x").acquire(timeout=0).release()


def test_without_a_url_the_leases_live_in_the_state_directory(tmp_path, monkeypatch, caplog):
    """One log line says where the leases live and that they are of this host only."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    expected = tmp_path / "state" / "holdfast" / "holdfast.db"

    with caplog.at_level(logging.INFO, "holdfast"), holdfast.connect() as client:
        client.lock("x").acquire().release()
        client.lock("y").acquire().release()

    told = [record for record in caplog.records if record.levelno == logging.INFO]
    assert expected.exists()
    assert len(told) == 1
    assert str(expected) in told[0].getMessage()
    assert "this host only" in told[0].getMessage()


def test_a_url_that_was_chosen_is_not_announced(tmp_path, monkeypatch, caplog):
    """A person who chose the URL knows it."""
    monkeypatch.setenv("HOLDFAST_URL", f"sqlite://{tmp_path}/hf.db")

    with caplog.at_level(logging.INFO, "holdfast"), holdfast.connect() as client:
        client.lock("x").acquire().release()

    assert [record for record in caplog.records if record.levelno >= logging.INFO] == []


def test_a_state_directory_that_is_no_absolute_path_is_ignored(tmp_path):
    """The specification of that variable says so."""
    environ = {"XDG_STATE_HOME": "rel", "HOME": str(tmp_path)}

    assert settings(None, environ=environ).path == f"{tmp_path}/.local/state/holdfast/holdfast.db"


@pytest.mark.parametrize("name", ["h#1", "h?1", "50%41", "h\n1", "h ä"])
def test_a_home_directory_with_special_characters_is_used_unchanged(name, tmp_path):
    """The path of a home directory may contain the characters that end or escape a URL."""
    home = tmp_path / name
    home.mkdir()

    assert settings(None, environ={"HOME": str(home)}).path == f"{home}/.local/state/holdfast/holdfast.db"


def test_other_users_cannot_read_the_files(tmp_path):
    """Holders and names may be private; and a user who can write the file can take any lease."""
    with holdfast.connect(f"sqlite://{tmp_path}/new/hf.db") as client:
        client.lock("x").acquire().release()
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "new").iterdir()}

    assert modes.keys() >= {"hf.db", "hf.db-wal", "hf.db-shm", "hf.db.gate", "hf.db.live"}
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        *((f"sqlite://{path}", "absolute path") for path in ("hf.db", "a/b.db", "/tmp/", "", "/")),
        ("sqlite:hf.db", "as in sqlite:///path"),
    ],
)
def test_a_path_that_names_no_file_is_refused(url, rule, tmp_path, monkeypatch):
    """A relative path would mean another file, and so another lock, in every directory."""
    monkeypatch.chdir(tmp_path)

    with pytest.raises(InvalidConfig, match=rule):
        holdfast.connect(url)

    assert list(tmp_path.iterdir()) == []


def test_a_directory_in_place_of_the_file_is_refused(tmp_path):
    """It is refused when the engine is opened, and nothing is created beside it."""
    directory = tmp_path / "directory"
    directory.mkdir()

    with pytest.raises(InvalidConfig, match="directory"):
        holdfast.connect(f"sqlite://{directory}")

    assert list(tmp_path.iterdir()) == [directory]


def test_an_unknown_option_is_refused(tmp_path):
    """A mistyped option must not pass in silence."""
    with pytest.raises(InvalidConfig, match="timeout"):
        holdfast.connect(f"sqlite://{tmp_path}/hf.db?timeout=3")
