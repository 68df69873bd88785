"""Each example prints its usage."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_prints_its_usage_on_help(example):
    """A reader sees the docstring of the example, and no traceback."""
    done = subprocess.run([sys.executable, example, "--help"], capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode in (0, 1)
    assert re.search(rf"^    python examples/{example.name} ", done.stdout + done.stderr, re.MULTILINE)
    assert "Traceback" not in done.stderr
