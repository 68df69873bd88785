"""`run --once`: a program that has succeeded lately, on any host, is not run again.

While it runs it has the lease of the name, as without `--once`. Its success leaves a note, in the step that gives the
lease back; any other end leaves none, so that the next one runs.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.blocking.once import OnceClaim
from holdfast.cli import codes, failing
from holdfast.clock import ttl_ms
from holdfast.core.once import once
from holdfast.errors import NotFound

if TYPE_CHECKING:
    from holdfast.blocking import Holdfast, Lease


class Before(NamedTuple):
    """It has been done: what was noted of that, and how long it was waited to know."""

    noted: Any
    waited: float


def first(hf: Holdfast, name: str, window: float, ttl: float, timeout: float | None) -> OnceClaim:
    """The lease of the name; false if the program has succeeded in the window."""
    settings, client = hf.once(name, window, lease=ttl), hf._client
    # The whole name, not one key of many: it is the lease that `run` without --once takes, and that `show` shows.
    fields = (client, name, ttl_ms(ttl), client.holder, client.packed, None, False)
    wanted: OnceClaim = once.prepared(OnceClaim(*fields), settings, "", timeout)
    return wanted.__enter__()


def succeeded(lease: Lease) -> None:
    """Have the release leave a note; without --once there is none to leave."""
    if isinstance(lease, OnceClaim):
        # For people to read: the engine's clock alone decides how long it counts.
        lease.result = {"by": str(lease.holder), "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        once.succeeded(lease)


def before(found: OnceClaim, waited: float) -> Before:
    """What there is to tell of a first that is none."""
    try:
        return Before(found.result, waited)
    except NotFound:  # somebody else's note, of the same name, without a result
        return Before(None, waited)


def tell(before: Before, name: str, *, as_json: bool) -> int:
    """It is as was wished, so it is no failure; and silent without a terminal: cron sends a mail for every line."""
    noted = before.noted if isinstance(before.noted, dict) else {}
    by, at = noted.get("by"), noted.get("at")
    line = f"{name!r} has been done{f' by {by}' if by else ''}{f', at {at}' if at else ''}: not run again"
    facts = {"name": name, "started": False, "by": by, "at": at, "waited": round(before.waited, 3)}
    shown = line if sys.stderr.isatty() and not as_json else ""
    return failing.tell("done before", codes.OK, shown, as_json=as_json, **facts)
