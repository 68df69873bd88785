"""`python -m holdfast.demo`: run the demonstration, check its history, print the summary."""

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
from holdfast.demo.scenario import NAMES, DemoFailed, Scenario
from holdfast.demo.summary import summarise
from holdfast.demo.view import view_for
from holdfast.demo.worker import LOCK, TTL_S, counter_file
from holdfast.errors import HoldfastError
from holdfast.testing import GuardedFile

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from holdfast.demo.summary import Summary

INTERRUPTED = 130

_DESCRIPTION = """\
Five processes compete for one lock and count in one file. One is killed while
it holds the lock, one is frozen for longer than its ttl and woken again. Every
process records its events, and checkers compare the events with the promises:
the exit code is 1 if a promise was violated.

It takes about 10 seconds, needs Python and Linux only, and leaves nothing behind."""

_EXAMPLES = """\
examples:
  python -m holdfast.demo                    watch it
  python -m holdfast.demo --json | jq .      the summary only
  python -m holdfast.demo --without-guard    shows what the fence is for: this must fail"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demonstration and return the exit code: 0 if no promise was violated."""
    options = _parser().parse_args(arguments)
    try:
        return play(options.url, guarded=not options.without_guard, as_json=options.json)
    except HoldfastError as error:
        return _report_failure(error)


def play(url: str | None, *, guarded: bool, as_json: bool) -> int:
    """Run the demonstration like `main`, but let errors of the library pass: `holdfast demo` reports them itself."""
    signal.signal(signal.SIGTERM, _interrupt)
    out = sys.stdout
    try:
        with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
            summary = _run(url, Path(folder), guarded=guarded, as_json=as_json)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; every worker was ended\n")
        return INTERRUPTED
    except DemoFailed as error:
        return _report_failure(error)

    text = json.dumps(summary.as_json(), indent=2) if as_json else "\n".join(summary.lines())
    out.write(f"{text}\n")
    return 1 if summary.violations else 0


def _report_failure(error: Exception) -> int:
    sys.stderr.write(f"the demonstration failed: {error}\n")
    return 1


def _run(chosen_url: str | None, folder: Path, *, guarded: bool, as_json: bool) -> Summary:
    if not Path("/proc/self/stat").exists():
        raise DemoFailed("it reads /proc, which only Linux has")
    url = chosen_url or url_of("sqlite", folder.resolve() / "demo.db")
    with holdfast.connect(url) as hf:
        promise, shown = hf.promise(), hf.url
        hf.show(LOCK)  # report an unreachable engine here, instead of in each worker
    if promise.scope == "process":
        raise DemoFailed(f"the leases of {shown} exist in one process only; the demonstration needs a shared engine")

    where = "temporary SQLite file" if chosen_url is None else shown
    guard = "" if guarded else ", no guard"
    heading = f"holdfast: {len(NAMES)} processes, 1 lock, 1 counter{guard}  [{where}]"
    view = view_for(sys.stdout, heading, silent=as_json)
    try:
        scenario = Scenario(url, folder, view, guarded=guarded)
        with closing(scenario.history):
            scenario.play()
        view.end(scenario.narration)
    finally:
        view.restore()
    counter = GuardedFile(counter_file(folder)).read().value
    return summarise(scenario.history.read(), counter, engine=promise.engine, ttl_s=TTL_S)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m holdfast.demo",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--url", help="where the leases are stored (default: a temporary SQLite file)")
    parser.add_argument("--json", action="store_true", help="print the summary only, as JSON")
    parser.add_argument(
        "--without-guard",
        action="store_true",
        help="the counter compares no fences: shows that the check at the end can fail",
    )
    return parser


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
