"""Runs of npm: bounded in time, and ended together with all that they started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from pathlib import Path

from holdfast.errors import BuildFailed

_TOLD = 600


class Runs:
    """The runs of npm of one call: each bounded in time, and all of them ended where nobody waits for them any more."""

    def __init__(self, npm: str, most_s: float) -> None:
        self._npm = npm
        self._most_s = most_s
        self._guard = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._over = threading.Event()

    def run(
        self, words: tuple[str, ...], what: str, cwd: Path, pass_fds: tuple[int, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        """What npm said, and how it ended. What it makes is for whoever may read the place it works in."""
        with self._started(words, what, cwd, pass_fds) as npm:
            try:
                out, told = npm.communicate(timeout=self._most_s)
            except BaseException as error:
                _end(npm.pid)
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                late = f"it took longer than {self._most_s:.0f} s in {cwd}"
                raise BuildFailed(what, f"npm {words[0]}", late) from None
            finally:
                self._running.discard(npm)
        return subprocess.CompletedProcess(npm.args, npm.returncode, out, told)

    def _started(
        self, words: tuple[str, ...], what: str, cwd: Path, pass_fds: tuple[int, ...]
    ) -> subprocess.Popen[str]:
        with self._guard:
            if self._over.is_set():
                raise BuildFailed(what, f"npm {words[0]}", "it was interrupted")
            try:
                npm = subprocess.Popen(  # noqa: S603 - the words are checked
                    (self._npm, *words),
                    cwd=cwd,
                    encoding="utf-8",
                    errors="replace",
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    pass_fds=pass_fds,
                    umask=~cwd.stat().st_mode & 0o077,
                )
            except OSError as error:
                raise BuildFailed(what, f"npm {words[0]}", f"{self._npm} cannot be run: {error.strerror}") from error
            self._running.add(npm)
        return npm

    def rest(self, seconds: float) -> bool:
        """A pause before the next of them; false if there is to be none."""
        return not self._over.wait(seconds)

    def end(self) -> None:
        """None of them goes on, and no other begins."""
        with self._guard:
            self._over.set()
            for npm in self._running.copy():
                if npm.poll() is None:
                    _end(npm.pid)


def said(done: subprocess.CompletedProcess[str]) -> str:
    """What npm said was wrong, in a line."""
    lines = [line.removeprefix("npm error").removeprefix("npm ERR!").strip() for line in done.stderr.splitlines()]
    lines = [line for line in lines if line and not line.startswith("A complete log")]
    # A warning comes first, and is seldom what was wrong.
    text = "; ".join([line for line in lines if not line.lower().startswith("npm warn")] or lines)
    return text[:_TOLD] or f"npm ended with {done.returncode}"


def _end(pid: int) -> None:
    """End a program with all that it started: an install script that hangs would outlive npm. Children last."""
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGSTOP)  # it starts no other one meanwhile
        children = [
            int(child)
            for listing in Path(f"/proc/{pid}/task").glob("*/children")
            for child in listing.read_text(encoding="ascii").split()
        ]
        os.kill(pid, signal.SIGKILL)
        for child in children:
            _end(child)
