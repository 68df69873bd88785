"""Signals as lines in a book: nothing happens inside a handler, the loop reads what has come.

Before the program runs there is nobody to forward to, and a signal ends the waiting. A signal that we were started to
ignore (`nohup`, a background job) stays ignored, here and in the program.
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
# The default of these is to do nothing, so they do not end the waiting either.
_HARMLESS = (signal.SIGWINCH, signal.SIGCONT)
_STIR = b"\0"


class Signals:
    """Caught until the process ends."""

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
        return self._reads

    def forward(self) -> None:
        """From now on there is a program that they are for. Who only waits is stopped by Ctrl-Z as anybody is."""
        self._forwarding = True
        if signal.getsignal(signal.SIGTSTP) is not signal.SIG_IGN:
            signal.signal(signal.SIGTSTP, self._handle)

    def stop(self) -> None:
        """Stop, with the whole job; returns when we are woken.

        The neighbours first. Then this thread and no other is told, so that we stop before the next line: another stop
        right after we were woken is one to be forwarded again.
        """
        before = signal.signal(signal.SIGTSTP, signal.SIG_IGN)
        os.kill(0, signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.pthread_kill(threading.get_ident(), signal.SIGTSTP)  # the kernel refuses where no shell could wake us
        signal.signal(signal.SIGTSTP, before)

    def stir(self) -> None:
        """Have the loop look up, from any thread."""
        with suppress(BlockingIOError):
            os.write(self._writes, _STIR)

    def come(self) -> list[int]:
        """What has come since the last time and is to be forwarded."""
        try:
            numbers = os.read(self._reads, 4096)
        except BlockingIOError:
            return []
        return [number for number in numbers if number in FORWARDED]

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if not self._forwarding and number in FORWARDED and number not in _HARMLESS:
            raise SystemExit(codes.SIGNAL + number)
