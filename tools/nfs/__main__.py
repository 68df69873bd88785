"""Test shared directories on real NFS: three kernels, two versions of the protocol.

    python tools/nfs [--folder build/nfs] [--versions 3 4.2] [--only SCENARIO …]

The tool downloads Debian packages and unpacks them into the folder. The exit code is 1 if a scenario failed, and 69 if
the lab cannot be built on this machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from lab import ROOT, VERSIONS, Failed, Lab
from parts import Missing, fetch
from scenarios import SCENARIOS, Broken

sys.path.append(str(ROOT))
from tests.support.networks import inside

_INSIDE = "HOLDFAST_NFS_INSIDE"
_MISSING = 69


def main() -> int:
    """Run the chosen scenarios and return the exit code."""
    options = argparse.ArgumentParser(prog="python tools/nfs", description=__doc__)
    options.add_argument("--folder", type=Path, default=ROOT / "build" / "nfs")
    options.add_argument("--versions", nargs="+", choices=VERSIONS, default=VERSIONS)
    options.add_argument("--only", nargs="+", choices=[scenario.__name__ for scenario in SCENARIOS])
    chosen = options.parse_args()
    folder = chosen.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        parts = fetch(folder)
    except Missing as problem:
        print(f"the lab cannot be built here: {problem}", file=sys.stderr)
        return _MISSING
    if _INSIDE not in os.environ:
        return subprocess.run(
            inside(sys.executable, str(Path(__file__).parent), *sys.argv[1:]),
            env={**os.environ, _INSIDE: "1"},
            check=False,
        ).returncode
    names = chosen.only or [scenario.__name__ for scenario in SCENARIOS]
    with Lab(folder, parts) as lab:
        broken = sum(_run_all(lab, version, names) for version in chosen.versions)
    print(f"{broken} scenarios failed" if broken else "all scenarios passed")
    return 1 if broken else 0


def _run_all(lab: Lab, version: str, names: list[str]) -> int:
    """Run the scenarios on one version of NFS, and return how many failed."""
    for host in lab.clients:
        host.mount(version, lab.files)
    broken = 0
    for scenario in SCENARIOS:
        if scenario.__name__ not in names:
            continue
        began = time.monotonic()
        try:
            report = scenario(lab, version)
        except (Broken, Failed, OSError) as error:
            broken += 1
            report = f"FAILED: {error!r}"
        title = scenario.__name__.replace("_", " ")
        print(f"NFS {version:4} {title:20} {report} ({time.monotonic() - began:.0f} s)", flush=True)
    for host in lab.clients:
        host.unmount()
    return broken


if __name__ == "__main__":
    raise SystemExit(main())
