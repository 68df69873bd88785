"""Faults around npm: interruptions, permissions, unreadable files. Each is one line and leaves nothing half-built."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

import holdfast
from holdfast import failpoints
from holdfast.contrib import npm
from holdfast.testing import eventually
from tests.support.small_disk import small_disk

CHILDREN = Path(__file__).with_name("install_children.py")


def one(job):
    (result,) = job.result()
    return result


def living(pattern):
    """Return the processes whose command line contains a text."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if pattern.encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=["int", "term", "hup"])
def test_an_interrupted_install_ends_at_once_with_its_npm_and_leaves_nothing(install, registry, repo, runs, number):
    """Ctrl-C and the end of a pod stop everything: no npm continues or starts, no worker waits, and the
    lease is free."""
    registry.slow_s = 30.0
    working = install("alpha@1.0.0")
    eventually(lambda: any(path.startswith("-/") for path in registry.asked), timeout=30)
    waiting = install("alpha@1.0.0")
    eventually(lambda: "waiting" in os.read(waiting.process.stderr.fileno(), 4096).decode(), timeout=30)
    began = time.monotonic()
    for job in (waiting, working):
        os.kill(job.pid, number)  # npm itself gets no signal
        assert job.result(timeout=25) == ""
        assert job.code == 128 + number

    assert time.monotonic() - began < 25
    assert json.loads(working.errors.splitlines()[-1]) | {"error": ""} == {
        "outcome": "interrupted",
        "code": 128 + number,
        "error": "",
    }
    assert living(str(repo / "node_modules")) == []
    assert len(runs()) == 1
    assert list((repo / "node_modules" / ".holdfast-staging").iterdir()) == []
    with holdfast.connect(f"file://{repo}") as client:
        name = f"build/{client.domain(repo / 'node_modules').id}/alpha_1.0.0"
        client.lock(name).acquire(timeout=0).release()


def test_an_ended_install_without_a_lock_leaves_no_npm_and_no_staging(install, registry, repo):
    """There is no lease to release, but the same files to remove."""
    registry.slow_s = 30.0
    job = install("alpha@1.0.0", options=("--no-repo-lock",))
    eventually(lambda: any(path.startswith("-/") for path in registry.asked), timeout=30)
    os.kill(job.pid, signal.SIGTERM)

    assert job.result(timeout=25) == ""
    assert job.code == 128 + signal.SIGTERM
    assert living(str(repo / "node_modules")) == []
    assert list((repo / "node_modules" / ".holdfast-staging").iterdir()) == []


def test_an_install_continues_after_its_output_is_closed(install, repo):
    """The install matters more than its progress output."""
    job = install("alpha@1.0.0", "beta@1.0.0")
    job.process.stderr.close()
    job.process.stderr = None

    assert [result["error"] for result in job.result()] == ["", ""]
    assert job.code == 0


def test_every_npm_uses_the_settings_of_the_repository(install, registry, repo, env):
    """The `.npmrc` of the repository names a registry or a token; npm runs elsewhere and still uses it."""
    (repo / ".npmrc").write_text(f"registry={registry.url}\n")
    nowhere = {"npm_config_registry": "", "npm_config_userconfig": str(repo / "none")}
    results = install("alpha@latest", "beta@1.0.0", extra=nowhere).result()

    assert [result["error"] for result in results] == ["", ""]
    assert list((repo / "node_modules").rglob(".npmrc")) == []


@pytest.mark.parametrize("fault", ["a file in the way", "not ours"])
def test_an_unwritable_directory_is_reported_in_one_line(install, repo, runs, fault):
    """The error names the path and is no internal error."""
    if fault == "a file in the way":
        (repo / "node_modules").write_text("mine")
    else:
        (repo / "node_modules").symlink_to(repo / "nowhere")
    job = install("alpha@1.0.0")
    results = job.result()
    what = job.errors + (results[0]["error"] if results else "")

    assert job.code in (1, 77)
    assert "mistake" not in what
    assert str(repo / "node_modules") in what
    assert runs() == []


def test_an_unwritable_manifest_is_reported_and_the_packages_are_installed(env, repo, monkeypatch):
    """The package is installed; the missing entry is a separate error, and the next run adds it."""
    real = os.rename

    def rename(name, new, **where):
        if new == "package.json" and not failed:
            failed.append(name)
            raise OSError(28, "No space left on device", new)
        return real(name, new, **where)

    failed = []
    monkeypatch.setattr(os, "rename", rename)
    with holdfast.connect(f"file://{repo}") as client:
        results = npm.Repo(client, repo).install(["alpha@1.0.0", "beta@1.0.0"])
        again = npm.Repo(client, repo).install(["alpha@1.0.0", "beta@1.0.0"])

    assert sorted(bool(result.error) for result in results) == [False, True]
    assert any("No space left" in result.error for result in results)
    assert [result.error for result in again] == ["", ""]
    assert set(json.loads((repo / "package.json").read_text())["dependencies"]) == {"alpha_1.0.0", "beta_1.0.0"}
    assert list(repo.glob(".package.json.*")) == []


