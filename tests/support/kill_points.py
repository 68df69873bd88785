"""Deaths one line apart: a piece of work is killed at its first line, then at its second, until it survives.

The rule: nobody chooses the places. Every line of the modules that are named is one, as often as it is run.

    for line in killed_at_every_line(work, site):    # each time round, the work has just been killed there
        ...                                          # look what it left
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
    """Run the work in a child, and kill it before the first line of these modules, then the second, and so on.

    With a larger `step` only every so many lines: less is shown, sooner. It forks, so call it in a process that has
    one thread and no client yet; `in_child` keeps it so. It ends with the first child that gets through; a child that
    fails by itself is a `RuntimeError`.
    """
    for number in itertools.count(1, step):
        code = _lived(work, _Death(number, modules).trace)
        if code == 0:
            return
        if code != -signal.SIGKILL:
            raise RuntimeError(f"the work ended with {code} by itself, before line {number}")
        yield number


def in_child(work: Callable[[], object]) -> None:
    """Run the work in a child, to its good end; `RuntimeError` if that is another one."""
    code = _lived(work, None)
    if code != 0:
        raise RuntimeError(f"the work ended with {code}")


def _lived(work: Callable[[], object], trace: Any) -> int:
    """How a child ended that did this work under that trace."""
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


class _Death:
    """Comes after so many lines."""

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
