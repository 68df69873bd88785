"""Signals that end a command raise an exception, so that the command releases its leases and files on the way out."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from holdfast.cli import codes

_ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Make TERM and HUP raise `SystemExit` inside the block.

    A signal that the process ignored at its start stays ignored. INT raises `KeyboardInterrupt` by itself.
    """

    def end(number: int, _frame: object) -> NoReturn:
        raise SystemExit(codes.SIGNAL + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _ENDING}
    try:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, end)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
