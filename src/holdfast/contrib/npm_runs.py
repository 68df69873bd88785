"""Runs of npm: each has a time limit, and an end of a run also ends its child processes."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path

from holdfast.errors import BuildFailed
from holdfast.host import ProcessStart

_ERROR_MAX = 600
_SETTINGS_MAX = 1 << 20
_REFERENCE = re.compile(r"\$\{(\w+)")
# npm and the programs that it starts get these variables and no others: the rest may be secrets of this program.
_PASSED = re.compile(
    "PATH|HOME|USER|LOGNAME|SHELL|TERM|TZ|TMPDIR|TMP|TEMP|CI|LANG|LANGUAGE|LC_.*|XDG_.*"
    "|(HTTP_|HTTPS_|ALL_|NO_)?PROXY|SSL_CERT_(FILE|DIR)|CC|CXX|CFLAGS|CXXFLAGS|LDFLAGS|MAKEFLAGS|PYTHON"
    "|NODE_(ENV|PATH|OPTIONS|EXTRA_CA_CERTS|TLS_REJECT_UNAUTHORIZED|USE_ENV_PROXY)|NPM_CONFIG_.*",
    re.IGNORECASE,
)


def npm_environment(settings: Path, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment for npm: variables that it needs, `npm_config_*`, and those that an `.npmrc` names.

    `settings`: the `.npmrc` of the repository.
    """
    config = {name.lower(): value for name, value in environ.items()}
    node = shutil.which("node", path=environ.get("PATH"))
    files = [
        settings,
        Path(config.get("npm_config_userconfig") or Path(environ.get("HOME") or Path.home()) / ".npmrc"),
        Path(config.get("npm_config_globalconfig") or Path(node or "/usr/bin/node").parent.parent / "etc" / "npmrc"),
    ]
    named: set[str] = set()
    for file in files:
        with contextlib.suppress(OSError), file.open(encoding="utf-8", errors="replace") as lines:
            named.update(_REFERENCE.findall(lines.read(_SETTINGS_MAX)))
    return {name: value for name, value in environ.items() if _PASSED.fullmatch(name) or name in named}


class NpmRuns:
    """The runs of npm of one `install`: each has a time limit, and an interrupt ends all of them."""

    def __init__(self, npm: str, most_s: float, environment: Mapping[str, str]) -> None:
        self._npm = npm
        self._most_s = most_s
        self._environment = environment
        self._guard = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._over = threading.Event()

    def run(
        self, arguments: tuple[str, ...], package: str, cwd: Path, pass_fds: tuple[int, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Run npm and return its output and exit code. Its files get the permissions of the directory `cwd`."""
        with self._started(arguments, package, cwd, pass_fds) as npm:
            try:
                out, err = npm.communicate(timeout=self._most_s)
            except BaseException as error:
                _end(npm.pid)
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                late = f"it took longer than {self._most_s:.0f} s in {cwd}"
                raise BuildFailed(package, f"npm {arguments[0]}", late) from None
            finally:
                self._running.discard(npm)
        return subprocess.CompletedProcess(npm.args, npm.returncode, out, err)

    def _started(
        self, arguments: tuple[str, ...], package: str, cwd: Path, pass_fds: tuple[int, ...]
    ) -> subprocess.Popen[str]:
        with self._guard:
            if self._over.is_set():
                raise BuildFailed(package, f"npm {arguments[0]}", "it was interrupted")
            try:
                with ProcessStart("npm"):
                    npm = subprocess.Popen(  # noqa: S603 - the arguments are checked
                        (self._npm, *arguments),
                        cwd=cwd,
                        env=self._environment,
                        encoding="utf-8",
                        errors="replace",
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                        pass_fds=pass_fds,
                        umask=~cwd.stat().st_mode & 0o077,
                    )
            except OSError as error:
                failure = f"{self._npm} cannot be run: {error.strerror}"
                raise BuildFailed(package, f"npm {arguments[0]}", failure) from error
            self._running.add(npm)
        return npm

    def pause(self, seconds: float) -> bool:
        """Wait before the next attempt; return false if `end` was called."""
        return not self._over.wait(seconds)

    def end(self) -> None:
        """End all runs, and refuse new ones."""
        with self._guard:
            self._over.set()
            for npm in self._running.copy():
                if npm.poll() is None:
                    _end(npm.pid)


def npm_error(done: subprocess.CompletedProcess[str]) -> str:
    """Return npm's error in one line."""
    lines = [line.removeprefix("npm error").removeprefix("npm ERR!").strip() for line in done.stderr.splitlines()]
    lines = [line for line in lines if line and not line.startswith("A complete log")]
    # npm prints warnings first; they are seldom the error.
    text = "; ".join([line for line in lines if not line.lower().startswith("npm warn")] or lines)
    return text[:_ERROR_MAX] or f"npm ended with {done.returncode}"


def _end(pid: int) -> None:
    """Kill a program and its descendants, children last: an install script that hangs would outlive npm."""
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGSTOP)  # a stopped program starts no other process meanwhile
        children = [
            int(child)
            for listing in Path(f"/proc/{pid}/task").glob("*/children")
            for child in listing.read_text(encoding="ascii").split()
        ]
        os.kill(pid, signal.SIGKILL)
        for child in children:
            _end(child)
