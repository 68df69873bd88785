"""The parent's end of the watcher: starts it, tells it deadlines, hears what it does, starts it again if it dies.

One that dies young is replaced after a pause, and the pauses grow. Where none gets as far as to say that it is ready,
the machine cannot run one, and that is told.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from contextlib import suppress

from holdfast.cli.run import watcher

_READY_MS = 10_000
# One that has lived for so long was all right; what killed it may not happen again.
_YOUNG_NS = 2_000_000_000
_PAUSE_NS = 50_000_000
_STILLBORN_MAX = 5
_FILE = os.path.abspath(watcher.__file__)


class NoWatcher(Exception):
    """A program that nobody could end in time is not run."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        return f"the watcher did not start: {self.why}"


class Guard:
    """A running watcher. `heard` is what it has told so far."""

    def __init__(self, group: int, grace_ns: int, lead_ns: int, orphan_ns: int, liveness_fd: int | None) -> None:
        self._words = [str(number) for number in (group, grace_ns, lead_ns, orphan_ns)]
        self._inherited = () if liveness_fd is None else (liveness_fd,)
        self._process: subprocess.Popen[bytes] | None = None
        self._deadlines = self._told = -1
        self._newest_ns = self._sent_ns = 0
        self._began_ns = self._young = self._stillborn = 0
        self._ready = False
        self._trouble = ""
        self.heard = b""

    def start(self, deadline_ns: int) -> None:
        """Returns when it watches; `NoWatcher` otherwise."""
        self._newest_ns = deadline_ns
        self._begin()
        waiting = select.poll()
        waiting.register(self._told, select.POLLIN)
        if not waiting.poll(_READY_MS) or not self.hear():
            self.end()
            raise NoWatcher("it did not say that it is ready")

    def buried(self) -> int:
        """It died, and the program runs: when another one should take its place. Until then our timetable is alone.

        `NoWatcher` if it is to no purpose.
        """
        self.end()
        at_ns = watcher.now_ns()
        self._young = self._young + 1 if at_ns < self._began_ns + _YOUNG_NS else 0
        self._stillborn = 0 if self._ready else self._stillborn + 1
        if self._stillborn >= _STILLBORN_MAX:
            raise NoWatcher(self._trouble or f"{self._stillborn} of them died before they were ready")
        return at_ns + (_PAUSE_NS << min(self._young, _STILLBORN_MAX) if self._young else 0)

    def restart(self) -> None:
        """Another one, which says later that it is ready; or none, and then `watches` is false."""
        self._trouble = ""
        try:
            self._begin()
        except NoWatcher as trouble:
            self._trouble = trouble.why

    def _begin(self) -> None:
        self._began_ns, self._ready = watcher.now_ns(), False
        theirs, self._deadlines = os.pipe()
        self._told, tells = os.pipe()
        os.set_blocking(self._deadlines, False)
        os.set_blocking(self._told, False)
        self.tell(self._newest_ns)
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and our own file
                [sys.executable, "-I", "-S", _FILE, *self._words, str(theirs), str(tells)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs, tells, *self._inherited),
                start_new_session=True,
                cwd="/",
            )
        except OSError as error:
            raise NoWatcher(str(error)) from None
        finally:
            os.close(theirs)
            os.close(tells)

    @property
    def watches(self) -> bool:
        """Whether there is one, as far as we know."""
        return self._process is not None

    def fileno(self) -> int:
        """Readable when it has told something, or is dead."""
        return self._told

    def tell(self, deadline_ns: int) -> None:
        """The newest deadline; a frozen watcher whose pipe is full is told when it is said again."""
        self._newest_ns = deadline_ns
        if self._sent_ns != deadline_ns and self._deadlines >= 0:
            with suppress(BlockingIOError, BrokenPipeError):
                os.write(self._deadlines, watcher.MESSAGE.pack(deadline_ns))
                self._sent_ns = deadline_ns

    def hear(self) -> bool:
        """Take in what it told; false if it is dead."""
        try:
            word = os.read(self._told, 64)
        except BlockingIOError:
            return True
        self._ready = self._ready or watcher.READY in word
        self.heard += word
        return bool(word)

    def acted(self) -> bool:
        """Whether it has ended the program, or tried."""
        return watcher.TERMED in self.heard or watcher.KILLED in self.heard

    def end(self) -> None:
        """Nothing is to be watched any more. A frozen watcher dies too; its last words are heard."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            self.hear()
        for descriptor in (self._deadlines, self._told):
            if descriptor >= 0:
                os.close(descriptor)
        self._deadlines = self._told = -1
        self._sent_ns = 0
