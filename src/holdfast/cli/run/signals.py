"""Signals as bytes in a pipe: Python writes the number of each signal, and the loop reads which signals came.

Before the program runs there is no process to forward to, and a signal ends the wait for the lease. This process and
the program keep ignoring a signal that this process ignored at its start (`nohup`, a background job).
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.cli import codes

if TYPE_CHECKING:
    from types import FrameType

FORWARDED = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGWINCH,
    signal.SIGCONT,
    signal.SIGTSTP,
)
# By default these signals do nothing, so they do not end the wait either.
_HARMLESS = (signal.SIGWINCH, signal.SIGCONT)
_WAKE = b"\0"


class Signals:
    """Catches the signals until the process ends."""

    def __init__(self) -> None:
        self._reads, self._writes = os.pipe()
        os.set_blocking(self._reads, False)
        os.set_blocking(self._writes, False)
        self._forwarding = False
        signal.set_wakeup_fd(self._writes, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, self._handle)
        for number in FORWARDED:
            if number != signal.SIGTSTP and signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._handle)

    def fileno(self) -> int:
        """Return the descriptor that is readable when a signal came."""
        return self._reads

    def forward(self) -> None:
        """Forward signals from now on, because the program is about to start. Until then Ctrl-Z stops this process."""
        self._forwarding = True
        if signal.getsignal(signal.SIGTSTP) is not signal.SIG_IGN:
            signal.signal(signal.SIGTSTP, self._handle)

    def stop(self) -> None:
        """Stop this process and its whole job; return when a shell continues it.

        The other processes of the job stop first. Then the signal goes to this thread only, so that the process stops
        before the next line: the loop must forward another stop that comes right after the shell continues the job.
        """
        before = signal.signal(signal.SIGTSTP, signal.SIG_IGN)
        os.kill(0, signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.pthread_kill(threading.get_ident(), signal.SIGTSTP)  # the kernel ignores it if no shell could wake us
        signal.signal(signal.SIGTSTP, before)

    def wake(self) -> None:
        """Wake the loop, from any thread."""
        with suppress(BlockingIOError):
            os.write(self._writes, _WAKE)

    def read(self) -> list[int]:
        """Return the signals to forward that came since the last call."""
        try:
            numbers = os.read(self._reads, 4096)
        except BlockingIOError:
            return []
        return [number for number in numbers if number in FORWARDED]

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if not self._forwarding and number in FORWARDED and number not in _HARMLESS:
            raise SystemExit(codes.SIGNAL + number)
