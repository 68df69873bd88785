"""The example of workers that are killed runs as it says: nothing is lost, wherever it runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.testing.servers import Server, available, missing

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "stream_workers.py"


def play(*options):
    command = [sys.executable, str(EXAMPLE), *options, "--workers", "2"]
    kept = {name: value for name, value in os.environ.items() if name != "HOLDFAST_URL"}
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env=kept)


def test_the_workers_of_the_example_lose_nothing():
    """The program compares what was sent with what was done, and its exit code says what it found."""
    told = play("memory://", "--messages", "300")

    assert told.returncode == 0, told.stdout + told.stderr
    assert re.search(r"sent 300, lost 0, done twice 0, killed 0, sound True", told.stdout)


def test_without_a_url_it_kills_as_well():
    """Whoever tries it first has no server: that is when it should show what it is about."""
    told = play("--messages", "1500", "--kills", "1")

    assert told.returncode == 0, told.stdout + told.stderr
    assert re.search(r"sent 1500, lost 0, done twice \d+, killed 1, sound True", told.stdout)


def test_the_workers_of_the_example_are_killed_and_lose_nothing():
    """Processes on a real server, two of which are killed."""
    if "valkey" not in available():
        pytest.skip(missing("valkey"))
    with Server("valkey") as server:
        told = play(server.url, "--messages", "1500", "--kills", "2")  # fewer are done before there is time to kill

    assert told.returncode == 0, told.stdout + told.stderr
    assert re.search(r"sent 1500, lost 0, done twice \d+, killed 2, sound True", told.stdout)
