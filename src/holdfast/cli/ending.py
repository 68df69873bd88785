"""Signals that end a command end it as an exception does, so that what it has is given back on the way out."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from holdfast.cli import codes

_ENDINGS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def signals_end_it() -> Iterator[None]:
    """TERM and HUP raise `SystemExit`, unless we were started to ignore them; INT raises an error by itself."""

    def end(number: int, _frame: object) -> NoReturn:
        raise SystemExit(codes.SIGNAL + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _ENDINGS}
    try:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, end)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
