"""Run the command line tool as a program of its own."""

import os
import subprocess
import sys


def run_tool(*arguments):
    """Run `holdfast` with these arguments, and return the ended process with its output as text."""
    command = [sys.executable, "-m", "holdfast", *arguments]
    env = {**os.environ, "COLUMNS": "200"}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)
