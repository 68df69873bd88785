"""The npm example works as documented."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "shared_adaptors.py"


def test_the_example_installs_once_and_finds_it_the_second_time(env, repo, runs):
    """The test runs the example as a user would."""
    command = (sys.executable, str(EXAMPLE), str(repo), "solo@1.0.0")
    first, second = (subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2))

    assert first == f"solo_1.0.0 is in {repo}/node_modules/solo_1.0.0 (just installed)\n"
    assert second == f"solo_1.0.0 is in {repo}/node_modules/solo_1.0.0\n"
    assert len(runs()) == 1
