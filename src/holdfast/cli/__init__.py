"""The command line tool `holdfast`.

Every command has two forms, a table for people and `--json` for programs, an example in its `--help`, and an exit code
for each outcome. A failure prints one line, with what to do next. The tool imports a command when it is called, so that
`holdfast --help` answers at once.
"""

from __future__ import annotations

import importlib.util
import sys

_NEEDED = ("typer", "rich")
_NO_EXTRA = 64


def main() -> int:
    """Run the console script; return the exit code."""
    if any(importlib.util.find_spec(package) is None for package in _NEEDED):
        sys.stderr.write("holdfast: the command line needs typer and rich: pip install 'holdfast[cli]'\n")
        return _NO_EXTRA

    # Imported here: both packages are an extra.
    from holdfast.cli.app import main as run  # noqa: PLC0415

    return run(sys.argv[1:])
