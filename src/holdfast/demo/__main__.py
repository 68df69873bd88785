"""`python -m holdfast.demo`: look, then believe the summary, for it was checked."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import holdfast
from holdfast.config import url_of
from holdfast.demo.clerk import LOCK, TTL_S, counter_file
from holdfast.demo.director import NAMES, Director, Stalled
from holdfast.demo.summary import summarise
from holdfast.demo.view import view_for
from holdfast.errors import HoldfastError
from holdfast.testing import GuardedFile

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from holdfast.demo.summary import Summary

INTERRUPTED = 130

_DESCRIPTION = """\
Five processes want one lock and count in one file. One is killed while it
holds the lock, one is frozen for longer than its ttl and woken again. What
happened is recorded, and the summary at the end is checked against it: the
exit code is 1 if anything was violated.

It takes about 10 seconds, needs Python and Linux only, and leaves nothing behind."""

_EXAMPLES = """\
examples:
  python -m holdfast.demo                    look at it
  python -m holdfast.demo --json | jq .      the summary only
  python -m holdfast.demo --without-guard    what the fence is for: this must fail"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Play, check, tell; the exit code says whether everything held."""
    options = _parser().parse_args(arguments)
    try:
        return play(options.url, guarded=not options.without_guard, as_json=options.json)
    except HoldfastError as trouble:
        return _not_ended(trouble)


def play(url: str | None, *, guarded: bool, as_json: bool) -> int:
    """The same for whoever has its own words for the errors of the library."""
    signal.signal(signal.SIGTERM, _stop)
    out = sys.stdout
    try:
        with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
            summary = _played(url, Path(folder), guarded=guarded, as_json=as_json)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; every worker was ended\n")
        return INTERRUPTED
    except Stalled as trouble:
        return _not_ended(trouble)

    text = json.dumps(summary.as_json(), indent=2) if as_json else "\n".join(summary.lines())
    out.write(f"{text}\n")
    return 1 if summary.violations else 0


def _not_ended(trouble: Exception) -> int:
    sys.stderr.write(f"the demonstration did not get to its end: {trouble}\n")
    return 1


def _played(asked: str | None, folder: Path, *, guarded: bool, as_json: bool) -> Summary:
    if not Path("/proc/self/stat").exists():
        raise Stalled("it looks at its processes through /proc, which only Linux has")
    url = asked or url_of("sqlite", folder.resolve() / "demo.db")
    with holdfast.connect(url) as hf:
        promise, shown = hf.promise(), hf.url
        hf.show(LOCK)  # where it cannot be reached, it is told here, and not by each worker
    if promise.scope == "process":
        raise Stalled(f"{shown} is of one process; the demonstration needs an engine that several can share")

    where = "temporary SQLite file" if asked is None else shown
    guard = "" if guarded else ", no guard"
    heading = f"holdfast: {len(NAMES)} processes, 1 lock, 1 counter{guard}  [{where}]"
    view = view_for(sys.stdout, heading, silent=as_json)
    try:
        director = Director(url, folder, view, guarded=guarded)
        with closing(director.history):
            director.play()
        view.end(director.story)
    finally:
        view.leave()
    counter = GuardedFile(counter_file(folder)).read().value
    return summarise(director.history.read(), counter, engine=promise.engine, ttl_s=TTL_S)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m holdfast.demo",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--url", help="where the leases live (default: a temporary SQLite file)")
    parser.add_argument("--json", action="store_true", help="print the summary only, as JSON")
    parser.add_argument(
        "--without-guard",
        action="store_true",
        help="the counter compares no fences: shows that the check at the end can fail",
    )
    return parser


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
