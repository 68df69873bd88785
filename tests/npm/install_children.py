"""Child processes that install as another user."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile

import holdfast
from holdfast.contrib import npm
from holdfast.errors import HoldfastError
from holdfast.testing import send_line


def install_as(directory, specs, uid, gid, umask, script):
    """Become a user with its own group and the common group; install, import, and report both."""
    with tempfile.TemporaryDirectory() as folder, holdfast.connect(f"file://{folder}") as client:
        # Modules may be unreadable afterwards, so import them first.
        client.build_once(folder, "k", lambda staging: (staging / "x").write_text("x"))
        with client.lock("x"):
            client.lock("x").try_acquire()
    os.setgroups([gid])
    os.setgid(uid)
    os.setuid(uid)
    os.umask(umask)
    try:
        with holdfast.connect(f"file://{directory}") as client:
            done = npm.Repo(client, directory, retries=0).install(specs)
        results = [[each.fresh, each.error] for each in done]
    except HoldfastError as error:
        results = str(error)
    command = ("node", "--input-type=module", "-e", script)
    imported = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    send_line(json.dumps({"results": results, "imported": imported.stdout or imported.stderr}))
