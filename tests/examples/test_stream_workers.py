"""The example of workers that are killed runs as it says: nothing is lost, wherever it runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "stream_workers.py"


@pytest.mark.parametrize("engine", ["memory"])
def test_the_workers_of_the_example_lose_nothing(engine, tmp_path):
    """The program compares what was sent with what was done, and its exit code says what it found."""
    urls = {"memory": "memory://"}
    command = [sys.executable, str(EXAMPLE), urls[engine], "--messages", "300", "--workers", "2"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)

    assert told.returncode == 0, told.stdout + told.stderr
    assert re.search(r"sent 300, lost 0, done twice 0, killed 0, sound True", told.stdout)
