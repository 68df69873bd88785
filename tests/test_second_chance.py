"""What failed beside all others is asked once more; what was seen broken is not."""

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
    """A project of its own: one file of tests, run once."""

    def run(text, file="tests/test_it.py"):
        place = tmp_path / file
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        options = ["-q", f"--rootdir={tmp_path}"]
        first = tried("-m", "pytest", *options, file)
        assert first.returncode == 1
        return tried(TOOL, *options)

    def tried(*words):
        environ = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # they would take most of the time
        return subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
        )

    return run


def test_what_passes_alone_passes_and_is_named(suite):
    """A late machine must not refuse a good change, and nobody should have to guess what was late."""
    second = suite(FLAKY)

    assert second.returncode == 0
    assert "FAILED FIRST, PASSED ALONE" in second.stdout
    assert "tests/test_it.py::test_of_time" in second.stdout


@pytest.mark.parametrize("failing", [8, 9])
def test_what_is_broken_stays_broken(suite, failing):
    """And a whole crowd of failures is no accident: it is not even asked."""
    second = suite("\n".join(f"def test_{number}(): assert False" for number in range(failing)))

    assert second.returncode == 1
    assert ("no second chance: 9 failed" in second.stdout) == (failing == 9)


def test_a_promise_that_was_seen_broken_has_no_second_chance(suite):
    """A history in which two held at once does not get better by another history in which they did not."""
    second = suite(FLAKY, "tests/campaign/test_it.py")

    assert second.returncode == 1
    assert "no second chance" in second.stdout
