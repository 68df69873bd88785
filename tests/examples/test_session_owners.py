"""The example of pods that own sessions works as documented: one owner at a time, through all faults."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.testing.servers import Server, available, missing

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "session_owners.py"
SUMMARY = r"sessions 36, done 36, handed back \d+, killed 1, lost by a zombie (\d+), refused \1, faults 0"


def play(*arguments):
    command = [sys.executable, str(EXAMPLE), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.parametrize("place", ["sqlite", "valkey"])
def test_the_pods_of_the_example_own_sessions_one_at_a_time(place, tmp_path):
    """The program checks its journal, and its exit code reports the result."""
    if place == "sqlite":
        done = play(f"sqlite://{tmp_path}/sessions.db", "--sessions", "30")
    elif "valkey" not in available():
        pytest.skip(missing("valkey"))
    else:
        with Server("valkey") as server:
            done = play(server.url, "--sessions", "30")

    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.search(SUMMARY, done.stdout)[1]) > 0
    assert "Traceback" not in done.stderr


def test_pods_are_processes_and_cannot_share_memory():
    """The program refuses `memory://` before it starts anything."""
    done = play("memory://")

    assert done.returncode == 2
    assert "they need a server or a file" in done.stderr
