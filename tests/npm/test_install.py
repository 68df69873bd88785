"""Installing exactly once, with the real npm against a registry on the loopback."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time

import pytest

from holdfast.contrib import npm
from holdfast.contrib.npm_runs import npm_error
from holdfast.errors import BuildFailed, InvalidConfig, InvalidName
from holdfast.testing import eventually

TRIALS = int(os.environ.get("HOLDFAST_TRIALS", "2"))


def one(job):
    (result,) = job.result()
    return result


@pytest.mark.acceptance("A2-1", "A2-2", "A2-20")
def test_three_workers_want_one_package_and_npm_runs_once(install, engine, registry, runs, imported, manifest):
    """A waiting worker prints one line and skips the install; the installing worker prints none."""
    registry.slow_s = 0.3
    jobs = [install("alpha@1.0.0", options=engine) for _ in range(3)]
    results = [one(job) for job in jobs]

    assert runs() == ["alpha_1.0.0@npm:alpha@1.0.0"]
    assert sorted(result["fresh"] for result in results) == [False, False, True]
    assert imported("alpha_1.0.0") == ["alpha@1.0.0"]
    assert manifest() == {"alpha_1.0.0": "npm:alpha@1.0.0"}
    for job, result in zip(jobs, results, strict=True):
        assert job.code == 0
        waited = job.errors.count("another worker is installing")
        assert waited <= 1
        assert not (result["fresh"] and waited)


@pytest.mark.acceptance("A2-7")
def test_different_packages_that_share_a_dependency_are_installed_at_the_same_time(
    install, engine, registry, imported, manifest, repo
):
    """All packages are complete, listed and importable, and the downloads overlap."""
    registry.slow_s = 0.6
    began = time.monotonic()
    jobs = [install(f"{name}@1.0.0", options=engine) for name in ("alpha", "beta", "gamma")]
    results = [one(job) for job in jobs]
    took = time.monotonic() - began

    assert [result["error"] for result in results] == ["", "", ""]
    assert sorted(imported("alpha_1.0.0", "beta_1.0.0", "gamma_1.0.0")) == ["alpha@1.0.0", "beta@1.0.0", "gamma@1.0.0"]
    assert set(manifest()) == {"alpha_1.0.0", "beta_1.0.0", "gamma_1.0.0"}
    for name in ("alpha", "beta", "gamma"):
        shared = repo / "node_modules" / f"{name}_1.0.0" / "node_modules" / "shared-dep"
        assert len(list((shared / "files").iterdir())) == 60
    assert took < sum(result["seconds"] for result in results), "they overlapped"


@pytest.mark.timeout(60 + 30 * TRIALS)
@pytest.mark.acceptance("A2-7", "A2-8", "C-9", "G-7")
def test_trial_after_trial_of_three_packages_loses_nothing(install, registry, tmp_path):
    """Concurrent npm runs in one tree lose a package nearly every time, with exit code 0; here never.

    `make trials` makes twenty of them.
    """
    registry.slow_s = 0.5
    for trial in range(TRIALS):
        directory = tmp_path / f"trial{trial}"
        directory.mkdir()
        jobs = [install(f"{name}@1.0.0", directory=directory) for name in ("alpha", "beta", "gamma")]
        results = [one(job) for job in jobs]

        listed = json.loads((directory / "package.json").read_text())["dependencies"]
        assert set(listed) == {"alpha_1.0.0", "beta_1.0.0", "gamma_1.0.0"}
        spans = []
        for result in results:
            assert result["fresh"], result["error"]
            package = directory / "node_modules" / result["alias"]
            assert len(list(package.rglob("shared-dep/files/*"))) == 60
            ended = json.loads((package / ".holdfast-built").read_text())["at"]
            spans.append((ended - result["seconds"], ended))
        assert max(began for began, _ in spans) < min(ended for _, ended in spans), "they overlapped in time"


@pytest.mark.acceptance("A2-17")
def test_a_single_worker_behaves_the_same_with_and_without_the_lock(install, tmp_path):
    """A single worker does not notice the lock."""
    outputs, there = [], []
    for number, flag in enumerate([(), ("--no-repo-lock",)]):
        directory = tmp_path / f"repo{number}"
        directory.mkdir()
        job = install("solo@1.0.0", options=flag, directory=directory)
        assert one(job)["fresh"]
        outputs.append(re.sub(r"in [0-9.]+ s", "", job.errors))
        package = directory / "node_modules" / "solo_1.0.0"
        there.append({path.relative_to(package) for path in package.rglob("*")})

    assert outputs[0] == outputs[1] != ""
    assert there[0] == there[1]


@pytest.mark.acceptance("A2-3")
def test_an_installed_package_is_found_silently_without_a_lock(install, repo, runs):
    """A hit does not read the leases, which may even be unreadable."""
    first = install("alpha@1.0.0")
    assert one(first)["fresh"]
    assert "waiting" not in first.errors
    leases = repo / ".holdfast"
    leases.rename(repo / "away")
    leases.write_text("no directory at all")

    again = install("alpha@1.0.0")
    result = one(again)

    assert (result["fresh"], result["error"], again.code) == (False, "", 0)
    assert again.errors == ""
    assert len(runs()) == 1


@pytest.mark.acceptance("A2-4")
def test_a_failed_install_is_reported_and_the_next_worker_installs(install, registry, repo, runs):
    """The error contains npm's output, after the configured attempts, and nothing is left."""
    registry.fail(100)
    failed = install("beta@1.0.0", options=("--retries", "1"))
    result = one(failed)
    assert failed.code == 1
    assert "beta_1.0.0 was not built: npm install failed" in result["error"]
    assert "(attempt 2)" in result["error"]
    assert len(runs()) == 2
    assert not (repo / "node_modules" / "beta_1.0.0").exists()
    assert list((repo / "node_modules" / ".holdfast-staging").iterdir()) == []

    registry.fail(0)
    assert one(install("beta@1.0.0", options=("--timeout", "0")))["fresh"]


