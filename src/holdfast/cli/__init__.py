"""The tool for people: `holdfast` on the command line.

Every command has two forms, a table for people and `--json` for programs, an example in its `--help`, and an exit code
that tells what happened. What goes wrong is told in one line, with what to do next. Nothing is imported before it is
needed, so that `holdfast --help` is there at once.
"""

from __future__ import annotations

import importlib.util
import sys

_NEEDED = ("typer", "rich")
_NO_EXTRA = 64


def main() -> int:
    """The console script."""
    if any(importlib.util.find_spec(package) is None for package in _NEEDED):
        sys.stderr.write("holdfast: the command line needs typer and rich: pip install 'holdfast[cli]'\n")
        return _NO_EXTRA

    # Imported here: both packages are an extra.
    from holdfast.cli.app import main as run  # noqa: PLC0415

    return run(sys.argv[1:])
