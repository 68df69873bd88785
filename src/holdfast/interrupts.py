"""Tell an error that a signal handler of the program raised from an error of the call that the signal interrupted.

Python runs signal handlers between any two steps of the main thread, so an alarm's `TimeoutError` may be raised inside
a read from a socket, and looks like the error of that read. The library must not explain, resend or drop such an error:
it belongs to the program. Code that catches `Exception`, `OSError` or `ValueError` in the thread of a caller uses this
module.
"""

from __future__ import annotations

import contextlib
import itertools
import opcode
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType, TracebackType

_RAISE = opcode.opmap["RAISE_VARARGS"]
_HAS_VARARGS = 0x04  # inspect.CO_VARARGS, without the long import


def error_of_signal(error: BaseException) -> BaseException | None:
    """Return the error that a signal handler raised during the `try` block that caught `error`, or `None`.

    It is `error` itself, or an error that a library below turned into `error`.
    """
    trace = error.__traceback__
    if trace is None or (trace.tb_next is None and error.__context__ is None):
        return None  # the usual case: a call into C failed
    catcher, each = trace.tb_frame, error
    while trace is not None and (each is error or not _is_running(trace.tb_frame, catcher)):
        while trace is not None:
            if trace.tb_frame is not catcher and _is_handler(trace.tb_frame):
                return each
            trace = trace.tb_next
        behind = each.__cause__ or each.__context__
        if behind is not None:
            each, trace = behind, behind.__traceback__
    return None


def raise_if_of_signal(error: BaseException) -> None:
    """Raise the error that a signal handler of the program raised, if there is one behind `error`."""
    found = error_of_signal(error)
    if found is not None:
        raise found


def is_of_signal(error: BaseException) -> bool:
    """Return whether a signal raised this error: in a handler of the program, or as Python's own answer to Ctrl-C.

    Python's own handler for Ctrl-C has no frame. Python runs no signal handler at a `raise` instruction, so a
    `KeyboardInterrupt` from any other instruction came from the signal.
    """
    if error_of_signal(error) is not None:
        return True
    trace = error.__traceback__
    if trace is None or not isinstance(error, KeyboardInterrupt):
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_code[trace.tb_lasti] != _RAISE


def _is_handler(frame: FrameType) -> bool:
    """Return whether a function runs as a signal handler: its arguments are a number and the frame that it interrupted.

    A method has `self` before them, and a `functools.partial` more. Other local variables do not count: any function
    can keep the frame of its caller in one.
    """
    interrupted = frame.f_back
    if interrupted is None or threading.current_thread() is not threading.main_thread():
        return False
    code, values = frame.f_code, frame.f_locals
    arguments = [values.get(name) for name in code.co_varnames[: code.co_argcount]]
    if code.co_flags & _HAS_VARARGS:
        arguments += values.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount], ())
    return any(after is interrupted and isinstance(number, int) for number, after in itertools.pairwise(arguments))


def _is_running(frame: FrameType, catcher: FrameType | None) -> bool:
    """Return whether a frame is the catcher or called it: then it caught an error from before the `try` block."""
    while catcher is not None and catcher is not frame:
        catcher = catcher.f_back
    return catcher is frame


class suppress_unless_signal(contextlib.suppress):  # noqa: N801 - named as the class of the standard library
    """Suppress these errors, except an error that a signal handler of the program raised."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        # The traceback begins in the frame of the `with` block, as in an `except` clause.
        return bool(super().__exit__(kind, error, trace)) and (error is None or error_of_signal(error) is None)
