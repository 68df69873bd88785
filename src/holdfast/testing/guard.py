"""A resource that compares fences: the other half of a lease, for tests and demonstrations.

The rule: it accepts a fence newer than the one it stored, or the same fence from the same token, and nothing
else. Its file is replaced whole, so that a process killed while writing leaves the old content.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True, slots=True)
class Stored:
    """What a guarded file holds: a value, and who wrote it last."""

    value: Any
    fence: int = 0
    token: str = ""


class GuardedFile:
    """A value in a JSON file, which begins as `initial`."""

    def __init__(self, path: str | os.PathLike[str], initial: Any = 0) -> None:
        self.path = Path(path)
        self._initial = initial

    def read(self) -> Stored:
        """What is stored now."""
        try:
            text = self.path.read_text()
        except FileNotFoundError:
            return Stored(self._initial)
        return Stored(**json.loads(text))

    def write(self, fence: int, token: str, change: Callable[[Any], Any]) -> Any:
        """Store `change(value)` and return it, or raise `Fenced` if a newer holder was here before."""
        from holdfast.rules.guard import Stamp, admitted  # noqa: PLC0415 - the other tools need no law

        with self._locked():
            stored = self.read()
            admitted(self.path.name, Stamp(stored.fence, stored.token), Stamp(fence, token))
            value = change(stored.value)
            self._replace(Stored(value, fence, token))
        return value

    def guarded_read(self, fence: int, token: str) -> Any:
        """The value, with a promise: from now on no older holder can change it.

        A guard learns of a new holder only from the holder itself. One that merely looks, computes and then
        writes could be overtaken by the late write of its predecessor, and would write over it.
        """
        return self.write(fence, token, lambda value: value)

    def unguarded_write(self, change: Callable[[Any], Any]) -> Any:
        """Read, change, store, and ask nobody: what a resource without a guard does."""
        stored = self.read()
        value = change(stored.value)
        self._replace(Stored(value, stored.fence, stored.token))
        return value

    def _replace(self, stored: Stored) -> None:
        # The numbers keep unguarded writers, who take no lock, out of each other's drafts.
        draft = self.path.with_name(f"{self.path.name}.{os.getpid()}.{threading.get_ident()}")
        draft.write_text(json.dumps(asdict(stored)))
        draft.replace(self.path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # A file of its own, because the guarded one is a new file after each write.
        with self.path.with_name(f"{self.path.name}.lock").open("a") as sidecar:
            fcntl.flock(sidecar, fcntl.LOCK_EX)
            yield
