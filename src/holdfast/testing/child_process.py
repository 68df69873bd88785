"""The child's side of a worker.

The rule: a child starts with the signal habits of a program in a terminal, whatever its parent ignored,
and talks to its parent only through `ready`, `tell` and `read_line`.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.testing.line_pipe import LinePipe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

READY = "ready"

_parent: LinePipe | None = None


def ready() -> None:
    """Tell the parent that this worker has come to where it is wanted."""
    send_line(READY)


def send_line(line: str) -> None:
    """Send one line to the parent."""
    _connection().send(line)


def read_line(timeout: float | None = None) -> str:
    """The next line that the parent told; `EOFError` once the parent is gone."""
    return _connection().receive(timeout)


def main(job: Mapping[str, Any]) -> None:
    """Run what `job` asks for: `target` with `arguments`, talking over `reads` and `writes`."""
    global _parent  # noqa: PLW0603 - one process has one parent
    for descriptor in (job["reads"], job["writes"]):
        os.set_inheritable(descriptor, False)
    _parent = LinePipe(job["reads"], job["writes"])
    # A shell starts its background jobs with SIGINT ignored, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

    _find(job["target"])(**job["arguments"])


def _connection() -> LinePipe:
    if _parent is None:
        raise RuntimeError("this process is not a worker: it has no parent to talk to")
    return _parent


def _find(target: str) -> Callable[..., object]:
    place, _, function = target.rpartition(":")
    module = _load(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    found: Callable[..., object] = getattr(module, function)
    return found


def _load(path: Path) -> ModuleType:
    """Import a file by its path, with its neighbours importable, as when it is run as a script."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot import {path}")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
