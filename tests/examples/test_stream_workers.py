"""The example of killed workers works as documented: the queue loses nothing, on every engine."""

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
    """The program compares published and finished messages, and its exit code reports the result."""
    done = play("memory://", "--messages", "300")

    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"sent 300, lost 0, done twice 0, killed 0, consistent True", done.stdout)


def test_without_a_url_it_kills_processes_too():
    """A first-time user has no server, and should still see a worker die."""
    done = play("--messages", "1500", "--kills", "1")

    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"sent 1500, lost 0, done twice \d+, killed 1, consistent True", done.stdout)


def test_the_workers_of_the_example_are_killed_and_lose_nothing():
    """Two of the processes on a real server are killed."""
    if "valkey" not in available():
        pytest.skip(missing("valkey"))
    with Server("valkey") as server:
        done = play(server.url, "--messages", "1500", "--kills", "2")  # with fewer there is no time to kill

    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"sent 1500, lost 0, done twice \d+, killed 2, consistent True", done.stdout)
