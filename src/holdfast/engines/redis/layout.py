"""The check for data of another layout, at a client's first contact with its servers.

Clients of two layouts do not see each other's leases. Each layout has a marker key, `hf1:layout`, `hf2:layout` and so
on: a client refuses a server on which the marker of its own layout has another number, and before its first write it
writes its number to the marker of the layout before. So a client of the older version refuses the server from then on,
and a client of this version knows that the database has no older data. Without that number, a client reads all keys
once: decision 0081.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

from holdfast.engines.redis.connect import reply_error
from holdfast.engines.redis.keys import LAYOUT, OLD_LAYOUT, layout_key, old_prefix
from holdfast.engines.redis.redirects import is_redirect
from holdfast.engines.redis.resp import packed
from holdfast.engines.redis.scripts import SCRIPTS
from holdfast.errors import MOVING, Unavailable, UnavailableReason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.commands import Command
    from holdfast.engines.redis.topology import Node, Topology

# How many keys one step reads: it takes a server about a millisecond.
_STEP = "10000"
_MARKER_S = 31 * 86400
_CALL = re.compile(r"\b(?:redis\.p?call|write)\('([A-Z]+)'")
# The commands inside scripts that change nothing.
_READS = {
    *("EXISTS", "GET", "HEXISTS", "HGET", "HGETALL", "HKEYS", "HLEN", "HMGET", "HSCAN", "LINDEX", "LLEN", "LRANGE"),
    *("PTTL", "TIME", "ZCARD", "ZMSCORE", "ZRANGE", "ZRANGEBYLEX", "ZRANGEBYSCORE", "ZRANK", "ZSCAN", "ZSCORE"),
}


def writes(commands: Iterable[Command]) -> bool:
    """Return whether the script of one of these commands may write."""
    return any(_writes(SCRIPTS[type(command)].text) for command in commands)


@cache
def _writes(script: str) -> bool:
    return not _READS.issuperset(_CALL.findall(script))


class LayoutCheck:
    """What one client knows of the layout of the data on its servers. Any thread may use it.

    `passed`: no data of another layout were found, so commands that read may be sent. `marked`: the marker was written,
    or cannot be, so all commands may be sent. `unseen`: why the keys could not be read; then older data may be there.
    """

    def __init__(self, topology: Topology, prefix: str) -> None:
        self.passed = self.marked = False
        self.unseen = ""
        self._topology = topology
        self._prefix = prefix
        self._pattern = f"{old_prefix(prefix)}:{{*"
        # The marker that a later version writes, and the one that this version writes.
        self.marker_keys = (layout_key(prefix), layout_key(old_prefix(prefix)))
        # The next cursor of each run of a server; none once its keys were all read. Every key before a cursor was read.
        self._cursors: dict[tuple[Node, str], str | None] = {}

    def allows(self, commands: Iterable[Command]) -> bool:
        """Return whether these commands may be sent."""
        return self.marked or (self.passed and not writes(commands))

    def read_markers(self, later: Any, ours: Any) -> bool:
        """Check the replies to GET of both markers; return whether the keys have to be read."""
        number = self._number(later)
        if number is not None and number != str(LAYOUT):
            raise self._refusal(
                number,
                "",
                "Install the version of holdfast that the other clients use, or connect to another server or database",
            )
        if self._number(ours, needed=False) != str(LAYOUT):
            return True
        self.marked = self.passed = True
        return False

    def _number(self, reply: Any, *, needed: bool = True) -> str | None:
        """Return the number in a marker; none without the right to read it, if it is not needed."""
        if not isinstance(reply, Exception):
            return None if reply is None else str(reply)
        error = reply_error(self._topology.url, reply, self._prefix)
        if self._topology.follows and is_redirect(str(reply)):
            raise Unavailable("redis", MOVING, error.detail)
        if error.reason == UnavailableReason.OTHER_TOPOLOGY:  # one server of a cluster: it redirects each name
            return None
        if error.reason == UnavailableReason.NO_PERMISSION and not needed:
            return None
        raise error

    def next_step(self, node: Node, run_id: str) -> bytes | None:
        """Return the command that reads the next keys of a server; nothing once all were read."""
        cursor = self._cursors.get((node, run_id), "0")
        if cursor is None or self.unseen:
            return None
        return packed("SCAN", cursor, "MATCH", self._pattern, "COUNT", _STEP)

    def record_step(self, node: Node, sent_run: str, run_id: str, reply: Any) -> None:
        """Record the reply to one step. Raise `Unavailable` if it has a key of the older layout.

        `sent_run`: the run of the server for which the step was made. `run_id`: the run that replied.
        """
        if isinstance(reply, Exception):
            error = reply_error(node.url, reply, self._prefix)
            if error.reason != UnavailableReason.NO_PERMISSION and "unknown command" not in str(reply):
                raise error
            self.unseen = f"SCAN: {reply}"
            return
        cursor, keys = reply
        if keys:
            self.restart()
            raise self._refusal(
                str(OLD_LAYOUT),
                f", for example the key {keys[0]!r}",
                f"Stop the clients of the older version and delete the keys {self._pattern!r}, or connect to another"
                " server or database. Nothing was changed",
            )
        if sent_run == run_id or (node, sent_run) not in self._cursors:  # the first cursor counts on every run
            self._cursors[node, run_id] = None if cursor == "0" else cursor

    def restart(self) -> None:
        """Forget which keys were read: a cursor counts only on the server that returned it."""
        self._cursors.clear()

    def unfinished(self) -> Unavailable:
        """Return the error of a check that needs more time; the next command continues it."""
        detail = (
            f"{self._topology.url}: the search for keys of layout {OLD_LAYOUT} ({self._pattern!r}) has not ended yet"
        )
        return Unavailable("redis", MOVING, detail)

    def marker(self) -> bytes:
        """Return the command that writes the marker."""
        return packed("SET", self.marker_keys[1], str(LAYOUT), "EX", str(_MARKER_S))

    def _refusal(self, number: str, example: str, advice: str) -> Unavailable:
        detail = (
            f"{self._topology.url} has data of layout {number}{example}; this version of holdfast uses layout {LAYOUT}."
            f" {advice}"
        )
        return Unavailable("redis", UnavailableReason.OTHER_LAYOUT, detail)
