"""How long the tool takes to be there: `holdfast --help` is promised under 200 ms.

The best of several runs counts, because a machine is never quiet; the median is told too. The exit code is 1 if even
the best is slower than promised.
"""

import statistics
import subprocess
import sys
import time

PROMISED_MS = 200
RUNS = 15
TIMED = {
    "python -c pass": ["-c", "pass"],
    "holdfast --help": ["-m", "holdfast.cli", "--help"],
    "holdfast run --help": ["-m", "holdfast.cli", "run", "--help"],
}


def timed(arguments):
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
    return (time.perf_counter() - began) * 1000


def main():
    best = {}
    print(f"{'':22} {'best ms':>8} {'median ms':>10}")
    for name, arguments in TIMED.items():
        took = [timed(arguments) for _ in range(RUNS)]
        best[name] = min(took)
        print(f"{name:22} {min(took):8.0f} {statistics.median(took):10.0f}")
    slow = best["holdfast --help"] > PROMISED_MS
    print(f"promised: under {PROMISED_MS} ms: {'broken' if slow else 'kept'}")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
