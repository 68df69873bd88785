"""`holdfast demo`: the demonstration of `holdfast.demo`, with the options and exit codes of the tool."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast._lazy import Requires
from holdfast.cli import codes, errors
from holdfast.cli.options import Json, Url


def demo(
    url: Url = None,
    without_guard: Annotated[
        bool, typer.Option("--without-guard", help="The counter compares no fences: shows that the check can fail.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Show five processes and one lock, with a crash and a freeze: a late write is refused.

    \b
    Example:
      holdfast demo
    """
    try:
        with Requires("holdfast-conformance", "holdfast.demo"):
            # Imported here: the demonstration and the test tools that it uses are in a wheel of their own.
            from holdfast.demo.__main__ import play  # noqa: PLC0415
    except ModuleNotFoundError as error:
        return errors.report("usage", codes.USAGE, str(error), as_json=as_json)
    return play(url, guarded=not without_guard, as_json=as_json)
