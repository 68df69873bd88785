"""`run --once`: do not run a program that has succeeded recently, on any host.

While the program runs, it holds the lease of the name, as without `--once`. Its success stores a result, in the same
step that releases the lease; any other end stores none, so that the next call runs the program.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.blocking.once import OnceClaim
from holdfast.cli import codes, errors
from holdfast.clock import timeout_ns, ttl_ms
from holdfast.core.once.once import OnceOptions
from holdfast.errors import NotFound

if TYPE_CHECKING:
    from holdfast.blocking import Holdfast, Lease


class EarlierSuccess(NamedTuple):
    """An earlier run succeeded: its stored result, and how long this call waited to learn it."""

    result: Any
    waited: float


def claim(hf: Holdfast, name: str, window: float, ttl: float, timeout: float | None) -> OnceClaim:
    """Return the lease of the name; the claim is false if the program has succeeded within the window."""
    hf.once(name, window, lease=ttl)  # checks the settings
    client, options = hf._client, OnceOptions("", ttl_ms(window, setting="window"), timeout_ns(timeout))
    # Use the whole name, not one key of many, so that `run` without --once takes the same lease, and `show` shows it.
    fields = (client, name, ttl_ms(ttl), client.holder, client.packed, None, False)
    return OnceClaim(options, *fields).__enter__()


def record_success(lease: Lease) -> None:
    """Make the release store the success; without --once this does nothing."""
    if isinstance(lease, OnceClaim):
        # For people to read: only the engine's clock decides how long the success counts.
        lease.result = {"by": str(lease.holder), "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        lease._store_success()


def earlier_success(claimed: OnceClaim, waited: float) -> EarlierSuccess:
    """Describe the earlier successful run that makes this one unnecessary."""
    try:
        return EarlierSuccess(claimed.result, waited)
    except NotFound:  # another program marked the same name as done, without a result
        return EarlierSuccess(None, waited)


def report(earlier: EarlierSuccess, name: str, *, as_json: bool) -> int:
    """Report the earlier run, which is no failure.

    Print nothing without a terminal: cron sends a mail for every line.
    """
    result = earlier.result if isinstance(earlier.result, dict) else {}
    by, at = result.get("by"), result.get("at")
    line = f"{name!r} was already done{f' by {by}' if by else ''}{f', at {at}' if at else ''}: not run again"
    facts = {"name": name, "started": False, "by": by, "at": at, "waited": round(earlier.waited, 3)}
    shown = line if sys.stderr.isatty() and not as_json else ""
    return errors.report("done before", codes.OK, shown, as_json=as_json, **facts)
