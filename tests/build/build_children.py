"""Child processes that build and are killed, frozen or orphaned."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import holdfast
import holdfast.blocking  # so that a forked child need not import it
from holdfast import host as machine
from holdfast.core.build import build_dir, domain
from holdfast.core.build import build_once as building
from holdfast.engines.files import engine as files_engine
from holdfast.errors import HoldfastError
from holdfast.testing import ready, send_line
from tests.support.kill_points import in_child, killed_at_every_line


def build(url, store, key="k", seconds=0.0, ttl=30, bad=False, relocatable=True, program_seconds=0):
    """Build and report the result."""
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
        built = client.build_once(store, key, work, ttl=ttl, relocatable=relocatable, check=check)
        send_line(json.dumps({"fresh": built.fresh, "fence": built.fence, "path": str(built.path)}))
    except HoldfastError as error:
        send_line(json.dumps({"error": type(error).__name__, "reason": getattr(error, "reason", "")}))
    client.close()


def build_as(url, store, uid, gid, umask):
    """Build two keys as another user; one of them may exist already."""
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
            send_line(json.dumps({"fresh": built.fresh}))


def build_beside(url, store, key, tried, uid, gid):
    """Build as another user, in a directory that a third user is just creating."""
    with tempfile.TemporaryDirectory() as folder, holdfast.connect(f"file://{folder}") as client:
        client.build_once(folder, "k", lambda staging: (staging / "x").write_text("x"))  # import everything first
    machine._TRIES = 500  # the test may be slower than a real user
    Path(tried).touch()
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
    with holdfast.connect(url) as client:
        try:
            built = client.build_once(store, key, lambda staging: (staging / "x").write_text("x"))
            send_line(json.dumps({"fresh": built.fresh}))
        except HoldfastError as error:
            send_line(json.dumps({"error": str(error)}))


def build_killed_at_every_line(url, relocatable, bad, step):
    """Report, for each line at which a builder can die, the visible files and the result of the next builder."""
    place = "/dev/shm" if os.path.isdir("/dev/shm") else None  # a disk in memory, because each build syncs
    with tempfile.TemporaryDirectory(dir=place) as folder:
        store = Path(folder)
        if bad:
            in_child(lambda: _built(url, store, relocatable, half))
        work = partial(_built, url, store, relocatable, whole)
        for line in killed_at_every_line(work, building, domain, build_dir, files_engine, step=step):
            in_child(lambda line=line: send_line(json.dumps({"line": line, **_left(url, store, relocatable)})))
            for each in store.glob("k*"):
                shutil.rmtree(each)
            if bad:
                in_child(lambda: _built(url, store, relocatable, half))
    send_line(json.dumps({"done": True}))


def half(staging):
    (staging / "first").write_text("first")


def whole(staging):
    half(staging)
    (staging / "second").write_text("second")


def is_whole(path):
    return (path / "second").exists()


def _built(url, store, relocatable, work):
    with holdfast.connect(url) as client:
        check = is_whole if work is whole else None
        return client.build_once(store, "k", work, timeout=20, relocatable=relocatable, check=check)


def _left(url, store, relocatable):
    """Return the files after the death of a builder, and after the next builder."""
    found = build_dir.BuildDir(store, "k", relocatable=relocatable).find()
    seen = None if found is None else sorted(path.name for path in found.path.iterdir() if path.name[0] != ".")
    built = _built(url, store, relocatable, whole)
    trees = [path for path in store.glob("k/[0-9]*") if path.is_dir()]
    return {
        "seen": seen,
        "fresh": built.fresh,
        "whole": is_whole(built.path),
        "private": [path.name for path in (store / ".holdfast-staging").iterdir()],
        "trees": len(trees),
        "drafts": [path.name for path in store.glob(".holdfast-domain.*")],
    }
