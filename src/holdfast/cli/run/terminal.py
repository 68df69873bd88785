"""The terminal, lent to the program: who is in the foreground reads the keys and gets Ctrl-C and Ctrl-Z.

Without a terminal, or in the background, there is nothing to lend, and every step here does nothing. In a pipeline the
keys may be a neighbour's, a pager's for instance, which would be stopped if it read them from the background: so they
stay with the job, and what it is told by keys is forwarded.
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
    """The terminal of this process, if it has one; also if all its streams are somewhere else."""

    def __init__(self) -> None:
        self._descriptor: int | None = None
        with suppress(OSError):  # no terminal at all
            self._descriptor = os.open(os.ctermid(), os.O_RDWR | os.O_NOCTTY)
        self._lent = False

    def __bool__(self) -> bool:
        return self._descriptor is not None

    def lend(self, group: int) -> None:
        """To the program's group, if the foreground is ours to give."""
        if self._descriptor is not None:
            with suppress(OSError), _unstoppable():
                if os.tcgetpgrp(self._descriptor) == os.getpgrp() and not _has_neighbours():
                    os.tcsetpgrp(self._descriptor, group)
                    self._lent = True

    def close(self) -> None:
        """The program has ended."""
        self.take_back()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def take_back(self) -> None:
        if self._lent and self._descriptor is not None:
            with suppress(OSError), _unstoppable():
                os.tcsetpgrp(self._descriptor, os.getpgrp())
            self._lent = False


def _has_neighbours() -> bool:
    """Whether we are part of a pipeline: something is piped, and others are in our group."""
    piped = any(stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) for mode in (os.fstat(0).st_mode, os.fstat(1).st_mode))
    return piped and members(os.getpgrp()) != [os.getpid()]


@contextmanager
def _unstoppable() -> Iterator[None]:
    """Whoever changes the foreground from the background would be stopped for it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