def whole_alpha(modules):
    """Return whether the package and its dependency have all their files, with their contents."""
    package = modules / "alpha_1.0.0"
    contents = {package / "files": ("alpha", 20), package / "node_modules" / "shared-dep" / "files": ("shared-dep", 60)}
    return all(
        [path.read_text() for path in sorted(folder.iterdir())] == [f"{name} {each} " * 50 for each in range(count)]
        for folder, (name, count) in contents.items()
    )


@pytest.mark.finding("T3")
@pytest.mark.parametrize("kib", [120, 240, 320, 352, 368])
@pytest.mark.parametrize("options", [(), ("--no-repo-lock",)], ids=["lock", "no lock"])
def test_a_full_disk_publishes_no_half_package(install, registry, tmp_path, kib, options):
    """npm ends with 0 although it could not write the files; the worker must not publish them."""
    with small_disk(tmp_path / "small", f"{kib}k") as disk:
        failed = install("alpha@1.0.0", directory=disk.path, options=options)
        (result,) = failed.result()
        modules = disk.path / "node_modules"
        is_published = (modules / "alpha_1.0.0").exists()
        half = is_published and not whole_alpha(modules)
        staged = list(modules.glob(".holdfast-staging/*"))
        subprocess.run(("mount", "-o", "remount,size=4m", str(disk.path)), check=True)
        with_room = install("alpha@1.0.0", directory=disk.path, options=options)
        (again,) = with_room.result()

        assert (half, staged) == (False, [])
        if kib <= 320:  # the package and its copy of the dependency need more
            assert not is_published
            assert failed.code == 1
            assert re.search(r"(?i)no space left|\(0 bytes are free", result["error"]), result["error"]
        assert (with_room.code, again["fresh"]) == (0, not is_published)
        assert whole_alpha(modules)


def test_on_a_read_only_disk_installed_packages_are_found_and_others_are_refused(env, repo, runs, tmp_path):
    """A worker with a read-only volume can start; nothing else changes, and it can install when it may write."""
    with small_disk(tmp_path / "small", "8m") as disk:
        (first,) = npm.Repo(None, disk.path).install(["solo@1.0.0"])
        disk.read_only()
        there, refused = npm.Repo(None, disk.path, retries=0).install(["solo@1.0.0", "alpha@1.0.0"])
        tried = len(runs())
        disk.writable()
        (later,) = npm.Repo(None, disk.path).install(["alpha@1.0.0"])

    assert (first.error, there.error, there.fresh, later.error) == ("", "", False, "")
    assert "read-only" in refused.error
    assert tried == 1


@pytest.mark.finding("T3")
@pytest.mark.parametrize(
    "fault", ["warning", "no lockfile", "torn lockfile", "other package", "no dependency", "empty package.json"]
)
def test_a_tree_that_npm_left_incomplete_is_not_published(env, repo, tmp_path, fault):
    """npm may end with 0 and leave out files: its warnings and its lockfile tell."""
    damage = {
        "warning": "echo 'npm warn tar TAR_ENTRY_ERROR EIO: i/o error, write' >&2",
        "no lockfile": 'rm "$last/node_modules/.package-lock.json"',
        "torn lockfile": 'echo "{" > "$last/node_modules/.package-lock.json"',
        "other package": """echo '{"packages": {}}' > "$last/node_modules/.package-lock.json\"""",
        "no dependency": 'rm -r "$last/node_modules/alpha_1.0.0/node_modules/shared-dep"',
        "empty package.json": ': > "$last/node_modules/alpha_1.0.0/node_modules/shared-dep/package.json"',
    }[fault]
    program = tmp_path / "careless-npm"
    program.write_text(f'#!/bin/sh\nnpm "$@" || exit\nlast=$PWD\n{damage}\n')
    program.chmod(0o755)

    (result,) = npm.Repo(None, repo, npm=str(program), retries=0).install(["alpha@1.0.0"])

    assert "npm left an incomplete tree" in result.error
    assert not (repo / "node_modules" / "alpha_1.0.0").exists()
    assert list((repo / "node_modules" / ".holdfast-staging").iterdir()) == []


