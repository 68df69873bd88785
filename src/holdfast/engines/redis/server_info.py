"""Facts about a server: the commands that read them, and how their replies are parsed.

A server may refuse: managed services hide CONFIG, and a user may lack the right. A fact that the client could not read
stays unknown; the client never guesses it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from holdfast.engines.redis.resp import packed

_SETTINGS = ("appendfsync", "no-appendfsync-on-rewrite", "min-replicas-to-write")
FACT_COMMANDS = (packed("INFO"), *(packed("CONFIG", "GET", setting) for setting in _SETTINGS))
GREETING = packed("INFO", "server")
REPLICATION = packed("INFO", "replication")
# Flushed with every grant, except while a child process of the server writes a snapshot or a new append-only file.
_DIGITS = 18  # of the longest number that a server reports
NOT_DURING_REWRITE = "always, but not while it is rewritten"


class ServerFacts(NamedTuple):
    """The facts about one server; `None` stands for an unknown fact.

    `replicas`: how many are connected now. `known`: how many this client has ever seen. `sentinels`: sentinels may
    replace the server. `grouped`: if it is part of a cluster, the client connected to the cluster. `jumped_s` and
    `jumped_back_s`: by how much its clock was seen to jump forward and back. `unseen`: the commands that were refused.
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
    """The fields of a reply to INFO; empty for an error."""

    def __init__(self, reply: Any) -> None:
        lines = reply.splitlines() if isinstance(reply, str) else ()
        super().__init__(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))

    def number(self, key: str) -> int | None:
        return number_in(self.get(key))

    def switch(self, key: str) -> bool | None:
        number = self.number(key)
        return None if number is None else bool(number)

    def replicas(self) -> frozenset[str]:
        """Return the addresses of the connected replicas, also of one that is still copying its data."""
        listed = (text for key, text in self.items() if key.startswith("slave") and key[5:].isdecimal())
        fields = (dict(part.partition("=")[::2] for part in text.split(",")) for text in listed)
        return frozenset(f"{each['ip']}:{each['port']}" for each in fields if "ip" in each and "port" in each)


def number_in(text: str | None) -> int | None:
    """Return the number that a server reported as a text; `None` for any other text."""
    return int(text) if text and len(text) <= _DIGITS and text.isascii() and text.isdecimal() else None


def facts_from(replies: list[Any], **seen: Any) -> ServerFacts:
    """Return the facts in the replies to `FACT_COMMANDS`; `seen` are facts that the client has collected itself."""
    info, (fsync, skipped, least) = Info(replies[0]), map(_setting, replies[1:])
    if fsync == "always" and skipped != "no":
        fsync = None if skipped is None else NOT_DURING_REWRITE
    sent = zip(("INFO", *(f"CONFIG GET {setting}" for setting in _SETTINGS)), replies, strict=True)
    aof = info.switch("aof_enabled")
    return ServerFacts(
        server=_server(info),
        role={"master": "primary", "slave": "replica"}.get(info.get("role", "")),
        replicas=info.number("connected_slaves"),
        aof=aof and info.get("aof_last_write_status", "ok") == "ok",
        appendfsync=fsync,
        maxmemory=info.number("maxmemory"),
        maxmemory_policy=info.get("maxmemory_policy"),
        min_replicas=number_in(least),
        cluster=info.switch("cluster_enabled"),
        unseen=tuple(f"{command}: {reply or 'nothing'}" for command, reply in sent if not _is_answered(reply)),
        **seen,
    )


def _is_answered(reply: Any) -> bool:
    """Return false for an error or an empty list: a service that hides its settings replies with one of them."""
    return not isinstance(reply, Exception) and reply != []


def _setting(reply: Any) -> str | None:
    """Return the value in the reply to CONFIG GET of one setting."""
    return str(reply[1]) if isinstance(reply, list) and len(reply) == 2 else None


def _server(info: Info) -> str | None:
    if "valkey_version" in info:
        return f"valkey {info['valkey_version']}"
    return f"redis {info['redis_version']}" if "redis_version" in info else None
