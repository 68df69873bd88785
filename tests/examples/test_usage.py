"""Whoever starts an example without knowing it is told how."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_that_is_asked_says_how_it_is_called(example):
    """Its own first lines, and no traceback."""
    told = subprocess.run([sys.executable, example, "--help"], capture_output=True, text=True, check=False, timeout=60)

    assert told.returncode in (0, 1)
    assert re.search(rf"^    python examples/{example.name} ", told.stdout + told.stderr, re.MULTILINE)
    assert "Traceback" not in told.stderr