def test_a_registry_outage_is_reported_at_each_attempt(install, registry):
    """The output explains the delay."""
    registry.close()
    job = install("alpha@latest", "beta@1.0.0", options=("--retries", "1"))
    results = job.result()

    assert job.code == 1
    assert all("ECONNREFUSED" in result["error"] for result in results)
    for what in ("look up alpha@latest", "install beta_1.0.0"):
        assert f"attempt 1 to {what} failed" in job.errors
        assert f"attempt 2 to {what} failed" in job.errors


def test_a_worker_that_slept_while_it_wrote_the_manifest_removes_no_entry(env, repo):
    """The worker wakes after it lost its lease and writes an outdated manifest; then it writes once more."""
    with holdfast.connect(f"file://{repo}") as client, holdfast.connect(f"file://{repo}") as other:

        def overtaken():
            failpoints.disarm("npm.before-manifest")
            client.break_lease(f"manifest/{client.domain(repo / 'node_modules').id}", "it sleeps")
            others.extend(npm.Repo(other, repo).install(["beta@1.0.0"]))

        others = []
        failpoints.arm("npm.before-manifest", overtaken)
        (late,) = npm.Repo(client, repo).install(["alpha@1.0.0"])

    assert (late.error, others[0].error) == ("", "")
    assert set(json.loads((repo / "package.json").read_text())["dependencies"]) == {"alpha_1.0.0", "beta_1.0.0"}


@pytest.mark.parametrize("fault", ["gone", "no program", "speaks in tongues"])
def test_a_broken_npm_is_reported(env, repo, tmp_path, fault):
    """npm may disappear, be not executable, or print binary output."""
    program = tmp_path / "other-npm"
    program.write_text(
        "#!/nowhere/at-all\n" if fault == "no program" else "#!/bin/sh\nprintf '\\377\\376' >&2; exit 1\n"
    )
    program.chmod(0o755)
    with holdfast.connect(f"file://{repo}") as client:
        worker = npm.Repo(client, repo, npm=str(program), retries=0)
        if fault == "gone":
            program.unlink()
        results = worker.install(["alpha@1.0.0", "beta@latest"])

    expected = "npm install failed" if fault == "speaks in tongues" else f"{program} cannot be run"
    assert expected in results[0].error
    assert all(result.error for result in results)


def test_no_two_packages_share_an_alias():
    """The separator of name and version in an alias occurs in no version, so that aliases are unique."""
    odd = npm.parsed("a@1.0.0-x_2.0.0")

    assert odd.alias == npm.parsed("a_1.0.0-x@2.0.0").alias
    assert not npm._EXACT.fullmatch(odd.version), "so npm is asked, and knows no such version"


@pytest.fixture
def shared_repo():
    """Return a repository directory of two users with one common group and different own groups."""
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        directory = Path(folder) / "repo"
        directory.mkdir()
        os.chown(directory, 0, 4242)
        directory.chmod(0o770)  # without the set-group-id bit
        yield directory


def test_users_of_one_group_install_for_each_other_with_any_umask(holdfast_workers, env, shared_repo, registry):
    """Each user can import the other's packages and add its own."""
    registry.add("parent", "1.0.0", {"shared-dep": "1.0.0", "@scope/name": "1.2.3"})
    script = "await import('parent_1.0.0'); await import('@scope/name_1.2.3'); console.log('imported')"
    reports = []
    for uid, package in ((4001, "solo"), (4002, "alpha")):
        home = shared_repo.parent / f"home-{uid}"
        home.mkdir()
        os.chown(home, uid, uid)
        worker = holdfast_workers.start(
            f"{CHILDREN}:install_as",
            env={**env, "HOME": str(home), "npm_config_cache": str(home / "npm"), "PATH": os.defpath},
            directory=str(shared_repo),
            specs=["parent@1.0.0", f"{package}@1.0.0", "@scope/name@1.2.3"],
            uid=uid,
            gid=4242,
            umask=0o077,
            script=script,
        )
        reports.append(json.loads(worker.read_line(60)))

    fresh = [[True, ""], [True, ""], [True, ""]]
    assert reports[0] == {"results": fresh, "imported": "imported\n"}
    assert reports[1] == {"results": [[False, ""], [True, ""], [False, ""]], "imported": "imported\n"}
    listed = json.loads((shared_repo / "package.json").read_text())["dependencies"]
    assert set(listed) == {"@scope/name_1.2.3", "alpha_1.0.0", "parent_1.0.0", "solo_1.0.0"}
    closed = [path for path in shared_repo.rglob("*") if path.lstat().st_gid != 4242]
    assert closed == []
