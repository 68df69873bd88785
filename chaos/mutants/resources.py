"""Mutants of the resource: the lease is right, and the resource does not compare fences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.mutants.patching import put
from holdfast.testing.guard import GuardedFile

if TYPE_CHECKING:
    from pathlib import Path


def guard_compares_nothing(_folder: Path) -> None:
    """The resource accepts every write."""
    put(GuardedFile, "write", lambda self, _fence, _token, change: self.unguarded_write(change))


def guard_ignores_reads(_folder: Path) -> None:
    """The resource learns of a new holder only when it writes."""
    put(GuardedFile, "guarded_read", lambda self, _fence, _token: self.read().value)
