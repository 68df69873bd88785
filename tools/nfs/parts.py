"""The parts of the lab: Debian packages, downloaded by name and unpacked into a folder. The tool installs nothing.

It needs no privileges, only apt with its package lists, on an amd64 Debian.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

PACKAGES = (
    "kmod",
    "libdevmapper1.02.1",
    "libevent-core-2.1-7",
    "libkmod2",
    "libnfsidmap1",
    "libtirpc-common",
    "libtirpc3",
    "libwrap0",
    "nfs-common",
    "nfs-kernel-server",
    "rpcbind",
    "user-mode-linux",
)
PROGRAMS = ("apt-get", "dpkg", "ip", "mkfs.ext4", "unshare")


class Missing(Exception):
    """The lab cannot be built here; the text names the missing part."""


def fetch(folder: Path) -> Path:
    """Download and unpack the packages; return the folder, which is laid out like the root of a machine."""
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    if absent:
        raise Missing(f"these programs are not on the path: {', '.join(absent)}")
    root, ready = folder / "parts", folder / "parts.ready"
    wanted = " ".join(PACKAGES)
    if ready.exists() and ready.read_text(encoding="utf-8") == wanted:
        return root
    shutil.rmtree(root, ignore_errors=True)
    debs = folder / "debs"
    debs.mkdir(parents=True, exist_ok=True)
    _run("apt-get", "download", *PACKAGES, cwd=debs)
    for package in sorted(debs.glob("*.deb")):
        _run("dpkg", "-x", str(package), str(root), cwd=folder)
    ready.write_text(wanted, encoding="utf-8")
    return root


def _run(*command: str, cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise Missing(
            f"{' '.join(command[:2])} failed ({reason}). If the package lists are missing, run apt-get update."
        )
