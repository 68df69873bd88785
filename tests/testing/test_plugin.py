"""The fixtures clean up, however a test ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import failpoints
from holdfast.testing import servers

pytest_plugins = ["pytester"]

TESTS = """
import os
from pathlib import Path
import pytest
from holdfast import failpoints

seen = {}

@pytest.mark.xfail(strict=True)
def test_that_leaves_everything_behind_and_fails(holdfast_workers, holdfast_history, holdfast_pauses):
    worker = holdfast_workers.start("holdfast.testing.child_process:read_line")
    worker.freeze()
    seen["pid"] = worker.pid
    seen["descriptor"] = holdfast_history.recorder("a")._descriptor
    failpoints.arm("here", lambda: None)
    assert os.environ[failpoints.VARIABLE] == str(holdfast_pauses.directory)
    raise ValueError

def test_that_comes_after_it():
    assert not Path(f"/proc/{seen['pid']}").exists()
    assert failpoints.VARIABLE not in os.environ
    assert not failpoints._on
    with pytest.raises(OSError):
        os.fstat(seen["descriptor"])
"""


ENGINES = """
import pytest
import holdfast

seen = {}

def test_on_every_engine(holdfast_engine):
    with holdfast.connect(holdfast_engine.url) as hf, hf.lock("x", timeout=5):
        seen[holdfast_engine.engine] = holdfast_engine

@pytest.mark.holdfast_engines("sqlite")
def test_on_one_engine(holdfast_engine):
    assert holdfast_engine.engine == "sqlite"
    assert holdfast_engine.server is None

def test_that_comes_after_them():
    assert set(seen) == {"memory", "sqlite", "file", "redis"}
    assert not seen["redis"].server.alive
"""

LOADED = "import sys, holdfast.testing.plugin; print(*(name for name in sys.modules if name.startswith('holdfast')))"
PARENTS = {"holdfast", "holdfast._lazy", "holdfast.testing", "holdfast.testing.plugin"}


@pytest.fixture(autouse=True)
def _the_same_package_everywhere(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(failpoints.__file__).parents[1]))


def test_what_a_failed_test_left_behind_is_gone_before_the_next(pytester):
    """A failing test must not make others fail."""
    pytester.makepyfile(TESTS)

    result = pytester.runpytest_subprocess("-p", "no:randomly", "-W", "error")

    result.assert_outcomes(passed=1, xfailed=1)


@pytest.mark.skipif("valkey" not in servers.available(), reason=servers.missing("valkey"))
def test_a_test_with_an_engine_runs_on_each_or_on_those_it_names(pytester):
    """Every test has an empty engine; its server ends with it."""
    pytester.makepyfile(ENGINES)

    result = pytester.runpytest_subprocess("-p", "no:randomly", "-W", "error", "--strict-markers")

    result.assert_outcomes(passed=6)


def test_the_plugin_loads_no_other_module_of_holdfast():
    """pytest loads it in every test run of an environment, also where no test uses it: that must cost nothing."""
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)

    assert set(done.stdout.split()) == PARENTS


def test_the_tools_do_without_pytest():
    """A demonstration, or another test runner, needs the standard library only."""
    code = "import sys; sys.modules['pytest'] = None; from holdfast.testing import *"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
