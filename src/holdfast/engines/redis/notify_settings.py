"""The setting by which a server publishes expired keys: read always, and extended only if the user asked for it.

The value of `notify-keyspace-events` is a set of flags. E and x have to be in it, or E and A. The engine adds the
missing flags and never removes one, not even when it closes, because other programs may rely on the flag by then. To
find out whether the user may change the setting, the engine tries to set a flag that does not exist: a user with the
right gets another error than a user without it, and nothing changes in either case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.engines.redis.connect import reply_error
from holdfast.engines.redis.connection_blocking import RedisConnection
from holdfast.engines.redis.resp import packed
from holdfast.engines.redis.server_info import GREETING, Info
from holdfast.errors import LASTING, Unavailable, UnavailableReason

if TYPE_CHECKING:
    from holdfast.engines.redis.topology import Node

SETTING = "notify-keyspace-events"
# No step takes longer, so that a silent server delays neither the other servers nor the close.
LIMIT_S = 0.5
_NO_FLAG = "?"
# The errors for a flag that does not exist, of Redis 6.2 and of later servers.
_INVALID = ("invalid", "config set failed")
_WITHOUT = "or do without events: owners find expired consumers without them, only later"


def channel(db: int) -> str:
    """Return the channel on which a server publishes the expired keys of this database."""
    return f"__keyevent@{db}__:expired"


def missing(flags: str) -> str:
    """Return the flags to add so that expired keys are published."""
    present = set(flags)
    return ("" if "E" in present else "E") + ("" if present & {"x", "A"} else "x")


class NotifySetting:
    """The setting of one server, read and changed on a connection of its own.

    `flags`: the value of the setting; `None` if the user may not read it. `alone`: the server must not be part of a
    cluster, because it would publish its own keys only.
    """

    def __init__(self, node: Node, *, alone: bool) -> None:
        self.url = node.url
        self._alone = alone
        self.flags: str | None = None
        self._connection = RedisConnection(node, LIMIT_S)

    def __enter__(self) -> NotifySetting:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    @property
    def lacks(self) -> str:
        """The flags that are known to be missing."""
        return "" if self.flags is None else missing(self.flags)

    def read(self) -> None:
        """Read the setting, if the user may."""
        info = Info(self._connection.exchange(GREETING, 1, LIMIT_S)[0])
        if self._alone and "cluster" in (info.get("redis_mode"), info.get("server_mode")):
            detail = (
                f"{self.url} is one server of a cluster, and publishes its own keys only: connect to redis+cluster://"
            )
            raise Unavailable("redis", UnavailableReason.OTHER_TOPOLOGY, detail)
        try:
            self.flags = self._get()
        except Unavailable as error:
            if error.reason not in LASTING:
                raise

    def check_allowed(self) -> None:
        """Raise `Unavailable` if flags are missing and the user may not add them. Change nothing."""
        try:
            if missing(self._get()):
                self._try_to_set()
        except Unavailable as error:
            if error.reason not in LASTING:
                raise
            raise self._forbidden(error) from error

    def extend(self) -> str:
        """Add the missing flags; return a line for the log, or '' if nothing changed."""
        before = self._get()  # now, not earlier: flags that another program added in the meantime stay
        self.flags = before + missing(before)
        if self.flags == before:
            return ""
        self._send("CONFIG", "SET", SETTING, self.flags)
        return f"{self.url}: {SETTING} was {before!r} and is now {self.flags!r}; holdfast does not set it back"

    def advice(self) -> str:
        """Return what to do about missing flags that the engine was not asked to add."""
        now = self.flags or ""
        return (
            f"{self.url}: its {SETTING} is {now!r}, so it does not publish expired keys: "
            f'run CONFIG SET {SETTING} {now}{missing(now)} there, or use events="configure"'
        )

    def _forbidden(self, error: Unavailable) -> Unavailable:
        now = self.flags or ""
        wanted = f"{now}{missing(now)}" if self.flags is not None else "Ex (with the flags that it has now)"
        detail = (
            f"{error.detail}. The user may not read or change {SETTING}, and nothing was changed: grant +config|get "
            f"+config|set; or let the operator of the servers run CONFIG SET {SETTING} {wanted} on every "
            f'master, and use events="listen"; {_WITHOUT}'
        )
        return Unavailable(error.engine, error.reason, detail)

    def _get(self) -> str:
        reply = self._send("CONFIG", "GET", SETTING)
        if len(reply) != 2:
            raise Unavailable("redis", UnavailableReason.FAILED, f"{self.url}: it has no setting {SETTING}")
        return str(reply[1])

    def _try_to_set(self) -> None:
        """Try to set an invalid value, and raise `Unavailable` if the user lacks the right.

        Setting the present value again would remove flags that another program added in the meantime.
        """
        reply = self._reply("CONFIG", "SET", SETTING, _NO_FLAG)
        if isinstance(reply, Exception) and not any(text in str(reply).lower() for text in _INVALID):
            raise reply_error(self.url, reply)

    def _send(self, *arguments: str) -> Any:
        reply = self._reply(*arguments)
        if isinstance(reply, Exception):
            raise reply_error(self.url, reply)
        return reply

    def _reply(self, *arguments: str) -> Any:
        return self._connection.exchange(packed(*arguments), 1, LIMIT_S)[0]
