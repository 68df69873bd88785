"""Raise an interrupt at one chosen line of the library.

A signal handler runs between two bytecodes, but not between any two: CPython checks for signals when a function begins,
after a call, and when a loop turns. So two places that a tracer sees are left out, because no signal can strike there:
the line of a bare `try`, and the second visit to the line of a `with`, where the block has ended and its `__exit__` is
about to be called.
"""

from __future__ import annotations

import ast
import functools
import signal
import sys
from pathlib import Path

import holdfast

SOURCE = str(Path(holdfast.__file__).parent)


class Interrupt(KeyboardInterrupt):
    """The interrupt that a test raised."""


class InterruptAt:
    """Raise `error` in this thread at the n-th line of the library that runs in the block.

    `skip` are functions whose first line is left out; `among` the directories of the library whose lines count. `where`
    shows afterwards which line it was, or that there was none.
    """

    def __init__(self, number, among=("",), error=Interrupt):
        self._error = error
        self.skip = frozenset()
        self._among = tuple(SOURCE + each for each in among)
        self.left = number
        self._before = {}
        self.where = None

    def __enter__(self):
        self._outer = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_):
        sys.settrace(self._outer)

    def _trace(self, frame, event, _arg):
        code = frame.f_code
        if not code.co_filename.startswith(self._among) or self.where or being_deleted(frame):
            return None
        if event == "line":
            before, self._before[frame] = self._before.get(frame), frame.f_lineno
            first_of_skipped = before is None and code.co_qualname in self.skip
            if not first_of_skipped and not out_of_reach(code.co_filename, before, frame.f_lineno):
                self.left -= 1
                if self.left < 0:
                    self.where = f"{code.co_filename.removeprefix(SOURCE)}:{frame.f_lineno} {code.co_qualname}"
                    self._before.clear()
                    self._handle(signal.SIGALRM, sys._getframe())
        elif event == "return":
            self._before.pop(frame, None)
        return self._trace

    def _handle(self, _signum, _frame):
        raise self._error(self.where)


def being_deleted(frame):
    """Return whether the frame runs inside a `__del__`: Python reports an exception there and drops it."""
    while frame is not None and frame.f_code.co_filename.startswith(SOURCE):
        if frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


@functools.cache
def statements(filename):
    """Return the `with` statements of a file, as first line and lines of the block; and the `try` lines."""
    nodes = list(ast.walk(ast.parse(Path(filename).read_text(encoding="utf-8"))))
    withs = [node for node in nodes if isinstance(node, ast.With | ast.AsyncWith)]
    blocks = [(node.lineno, node.body[0].lineno, node.body[-1].end_lineno) for node in withs]
    return blocks, {node.lineno for node in nodes if isinstance(node, ast.Try | ast.TryStar)}


@functools.cache
def out_of_reach(filename, before, line):
    blocks, tries = statements(filename)
    leaves = before is not None and any(line == begins and first <= before <= last for begins, first, last in blocks)
    return leaves or line in tries
