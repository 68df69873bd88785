"""What people may ask of a server: the names on it, and whether its settings suit leases.

The scan goes over the whole key space, in steps that block nobody, on a connection of its own. It needs the right to
SCAN, which nothing else here does.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

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
from holdfast.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.engines.redis.topology import Node

_STEP = "1000"
_SCAN_S = 20.0
# Keys of the same product that another version would have made.
_OTHERS = re.compile(rf"hf(?!{LAYOUT}:)\d+:")
_LASTING = re.compile(rf"\}}:(?:{POOL}|{QUEUES})(?::|$)")
_CLOCK_FAR_S = 5.0
_NO_EVICTION = "set maxmemory-policy to noeviction"


def names(nodes: Sequence[Node], keys_with: str, prefix: str, limit: int, kind: str = "") -> NamePage:
    """Names on the servers: records are the keys that end with their hash tag, or with the roof behind it."""
    end = "}" + (f":{kind}" if kind else "")
    found: set[str] = set()
    more = False
    for node in nodes:
        with _Talk(node) as talk:
            for keys, done in talk.scan(f"{keys_with}:{{{_literal(_in_key(prefix))}*"):
                found.update(_name(key.removesuffix(end) + "}") for key in keys if key.endswith(end))
                if len(found) > limit or (talk.late and not done):
                    more = True
                    break
    return NamePage(tuple(sorted(found)[:limit]), more)


def examine(nodes: Sequence[Node], keys_with: str) -> EngineReport:
    """Version, role, memory policy, clock, and keys that should not be there; of each server, where there are more."""
    seen = EngineReport()
    for node in nodes:
        with _Talk(node) as talk:
            one = _looked_at(talk, keys_with)
        if len(nodes) > 1:
            one = _of(node.url, one)
        seen = EngineReport(seen.facts + one.facts, seen.findings + one.findings, seen.notes + one.notes)
    return seen


def _of(server: str, seen: EngineReport) -> EngineReport:
    """The same, said of this server."""
    facts = (Fact("server", server, {}), *seen.facts)
    findings, notes = (
        tuple(each._replace(what=f"{server}: {each.what}") for each in some) for some in (seen.findings, seen.notes)
    )
    return EngineReport(tuple(fact._replace(server=server) for fact in facts), findings, notes)


def _looked_at(talk: _Talk, keys_with: str) -> EngineReport:
    info = talk.info()
    version, role = _version(info), info.get("role")
    offset_s, within_s = talk.clock_offset()
    clock = {"clock_offset_s": round(offset_s, 6), "clock_within_s": round(within_s, 6)}
    facts = [
        Fact("version", version or _UNKNOWN, {"engine": version}),
        Fact("role", role or _UNKNOWN, {"role": role}),
        Fact("server's clock", f"{offset_s:+.3f} s from this host's, give or take {within_s:.3f} s", clock),
    ]
    if info:
        kept = info.switch("aof_enabled") or False
        facts.append(Fact("append-only file", "yes" if kept else "no: a restart forgets leases", {"appendonly": kept}))
    found = talk.leftovers(keys_with)
    findings = (*_unseen(info), *_role(info), *_eviction(info), *_clock(offset_s), *found.findings)
    return EngineReport((*facts, *found.facts), findings, (*_may_evict_one_day(info), *found.notes))


class _Talk:
    """A connection for one conversation."""

    def __init__(self, node: Node) -> None:
        self._url = node.url
        self._wire_s = node.wire_s
        self._link = RedisConnection(node)
        self._until_s = time.monotonic() + _SCAN_S

    def __enter__(self) -> _Talk:
        return self

    def __exit__(self, *_: object) -> None:
        self._link.close()

    @property
    def late(self) -> bool:
        """A scan has had its time."""
        return time.monotonic() > self._until_s

    def ask(self, *words: str) -> Any:
        reply = self._link.exchange(packed(*words), 1, self._wire_s)[0]
        if isinstance(reply, hiredis.ReplyError):
            raise reply_error(self._url, reply)
        return reply

    def scan(self, pattern: str) -> Iterator[tuple[list[str], bool]]:
        """Keys, step by step; true with the last step."""
        cursor = "0"
        while True:
            cursor, keys = self.ask("SCAN", cursor, "MATCH", pattern, "COUNT", _STEP)
            yield keys, cursor == "0"
            if cursor == "0":
                return

    def info(self) -> Info:
        """What the server says of itself; nothing where the user may not ask."""
        try:
            return Info(self.ask("INFO"))
        except Unavailable as error:
            if error.reason != "no permission":
                raise
            return Info("")

    def clock_offset(self) -> tuple[float, float]:
        """How far the server's clock is from ours, and how wrong that may be; the quickest of a few answers."""
        best = (0.0, float("inf"))
        for _ in range(5):
            before_us = SYSTEM.wall_us()
            seconds, micros = self.ask("TIME")
            after_us = SYSTEM.wall_us()
            half_us = (after_us - before_us) / 2
            offset_us = int(seconds) * 1_000_000 + int(micros) - (before_us + half_us)
            best = min(best, (offset_us / 1e6, half_us / 1e6), key=lambda each: each[1])
        return best

    def leftovers(self, keys_with: str) -> EngineReport:
        """How many keys are ours, and those that would stay for ever or are of another layout."""
        count, others, eternal = 0, 0, []
        try:
            for keys, _ in self.scan("hf*"):
                ours = [key for key in keys if key.startswith(f"{keys_with}:{{")]
                others += sum(1 for key in keys if _OTHERS.match(key))
                count += len(ours)
                # A pool stays until somebody takes its items away, a queue until its messages are done.
                eternal += [key for key in ours if not _LASTING.search(key) and self.ask("PTTL", key) == -1]
                if self.late:
                    break
        except Unavailable as error:
            if error.reason != "no permission":
                raise
            return _NO_SCAN
        found = []
        if eternal:
            what = f"{len(eternal)} keys would never expire, for instance {eternal[0]!r}"
            found.append(Finding(serious=False, what=what, advice="somebody wrote there, or took the expiry away"))
        if others:
            what = f"{others} keys are of another layout than {PREFIX}"
            found.append(Finding(serious=False, what=what, advice="another version of holdfast uses this server"))
        text = f"{count} ({'all' if not eternal else 'not all'} of them expire by themselves, save pools and queues)"
        values = {"keys": count, "keys_without_end": len(eternal), "keys_of_other_layouts": others}
        return EngineReport((Fact("keys", text, values),), tuple(found))


