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

    result = pytester.runpytest_subprocess("-p", "no:randomly", "-p", "no:asyncio", "-W", "error")

    result.assert_outcomes(passed=1, xfailed=1)


@pytest.mark.skipif("valkey" not in servers.available(), reason=servers.missing("valkey"))
def test_a_test_with_an_engine_runs_on_each_or_on_those_it_names(pytester):
    """Every test has an empty engine; its server ends with it."""
    pytester.makepyfile(ENGINES)

    result = pytester.runpytest_subprocess("-p", "no:randomly", "-p", "no:asyncio", "-W", "error", "--strict-markers")

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


CLIENTS = """
import pytest
import holdfast

seen = {}

def test_a_client(holdfast_client):
    with holdfast_client.lock("x"):
        assert holdfast_client.lock("x").try_acquire() is None
    seen["blocking"] = holdfast_client
    seen["lease"] = holdfast_client.lock("left").acquire()

def test_another_client(holdfast_client):
    assert holdfast_client.url.startswith("memory://")
    with holdfast_client.lock("left", timeout=0):  # the engine is empty
        assert seen.pop("lease").lost

@pytest.mark.MARK
async def test_in_asyncio(holdfast_aio_client, holdfast_client):
    async with holdfast_aio_client.lock("x", timeout=5) as lease:
        assert holdfast_client.lock("x").try_acquire() is None, "the clients have different engines"
    seen["asyncio"] = holdfast_aio_client

def test_that_comes_after_them():
    for client in seen.values():
        with pytest.raises(holdfast.Closed):
            client._client.refuse_if_closed()
    assert set(seen) == {"blocking", "asyncio"}
"""
ANYIO = (
    CLIENTS.replace("MARK", "anyio")
    + """
@pytest.fixture
def anyio_backend():
    return "asyncio"
"""
)
OVERRIDDEN = """
import pytest

@pytest.fixture
def holdfast_url(tmp_path):
    return f"sqlite://{tmp_path}/leases.db"

def test_a_client(holdfast_client, tmp_path):
    with holdfast_client.lock("x"):
        assert (tmp_path / "leases.db").exists()
"""
NO_LOOP = """
def test_a_client(holdfast_aio_client):
    pass
"""


@pytest.mark.parametrize(
    ("code", "options"),
    [
        (ANYIO, ["-p", "no:asyncio"]),
        (ANYIO, []),
        (CLIENTS.replace("MARK", "asyncio"), []),
        (CLIENTS.replace("MARK", "asyncio"), ["-p", "no:anyio"]),
        (CLIENTS.replace("@pytest.mark.MARK", ""), ["--asyncio-mode=auto"]),
    ],
    ids=["anyio alone", "anyio beside", "pytest-asyncio beside", "pytest-asyncio alone", "pytest-asyncio auto"],
)
def test_a_client_is_empty_and_closed_after_its_test(pytester, code, options):
    """Both plugins for coroutines run the client in the loop of the test, also if both are installed."""
    pytester.makepyfile(code)
    if "no:asyncio" not in options:
        pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function")

    result = pytester.runpytest_subprocess("-p", "no:randomly", "-W", "error", "--strict-markers", *options)

    result.assert_outcomes(passed=4)


def test_a_project_chooses_the_engine_of_the_clients(pytester):
    """The fixture `holdfast_url` is made to be overridden."""
    pytester.makepyfile(OVERRIDDEN)

    result = pytester.runpytest_subprocess("-p", "no:randomly", "-p", "no:asyncio", "-W", "error")

    result.assert_outcomes(passed=1)


def test_trio_is_told_that_the_client_needs_asyncio(pytester):
    """anyio runs a test on every backend that is installed, and Holdfast knows one of them."""
    pytest.importorskip("trio")
    pytester.makepyfile(ANYIO.replace('"asyncio"\n', '"trio"\n'))

    result = pytester.runpytest_subprocess("-p", "no:randomly", "-p", "no:asyncio", "-k", "test_in_asyncio")

    result.assert_outcomes(errors=1, deselected=3)
    result.stdout.fnmatch_lines(["*anyio_backend must return 'asyncio'*"])


@pytest.mark.parametrize("options", [[], ["-p", "no:asyncio", "-p", "no:anyio"]])
def test_a_test_without_an_event_loop_is_told_what_to_install(pytester, options):
    """The asyncio client cannot exist without a loop."""
    pytester.makepyfile(NO_LOOP)

    result = pytester.runpytest_subprocess("-p", "no:randomly", *options)

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*pytest.mark.anyio*pytest-asyncio*"])
