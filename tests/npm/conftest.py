"""Fixtures: a registry, a repository directory, and workers that install with the real npm and count its runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from registry import Registry

from holdfast.testing import PausePoints
from holdfast.testing.servers import Server, available, missing

NPM = shutil.which("npm")


@pytest.fixture
def registry():
    registry = Registry()
    yield registry
    registry.close()


@pytest.fixture(scope="session")
def server():
    if "valkey" not in available():
        pytest.skip(missing("valkey"))
    with Server("valkey") as server:
        yield server


@pytest.fixture
def repo(tmp_path):
    """Return a directory that all workers share."""
    path = tmp_path / "repo"
    path.mkdir()
    return path


@pytest.fixture
def env(tmp_path, registry, monkeypatch):
    """Put a small script before npm on the path, which records the run and starts npm."""
    if NPM is None:
        pytest.skip("there is no npm on the PATH: install Node.js")
    tools = tmp_path / "tools"
    tools.mkdir()
    shim = tools / "npm"
    runs = tmp_path / "npm-runs"
    noted = f'if [ "$1" = install ]; then\n  for last; do :; done\n  echo "$last" >> {runs}\nfi'
    shim.write_text(f'#!/bin/sh\n{noted}\nexec {NPM} "$@"\n')
    shim.chmod(0o755)
    settings = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "npm_config_registry": registry.url,
        "npm_config_cache": str(tmp_path / "npm-cache"),
        "npm_config_fetch_retries": "0",
        "npm_config_update_notifier": "false",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("HOLDFAST_NO_REPO_LOCK", raising=False)
    return settings


@pytest.fixture
def runs(tmp_path, env):
    """Return a function that lists the runs of npm so far."""
    path = tmp_path / "npm-runs"
    return lambda: path.read_text().split() if path.exists() else []


@pytest.fixture
def points(tmp_path):
    return PausePoints(tmp_path / "points")


class Job:
    """One `holdfast install` process."""

    def __init__(self, arguments, env):
        command = (sys.executable, "-m", "holdfast", "install", *arguments)
        self.process = subprocess.Popen(
            command,
            env={**os.environ, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.pid = self.process.pid

    def result(self, timeout=90):
        out, self.errors = self.process.communicate(timeout=timeout)
        self.code = self.process.returncode
        return json.loads(out)["installed"] if out.startswith("{") else out


@pytest.fixture
def install(env, repo):
    """Return a function that starts a worker; the fixture kills its processes at the end."""
    jobs = []

    def install(*specs, options=(), extra=None, directory=None):
        jobs.append(Job(["--repo-dir", str(directory or repo), "--json", *options, *specs], {**env, **(extra or {})}))
        return jobs[-1]

    yield install
    for job in jobs:
        if job.process.poll() is None:
            os.killpg(job.pid, 9)
        job.process.communicate()


@pytest.fixture(params=["file", "redis"])
def engine(request, tmp_path):
    """Return the options of an engine: files in the repository directory, or a server."""
    if request.param == "file":
        return ()
    return ("--url", f"{request.getfixturevalue('server').url}?namespace={tmp_path.name[-40:]}")


@pytest.fixture
def imported(repo):
    """Return a function that imports aliases with Node from the repository directory."""

    def imported(*aliases):
        script = "for (const alias of process.argv.slice(1)) console.log((await import(alias)).default)"
        command = ("node", "--input-type=module", "-e", script, "--", *aliases)
        done = subprocess.run(command, cwd=repo, capture_output=True, text=True, check=True)
        return done.stdout.split()

    return imported


@pytest.fixture
def manifest(repo):
    return lambda: json.loads((Path(repo) / "package.json").read_text())["dependencies"]
