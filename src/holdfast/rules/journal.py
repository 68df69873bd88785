"""The journal of a step in memory: an interrupted step is rolled back before the next one begins.

A signal handler that raises, as Ctrl-C does, may end a step between any two of its lines. So a state in memory keeps
its data in dictionaries, notes each key before it changes the value, and clears the journal when the step is complete:
one operation that no signal divides. If the next step finds a journal, the last one was interrupted: the state rolls
back, and builds its indexes again. A rollback may be interrupted and repeated as well.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

ABSENT: Any = object()


class Journal(list[tuple[MutableMapping[Any, Any], Any, Any]]):
    """The changes of one step: mapping, key and the value before."""

    def note(self, mapping: MutableMapping[Any, Any], key: Any) -> None:
        """Note the value of a key before it changes."""
        self.append((mapping, key, mapping.get(key, ABSENT)))

    def restore(self) -> None:
        """Give each key its value from before the step. The journal stays, so that this can be repeated."""
        for mapping, key, before in reversed(self):
            if before is ABSENT:
                mapping.pop(key, None)
            else:
                mapping[key] = before


class Journaled:
    """A state in memory whose steps are atomic.

    Before a step, the engine calls `roll_back` if the journal of an interrupted step is left. After a step, it clears
    the journal.
    """

    def __init__(self) -> None:
        self.journal = Journal()

    def roll_back(self) -> None:
        """Undo an interrupted step."""
        self.journal.restore()
        self._reindex()
        self.journal.clear()

    def _reindex(self) -> None:
        """Build everything that follows from the dictionaries again, in their right order."""
