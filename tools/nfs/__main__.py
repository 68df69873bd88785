"""Shared directories on real NFS: three kernels, two versions of the protocol, one table.

    python tools/nfs [--folder build/nfs] [--versions 3 4.2] [--only STORY …]

It fetches what it needs from Debian's packages, unpacks it into the folder, and ends with 1 if a story broke, with 69
if the lab cannot be built on this machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from lab import ROOT, VERSIONS, Failed, Lab
from parts import Missing, fetched
from stories import STORIES, Broken

sys.path.append(str(ROOT))
from tests.support.networks import inside

_INSIDE = "HOLDFAST_NFS_INSIDE"
_MISSING = 69


def main() -> int:
    options = argparse.ArgumentParser(prog="python tools/nfs", description=__doc__)
    options.add_argument("--folder", type=Path, default=ROOT / "build" / "nfs")
    options.add_argument("--versions", nargs="+", choices=VERSIONS, default=VERSIONS)
    options.add_argument("--only", nargs="+", choices=[story.__name__ for story in STORIES])
    chosen = options.parse_args()
    folder = chosen.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        parts = fetched(folder)
    except Missing as why:
        print(f"there can be no lab here: {why}", file=sys.stderr)
        return _MISSING
    if _INSIDE not in os.environ:
        return subprocess.run(
            inside(sys.executable, str(Path(__file__).parent), *sys.argv[1:]),
            env={**os.environ, _INSIDE: "1"},
            check=False,
        ).returncode
    names = chosen.only or [story.__name__ for story in STORIES]
    with Lab(folder, parts) as lab:
        broken = sum(_tried(lab, version, names) for version in chosen.versions)
    print(f"{broken} broken" if broken else "all of it held")
    return 1 if broken else 0


def _tried(lab: Lab, version: str, names: list[str]) -> int:
    """Every story on one version; how many broke."""
    for host in lab.clients:
        host.mount(version, lab.files)
    broken = 0
    for story in STORIES:
        if story.__name__ not in names:
            continue
        began = time.monotonic()
        try:
            said = story(lab, version)
        except (Broken, Failed, OSError) as error:
            broken += 1
            said = f"BROKEN: {error!r}"
        what = story.__name__.replace("_", " ")
        print(f"NFS {version:4} {what:20} {said} ({time.monotonic() - began:.0f} s)", flush=True)
    for host in lab.clients:
        host.unmount()
    return broken


if __name__ == "__main__":
    raise SystemExit(main())