def test_a_failed_download_is_tried_again(install, registry, runs):
    """One failure of the registry costs a second, not the run."""
    registry.fail(1)
    registry.add("hiccup", "1.0.0")
    result = one(install("hiccup@1.0.0"))

    assert (result["fresh"], result["error"]) == (True, "")
    assert len(runs()) == 2


def test_a_package_that_does_not_exist_is_not_tried_again(install, runs):
    """A retry would not help; the other packages are installed."""
    job = install("absent@1.0.0", "alpha@1.0.0")
    absent, alpha = job.result()

    assert job.code == 1
    assert "E404" in absent["error"] or "404" in absent["error"]
    assert alpha["fresh"]
    assert len([run for run in runs() if run.startswith("absent")]) == 1


@pytest.mark.acceptance("A2-5", "A2-6", "A2-20")
@pytest.mark.parametrize("whom", ["all", "parent"])
def test_a_worker_killed_in_the_middle_publishes_nothing_and_the_next_one_finishes(
    install, engine, registry, repo, imported, whom
):
    """If npm dies while it extracts, the package does not count as installed.

    An orphan of npm fills its own unread staging; on files it also keeps the lease until it ends.
    """
    registry.slow_s = 1.0
    unlucky = install("alpha@1.0.0", options=(*engine, "--ttl", "3"))
    staging = repo / "node_modules" / ".holdfast-staging"
    eventually(lambda: list(staging.glob("*/.npm-0/node_modules")) if staging.exists() else [], timeout=30)
    (os.killpg if whom == "all" else os.kill)(unlucky.pid, signal.SIGKILL)
    assert not (repo / "node_modules" / "alpha_1.0.0").exists()
    registry.slow_s = 0.0

    result = one(install("alpha@1.0.0", options=(*engine, "--timeout", "60")))

    assert result["fresh"]
    assert imported("alpha_1.0.0") == ["alpha@1.0.0"]
    if whom == "all" or not engine:
        assert list(staging.iterdir()) == []


@pytest.mark.acceptance("A2-8")
def test_two_bootstraps_of_an_empty_directory_lose_no_entry(install, manifest):
    """Both create the manifest and add to it, and each entry is there in the end."""
    jobs = [install(f"{name}@1.0.0") for name in ("alpha", "beta")]
    for job in jobs:
        assert one(job)["fresh"]

    assert set(manifest()) == {"alpha_1.0.0", "beta_1.0.0"}


