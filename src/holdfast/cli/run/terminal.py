"""The terminal, lent to the program: the foreground group reads the keys and gets Ctrl-C and Ctrl-Z.

Without a terminal, or in the background, there is nothing to lend, and every method here does nothing. In a pipeline
another program, such as a pager, may need the keys, and the kernel would stop it if it read them from the background.
So in a pipeline the keys stay with the job, and `holdfast run` forwards the signals that keys cause.
"""

from __future__ import annotations

import os
import signal
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from holdfast.cli.run.program import members

if TYPE_CHECKING:
    from collections.abc import Iterator

STOPS = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)


class Terminal:
    """The controlling terminal of this process, if it has one; also if all standard streams are redirected."""

    def __init__(self) -> None:
        self._descriptor: int | None = None
        with suppress(OSError):  # no controlling terminal
            self._descriptor = os.open(os.ctermid(), os.O_RDWR | os.O_NOCTTY)
        self._lent = False

    def __bool__(self) -> bool:
        return self._descriptor is not None

    def lend(self, group: int) -> None:
        """Make the program's group the foreground group, if this process is in the foreground."""
        if self._descriptor is not None:
            with suppress(OSError), _unstoppable():
                if os.tcgetpgrp(self._descriptor) == os.getpgrp() and not _is_in_pipeline():
                    os.tcsetpgrp(self._descriptor, group)
                    self._lent = True

    def close(self) -> None:
        """Take the foreground back and close the terminal, after the program has ended."""
        self.take_back()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def take_back(self) -> None:
        """Make the group of this process the foreground group again."""
        if self._lent and self._descriptor is not None:
            with suppress(OSError), _unstoppable():
                os.tcsetpgrp(self._descriptor, os.getpgrp())
            self._lent = False


def _is_in_pipeline() -> bool:
    """Return whether this process is part of a pipeline: a stream is a pipe, and its group has other processes."""
    piped = any(stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) for mode in (os.fstat(0).st_mode, os.fstat(1).st_mode))
    return piped and members(os.getpgrp()) != [os.getpid()]


@contextmanager
def _unstoppable() -> Iterator[None]:
    """Block TTOU: the kernel stops a background process that changes the foreground group."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
