"""The hosts of the NFS lab find the clone, wherever it is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMESPACES = ("unshare", "--mount", "--net", "--pid", "--fork", "--propagation", "private")


@pytest.mark.finding("L18")
@pytest.mark.parametrize("place", ["/tmp", "/run", "/var/lib"])
def test_a_host_finds_a_clone_below_a_directory_that_it_mounts_over(place):
    """A host has its own /tmp; a clone in the /tmp of the machine must stay visible, and the new one writable."""
    if os.getuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("only root can make the namespaces of a host: run it as root")
    with tempfile.TemporaryDirectory(dir=place) as clone:
        nfs = Path(shutil.copytree(ROOT / "tools" / "nfs", Path(clone) / "tools" / "nfs"))
        (nfs / "stub.py").write_text("open('/tmp/own', 'x').close(); print('the agent runs')")
        report = "import sys; sys.path.insert(0, sys.argv[1]); import lab; print(lab.kept(lab.HERE))"
        kept = subprocess.run((sys.executable, "-c", report, str(nfs)), capture_output=True, text=True, check=True)
        env = {"PATH": os.environ["PATH"], "PARTS": "/nowhere", "ADDRESS": "10.78.0.2", "KEEP": kept.stdout.strip()}
        env |= {"PYTHON": sys.executable, "AGENT": str(nfs / "stub.py")}
        host = subprocess.run(
            (*NAMESPACES, "sh", str(nfs / "init.sh")),
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

        assert clone in kept.stdout
        assert host.stdout == "the agent runs\n", host.stderr
        assert not os.path.exists("/tmp/own")
