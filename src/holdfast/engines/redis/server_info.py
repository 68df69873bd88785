"""What a server tells about itself: the questions, and how the answers are read.

A server need not answer: managed services hide CONFIG, and a user may lack the right to ask. What is not answered is
not seen, never guessed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from holdfast.engines.redis.resp import packed

_SETTINGS = ("appendfsync", "no-appendfsync-on-rewrite", "min-replicas-to-write")
QUESTIONS = (packed("INFO"), *(packed("CONFIG", "GET", setting) for setting in _SETTINGS))
GREETING = packed("INFO", "server")
REPLICAS = packed("INFO", "replication")
# Flushed with every grant, save while a child of the server writes a snapshot or a new append-only file.
MOSTLY = "always, but not while it is rewritten"


class ServerFacts(NamedTuple):
    """One server, and what this client has seen of it. `None` is what was not seen.

    `replicas` are linked to it now, `known` were at some time. `sentinels` may put another server in its place.
    `grouped`: if it is part of a cluster, it was reached through that. `jumped_s` and `jumped_back_s` are by how much
    its clock was seen to jump forward, and back.
    """

    server: str | None = None
    role: str | None = None
    replicas: int | None = None
    known: int = 0
    aof: bool | None = None
    appendfsync: str | None = None
    maxmemory: int | None = None
    maxmemory_policy: str | None = None
    min_replicas: int | None = None
    cluster: bool | None = None
    sentinels: bool = False
    grouped: bool = True
    jumped_s: float = 0.0
    jumped_back_s: float = 0.0
    fence_memory_s: float = 60.0
    unseen: tuple[str, ...] = ()


class Info(dict[str, str]):
    """The answer to INFO. Empty if there was none."""

    def __init__(self, reply: Any) -> None:
        lines = reply.splitlines() if isinstance(reply, str) else ()
        super().__init__(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))

    def number(self, key: str) -> int | None:
        text = self.get(key, "")
        return int(text) if text.isdecimal() else None

    def switch(self, key: str) -> bool | None:
        number = self.number(key)
        return None if number is None else bool(number)

    def replicas(self) -> frozenset[str]:
        """The replicas that are linked, by address; also one that is still being filled."""
        count = self.number("connected_slaves") or 0
        told = (dict(part.partition("=")[::2] for part in self.get(f"slave{at}", "").split(",")) for at in range(count))
        return frozenset(f"{each['ip']}:{each['port']}" for each in told if "ip" in each and "port" in each)


def read(replies: list[Any], **seen: Any) -> ServerFacts:
    """The facts in the answers to `QUESTIONS`; `seen` is what the client has found out by itself."""
    info, (fsync, skipped, least) = Info(replies[0]), map(_setting, replies[1:])
    if fsync == "always" and skipped != "no":
        fsync = None if skipped is None else MOSTLY
    asked = zip(("INFO", *(f"CONFIG GET {setting}" for setting in _SETTINGS)), replies, strict=True)
    aof = info.switch("aof_enabled")
    return ServerFacts(
        server=_server(info),
        role={"master": "primary", "slave": "replica"}.get(info.get("role", "")),
        replicas=info.number("connected_slaves"),
        aof=aof and info.get("aof_last_write_status", "ok") == "ok",
        appendfsync=fsync,
        maxmemory=info.number("maxmemory"),
        maxmemory_policy=info.get("maxmemory_policy"),
        min_replicas=int(least) if least is not None and least.isdecimal() else None,
        cluster=info.switch("cluster_enabled"),
        unseen=tuple(f"{question}: {reply or 'nothing'}" for question, reply in asked if not _is_told(reply)),
        **seen,
    )


def _is_told(reply: Any) -> bool:
    """A service that hides its settings refuses, or gives an empty list."""
    return not isinstance(reply, Exception) and reply != []


def _setting(reply: Any) -> str | None:
    """The value in the answer to CONFIG GET of one setting."""
    return str(reply[1]) if isinstance(reply, list) and len(reply) == 2 else None


def _server(info: Info) -> str | None:
    if "valkey_version" in info:
        return f"valkey {info['valkey_version']}"
    return f"redis {info['redis_version']}" if "redis_version" in info else None
