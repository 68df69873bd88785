"""Machine, interpreter, server and versions of a run: without them its figures mean little."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.environments import ROOT, names, pins

if TYPE_CHECKING:
    from bench.testbed import Testbed

# Runs in the candidates' interpreter. The loop compares builds of Python that do not say how they were made.
_INTERPRETER = """
import json, platform, sys, sysconfig, time
def loop():
    began, total = time.perf_counter(), 0
    for number in range(1_000_000):
        total += number & 7
    return time.perf_counter() - began
print(json.dumps({
    "version": platform.python_version(),
    "implementation": platform.python_implementation(),
    "compiler": platform.python_compiler(),
    "optimised": "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or ""),
    "loop_ms": min(loop() for _ in range(7)) * 1e3,
}))
"""


def facts(testbed: Testbed, python: str) -> dict[str, Any]:
    """Return the facts of a run."""
    server = dict(
        line.split(":", 1) for line in testbed.server.command("INFO", "server").decode().splitlines() if ":" in line
    )
    return {
        "day": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": _output("git", "rev-parse", "--short", "HEAD"),
        "changed": bool(_output("git", "status", "--porcelain", "--", "src")),
        "python": json.loads(_output(python, "-c", _INTERPRETER)),
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": len(testbed.cores) or os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
        "server": f"{testbed.server.kind} {server.get('valkey_version') or server['redis_version']}",
        "pins": {name: [pin for pin in pins(name) if "==" in pin] for name in names()},
    }


def _output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True).stdout.strip()


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
