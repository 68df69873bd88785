"""A file that compares fences: a guarded resource for tests and demonstrations.

It accepts a write with a newer fence than the stored one, or with the same fence and the same token, and refuses every
other. A write replaces the whole file, so that a process killed while writing leaves the old content.
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
    """The content of a guarded file: a value, and the fence and token of its last writer."""

    value: Any
    fence: int = 0
    token: str = ""


class GuardedFile:
    """A value in a JSON file at `path`; before the first write it is `initial`."""

    def __init__(self, path: str | os.PathLike[str], initial: Any = 0) -> None:
        self.path = Path(path)
        self._initial = initial

    def read(self) -> Stored:
        """Return the present content."""
        try:
            text = self.path.read_text()
        except FileNotFoundError:
            return Stored(self._initial)
        return Stored(**json.loads(text))

    def write(self, fence: int, token: str, change: Callable[[Any], Any]) -> Any:
        """Store `change(value)` and return it; raise `Fenced` if a newer holder has written before.

        `fence`, `token`: those of the lease of the writer.
        """
        from holdfast.rules.guard import Stamp, admitted  # noqa: PLC0415 - the other tools need no rules

        with self._locked():
            stored = self.read()
            admitted(self.path.name, Stamp(stored.fence, stored.token), Stamp(fence, token))
            value = change(stored.value)
            self._replace(Stored(value, fence, token))
        return value

    def guarded_read(self, fence: int, token: str) -> Any:
        """Return the value and store the fence: from now on no older holder can change the value.

        `fence`, `token`: those of the lease of the reader.

        A guard learns of a new holder only from the holder itself. If the holder read without its fence, computed and
        then wrote, its predecessor could write in between, and the holder would overwrite that write.
        """
        return self.write(fence, token, lambda value: value)

    def unguarded_write(self, change: Callable[[Any], Any]) -> Any:
        """Store `change(value)` without comparing fences, as a resource without a guard does; return it."""
        stored = self.read()
        value = change(stored.value)
        self._replace(Stored(value, stored.fence, stored.token))
        return value

    def _replace(self, stored: Stored) -> None:
        # Unguarded writers take no lock; pid and thread id keep their drafts apart.
        draft = self.path.with_name(f"{self.path.name}.{os.getpid()}.{threading.get_ident()}")
        draft.write_text(json.dumps(asdict(stored)))
        draft.replace(self.path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # A separate file, because every write makes the guarded one a new file.
        with self.path.with_name(f"{self.path.name}.lock").open("a") as sidecar:
            fcntl.flock(sidecar, fcntl.LOCK_EX)
            yield
