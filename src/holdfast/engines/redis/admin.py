"""Commands for people: list the names on a server, and examine whether its settings suit leases.

The scan reads the whole key space, in steps that do not block the server, on a connection of its own. It needs the
right to SCAN, which no lease needs.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, TypeVar

import hiredis

from holdfast.clock import SYSTEM
from holdfast.commands import POOL
from holdfast.commands.queue_admin import QUEUES
from holdfast.engines.admin import EngineReport, Fact, Finding, NamePage
from holdfast.engines.redis.connect import reply_error
from holdfast.engines.redis.connection_blocking import RedisConnection
from holdfast.engines.redis.keys import LAYOUT, PREFIX
from holdfast.engines.redis.resp import packed
from holdfast.engines.redis.server_info import Info
from holdfast.errors import Unavailable, UnavailableReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.engines.redis.topology import Node

T = TypeVar("T")

_STEP = "1000"
_SCAN_S = 20.0
# Keys of other layouts, and keys of pools and queues, which stay without an expiry.
_OTHERS = re.compile(rf"hf(?!{LAYOUT}:)\d+:(?:[\w.-]+:)?\{{")
_LASTING = re.compile(rf"\}}:(?:{POOL}|{QUEUES})(?::|$)")
# Records that no list of names has: entries of registries, and counters.
_UNLISTED = re.compile(r"\}:(?:e:.*|b|[gl]:[\d,]+)$", re.DOTALL)
# Returns 1 if the key has a record that the scripts can unpack.
_IS_READABLE = """
local text = redis.pcall('GET', KEYS[1])
return (not text or (type(text) == 'string' and type(select(2, pcall(cmsgpack.unpack, text))) ~= 'string')) and 1 or 0
"""
_CLOCK_FAR_S = 5.0
_NO_EVICTION = "set maxmemory-policy to noeviction"


def names(nodes: Sequence[Node], key_prefix: str, prefix: str, limit: int, kind: str = "") -> NamePage:
    """List the names on the servers: a record is a key that ends with its hash tag, or with the kind behind it."""
    end = "}" + (f":{kind}" if kind else "")
    found: set[str] = set()
    more = False
    for node in nodes:
        with _AdminConnection(node) as connection:
            for keys, done in connection.scan(f"{key_prefix}:{{{_literal(_in_key(prefix))}*"):
                found.update(_name(key.removesuffix(end) + "}") for key in keys if key.endswith(end))
                if len(found) > limit or (connection.late and not done):
                    more = True
                    break
    return NamePage(tuple(sorted(found)[:limit]), more)


def examine(nodes: Sequence[Node], key_prefix: str) -> EngineReport:
    """Report the version, role, memory policy and clock of each server, and keys that should not be there."""
    report = EngineReport()
    for node in nodes:
        with _AdminConnection(node) as connection:
            one = _examine_one(connection, key_prefix)
        if len(nodes) > 1:
            one = _with_server(node.url, one)
        report = EngineReport(report.facts + one.facts, report.findings + one.findings, report.notes + one.notes)
    return report


def _with_server(server: str, report: EngineReport) -> EngineReport:
    """Return the report with the name of the server in every line."""
    facts = (Fact("server", server, {}), *report.facts)
    findings, notes = (
        tuple(each._replace(what=f"{server}: {each.what}") for each in some) for some in (report.findings, report.notes)
    )
    return EngineReport(tuple(fact._replace(server=server) for fact in facts), findings, notes)


def _examine_one(connection: _AdminConnection, key_prefix: str) -> EngineReport:
    info = connection.info()
    version, role = _version(info), info.get("role")
    offset_s, within_s = connection.clock_offset()
    clock = {"clock_offset_s": round(offset_s, 6), "clock_within_s": round(within_s, 6)}
    facts = [
        Fact("version", version or _UNKNOWN, {"engine": version}),
        Fact("role", role or _UNKNOWN, {"role": role}),
        Fact("server's clock", f"{offset_s:+.3f} s from this host's, give or take {within_s:.3f} s", clock),
    ]
    if info:
        aof = info.switch("aof_enabled") or False
        facts.append(Fact("append-only file", "yes" if aof else "no: a restart forgets leases", {"appendonly": aof}))
    found = connection.leftovers(key_prefix)
    settings = (*_no_info(info), *_role(info), *_eviction(info), *_clock(offset_s))
    findings = (*settings, *found.findings, *connection.no_wakeups(key_prefix))
    return EngineReport((*facts, *found.facts), findings, (*_would_evict(info), *found.notes))


class _AdminConnection:
    """A connection to one node, for one command of the command line tool."""

    def __init__(self, node: Node) -> None:
        self._url = node.url
        self._wire_s = node.wire_s
        self._connection = RedisConnection(node)
        self._until_s = time.monotonic() + _SCAN_S

    def __enter__(self) -> _AdminConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    @property
    def late(self) -> bool:
        """Whether a scan has used up its time."""
        return time.monotonic() > self._until_s

    def send(self, *arguments: str) -> Any:
        reply = self._connection.exchange(packed(*arguments), 1, self._wire_s)[0]
        if isinstance(reply, hiredis.ReplyError):
            raise reply_error(self._url, reply)
        return reply

    def _read(self, read: Callable[[Any], T], *arguments: str) -> T:
        """Send a command, and return what `read` makes of the reply."""
        reply = self.send(*arguments)
        try:
            return read(reply)
        except (TypeError, ValueError) as error:
            what = "is not the reply of a Redis or Valkey server; check the address"
            detail = f"{self._url}: the reply to {arguments[0]} {what}"
            raise Unavailable("redis", UnavailableReason.FAILED, detail) from error

    def scan(self, pattern: str) -> Iterator[tuple[list[str], bool]]:
        """Yield keys, step by step, and true with the last step."""
        cursor = "0"
        while True:
            cursor, keys = self._read(_scanned, "SCAN", cursor, "MATCH", pattern, "COUNT", _STEP)
            yield keys, cursor == "0"
            if cursor == "0":
                return

    def info(self) -> Info:
        """Return the reply to INFO; an empty one if the user lacks the right."""
        try:
            return Info(self.send("INFO"))
        except Unavailable as error:
            if error.reason != UnavailableReason.NO_PERMISSION:
                raise
            return Info("")

    def no_wakeups(self, key_prefix: str) -> list[Finding]:
        """Return a finding if the user may not subscribe. Send nothing afterwards: the connection has a subscription.

        A hand-over does not show it for certain: after half a second, a heartbeat replaces the wake-up.
        """
        try:
            self.send("SUBSCRIBE", f"{key_prefix}:wake:doctor")
        except Unavailable as error:
            if error.reason != UnavailableReason.NO_PERMISSION:
                raise
            what = "wake-ups do not arrive: the user may not subscribe to their channels, so that waiters are late"
            advice = f"grant the right: ACL SETUSER ... +subscribe &{key_prefix}:wake:*"
            return [Finding(serious=False, what=what, advice=advice)]
        return []

    def clock_offset(self) -> tuple[float, float]:
        """Return the offset of the server's clock and its possible error, from the quickest of five replies."""
        best = (0.0, float("inf"))
        for _ in range(5):
            before_us = SYSTEM.wall_us()
            now_us = self._read(_time_us, "TIME")
            after_us = SYSTEM.wall_us()
            half_us = (after_us - before_us) / 2
            offset_us = now_us - (before_us + half_us)
            best = min(best, (offset_us / 1e6, half_us / 1e6), key=lambda each: each[1])
        return best

    def leftovers(self, key_prefix: str) -> EngineReport:
        """Count the keys of holdfast, those that would never expire, and those of other layouts."""
        count, others, endless, damaged = 0, 0, [], []
        try:
            for keys, _ in self.scan("hf*"):
                ours = [key for key in keys if key.startswith(f"{key_prefix}:{{")]
                others += sum(1 for key in keys if _OTHERS.match(key))
                count += len(ours)
                # A pool stays until its items are removed, a queue until its messages are acked.
                endless += [key for key in ours if not _LASTING.search(key) and self.send("PTTL", key) == -1]
                unlisted = [key for key in ours if _UNLISTED.search(key)]
                damaged += [key for key in unlisted if self.send("EVAL", _IS_READABLE, "1", key) == 0]
                if self.late:
                    break
        except Unavailable as error:
            if error.reason != UnavailableReason.NO_PERMISSION:
                raise
            return _NO_SCAN
        found = [
            Finding(serious=False, what=f"the data at {key!r} cannot be read", advice="move or delete that key")
            for key in damaged
        ]
        if endless:
            what = f"{len(endless)} keys would never expire, for instance {endless[0]!r}"
            found.append(Finding(serious=False, what=what, advice="another program wrote there, or removed the expiry"))
        if others:
            what = f"{others} keys have another layout than {PREFIX}"
            found.append(Finding(serious=False, what=what, advice="another version of holdfast uses this server"))
        text = f"{count} ({'all' if not endless else 'not all'} of them expire, except pools and queues)"
        values = {"keys": count, "keys_without_end": len(endless), "keys_of_other_layouts": others}
        return EngineReport((Fact("keys", text, values),), tuple(found))


