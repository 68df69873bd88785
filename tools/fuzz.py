"""Run the fuzz tests again and again with new examples, until the time is over or a test fails.

`make fuzz MINUTES=10` calls it. Hypothesis keeps every counter-example in `.hypothesis`; after a failure, the printed
command tries it again.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time


def main() -> int:
    """Return the exit code of the last run: 0 if no test failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=3.0, help="how long to run")
    parser.add_argument("rest", nargs="*", help="arguments of pytest, after --")
    options = parser.parse_args()
    env = {**os.environ, "HOLDFAST_FUZZ_MINUTES": str(options.minutes)}
    until_s, rounds, code = time.monotonic() + options.minutes * 60, 0, 0
    while code == 0 and (rounds == 0 or time.monotonic() < until_s):
        rounds += 1
        seed = random.SystemRandom().randrange(2**32)
        command = [sys.executable, "-m", "pytest", "-q", "-x", "tests/fuzz", f"--hypothesis-seed={seed}", *options.rest]
        sys.stdout.write(f"round {rounds}, seed {seed}\n")
        sys.stdout.flush()
        code = subprocess.run(command, env=env, check=False).returncode
    if code:
        again = f"HOLDFAST_FUZZ_MINUTES=1 {' '.join(command)}"
        sys.stdout.write(f"a counter-example is in .hypothesis; to repeat it: {again}\n")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
