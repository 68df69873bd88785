"""The watcher: acquire a lease, tell the command that started this process, and hold the lease until the script ends.

The watcher is the holder, because the calling command must end before `eval` continues. It closes every descriptor that
it inherited, except standard error: a pipe or a lock of the script must not stay open because of it. Only the end of
the script, or a release, ends the watcher; a signal that ends a whole service reaches the script too.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import select
import signal
import socket
import struct
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import holdfast
from holdfast.cli import codes, errors
from holdfast.cli.connect import CLOSE_S, refuse_process_scope
from holdfast.clock import NS, SYSTEM
from holdfast.errors import InvalidConfig, LeaseLost

if TYPE_CHECKING:
    from holdfast.blocking import Lease
    from holdfast.cli.shell.script import CallingScript

PRINTED = b"+"
_IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE)
_LOOK_MS = 500
_CLIENT_S = 1.0
_POLL_S = 0.02
_CREDENTIALS = struct.Struct("3i")
_REQUEST_MAX = 256
_ANSWER_MAX = 1 << 16
_TOKEN = re.compile(r"[0-9a-f]{32}")


class ShellRequest(NamedTuple):
    """The options of `holdfast acquire`. All times are in seconds."""

    url: str | None
    name: str
    ttl: float
    timeout: float | None
    label: str
    terminate: bool


def watch(request: ShellRequest, script: CallingScript, parent: socket.socket) -> int:
    """Acquire the lease, and hold it until the script ends or a `release` arrives; return the exit code.

    An error before the grant is an error of the command: `main` reports it, and the parent returns the same code.
    """
    _become_daemon(script.fileno(), parent.fileno())
    signal.signal(signal.SIGTERM, _stop)
    wakeups, wake = os.pipe()
    os.set_blocking(wake, False)
    refuse_process_scope(request.url)
    label = request.label or f"script {script.pid}"
    hf = holdfast.connect(request.url, label=label, observer=Remarks())
    try:
        hf._client.engine.outlive_process()
        lock = hf.lock(request.name, request.ttl, request.timeout, on_loss=lambda _: os.write(wake, b"!"))
        with CallerWatch(script, parent):
            lease = lock.acquire()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        watcher = Watcher(request, script, hf, lease)
        try:
            watcher.run(parent, wakeups)
        finally:
            watcher.release()
    finally:
        hf.close(CLOSE_S)
    return codes.OK


def _become_daemon(*kept: int) -> None:
    """Leave the terminal and the descriptors of the script, except standard error."""
    os.setsid()
    with suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as name:
        name.write("holdfast-watch")
    same = os.path.sameopenfile(1, 2)  # with 2>&1, `eval` would wait for the end of standard error
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, *((2,) if same else ())):
        os.dup2(null, descriptor)
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2 and descriptor not in kept:
            with suppress(OSError):  # the descriptor of the listing itself
                os.close(descriptor)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)


def _stop(_number: int, _frame: object) -> NoReturn:
    raise SystemExit(codes.SIGNAL + signal.SIGTERM)


class CallerWatch:
    """Interrupts the wait for the lease if the script or the calling command ends: no process would get the lease."""

    def __init__(self, script: CallingScript, parent: socket.socket) -> None:
        self._polling = select.poll()
        self._polling.register(script, select.POLLIN)
        self._polling.register(parent, select.POLLIN)
        self._end, self._stop = os.pipe()
        self._polling.register(self._end, select.POLLIN)
        self._thread = threading.Thread(target=self._watch, name="holdfast-caller", daemon=True)

    def _watch(self) -> None:
        if self._end not in (descriptor for descriptor, _ in self._polling.poll()):
            os.kill(os.getpid(), signal.SIGTERM)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        os.write(self._stop, b"!")
        self._thread.join()


class Remarks:
    """Tells the user of the script that the lease cannot be renewed, once per outage."""

    def __init__(self) -> None:
        self._failing = False

    def __call__(self, event: holdfast.Event) -> None:
        if event.kind == "renewal_failed" and not self._failing:
            self._failing = True
            errors.remark(f"lease {event.name!r} cannot be renewed now, and lasts until its ttl: {event.detail}")
        elif event.kind in ("renewed", "renewed_late"):
            self._failing = False


class Watcher:
    """Serves one granted lease."""

    def __init__(self, request: ShellRequest, script: CallingScript, hf: holdfast.Holdfast, lease: Lease) -> None:
        self._request = request
        self._script = script
        self._hf = hf
        self._lease = lease
        self._reported = self._released = False
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address(lease.token))
        self._listener.listen()

    def run(self, parent: socket.socket, wakeups: int) -> None:
        """Report the grant, then serve until the script ends or a client releases the lease."""
        lease = self._lease
        grant = {"name": lease.name, "token": lease.token, "fence": lease.fence, "ttl": lease.ttl}
        try:
            parent.sendall(json.dumps({**grant, "script": self._script.pid, "watcher": os.getpid()}).encode())
            parent.shutdown(socket.SHUT_WR)
            printed = parent.recv(1) == PRINTED
        except OSError:
            printed = False
        if not printed:
            return  # the command ended before it printed the token
        parent.close()
        polling = select.poll()
        for each in (self._script, self._listener, wakeups):
            polling.register(each, select.POLLIN)
        while not self._script.ended():
            if lease.lost and not self._reported:
                self._report_loss()
            ready = [descriptor for descriptor, _ in polling.poll(_LOOK_MS)]
            if wakeups in ready:
                os.read(wakeups, 64)
            if self._listener.fileno() in ready and self._serve():
                return

    def _report_loss(self) -> None:
        self._reported = True
        try:
            self._lease.check()
        except LeaseLost as lost:
            end = f"; ending the script (process {self._script.pid})" if self._request.terminate else ""
            errors.remark(f"{lost}{end}")
        if self._request.terminate:
            self._script.terminate()

    def _serve(self) -> bool:
        """Answer one client; return true if the watcher should end."""
        with suppress(OSError, ValueError):  # the client ended, or sent something else
            client, _ = self._listener.accept()
            with client:
                client.settimeout(_CLIENT_S)
                credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
                if _CREDENTIALS.unpack(credentials)[1] not in (0, os.getuid()):
                    return False
                command, token = client.recv(_REQUEST_MAX).decode().split()
                if token != self._lease.token:
                    return False
                answer = self.release() if command == "release" else self._state()
                client.sendall(json.dumps(answer).encode())
        return self._released

    def _state(self) -> dict[str, Any]:
        lease = self._lease
        facts = {"name": lease.name, "fence": lease.fence, "script": self._script.pid}
        try:
            lease.check()
        except LeaseLost as lost:
            return {"state": "lost", "detail": str(lost), **facts}
        return {"state": "held", "deadline_ns": SYSTEM.now_ns() + int(lease.remaining() * NS), **facts}

    def release(self) -> dict[str, Any]:
        """Release the lease unless that was done before; return the answer for a client."""
        try:
            if not self._released:
                self._lease.release()
                self._released = True
        except LeaseLost:
            return self._state()
        until = time.monotonic() + CLOSE_S
        while not self._hf._client.keeper.idle() and time.monotonic() < until:
            time.sleep(_POLL_S)
        state = "released" if self._hf._client.keeper.idle() else "delayed"
        return {"state": state, "name": self._lease.name, "fence": self._lease.fence, "ttl": self._lease.ttl}


def address(token: str) -> str:
    """Return the address of the watcher's socket. It has no file, so that no file is left after a SIGKILL.

    Every user of the host can list such addresses, so the address has a hash of the token.
    """
    return f"\0holdfast-{hashlib.sha256(token.encode()).hexdigest()[:32]}"


def call_watcher(command: str, token: str, timeout_s: float) -> dict[str, Any] | None:
    """Send the command to the watcher of the token; return its answer, or `None` if there is no watcher.

    The answer is empty if the watcher does not answer in time.
    """
    if not _TOKEN.fullmatch(token):
        rule = 'it must be the token of a lease: pass "$HOLDFAST_TOKEN", which `eval "$(holdfast acquire NAME)"` sets'
        raise InvalidConfig("token", token, rule)
    with socket.socket(socket.AF_UNIX) as watcher:
        watcher.settimeout(timeout_s)
        try:
            watcher.connect(address(token))
        except (ConnectionRefusedError, FileNotFoundError):
            return None
        except OSError:
            return {}  # its backlog is full, because it is frozen
        try:
            watcher.sendall(f"{command} {token}".encode())
            data = b"".join(iter(lambda: watcher.recv(_ANSWER_MAX), b""))
        except TimeoutError:
            return {}
        except OSError:
            return None
    answer: dict[str, Any] = json.loads(data) if data else {}
    return answer
