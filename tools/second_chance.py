"""Run failed tests once more, alone, and print both outcomes.

A busy machine may be late, and a test about time that fails beside three thousand others may pass by itself.
But a broken promise stays broken: this tool never repeats a test that judges a history, and repeats nothing if
more than a few tests failed. `make test` calls it after a failure. Decision 0046 has the reasons.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MOST = 8  # about one in a thousand
FINAL = ("tests/campaign/", "tests/laws/test_exclusion_laws.py", "tests/test_tidy.py")
FAILED = Path(".pytest_cache/v/cache/lastfailed")


def main(options: list[str]) -> int:
    """Run the failed tests again and return the exit code of the whole run."""
    failed = sorted(json.loads(FAILED.read_text())) if FAILED.exists() else []
    final = [name for name in failed if name.startswith(FINAL)]
    if not failed or len(failed) > MOST or final:
        print(f"no second chance: {len(failed)} failed{', of which final: ' + ', '.join(final) if final else ''}")
        return 1

    print(f"\na second chance, alone, for: {', '.join(failed)}", flush=True)
    code = subprocess.run([sys.executable, "-m", "pytest", *options, *failed], check=False).returncode
    if code == 0:
        print("\nFAILED FIRST, PASSED ALONE (check them: they depend on the load of the machine):")
        print("\n".join(f"  {name}" for name in failed))
    return code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
