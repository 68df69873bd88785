"""Confirmation prompts of commands that end a lease by force or delete something.

A prompt shows the lease that the command would end. The command ends that lease and no later one.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from holdfast.cli import output
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from collections.abc import Iterable


class NeedsYes(HoldfastError, ValueError):
    """Standard input is not a terminal, so the command cannot ask for confirmation."""

    def __str__(self) -> str:
        return "standard input is not a terminal; nothing was done. Add --yes to confirm"


def confirm(question: str) -> bool:
    """Ask on standard error and return the answer; standard output is for results. Raises `NeedsYes`."""
    if not sys.stdin.isatty():
        raise NeedsYes
    return typer.confirm(question, err=True)


def confirm_force(facts: Iterable[tuple[str, object]], holder: str, question: str) -> bool:
    """Show the lease, warn that its holder may still be at work, and ask. Raises `NeedsYes`."""
    if not sys.stdin.isatty():
        raise NeedsYes
    console = output.console(sys.stderr)
    console.print(output.facts(facts))
    console.print(
        f"The {holder} may continue to work until its next renewal; only a resource that compares fences is safe."
    )
    return confirm(question)
