"""The example of a shared memory works as documented, with several agents at once."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "agent_memory.py"


@pytest.fixture
def memory(tmp_path):
    """Return a function that runs the example and returns its output."""

    def run(*words):
        command = [sys.executable, str(EXAMPLE), str(tmp_path / "memory"), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_agents_store_recall_and_forget_together(memory):
    """Every agent finds the stored memories, forgotten ones are gone, and concurrent agents lose none."""
    stored = memory("store", "she likes green tea")
    assert memory("fleet", "2", "5") == "11 memories by 2 agents, 0 failed\n"

    found = memory("recall", "does she drink tea?").splitlines()

    key = stored.split()[0]
    assert found[0] == f"{key} she likes green tea"
    assert memory("forget", key) == "1 forgotten\n"
    assert "tea" not in memory("recall", "does she drink tea?")