@pytest.mark.acceptance("A2-8")
@pytest.mark.parametrize("text", ['{"dependencies": {"mine": "1"', "[]", '{"dependencies": 7}'])
def test_a_manifest_that_cannot_be_read_is_never_overwritten(install, repo, runs, text):
    """The error names it and leaves it unchanged, because a person may repair it."""
    (repo / "package.json").write_text(text)
    job = install("alpha@1.0.0")
    job.result()

    assert job.code != 0
    assert "it was not changed" in job.errors
    assert (repo / "package.json").read_text() == text
    assert runs() == []


def test_other_entries_of_the_manifest_stay(install, repo, manifest):
    """The worker adds only its dependency."""
    (repo / "package.json").write_text('{"name": "mine", "scripts": {"x": "y"}, "dependencies": {"kept": "1.0.0"}}')
    one(install("alpha@1.0.0"))

    assert manifest() == {"kept": "1.0.0", "alpha_1.0.0": "npm:alpha@1.0.0"}
    assert json.loads((repo / "package.json").read_text())["scripts"] == {"x": "y"}


@pytest.mark.acceptance("A2-12")
def test_a_timeout_names_seconds_alias_and_path(install, registry, repo):
    """The error also names the installing worker."""
    registry.slow_s = 6.0
    slow = install("alpha@1.0.0")
    eventually((repo / "node_modules" / ".holdfast-staging").exists, timeout=30)
    job = install("alpha@1.0.0", options=("--timeout", "1"))
    error = one(job)["error"]

    assert "waited 1 s for alpha_1.0.0" in error
    assert str(repo / "node_modules" / "alpha_1.0.0") in error
    assert job.errors.count("another worker is installing alpha_1.0.0") == 1
    os.killpg(slow.pid, signal.SIGKILL)


@pytest.mark.acceptance("A2-14")
@pytest.mark.parametrize("flag", [(), ("--no-repo-lock",)])
@pytest.mark.parametrize("variable", ["", "true"])
def test_a_flag_or_a_variable_turns_the_lock_off(install, repo, flag, variable):
    """Without a lock there is not even a directory for leases."""
    result = one(install("solo@1.0.0", options=flag, extra={"HOLDFAST_NO_REPO_LOCK": variable}))

    assert result["fresh"]
    assert (repo / ".holdfast").exists() is not (bool(flag) or bool(variable))


@pytest.mark.acceptance("A2-15")
def test_without_the_lock_both_workers_run_npm_and_the_result_is_complete(install, registry, runs, imported):
    """One worker publishes, and the other finds the result."""
    registry.slow_s = 1.0
    jobs = [install("alpha@1.0.0", options=("--no-repo-lock",)) for _ in range(2)]
    results = [one(job) for job in jobs]

    assert len(runs()) == 2
    assert sorted(result["fresh"] for result in results) == [False, True]
    assert imported("alpha_1.0.0") == ["alpha@1.0.0"]


def test_tags_are_resolved_and_versions_live_side_by_side(install, imported, manifest):
    """`latest` becomes a version, which is part of the alias; without a tag the newest counts."""
    results = install("alpha@1.0.0", "alpha@latest", "@scope/name@next", "beta").result()

    assert [result["alias"] for result in results] == ["alpha_1.0.0", "alpha_2.0.0", "@scope/name_1.2.3", "beta_1.0.0"]
    assert imported("alpha_1.0.0", "alpha_2.0.0", "@scope/name_1.2.3") == [
        "alpha@1.0.0",
        "alpha@2.0.0",
        "@scope/name@1.2.3",
    ]
    assert manifest()["@scope/name_1.2.3"] == "npm:@scope/name@1.2.3"


def test_local_and_forbidden_packages_are_skipped(install, runs):
    """The worker prints a line and raises no error."""
    job = install("alpha@local", "beta@1.0.0", "@scope/name@1.2.3", options=("--allow", "@scope/"))
    local, refused, allowed = job.result()

    assert job.code == 0
    assert (local["skipped"], refused["skipped"]) == ("local", "not on the allow list")
    assert allowed["fresh"]
    assert len(runs()) == 1


