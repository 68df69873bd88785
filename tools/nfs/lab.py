"""A file server and two clients on one machine, each with its own kernel, joined by their own network.

The kernels are user-mode-linux, which are ordinary programs. So caching, lost names and dead hosts behave as on real
NFS, but the timing does not. Each host has its own clock, boot id and memory. The lab must run in its own namespaces
(`networks.inside`), so that everything ends with the process that started it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from agent import PORT

if TYPE_CHECKING:
    from collections.abc import Mapping

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SHARED = "/run/shared"
HUB = "10.78.0.1"
VERSIONS = ("3", "4.2")
_MEMORY = "1024M"
_DISK_BYTES = 2 * 2**30
_BOOT_S = 120.0


class Failed(Exception):
    """A program on a host failed; the text is its output."""


class Job:
    """A program on a host, connected to this process."""

    def __init__(self, address: str, command: tuple[str, ...], env: Mapping[str, str], cwd: str) -> None:
        self.command = command
        self._socket = socket.create_connection((address, PORT), 10)
        self._rest = b""
        order = {"command": command, "env": dict(env), "cwd": cwd}
        self._socket.sendall(json.dumps(order).encode() + b"\n")

    def send(self, line: str) -> None:
        self._socket.sendall(line.encode() + b"\n")

    def line(self, timeout: float = 60.0) -> str:
        """Return the next line of its output; raise `Failed` if the program has ended."""
        self._read_until(b"\n", timeout)
        line, _, self._rest = self._rest.partition(b"\n")
        if b"\0" in line:
            raise Failed(f"{' '.join(self.command)} ended")
        return line.decode(errors="replace")

    def finish(self, timeout: float = 60.0) -> tuple[int, str]:
        """Return its exit code and its unread output."""
        self._read_until(b"\0", timeout)
        output, _, self._rest = self._rest.partition(b"\0")
        self._read_until(b"\n", timeout)
        self._socket.close()
        return int(self._rest), output.decode(errors="replace")

    def _read_until(self, mark: bytes, timeout: float) -> None:
        end = time.monotonic() + timeout
        while mark not in self._rest:
            self._socket.settimeout(max(0.01, end - time.monotonic()))
            piece = self._socket.recv(65536)
            if not piece:
                raise Failed(
                    f"{' '.join(self.command)}: its host is gone: {self._rest.decode(errors='replace')[-400:]}"
                )
            self._rest += piece


class Host:
    """One host of the lab: a user-mode kernel."""

    def __init__(self, lab: Lab, name: str, number: int) -> None:
        self.name = name
        self.address = f"10.78.0.{number}"
        self._lab = lab
        self._tap = f"tap{number}"
        self._process: subprocess.Popen[bytes] | None = None
        _run("ip", "tuntap", "add", "dev", self._tap, "mode", "tap")
        _run("ip", "link", "set", self._tap, "master", "hub", "up")

    def boot(self, *more: str) -> Self:
        lab = self._lab
        log = (lab.folder / f"{self.name}.log").open("ab")
        with log:
            self._process = subprocess.Popen(
                (
                    *(str(lab.parts / "usr/bin/linux.uml"), f"mem={_MEMORY}", f"umid={self.name}"),
                    *(f"uml_dir={lab.folder}", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", "panic=1"),
                    *("con=null", "con0=null,fd:1", "ssl=null", f"vec0:transport=tap,ifname={self._tap},depth=128"),
                    *more,
                    f"init={HERE / 'init.sh'}",
                    *(f"PARTS={lab.parts}", f"ADDRESS={self.address}", f"PYTHON={sys.executable}"),
                    *(f"AGENT={HERE / 'agent.py'}", f"KEEP={kept(lab.parts)}"),
                ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        end = time.monotonic() + _BOOT_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection((self.address, PORT), 1):
                return self
            if self._process.poll() is not None or time.monotonic() > end:
                raise Failed(f"{self.name} did not start; its log is {log.name}")
            time.sleep(0.2)

    def start(self, *command: str, env: Mapping[str, str] | None = None, cwd: str = "/") -> Job:
        return Job(self.address, command, {"PARTS": str(self._lab.parts), **(env or {})}, cwd)

    def run(self, *command: str, env: Mapping[str, str] | None = None, cwd: str = "/", timeout: float = 120.0) -> str:
        """Run a program and return its output; raise `Failed` if its exit code is not 0."""
        code, output = self.start(*command, env=env, cwd=cwd).finish(timeout)
        if code != 0:
            raise Failed(f"{self.name}: {' '.join(command)} ended with {code}: {output[-2000:]}")
        return output

    def mount(self, version: str, server: Host) -> None:
        """Mount the server's disk at `SHARED`, with the default caching. Holdfast uses no NFS locks, so v3 has none."""
        source, options = ("/run/export", "nfsvers=3,nolock") if version == "3" else ("/", f"nfsvers={version}")
        parts, libraries = self._lab.parts, "lib/x86_64-linux-gnu"
        env = {"LD_LIBRARY_PATH": f"{parts}/{libraries}:{parts}/usr/{libraries}"}
        self.run("/run/modprobe", "-d", "/run", "nfsv3" if version == "3" else "nfsv4", env=env)
        self.run(f"{parts}/sbin/mount.nfs", f"{server.address}:{source}", SHARED, "-o", options, env=env)

    def unmount(self) -> None:
        """Unmount the disk, even if a failed scenario has left a process on it."""
        self.run("umount", "--lazy", SHARED)

    def kill(self) -> None:
        """Kill the whole host at once, like a power cut."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def cut(self) -> None:
        """Cut the host off: its packets are lost silently."""
        _run("ip", "link", "set", self._tap, "nomaster")

    def join(self) -> None:
        """Connect the host again."""
        _run("ip", "link", "set", self._tap, "master", "hub")


class Lab:
    """The hub, the server `files`, and the clients `ann` and `bob`."""

    def __init__(self, folder: Path, parts: Path) -> None:
        self.folder = folder
        self.parts = parts

    def __enter__(self) -> Self:
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "add", "hub", "type", "bridge")
        _run("ip", "address", "add", f"{HUB}/24", "dev", "hub")
        _run("ip", "link", "set", "hub", "up")
        self.files, self.ann, self.bob = (Host(self, name, at) for at, name in enumerate(("files", "ann", "bob"), 2))
        self.clients = (self.ann, self.bob)
        disk = self.folder / "disk"
        with disk.open("wb") as file:
            file.truncate(_DISK_BYTES)
        _run("mkfs.ext4", "-q", "-F", str(disk))
        try:
            self.files.boot(f"ubd0={disk}")
            self.files.run("sh", str(HERE / "export.sh"))
            for host in self.clients:
                host.boot()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for host in (*self.clients, self.files):
            host.kill()


def kept(parts: Path) -> str:
    """Return the directories that a host reads: the clone, the parts, and Python with its environment."""
    return ":".join(dict.fromkeys(map(str, (ROOT, parts, sys.prefix, sys.base_prefix))))


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
