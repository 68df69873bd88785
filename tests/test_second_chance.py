"""tools/second_chance.py runs failed tests once more, except those that show a broken promise."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[1] / "tools" / "second_chance.py"
FLAKY = """
from pathlib import Path
def test_of_time():
    been = Path("been-here")
    assert been.exists() or been.write_text("") is None and False
"""


@pytest.fixture
def suite(tmp_path):
    """Return a function that writes one test file into an empty project, runs it, and gives it a second chance."""

    def run(text, file="tests/test_it.py"):
        place = tmp_path / file
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        options = ["-q", f"--rootdir={tmp_path}"]
        first = run_python("-m", "pytest", *options, file)
        assert first.returncode == 1
        return run_python(TOOL, *options)

    def run_python(*words):
        environ = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # loading plugins would take most of the time
        return subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
        )

    return run


def test_a_test_that_passes_alone_passes_and_is_listed(suite):
    """A busy machine must not reject a good change, and the output lists the tests that were late."""
    second = suite(FLAKY)

    assert second.returncode == 0
    assert "FAILED FIRST, PASSED ALONE" in second.stdout
    assert "tests/test_it.py::test_of_time" in second.stdout


@pytest.mark.parametrize("failing", [8, 9])
def test_a_broken_test_stays_broken(suite, failing):
    """Many failures are no accident, so the tool does not repeat them."""
    second = suite("\n".join(f"def test_{number}(): assert False" for number in range(failing)))

    assert second.returncode == 1
    assert ("no second chance: 9 failed" in second.stdout) == (failing == 9)


def test_a_broken_promise_has_no_second_chance(suite):
    """A history with two holders at once does not improve because another history has none."""
    second = suite(FLAKY, "tests/campaign/test_it.py")

    assert second.returncode == 1
    assert "no second chance" in second.stdout
