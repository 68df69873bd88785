"""Every mutation finds the part of the library that it changes. `test_kill_table.py` shows that each is caught."""

import subprocess
import sys

APPLY_ALL = """
import os, sys, traceback
from pathlib import Path
from chaos import mutants
from chaos.mutants import MUTATIONS
failed = []
for name in MUTATIONS:
    child = os.fork()
    if not child:
        try:
            mutants.apply(name, Path(sys.argv[1]))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        failed.append(name)
print(*failed)
"""


def test_every_mutation_finds_what_it_changes(tmp_path):
    """A function or a script that was renamed is noticed in a second, not after a campaign."""
    done = subprocess.run(
        [sys.executable, "-c", APPLY_ALL, tmp_path], capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stdout.split() == [], done.stderr
