"""The program: a process that exists before its lease does, and begins when it is granted.

It is forked first, while this process has one thread and no connection, and waits at a gate. So its number is known to
the watcher before its first instruction, and a parent that dies meanwhile leaves nothing running: the gate ends, and so
does whoever waits there. What the program inherits is what we inherited: arguments and environment byte by byte,
descriptors, ignored signals, working directory.
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
        """The one number that a shell makes of it."""
        return codes.SIGNAL + self.signal if self.signal is not None else self.code or 0

    def __str__(self) -> str:
        return f"ended with code {self.code}" if self.signal is None else f"ended by signal {self.signal}"


class CannotRun(Exception):
    """The program cannot be started; `code` is what a shell would say."""

    def __init__(self, command: str, number: int) -> None:
        super().__init__(command, number)
        self.code = codes.NO_PROGRAM if number == errno.ENOENT else codes.CANNOT_RUN
        self.command = command
        self.number = number

    def __str__(self) -> str:
        return f"cannot run {self.command!r}: {os.strerror(self.number)}"


def look_for(command: str) -> None:
    """Say early what would fail late: nobody wants to wait an hour for the lease of a program that is not there."""
    if shutil.which(command) is None:
        found = os.sep in command and os.path.exists(command)
        raise CannotRun(command, errno.EACCES if found else errno.ENOENT)


class Program:
    """One process, at the gate or beyond it, and its process group."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._gate, theirs = socket.socketpair()
        self._begun = self._reaped = False
        self.pid = os.fork()
        if self.pid == 0:
            self._gate.close()
            _at_the_gate(theirs, self._command)
        theirs.close()
        with suppress(OSError):
            os.setpgid(self.pid, self.pid)  # by both, so that whoever comes first finds it done

    def begin(self, variables: dict[str, str], liveness_fd: int | None, latest_ns: int) -> bool:
        """Open the gate; true when the program runs, false if it never will: it was later than that on the boot clock.

        The child looks at the clock, as the last thing before it becomes the program: we may have been frozen on the
        way, and the watcher may have ended it at the gate. Raises `CannotRun`.
        """
        words = [str(latest_ns), *(f"{key}={value}" for key, value in variables.items())]
        payload = b"\0".join(os.fsencode(word) for word in words)
        told = b""
        self._begun = True
        with suppress(OSError):  # it was ended at the gate
            socket.send_fds(self._gate, [payload], [] if liveness_fd is None else [liveness_fd])
            while word := self._gate.recv(16):  # its end comes with the program's beginning
                told += word
        self._gate.close()
        failed = told.removeprefix(_GO)
        if failed and failed != _LATE:
            raise CannotRun(self._command[0], int(failed))
        return told == _GO

    def send(self, number: int) -> None:
        """A signal for its whole group."""
        watcher.send(self.pid, number)

    def ended(self) -> Exit | None:
        """How it ended, if it has; it stays a zombie, so that its number is nobody else's."""
        seen = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if seen is None:
            return None
        return Exit(seen.si_status, None) if seen.si_code == os.CLD_EXITED else Exit(None, seen.si_status)

    def stopped_by(self) -> int | None:
        """The signal that has just stopped it, told once."""
        with suppress(ChildProcessError):  # it has ended
            seen = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG)
            return None if seen is None else seen.si_status
        return None

    def stragglers(self) -> bool:
        """Whether anybody but the leader is left in the group."""
        return any(pid != self.pid for pid in members(self.pid))

    def reap(self) -> None:
        """Forget it. At the gate, that ends it; later it must have ended, or be about to."""
        if not self._reaped:
            self._gate.close()
            if not self._begun:
                self.send(signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self._reaped = True


def _at_the_gate(gate: socket.socket, command: list[str]) -> NoReturn:
    """In the child: wait, then become the program. Nothing of ours may run on after this."""
    try:
        os.setpgid(0, 0)
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        payload, lifelines, _, _ = socket.recv_fds(gate, _PAYLOAD_MAX, 1)
        if payload:
            for descriptor in lifelines:
                os.set_inheritable(descriptor, True)
            for number in _PYTHON_IGNORES:
                signal.signal(number, signal.SIG_DFL)
            latest_ns, *lines = payload.split(b"\0")
            variables = _environment() | dict(line.split(b"=", 1) for line in lines)
            words = [os.fsencode(word) for word in command]
            gate.send(_GO)
            if watcher.now_ns() < int(latest_ns):
                os.execvpe(words[0], words, variables)  # noqa: S606 - it is what we are asked for
            gate.send(_LATE)
    except OSError as error:
        with suppress(OSError):
            gate.send(str(error.errno).encode())
    finally:
        os._exit(codes.NO_PROGRAM)


def _environment() -> dict[bytes, bytes]:
    """As we got it: in a plain locale Python sets LC_CTYPE for itself, which is no concern of the program."""
    variables = dict(os.environb)
    if b"LC_CTYPE" in variables and sys.platform == "linux":
        with suppress(OSError):
            if not any(line.startswith(b"LC_CTYPE=") for line in Path("/proc/self/environ").read_bytes().split(b"\0")):
                del variables[b"LC_CTYPE"]
    return variables


def members(group: int) -> list[int]:
    """Who of a process group is alive."""
    found = []
    for entry in Path("/proc").iterdir() if sys.platform == "linux" else ():
        if entry.name.isdecimal():
            with suppress(OSError, IndexError):
                state, _, pgrp = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:3]
                if int(pgrp) == group and state not in "ZX":
                    found.append(int(entry.name))
    return found
