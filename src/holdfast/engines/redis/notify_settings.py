"""The setting by which a server tells of keys that end: looked at, and extended only where that was asked for by name.

The letters of `notify-keyspace-events` are a set. E and x have to be in it, or E and A. What is missing is added; no
letter is ever taken out, also not at the end, because others may rely on it by then. Whether it may be changed is found
out by setting what is no letter. Whoever may is told so, others that they may not, and nothing has changed anywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.engines.redis.connect import refused
from holdfast.engines.redis.connection_blocking import RedisConnection
from holdfast.engines.redis.resp import packed
from holdfast.engines.redis.server_info import GREETING, Info
from holdfast.errors import LASTING, Unavailable

if TYPE_CHECKING:
    from holdfast.engines.redis.topology import Node

SETTING = "notify-keyspace-events"
# No step of a conversation takes longer: one that is silent must hold up neither the others nor the end.
LIMIT_S = 0.5
_NO_LETTER = "?"
# What servers say of it, of 6.2 and of later ones.
_NOT_TAKEN = ("invalid", "config set failed")
_WITHOUT = "or do without events: what they tell of is found without them, only later"


def channel(db: int) -> str:
    """Where a server tells of the keys of this database that have come to their end."""
    return f"__keyevent@{db}__:expired"


def missing(letters: str) -> str:
    """What has to be added, so that the ends of keys are told."""
    there = set(letters)
    return ("" if "E" in there else "E") + ("" if there & {"x", "A"} else "x")


class NotifySetting:
    """The setting of one server, spoken about on a connection of its own.

    `letters` are those that were there; `None` if the user may not ask. `alone`: the server must not be one of a
    cluster, because it would tell of its own keys only.
    """

    def __init__(self, node: Node, *, alone: bool) -> None:
        self.url = node.url
        self._alone = alone
        self.letters: str | None = None
        self._link = RedisConnection(node, LIMIT_S)

    def __enter__(self) -> NotifySetting:
        return self

    def __exit__(self, *_: object) -> None:
        self._link.close()

    @property
    def lacks(self) -> str:
        """What is known to be missing."""
        return "" if self.letters is None else missing(self.letters)

    def look(self) -> None:
        """Read it, where the user may."""
        info = Info(self._link.exchange(GREETING, 1, LIMIT_S)[0])
        if self._alone and "cluster" in (info.get("redis_mode"), info.get("server_mode")):
            detail = (
                f"{self.url} is one server of a cluster, and tells of its own keys only: connect to redis+cluster://"
            )
            raise Unavailable("redis", "other topology", detail)
        try:
            self.letters = self._read()
        except Unavailable as error:
            if error.reason not in LASTING:
                raise

    def refuse_unless_ours(self) -> None:
        """`Unavailable` if letters have to be added and may not be. Nothing has changed."""
        try:
            if missing(self._read()):
                self._try()
        except Unavailable as error:
            if error.reason not in LASTING:
                raise
            raise self._forbidden(error) from error

    def extend(self) -> str:
        """Add what is missing; what is to be told of it, if anything was."""
        before = self._read()  # now, not earlier: what somebody has added meanwhile stays
        self.letters = before + missing(before)
        if self.letters == before:
            return ""
        self._ask("CONFIG", "SET", SETTING, self.letters)
        return f"{self.url}: {SETTING} was {before!r} and is {self.letters!r} now, and stays so"

    def advice(self) -> str:
        """What to do where letters are missing and nobody asked us to add them."""
        now = self.letters or ""
        return (
            f"{self.url}: its {SETTING} is {now!r}, so that it does not tell of keys that end: "
            f'CONFIG SET {SETTING} {now}{missing(now)} there, or ask for events="configure"'
        )

    def _forbidden(self, error: Unavailable) -> Unavailable:
        now = self.letters or ""
        wanted = f"{now}{missing(now)}" if self.letters is not None else "Ex (with the letters that it has now)"
        detail = (
            f"{error.detail}. {SETTING} may not be read or changed, and nothing was: it takes +config|get "
            f"+config|set; or have whoever runs the servers say CONFIG SET {SETTING} {wanted} on every "
            f'master, and ask for events="listen"; {_WITHOUT}'
        )
        return Unavailable(error.engine, error.reason, detail)

    def _read(self) -> str:
        reply = self._ask("CONFIG", "GET", SETTING)
        if len(reply) != 2:
            raise Unavailable("redis", "failed", f"{self.url}: it knows no {SETTING}")
        return str(reply[1])

    def _try(self) -> None:
        """What is there would do as well, but somebody may have added letters since it was read."""
        reply = self._reply("CONFIG", "SET", SETTING, _NO_LETTER)
        if isinstance(reply, Exception) and not any(words in str(reply).lower() for words in _NOT_TAKEN):
            raise refused(self.url, reply)

    def _ask(self, *words: str) -> Any:
        reply = self._reply(*words)
        if isinstance(reply, Exception):
            raise refused(self.url, reply)
        return reply

    def _reply(self, *words: str) -> Any:
        return self._link.exchange(packed(*words), 1, LIMIT_S)[0]
