"""A real pseudo-terminal with a program in it: tests type keys and read the screen."""

import os
import pty
import re
import select
import signal
import time

# A process of the tool starts and ends slowly on a busy machine.
PATIENT_S = 40


class Terminal:
    """A pseudo-terminal; leaving the block hangs up and ends its processes."""

    def __init__(self, *command, env, columns=120):
        self.shown = ""
        self.pid, self._master = pty.fork()
        if self.pid == 0:
            try:
                os.execvpe(command[0], command, {**env, "TERM": "xterm", "COLUMNS": str(columns), "LINES": "30"})
            finally:
                os._exit(127)
        self._ready = select.poll()  # select() knows no descriptor beyond 1,023
        self._ready.register(self._master, select.POLLIN)

    def type(self, keys):
        """Press the keys."""
        os.write(self._master, keys.encode())

    def until(self, pattern, timeout=PATIENT_S):
        """Wait until the pattern is shown, and drop the text up to it."""
        deadline = time.monotonic() + timeout
        while not (found := re.search(pattern, self.shown)):
            left = deadline - time.monotonic()
            if left <= 0 or not self._read(left):
                raise AssertionError(f"{pattern!r} was not shown, but {self.shown!r}")
        self.shown = self.shown[found.end() :]
        return found

    def rest(self, timeout=PATIENT_S):
        """Read until the last process has ended; return the exit code of the first."""
        deadline = time.monotonic() + timeout
        while self._read(max(0, deadline - time.monotonic())):
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _read(self, timeout):
        if not self._ready.poll(timeout * 1000):
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:
            return False
        self.shown += data.decode(errors="replace")
        return bool(data)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self._master)
        for number in (signal.SIGHUP, signal.SIGKILL):
            try:
                os.kill(self.pid, number)
                os.waitpid(self.pid, os.WNOHANG)
            except (ProcessLookupError, ChildProcessError):
                return
        try:
            os.waitpid(self.pid, 0)
        except ChildProcessError:
            return