@pytest.mark.finding("S9")
@pytest.mark.parametrize(
    ("allow", "admitted"),
    [
        ("@acme", ["@acme/tool", "@acme/tool-a"]),
        ("@acme/", ["@acme/tool", "@acme/tool-a"]),
        ("@acme/tool", ["@acme/tool"]),
        ("@acme/tool-", ["@acme/tool-a"]),
        ("tool", ["tool"]),
        ("tool-", ["tool-a"]),
    ],
)
def test_an_entry_of_the_allow_list_ends_where_a_part_of_a_name_ends(allow, admitted):
    """`--allow @acme` must not admit `@acme-evil/tool`, which is a scope of another owner."""
    names = ["@acme/tool", "@acme/tool-a", "@acme-evil/tool", "@acmes/tool", "tool", "tool-a", "toolbox", "acme"]

    assert [name for name in names if npm._admits(npm._allowed([allow]), name)] == admitted


@pytest.mark.finding("S9")
def test_the_allow_list_is_applied_to_whole_scopes(env, repo, runs):
    """The packages of a scope with a similar name are skipped, and npm does not look for them."""
    skipped, found = npm.Repo(None, repo).install(["@scope-evil/name@1.0.0", "@scope/name@1.2.3"], allow=["@scope"])

    assert (skipped.skipped, found.error) == ("not on the allow list", "")
    assert runs() == ["@scope/name_1.2.3@npm:@scope/name@1.2.3"]


@pytest.mark.parametrize("allow", ["", "@", "@/x", "a b", "../x", "a/b/c", 7])
def test_an_invalid_entry_of_the_allow_list_is_refused(env, repo, allow):
    """An empty entry would admit every package."""
    with pytest.raises(InvalidConfig, match="allow"):
        npm.Repo(None, repo).install(["alpha@1.0.0"], allow=[allow])

    assert list(repo.iterdir()) == []


@pytest.mark.finding("S9")
@pytest.mark.parametrize("options", [(), ("--run-scripts",)], ids=["default", "run scripts"])
def test_lifecycle_scripts_run_only_by_request_and_see_no_secrets(install, registry, repo, tmp_path, options):
    """A script is a program of the package's author."""
    registry.add("nosy", "1.0.0", scripts={"postinstall": f"env > {tmp_path}/seen"})
    (repo / ".npmrc").write_text("//nowhere.invalid/:_authToken=${OWN_TOKEN}\n")
    secrets = {
        "HOLDFAST_URL": "redis://:hunter2@localhost/9",
        "HOLDFAST_REPO_DIR": str(repo),
        "DATABASE_PASSWORD": "hunter3",
        "NPM_TOKEN": "hunter4",
    }
    job = install("nosy@1.0.0", options=options, extra={**secrets, "OWN_TOKEN": "given", "LC_ALL": "C"})

    assert one(job)["error"] == ""
    assert (tmp_path / "seen").exists() is bool(options)
    if options:
        seen = (tmp_path / "seen").read_text()
        assert "HOLDFAST" not in seen
        assert "hunter" not in seen
        assert {"OWN_TOKEN=given", "LC_ALL=C"} <= set(seen.splitlines())


@pytest.mark.finding("S9")
def test_npm_itself_gets_no_secret_of_the_program(env, repo, tmp_path, monkeypatch):
    """npm starts programs of its own, such as git, and writes variables into its debug log."""
    program = tmp_path / "noting-npm"
    program.write_text(f"#!/bin/sh\nenv >> {tmp_path}/seen\necho '\"1.0.0\"'\n")
    program.chmod(0o755)
    user = tmp_path / "user-npmrc"
    user.write_text("//nowhere.invalid/:_authToken=${USER_TOKEN}\n")
    for name in ("HOLDFAST_URL", "AWS_SECRET_ACCESS_KEY", "REDIS_URL"):
        monkeypatch.setenv(name, "hunter2")
    for name, value in {"USER_TOKEN": "given", "NPM_CONFIG_USERCONFIG": str(user), "https_proxy": "http://p"}.items():
        monkeypatch.setenv(name, value)

    npm.Repo(None, repo, npm=str(program), retries=0).install(["alpha@latest"])

    seen = (tmp_path / "seen").read_text()
    assert "hunter2" not in seen
    assert {"USER_TOKEN=given", f"NPM_CONFIG_USERCONFIG={user}", "https_proxy=http://p"} <= set(seen.splitlines())


