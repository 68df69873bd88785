"""Named points where a test may stop the library.

The rule: a point that is not armed does nothing and costs the check of one boolean. So points may stand in the middle
of code whose order matters, where a test freezes or kills a process.

Inside one process a test arms a point with a callback. Across processes it names a directory in `HOLDFAST_FAILPOINTS`
and puts a file `<point>.arm` there: the process that reaches the point writes its pid to `<point>.reached` and waits
until `<point>.go` exists. This module reads the variable once, at import.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

VARIABLE = "HOLDFAST_FAILPOINTS"

_POLL_SECONDS = 0.002

_directory = Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None
_callbacks: dict[str, Callable[[], object]] = {}
_on = _directory is not None


def point(name: str) -> None:
    """Stop here if a test armed this point."""
    if _on:
        _reach(name)


def arm(name: str, callback: Callable[[], object]) -> None:
    """Call `callback` each time this process reaches the point; it may block, raise or kill."""
    _callbacks[name] = callback
    _switch()


def disarm(name: str) -> None:
    """Remove the callback of a point, if it has one."""
    _callbacks.pop(name, None)
    _switch()


def disarm_all() -> None:
    """Remove every callback of this process."""
    _callbacks.clear()
    _switch()


def _switch() -> None:
    # A plain global keeps `point` cheap enough to stand anywhere.
    global _on  # noqa: PLW0603
    _on = bool(_callbacks) or _directory is not None


def _reach(name: str) -> None:
    callback = _callbacks.get(name)
    if callback is not None:
        callback()
    if _directory is not None and (_directory / f"{name}.arm").exists():
        _wait_for_go(_directory, name)


def _wait_for_go(directory: Path, name: str) -> None:
    # The rename makes the file appear with the pid in it, so that no reader finds it empty.
    draft = directory / f"{name}.{os.getpid()}"
    draft.write_text(str(os.getpid()))
    draft.replace(directory / f"{name}.reached")
    go = directory / f"{name}.go"
    while not go.exists():
        time.sleep(_POLL_SECONDS)
