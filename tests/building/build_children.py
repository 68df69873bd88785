"""Builders that are killed, frozen and left as orphans."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import holdfast
from holdfast.errors import HoldfastError
from holdfast.testing import ready, tell


def build(url, store, key="k", seconds=0.0, ttl=30, bad=False, movable=True, program_seconds=0):
    """Build, and tell what came of it."""
    client = holdfast.connect(url)

    def work(staging):
        (staging / "first").write_text("first")
        ready()
        if program_seconds:
            staging.run(sys.executable, "-c", f"import time; time.sleep({program_seconds})", start_new_session=True)
        time.sleep(seconds)
        (staging / "second").write_text("second")
        with Path(f"{store}.runs").open("a") as runs:
            runs.write("run\n")

    try:
        check = (lambda path: (path / "second").exists()) if bad else None
        built = client.build_once(store, key, work, ttl=ttl, movable=movable, check=check)
        tell(json.dumps({"fresh": built.fresh, "fence": built.fence, "path": str(built.path)}))
    except HoldfastError as error:
        tell(json.dumps({"error": type(error).__name__, "reason": getattr(error, "reason", "")}))
    client.close()


def build_as(url, store, uid, gid, umask):
    """The same as another user: two keys, one of which somebody else may have built before."""
    warm = Path(store) / "warm"
    with holdfast.connect("memory://warm") as client:
        client.build_once(warm, "k", lambda staging: (staging / "x").write_text("x"))
    holdfast.connect(url).close()
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
    os.umask(umask)
    with holdfast.connect(url) as client:
        for key in ("a/shared", f"a/own-{uid}"):
            built = client.build_once(store, key, lambda staging: (staging / "x").write_text("x"))
            tell(json.dumps({"fresh": built.fresh}))