@pytest.mark.acceptance("A2-19")
def test_a_package_removed_by_hand_is_installed_again(install, repo, imported):
    """The record of completion was removed with it."""
    one(install("alpha@1.0.0"))
    shutil.rmtree(repo / "node_modules" / "alpha_1.0.0")

    assert one(install("alpha@1.0.0"))["fresh"]
    assert imported("alpha_1.0.0") == ["alpha@1.0.0"]


@pytest.mark.acceptance("A2-13")
@pytest.mark.parametrize(
    "spec", ["../x@1.0.0", "a/../../b@1", "/etc/x@1", "--global", "x@../y", "@/x@1", "", "a b@1", 3]
)
def test_an_invalid_specifier_is_refused(spec):
    """The refusal comes before npm starts."""
    with pytest.raises(InvalidName):
        npm.parsed(spec)


@pytest.mark.parametrize(
    ("text", "alias"),
    [
        ("foo..bar@1.0.0", "foo..bar_1.0.0"),
        ("@scope/name@1.0.0", "@scope/name_1.0.0"),
        ("@a/b@1.0.0-rc.1", "@a/b_1.0.0-rc.1"),
    ],
)
def test_a_specifier_is_split_at_its_last_at_sign(text, alias):
    """A scope contains an `@` too."""
    assert npm.parsed(text).alias == alias


def test_a_hanging_npm_is_ended_and_reported(env, repo, registry):
    """The error contains the seconds and the path."""
    registry.slow_s = 5.0
    with pytest.raises(BuildFailed) as failure:
        npm.Repo(None, repo)._fill(repo, npm.Spec("alpha", "1.0.0"), npm.NpmRuns("npm", 1.0, os.environ), pass_fds=())

    assert "longer than 1 s" in str(failure.value)
    assert str(repo) in str(failure.value)


def test_a_hanging_install_script_is_ended_with_its_npm(install, registry, repo, tmp_path):
    """A script is a child of npm, and must not outlive a failed package."""
    noted = tmp_path / "script-pid"
    registry.add("stuck", "1.0.0", scripts={"postinstall": f"echo $$ > {noted}; sleep 300"})
    result = one(install("stuck@1.0.0", options=("--run-scripts", "--npm-timeout", "8", "--retries", "0")))
    script = int(noted.read_text())

    assert "longer than 8 s" in result["error"]
    eventually(lambda: not os.path.exists(f"/proc/{script}/fd/0"), timeout=5)
    assert list((repo / "node_modules" / ".holdfast-staging").iterdir()) == []


@pytest.mark.parametrize("options", [(), ("--no-repo-lock",)], ids=["lock", "no lock"])
def test_a_missing_directory_is_refused_and_not_created(install, tmp_path, runs, options):
    """With a mistyped path every worker would be alone and succeed."""
    missing = tmp_path / "slip" / "repo"
    job = install("alpha@1.0.0", directory=missing, options=options)
    job.result()

    assert job.code == 64
    assert "slip" in job.errors
    assert "create it where" in job.errors
    assert not missing.parent.exists()
    assert runs() == []
    with pytest.raises(InvalidConfig):
        npm.Repo(None, missing).install(["alpha@1.0.0"])


def test_a_directory_name_may_have_special_characters(install, tmp_path):
    """The leases are in the directory, and its path may contain characters that are special in a URL."""
    odd = tmp_path / "re#po?50%41"
    odd.mkdir()
    result = one(install("solo@1.0.0", directory=odd))

    assert (result["fresh"], result["error"]) == (True, "")
    assert sorted(path.name for path in odd.iterdir()) == [".holdfast", "node_modules", "package.json"]


def test_a_single_text_is_no_list_of_packages(env, repo):
    """Otherwise each character would count as a package name."""
    with pytest.raises(InvalidConfig, match="it must be a list of packages, not one"):
        npm.Repo(None, repo).install("solo@1.0.0")


def test_the_error_comes_before_the_warnings_of_npm():
    """The line has limited room, so npm's warnings come last."""
    warned = "npm warn Unknown user config\n"
    failed = subprocess.CompletedProcess("npm", 1, "", f"{warned}npm error code E404\nnpm error 404 Not Found\n")

    assert npm_error(failed) == "code E404; 404 Not Found"
    assert npm_error(subprocess.CompletedProcess("npm", 1, "", warned)) == warned.strip()