def _scanned(reply: Any) -> tuple[str, list[str]]:
    cursor, keys = reply
    return str(cursor), list(map(str, keys))


def _time_us(reply: Any) -> int:
    seconds, micros = reply
    return int(seconds) * 1_000_000 + int(micros)


_UNKNOWN = "unknown: the user may not run INFO"
_NO_SCAN = EngineReport(
    (Fact("keys", "unknown: the user may not run SCAN or PTTL", {"keys": None}),),
    notes=(
        Finding(
            serious=False,
            what="the user may not run SCAN or PTTL: `ls` and `watch` do not work, and leftovers were not counted",
            advice="if you need them: ACL SETUSER ... +scan +pttl",
        ),
    ),
)


def _version(info: Info) -> str | None:
    if "valkey_version" in info:
        return f"Valkey {info['valkey_version']}"
    return f"Redis {info['redis_version']}" if info else None


def _no_info(info: Info) -> list[Finding]:
    if info:
        return []
    what = "the user may not run INFO: the promise of the server is unknown, and a restart is noticed late"
    return [Finding(serious=False, what=what, advice="grant the right: ACL SETUSER ... +info")]


def _role(info: Info) -> list[Finding]:
    if info.get("role", "master") == "master":
        return []
    return [Finding(serious=True, what="this server is a replica: it grants nothing", advice="connect to its primary")]


