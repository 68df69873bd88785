"""Whoever would end somebody's lease by force is asked first; what is shown is what it would end, and no other."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from holdfast.cli import output
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from collections.abc import Iterable


class NeedsYes(HoldfastError, ValueError):
    """There is nobody to ask."""

    def __str__(self) -> str:
        return "--yes is needed without a terminal to ask on; nothing was done"


def agreed(facts: Iterable[tuple[str, object]], who: str, question: str) -> bool:
    """Asked on standard error: the other stream is for what was done."""
    if not sys.stdin.isatty():
        raise NeedsYes
    import typer  # noqa: PLC0415

    console = output.console(sys.stderr)
    console.print(output.facts(facts))
    console.print(f"The {who} may be at work until it hears of it; only a resource that compares fences is safe.")
    return typer.confirm(question, err=True)
