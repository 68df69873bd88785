"""The example of pods that own sessions runs as it says: killed, frozen, started and stopped, one owner at a time."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.testing.servers import Server, available, missing

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "session_owners.py"
SOUND = r"sessions 36, done 36, handed back \d+, killed 1, lost by a zombie (\d+), refused \1, faults 0"


def play(*arguments):
    command = [sys.executable, str(EXAMPLE), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.parametrize("place", ["sqlite", "valkey"])
def test_the_pods_of_the_example_own_sessions_one_at_a_time(place, tmp_path):
    """The program compares everything that happened, and its exit code says what it found."""
    if place == "sqlite":
        told = play(f"sqlite://{tmp_path}/sessions.db", "--sessions", "30")
    elif "valkey" not in available():
        pytest.skip(missing("valkey"))
    else:
        with Server("valkey") as server:
            told = play(server.url, "--sessions", "30")

    assert told.returncode == 0, told.stdout + told.stderr
    assert int(re.search(SOUND, told.stdout)[1]) > 0
    assert "Traceback" not in told.stderr


def test_pods_are_processes_and_cannot_share_memory():
    """Whoever tries is told before anything is started."""
    told = play("memory://")

    assert told.returncode == 2
    assert "they need a server or a file" in told.stderr