def _eviction(info: Info) -> list[Finding]:
    policy = info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction" or info.get("maxmemory") == "0":
        return []
    limit = info.get("maxmemory_human", "?")
    what = f"when its memory is full ({limit}) the server evicts keys, and leases with them: {policy}"
    return [Finding(serious=True, what=what, advice=_NO_EVICTION)]


def _would_evict(info: Info) -> list[Finding]:
    policy = info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction" or info.get("maxmemory") != "0":
        return []
    what = f"the server would evict keys, and leases with them, if its memory had a limit: {policy}"
    return [Finding(serious=False, what=what, advice=f"before it gets one, {_NO_EVICTION}")]


def _clock(offset_s: float) -> list[Finding]:
    if abs(offset_s) < _CLOCK_FAR_S:
        return []
    what = f"the server's clock is {offset_s:+.1f} s away from this host's"
    advice = "holdfast compares no clocks, but fences may go back if this clock is set back later: run NTP"
    return [Finding(serious=False, what=what, advice=advice)]


def _in_key(text: str) -> str:
    return text.replace("%", "%25").replace("}", "%7D")


def _name(key: str) -> str:
    tag = key.partition("{")[2].removesuffix("}")
    return tag.replace("%7D", "}").replace("%25", "%")


def _literal(text: str) -> str:
    """Escape a text for a pattern."""
    return re.sub(r"([\\*?\[\]^-])", r"\\\1", text)