_UNKNOWN = "unknown: the user may not ask INFO"
_NO_SCAN = EngineReport(
    (Fact("keys", "unknown: the user may not SCAN or ask PTTL", {"keys": None}),),
    notes=(
        Finding(
            serious=False,
            what="the user may not SCAN or ask PTTL: `ls` and `watch` do not work, and leftovers were not looked for",
            advice="whoever wants them: ACL SETUSER ... +scan +pttl",
        ),
    ),
)


def _version(info: Info) -> str | None:
    if "valkey_version" in info:
        return f"Valkey {info['valkey_version']}"
    return f"Redis {info['redis_version']}" if info else None


def _unseen(info: Info) -> list[Finding]:
    if info:
        return []
    what = "the user may not ask INFO: what the server can promise was not seen, and a restart is told late"
    return [Finding(serious=False, what=what, advice="let the user ask: ACL SETUSER ... +info")]


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


def _may_evict_one_day(info: Info) -> list[Finding]:
    policy = info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction" or info.get("maxmemory") != "0":
        return []
    what = f"the server would evict keys, and leases with them, if its memory had a limit: {policy}"
    return [Finding(serious=False, what=what, advice=f"before it gets one, {_NO_EVICTION}")]


def _clock(offset_s: float) -> list[Finding]:
    if abs(offset_s) < _CLOCK_FAR_S:
        return []
    what = f"the server's clock is {offset_s:+.1f} s away from this host's"
    advice = "clocks are never compared here, but a clock that is set back later can hold fences back: run NTP"
    return [Finding(serious=False, what=what, advice=advice)]


def _in_key(text: str) -> str:
    return text.replace("%", "%25").replace("}", "%7D")


def _name(key: str) -> str:
    tag = key.partition("{")[2].removesuffix("}")
    return tag.replace("%7D", "}").replace("%25", "%")


def _literal(text: str) -> str:
    """Text that stands for itself in a pattern."""
    return re.sub(r"([\\*?\[\]^-])", r"\\\1", text)
