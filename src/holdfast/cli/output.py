"""Two forms of everything: tables for people, JSON for programs.

What others chose (names, labels, reasons) is shown as text and nothing else: no control character of theirs reaches the
terminal, and no markup.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_PIPE_WIDTH = 400


def console() -> Console:
    """For standard output. In a pipe nothing is cut, whatever the width of a line."""
    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(highlight=False, width=_PIPE_WIDTH, color_system=None)


def plain(value: object) -> str:
    """Text without anything that a terminal would obey."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in str(value))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()) -> Table:
    """Columns without lines between them; those named in `right` hold numbers."""
    grid = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        grid.add_column(column, justify="right" if column in right else "left", no_wrap=True, overflow="ellipsis")
    for row in rows:
        grid.add_row(*(Text(plain(cell)) for cell in row))
    return grid


def facts(pairs: Iterable[tuple[str, object]]) -> Table:
    """Names and values, one per line; long values go on below themselves."""
    grid = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in pairs:
        grid.add_row(Text(name), Text(plain(value)))
    return grid


def print_json(value: Any, *, indent: int | None = 2) -> None:
    sys.stdout.write(json.dumps(value, indent=indent, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def span(seconds: float) -> str:
    """A length of time as people say it: 0.4s, 12s, 3m 05s, 2h 07m, 4d 11h."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    for unit, below, size in (("d", "h", 86400), ("h", "m", 3600), ("m", "s", 60)):
        if whole >= size:
            small = size // {"d": 24, "h": 60, "m": 60}[unit]
            return f"{whole // size}{unit} {whole % size // small:02d}{below}"
    return f"{whole}s"
