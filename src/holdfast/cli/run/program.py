"""The program: a child process that exists before the lease does, and starts when the lease is granted.

The parent forks the child first, while the parent has one thread and no connection, and the child waits at a gate, a
pair of sockets. So the watcher knows the child's pid before its first instruction, and a parent that dies meanwhile
leaves nothing running: the gate closes, and the child ends. The program inherits what this process inherited: arguments
and environment byte by byte, descriptors, ignored signals, working directory.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from holdfast.cli import codes
from holdfast.cli.run import watcher
from holdfast.host import ProcessStart

if TYPE_CHECKING:
    from collections.abc import Sequence

_PAYLOAD_MAX = 1 << 16
_GO, _LATE = b"go ", b"late"
# Python ignores these for itself; a program expects the default.
_PYTHON_IGNORES = (signal.SIGPIPE, signal.SIGXFSZ)


class Exit(NamedTuple):
    """How a program ended: with a code of its own, or by a signal. A code of 143 is not signal 15."""

    code: int | None
    signal: int | None

    @property
    def shell(self) -> int:
        """The exit code that a shell would give."""
        return codes.SIGNAL + self.signal if self.signal is not None else self.code or 0

    def __str__(self) -> str:
        return f"ended with code {self.code}" if self.signal is None else f"ended by signal {self.signal}"


class CannotRun(Exception):
    """The program cannot be started; `code` is the exit code that a shell would give."""

    def __init__(self, command: str, number: int) -> None:
        super().__init__(command, number)
        self.code = codes.NO_PROGRAM if number == errno.ENOENT else codes.CANNOT_RUN
        self.command = command
        self.number = number

    def __str__(self) -> str:
        return f"cannot run {self.command!r}: {os.strerror(self.number)}"


def check_exists(command: str) -> None:
    """Raise `CannotRun` if the program does not exist, before an hour of waiting for its lease."""
    if shutil.which(command) is None:
        found = os.sep in command and os.path.exists(command)
        raise CannotRun(command, errno.EACCES if found else errno.ENOENT)


class Program:
    """One process, at the gate or beyond it, and its process group."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._begun = self._collected = False
        with ProcessStart("run"):
            self._gate, child_gate = socket.socketpair()
            try:
                self.pid = os.fork()
            except OSError:
                self._gate.close()
                child_gate.close()
                raise
        if self.pid == 0:
            self._gate.close()
            _wait_at_gate(child_gate, self._command)
        child_gate.close()
        with suppress(OSError):
            os.setpgid(self.pid, self.pid)  # parent and child both call it, so that neither finds it undone

    def begin(self, variables: dict[str, str], liveness_fd: int | None, latest_ns: int) -> bool:
        """Open the gate; return true when the program runs, false if it never will. Raises `CannotRun`.

        The program does not start after `latest_ns` on the boot clock. The child reads the clock right before it
        becomes the program, because the parent may have been frozen meanwhile. The watcher may also have ended the
        child at the gate.
        """
        fields = [str(latest_ns), *(f"{key}={value}" for key, value in variables.items())]
        payload = b"\0".join(os.fsencode(field) for field in fields)
        answer = b""
        self._begun = True
        with suppress(OSError):  # the child was ended at the gate
            socket.send_fds(self._gate, [payload], [] if liveness_fd is None else [liveness_fd])
            while data := self._gate.recv(16):  # exec closes the child's end
                answer += data
        self._gate.close()
        failed = answer.removeprefix(_GO)
        if failed and failed != _LATE:
            raise CannotRun(self._command[0], int(failed))
        return answer == _GO

    def send(self, number: int) -> None:
        """Send a signal to the whole group."""
        watcher.send(self.pid, number)

    def ended(self) -> Exit | None:
        """Return how the program ended, or `None`. Leave its zombie, so that no other process gets its pid."""
        status = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if status is None:
            return None
        return Exit(status.si_status, None) if status.si_code == os.CLD_EXITED else Exit(None, status.si_status)

    def stopped_by(self) -> int | None:
        """Return the signal that has just stopped the program; each stop is returned once."""
        with suppress(ChildProcessError):  # it has ended
            status = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG)
            return None if status is None else status.si_status
        return None

    def has_stragglers(self) -> bool:
        """Return whether a process other than the leader is left in the group."""
        return any(pid != self.pid for pid in members(self.pid))

    def collect(self) -> None:
        """Wait for the process and remove its zombie.

        End a process that is still at the gate; others must have ended.
        """
        if not self._collected:
            self._gate.close()
            if not self._begun:
                self.send(signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self._collected = True


def _wait_at_gate(gate: socket.socket, command: list[str]) -> NoReturn:
    """Wait in the child, then become the program. The child runs no other code of holdfast after this."""
    try:
        os.setpgid(0, 0)
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        payload, liveness_fds, _, _ = socket.recv_fds(gate, _PAYLOAD_MAX, 1)
        if payload:
            for descriptor in liveness_fds:
                os.set_inheritable(descriptor, True)
            for number in _PYTHON_IGNORES:
                signal.signal(number, signal.SIG_DFL)
            latest_ns, *lines = payload.split(b"\0")
            variables = _environment() | dict(line.split(b"=", 1) for line in lines)
            arguments = [os.fsencode(argument) for argument in command]
            gate.send(_GO)
            if watcher.now_ns() < int(latest_ns):
                os.execvpe(arguments[0], arguments, variables)  # noqa: S606 - the user's own program
            gate.send(_LATE)
    except OSError as error:
        with suppress(OSError):
            gate.send(str(error.errno).encode())
    finally:
        os._exit(codes.NO_PROGRAM)


def _environment() -> dict[bytes, bytes]:
    """Return the environment that this process got, without the LC_CTYPE that Python adds in the C locale."""
    variables = dict(os.environb)
    if b"LC_CTYPE" in variables and sys.platform == "linux":
        with suppress(OSError):
            if not any(line.startswith(b"LC_CTYPE=") for line in Path("/proc/self/environ").read_bytes().split(b"\0")):
                del variables[b"LC_CTYPE"]
    return variables


def members(group: int) -> list[int]:
    """Return the pids of the living processes of a group."""
    found = []
    for entry in Path("/proc").iterdir() if sys.platform == "linux" else ():
        if entry.name.isdecimal():
            with suppress(OSError, IndexError):
                state, _, pgrp = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:3]
                if int(pgrp) == group and state not in "ZX":
                    found.append(int(entry.name))
    return found
