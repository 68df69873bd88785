"""Two forms of every answer: tables for people, JSON for programs.

This module prints text that users chose (names, labels, reasons) as plain text: none of its control characters and no
markup reaches the terminal.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.text import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["console", "facts", "fitted", "listing", "plain", "print_json", "print_line", "span", "table", "text"]

_PIPE_WIDTH = 4000
_GAP = 2


def console(stream: TextIO | None = None) -> Console:
    """Return a console for the stream, or for standard output. In a pipe no line is cut, however long it is."""
    stream = stream or sys.stdout
    if stream.isatty():
        return Console(highlight=False, file=stream)
    return Console(highlight=False, file=stream, width=_PIPE_WIDTH, color_system=None)


def text(value: object) -> Text:
    """Return one line without markup, cut at the width of the console."""
    return Text(plain(value), no_wrap=True, overflow="ellipsis")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()) -> Table:
    """Return a table without rules. The columns named in `right` hold numbers and are aligned to the right."""
    grid = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
    for column in columns:
        grid.add_column(column, justify="right" if column in right else "left", no_wrap=True, overflow="ellipsis")
    for row in rows:
        grid.add_row(*(Text(plain(cell)) for cell in row))
    return grid


def listing(what: str, columns: Sequence[str], rows: Sequence[Sequence[object]], prefix: str, more_than: int) -> None:
    """Print a table of names and their figures, or that there are none.

    `more_than`: the limit that cut the list, or 0 if the list is complete.
    """
    if rows:
        console().print(table(columns, rows, right=columns[1:]))
    else:
        console().print(f"there are no {what}" + (f" that begin with {plain(prefix)!r}" if prefix else ""))
    if more_than:
        sys.stderr.write(f"holdfast: there are more than {more_than} {what}: give a prefix, or a larger --limit\n")


def fitted(
    columns: Sequence[str], rows: Sequence[Sequence[object]], shrink: Sequence[tuple[str, int]], width: int
) -> list[list[str]]:
    """Return the rows as text, cut until they fit into `width`.

    `shrink`: the columns that may be cut, in this order, each with the width that it keeps at least.
    """
    cells = [[plain(cell) for cell in row] for row in rows]
    wide = [max(cell_len(text) for text in each) for each in zip(columns, *cells, strict=True)]
    for column, least in shrink:
        place = columns.index(column)
        too_wide = sum(wide) + _GAP * (len(columns) - 1) - width
        wide[place] = min(wide[place], max(least, len(column), wide[place] - max(0, too_wide)))
    return [[_cut(text, most) for text, most in zip(row, wide, strict=True)] for row in cells]


def _cut(text: str, most: int) -> str:
    """Remove the middle of a text: the beginnings and ends of names tell them apart."""
    keep = len(text)
    cut = text
    while cell_len(cut) > most and keep > 0:
        keep -= 1
        cut = f"{text[: (keep + 1) // 2]}…{text[len(text) - keep // 2 :]}"
    return cut


def facts(pairs: Iterable[tuple[str, object]]) -> Table:
    """Return a table of names and values, one pair per line; a long value continues below itself."""
    grid = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in pairs:
        grid.add_row(Text(name), Text(plain(value)))
    return grid


def print_line(line: str) -> None:
    """Print one line to standard output, without markup and without wrapping."""
    console().print(line, markup=False, soft_wrap=True)


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """Print one JSON value to standard output, in which JSON's own escapes replace every invisible character."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    if not text.isprintable():
        text = "".join(char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text)
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def span(seconds: float) -> str:
    """Return a duration for people: 0.4s, 12s, 3m 05s, 2h 07m, 4d 11h."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    for unit, below, size in (("d", "h", 86400), ("h", "m", 3600), ("m", "s", 60)):
        if whole >= size:
            small = size // {"d": 24, "h": 60, "m": 60}[unit]
            return f"{whole // size}{unit} {whole % size // small:02d}{below}"
    return f"{whole}s"
