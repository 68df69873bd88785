"""Real child processes, stopped and killed by real signals.

Signals go only to processes that this module started. A worker leads a process group of its own. The parent waits for
its exit code only after the whole group is dead: until then the kernel cannot give its pid to another process. A
grandchild that leaves the group is out of reach.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from holdfast.testing import kernel
from holdfast.testing.child_process import READY, LinePipe
from holdfast.testing.servers import LOOPBACK, Home
from holdfast.testing.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# The child searches modules where its parent does. An environment variable would do the same, but its own children
# would inherit it.
_START = """
import json, sys
job = json.loads(sys.argv[1])
sys.path[:] = job["path"]
from holdfast.testing.child_process import main
main(job)
"""


class WorkerProcess:
    """One child process that runs a function.

    `target`: `"package.module:function"` or `"path/to/file.py:function"`.
    `arguments`: its keyword arguments, passed as JSON.
    `env`: variables that are added to the environment.
    `home`: the address of the process, and the command that enters its network.

    Leaving the `with` block kills the whole group, in any state, and closes the pipes and the output file.
    """

    def __init__(
        self,
        target: str,
        arguments: Mapping[str, object] | None = None,
        *,
        env: Mapping[str, str] | None = None,
        home: Home = LOOPBACK,
    ) -> None:
        self.target = target
        self._last_output: str | None = None
        with ExitStack() as undo:
            self._log = undo.enter_context(tempfile.TemporaryFile())
            child_reads, writes = os.pipe()
            reads, child_writes = os.pipe()
            self._lines = LinePipe(reads, writes)
            undo.callback(self._lines.close)
            job = {
                "path": sys.path,
                "target": target,
                "arguments": dict(arguments or {}),
                "reads": child_reads,
                "writes": child_writes,
            }
            try:
                self._process = subprocess.Popen(
                    [*home.enter, sys.executable, "-u", "-c", _START, json.dumps(job, default=os.fspath)],
                    stdin=subprocess.DEVNULL,
                    stdout=self._log,
                    stderr=subprocess.STDOUT,
                    pass_fds=(child_reads, child_writes),
                    start_new_session=True,
                    env={**os.environ, **(env or {})},
                )
            finally:
                os.close(child_reads)
                os.close(child_writes)
            self._resources = undo.pop_all()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        """True while the worker runs or is frozen."""
        return self._exit_code() is None

    def wait_ready(self, timeout: float | None = 10.0) -> Self:
        """Wait until the child has called `ready()`, for `timeout` seconds at most."""
        line = self.read_line(timeout)
        if line != READY:
            raise ValueError(f"{self!r} sent {line!r} before it was ready")
        return self

    def read_line(self, timeout: float | None = 10.0) -> str:
        """Return the next line from the child; raise `EOFError` if it is gone, `TimeoutError` if it is slow.

        `timeout`: how many seconds to wait; `None` waits for ever.
        """
        try:
            return self._lines.receive(timeout)
        except (EOFError, TimeoutError) as error:
            raise type(error)(f"{self!r} sent nothing: {error}\n{self.output()}") from error

    def send_line(self, line: str) -> None:
        """Send one line to the child, which receives it from its own `read_line`."""
        self._lines.send(line)

    def freeze(self, timeout: float = 5.0) -> None:
        """Stop the group, and return once the kernel shows every thread of it stopped, within `timeout` seconds."""
        self._signal(signal.SIGSTOP)
        halted = kernel.STOPPED | kernel.DEAD
        eventually(lambda: halted.issuperset(kernel.states(self.pid)), timeout, f"{self!r} to be frozen")
        if not self.alive:
            raise ProcessLookupError(f"{self!r} died before it was frozen")

    def thaw(self) -> None:
        """Let a frozen group run again."""
        self._signal(signal.SIGCONT)

    def interrupt(self) -> None:
        """Send SIGINT, as Ctrl-C does in a terminal."""
        self._signal(signal.SIGINT)

    def terminate(self) -> None:
        """Send SIGTERM; a frozen worker receives it when it is thawed."""
        self._signal(signal.SIGTERM)

    def kill(self, timeout: float = 5.0) -> int:
        """Kill the group, frozen or not; return the worker's exit code once all of it is dead.

        `timeout`: how many seconds the kernel may take.
        """
        if self._process.returncode is None:
            os.killpg(self.pid, signal.SIGKILL)
            dead = kernel.DEAD
            eventually(lambda: dead.issuperset(kernel.states(self.pid)), timeout, f"{self!r} to be dead")
        return self._process.wait()

    def wait(self, timeout: float | None = 10.0) -> int:
        """Wait until the worker has ended by itself; return its exit code, or minus the number of the signal.

        `timeout`: how many seconds to wait; `None` waits for ever.
        """
        eventually(lambda: not self.alive, timeout, f"{self!r} to end")
        code = self._exit_code()
        assert code is not None
        return code

    def output(self) -> str:
        """Return the output of the group so far, from both streams."""
        if self._last_output is not None:
            return self._last_output
        # The child shares the offset of this descriptor, so that reading must not move it.
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode(errors="replace")

    def close(self) -> None:
        """Kill the group, collect the exit code, keep the output and close the pipes. A second call does nothing."""
        self.kill()
        self._last_output = self.output()
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Worker({self.target!r}, pid={self.pid}, exit_code={self._exit_code()})"

    def _signal(self, number: signal.Signals) -> None:
        if not self.alive:
            raise ProcessLookupError(f"{self!r} is dead and cannot get {number.name}")
        os.killpg(self.pid, number)

    def _exit_code(self) -> int | None:
        """Return the exit code or `None`, and leave the zombie: its pid stays reserved until the group is gone."""
        if self._process.returncode is not None:
            return self._process.returncode
        seen = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if seen is None:
            return None
        return seen.si_status if seen.si_code == os.CLD_EXITED else -seen.si_status


class WorkerProcesses:
    """The workers of one test; the end of the `with` block kills all of them."""

    def __init__(self) -> None:
        self._started: list[WorkerProcess] = []

    def start(
        self,
        target: str,
        /,
        *,
        env: Mapping[str, str] | None = None,
        home: Home = LOOPBACK,
        **arguments: object,
    ) -> WorkerProcess:
        """Start a worker that this object closes.

        `target`: its function, as `"module:function"`, and `arguments`: the arguments of that function.
        `env`: more environment variables.
        `home`: the address of the process, and the command that enters its network; by default this one.
        """
        worker = WorkerProcess(target, arguments, env=env, home=home)
        self._started.append(worker)
        return worker

    def close(self) -> None:
        """Close every worker, even if closing one of them raises."""
        with ExitStack() as closing:
            while self._started:
                closing.callback(self._started.pop(0).close)

    def __iter__(self) -> Iterator[WorkerProcess]:
        return iter(self._started)

    def __len__(self) -> int:
        return len(self._started)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
