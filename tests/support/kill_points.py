"""Kill a piece of work at its first line, then at its second, and so on until it survives.

Every line of the named modules is a kill point, as often as it runs.

    for line in killed_at_every_line(work, build_dir):    # each time, the work has just been killed at this line
        ...                                               # check what it left
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType, ModuleType


def killed_at_every_line(work: Callable[[], object], *modules: ModuleType, step: int = 1) -> Iterator[int]:
    """Run the work in a child and kill it before the first line of these modules, then the second, and so on.

    `step`: kill at every so many lines only, to be quicker.

    It forks, so call it in a process with one thread and no client; `in_child` keeps it so. It ends with the first
    child that survives; a child that fails by itself raises `RuntimeError`.
    """
    for number in itertools.count(1, step):
        code = _exit_code(work, _KillAfter(number, modules).trace)
        if code == 0:
            return
        if code != -signal.SIGKILL:
            raise RuntimeError(f"the work ended with {code} by itself, before line {number}")
        yield number


def in_child(work: Callable[[], object]) -> None:
    """Run the work in a child; raise `RuntimeError` if it does not exit with 0."""
    code = _exit_code(work, None)
    if code != 0:
        raise RuntimeError(f"the work ended with {code}")


def _exit_code(work: Callable[[], object], trace: Any) -> int:
    """Run the work in a child under a trace function; return its exit code."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        sys.settrace(trace)
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


class _KillAfter:
    """A trace function that kills the process after so many lines of some modules."""

    def __init__(self, lines: int, modules: tuple[ModuleType, ...]) -> None:
        self._left = lines
        self._files = {module.__file__ for module in modules}

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in self._files:
            return None
        if event == "line":
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return self.trace
