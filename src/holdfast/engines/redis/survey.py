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
from holdfast.engines.redis.dial import refused
from holdfast.engines.redis.facts import Info
from holdfast.engines.redis.link import Link
from holdfast.engines.redis.scripts import LAYOUT, PREFIX, packed
from holdfast.engines.survey import Examination, Finding, Names
from holdfast.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.engines.redis.topology import Node

_STEP = "1000"
_SCAN_S = 20.0
# Keys of the same product that another version would have made.
_OTHERS = re.compile(rf"hf(?!{LAYOUT}:)\d+:")
_CLOCK_FAR_S = 5.0


def names(nodes: Sequence[Node], keys_with: str, prefix: str, limit: int, roof: str = "") -> Names:
    """Names on the servers: records are the keys that end with their hash tag, or with the roof behind it."""
    end = "}" + (f":{roof}" if roof else "")
    found: set[str] = set()
    more = False
    for node in nodes:
        with _Talk(node) as talk:
            for keys, done in talk.scan(f"{keys_with}:{{{_literal(_in_key(prefix))}*"):
                found.update(_name(key.removesuffix(end) + "}") for key in keys if key.endswith(end))
                if len(found) > limit or (talk.late and not done):
                    more = True
                    break
    return Names(tuple(sorted(found)[:limit]), more)


def examine(nodes: Sequence[Node], keys_with: str) -> Examination:
    """Version, role, memory policy, clock, and keys that should not be there; of each server, where there are more."""
    facts: list[tuple[str, str]] = []
    findings: list[Finding] = []
    for node in nodes:
        if len(nodes) > 1:
            facts.append(("server", node.url))
        with _Talk(node) as talk:
            told, found = _looked_at(talk, keys_with)
        facts += told
        where = f"{node.url}: " if len(nodes) > 1 else ""
        findings += [finding._replace(what=where + finding.what) for finding in found]
    return Examination(tuple(facts), tuple(findings))


def _looked_at(talk: _Talk, keys_with: str) -> tuple[list[tuple[str, str]], list[Finding]]:
    info = talk.info()
    facts = [("version", _version(info)), ("role", info.get("role", "unknown: the user may not ask INFO"))]
    findings = [*_role(info), *_eviction(info)]
    persistent = "yes" if info.get("aof_enabled") == "1" else "no: a restart forgets leases"
    facts += [("append-only file", persistent)] if info else []
    offset_s, within_s = talk.clock_offset()
    facts.append(("server's clock", f"{offset_s:+.3f} s from this host's, give or take {within_s:.3f} s"))
    findings += _clock(offset_s)
    counted, strays = talk.leftovers(keys_with)
    facts.append(("keys", counted))
    return facts, findings + strays


class _Talk:
    """A connection for one conversation."""

    def __init__(self, node: Node) -> None:
        self._url = node.url
        self._wire_s = node.wire_s
        self._link = Link(node)
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
            raise refused(self._url, reply)
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

    def leftovers(self, keys_with: str) -> tuple[str, list[Finding]]:
        """How many keys are ours, and those that would stay for ever or are of another layout."""
        count, others, eternal = 0, 0, []
        try:
            for keys, _ in self.scan("hf*"):
                ours = [key for key in keys if key.startswith(f"{keys_with}:{{")]
                others += sum(1 for key in keys if _OTHERS.match(key))
                count += len(ours)
                # A pool that somebody has set up stays until somebody takes its items away.
                eternal += [key for key in ours if "}:pool" not in key and self.ask("PTTL", key) == -1]
                if self.late:
                    break
        except Unavailable as error:
            if error.reason != "no permission":
                raise
            return "unknown: the user may not SCAN or ask PTTL", []
        found = []
        if eternal:
            what = f"{len(eternal)} keys would never expire, for instance {eternal[0]!r}"
            found.append(Finding(grave=False, what=what, advice="somebody wrote there, or took the expiry away"))
        if others:
            what = f"{others} keys are of another layout than {PREFIX}"
            found.append(Finding(grave=False, what=what, advice="another version of holdfast uses this server"))
        return f"{count} ({'all' if not eternal else 'not all'} of them expire by themselves, save pools)", found


def _version(info: dict[str, str]) -> str:
    if "valkey_version" in info:
        return f"Valkey {info['valkey_version']}"
    return f"Redis {info['redis_version']}" if info else "unknown: the user may not ask INFO"


def _role(info: dict[str, str]) -> list[Finding]:
    if info.get("role", "master") == "master":
        return []
    return [Finding(grave=True, what="this server is a replica: it grants nothing", advice="connect to its primary")]


def _eviction(info: dict[str, str]) -> list[Finding]:
    policy = info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction":
        return []
    limit = info.get("maxmemory_human", "?")
    what = f"when its memory is full ({limit}) the server evicts keys, and leases with them: {policy}"
    grave = info.get("maxmemory", "0") != "0"
    return [Finding(grave=grave, what=what, advice="set maxmemory-policy to noeviction")]


def _clock(offset_s: float) -> list[Finding]:
    if abs(offset_s) < _CLOCK_FAR_S:
        return []
    what = f"the server's clock is {offset_s:+.1f} s away from this host's"
    advice = "clocks are never compared here, but a clock that is set back later can hold fences back: run NTP"
    return [Finding(grave=False, what=what, advice=advice)]


def _in_key(text: str) -> str:
    return text.replace("%", "%25").replace("}", "%7D")


def _name(key: str) -> str:
    tag = key.partition("{")[2].removesuffix("}")
    return tag.replace("%7D", "}").replace("%25", "%")


def _literal(text: str) -> str:
    """Text that stands for itself in a pattern."""
    return re.sub(r"([\\*?\[\]^-])", r"\\\1", text)
