"""The parent's side of the watcher: start it, send it deadlines, read what it does, and restart it if it dies.

The parent replaces a watcher that dies soon after its start after a pause, and the pauses grow. If several watchers in
a row die before they report that they are ready, the machine cannot run one, and the parent raises `NoWatcher`.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from contextlib import suppress

from holdfast.cli.run import watcher

_READY_MS = 10_000
# A watcher that lived for this time was healthy; the cause of its death may not return.
_YOUNG_NS = 2_000_000_000
_PAUSE_NS = 50_000_000
_FAILED_STARTS_MAX = 5
_FILE = os.path.abspath(watcher.__file__)


class NoWatcher(Exception):
    """The watcher could not start. Without it, nothing ends the program in time, so the program does not run."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        return f"the watcher did not start: {self.why}"


class WatcherProcess:
    """A watcher and its pipes. `received`: all bytes that it has reported so far."""

    def __init__(self, group: int, grace_ns: int, lead_ns: int, orphan_ns: int, liveness_fd: int | None) -> None:
        self._arguments = [str(number) for number in (group, grace_ns, lead_ns, orphan_ns)]
        self._inherited = () if liveness_fd is None else (liveness_fd,)
        self._process: subprocess.Popen[bytes] | None = None
        self._deadlines = self._reports = -1
        self._newest_ns = self._sent_ns = 0
        self._began_ns = self._early_deaths = self._failed_starts = 0
        self._ready = False
        self._start_error = ""
        self.received = b""

    def start(self, deadline_ns: int) -> None:
        """Start the watcher and return when it watches. Raises `NoWatcher`."""
        self._newest_ns = deadline_ns
        self._launch()
        waiting = select.poll()
        waiting.register(self._reports, select.POLLIN)
        if not waiting.poll(_READY_MS) or not self.receive():
            self.end()
            raise NoWatcher("it did not report that it is ready")

    def next_start_ns(self) -> int:
        """Clean up after a watcher that died while the program runs; return when the next one should start.

        Until then only the parent keeps the timetable. Raises `NoWatcher` if another try is pointless.
        """
        self.end()
        at_ns = watcher.now_ns()
        self._early_deaths = self._early_deaths + 1 if at_ns < self._began_ns + _YOUNG_NS else 0
        self._failed_starts = 0 if self._ready else self._failed_starts + 1
        if self._failed_starts >= _FAILED_STARTS_MAX:
            raise NoWatcher(self._start_error or f"{self._failed_starts} of them died before they were ready")
        return at_ns + (_PAUSE_NS << min(self._early_deaths, _FAILED_STARTS_MAX) if self._early_deaths else 0)

    def restart(self) -> None:
        """Start another watcher without waiting until it is ready; if that fails, `running` is false."""
        self._start_error = ""
        try:
            self._launch()
        except NoWatcher as error:
            self._start_error = error.why

    def _launch(self) -> None:
        self._began_ns, self._ready = watcher.now_ns(), False
        theirs: list[int] = []
        try:
            deadlines_read, self._deadlines = os.pipe()
            theirs.append(deadlines_read)
            self._reports, reports_write = os.pipe()
            theirs.append(reports_write)
            os.set_blocking(self._deadlines, False)
            os.set_blocking(self._reports, False)
            self.send(self._newest_ns)
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and our own file
                [sys.executable, "-I", "-S", _FILE, *self._arguments, str(deadlines_read), str(reports_write)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(deadlines_read, reports_write, *self._inherited),
                start_new_session=True,
                cwd="/",
            )
        except OSError as error:
            raise NoWatcher(str(error)) from None
        finally:
            for descriptor in theirs:
                os.close(descriptor)

    @property
    def running(self) -> bool:
        """True while there is a watcher, as far as the parent knows."""
        return self._process is not None

    def fileno(self) -> int:
        """Return the descriptor that is readable when the watcher has reported something, or is dead."""
        return self._reports

    def send(self, deadline_ns: int) -> None:
        """Send the newest deadline; if the pipe of a frozen watcher is full, the next call sends it."""
        self._newest_ns = deadline_ns
        if self._sent_ns != deadline_ns and self._deadlines >= 0:
            with suppress(BlockingIOError, BrokenPipeError):
                os.write(self._deadlines, watcher.MESSAGE.pack(deadline_ns))
                self._sent_ns = deadline_ns

    def receive(self) -> bool:
        """Read what the watcher reported; return false if it is dead."""
        try:
            data = os.read(self._reports, 64)
        except BlockingIOError:
            return True
        self._ready = self._ready or watcher.READY in data
        self.received += data
        return bool(data)

    def acted(self) -> bool:
        """Return whether the watcher has ended the program, or tried."""
        return watcher.TERMED in self.received or watcher.KILLED in self.received

    def end(self) -> None:
        """Kill the watcher, also a frozen one, and read its last reports."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            self.receive()
        for descriptor in (self._deadlines, self._reports):
            if descriptor >= 0:
                os.close(descriptor)
        self._deadlines = self._reports = -1
        self._sent_ns = 0
