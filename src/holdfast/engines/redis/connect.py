"""How to reach the server: settings from a URL or from the user's own redis-py client, and connections from them.

redis-py reads URLs, speaks TLS and authenticates. Once a connection stands we take over its socket or transport, since
redis-py's retries would send our commands again behind our back. A client object gives its settings and nothing else.
"""

from __future__ import annotations

import asyncio
import inspect
import socket
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from holdfast.config import NOT_SHOWN, UNREADABLE
from holdfast.engines.redis.acl import to_grant
from holdfast.engines.redis.keys import PREFIX
from holdfast.engines.redis.redirects import word
from holdfast.errors import MOVING, InvalidConfig, Unavailable

if TYPE_CHECKING:
    from holdfast.config import Settings

CONNECT_S = 1.0
WIRE_S = 2.0

_TIMEOUTS = ("socket_connect_timeout", "socket_timeout")
# What makes a connection reach the same server as the same user; all else is ours to set.
_COPIED = frozenset(
    (
        "host", "port", "path", "db", "username", "password", "credential_provider", "socket_keepalive",
        "socket_keepalive_options", "socket_type",
    )
)  # fmt: skip
# What a URL may say behind its place, beside what TLS takes.
_OPTIONS = frozenset(("db", "username", "password", "socket_keepalive", "namespace", *_TIMEOUTS))
_OWN = {"protocol": 2, "client_name": "holdfast"}

_ANSWER_REASONS = {
    "LOADING": "loading",
    "BUSY": "busy",
    "READONLY": "read-only",
    "OOM": "full",
    "NOPERM": "no permission",
    "NOAUTH": "no permission",
    "WRONGPASS": "no permission",
    "MISCONF": "read-only",
    "MASTERDOWN": "read-only",
    "NOREPLICAS": "read-only",
    "CLUSTERDOWN": "unreachable",
    "MOVED": "other topology",
    "ASK": "other topology",
    "CROSSSLOT": "other topology",
}
# What a server says that is of another kind than the address, and what to do.
_A_SENTINEL = "is it a sentinel? Then connect to redis+sentinel://"
_OTHER_KINDS = {
    "cluster support disabled": "it is no cluster: connect to redis://",
    "unknown command 'SENTINEL'": "it is no sentinel: connect to redis://",
    "unknown command 'GET'": _A_SENTINEL,  # it is what is asked first
    "unknown command 'EVALSHA'": _A_SENTINEL,
}


class Connector:
    """Opens connections that nobody else touches.

    A `member` is one server of several: when it cannot be reached, another may stand in for it. A `primary` must say
    that it is one.
    """

    def __init__(
        self, url: str, kwargs: dict[str, Any], *, tls: bool, path: bool, member: bool = False, primary: bool = False
    ) -> None:
        self.url = url
        self._given = kwargs
        kwargs = {"socket_connect_timeout": CONNECT_S, "socket_timeout": WIRE_S} | kwargs
        self.wire_s = float(kwargs["socket_timeout"])
        self.db = int(kwargs.get("db") or 0)
        # While redis-py has the connection it is being opened, and that has the connect timeout for every step.
        self._kwargs = kwargs | {"socket_timeout": float(kwargs["socket_connect_timeout"])}
        self._tls = tls
        self._path = path
        self._member = member
        self._primary = primary

    @property
    def place(self) -> tuple[str, int]:
        """Host and port."""
        return self._kwargs.get("host", "localhost"), int(self._kwargs.get("port", 6379))

    def at(self, host: str, port: int, *, primary: bool = False) -> Connector:
        """The same user and settings, at one server of several."""
        shown = f"[{host}]" if ":" in host else host
        url = f"{'rediss' if self._tls else 'redis'}://{shown}:{port}"
        kwargs = self._given | {"host": host, "port": port}
        return Connector(url, kwargs, tls=self._tls, path=False, member=True, primary=primary)

    def open_socket(self, limit_s: float | None = None) -> socket.socket:
        """A connected, authenticated socket in the right database; no step of that takes longer than the limit."""
        kind: Any = (
            redis.UnixDomainSocketConnection if self._path else redis.SSLConnection if self._tls else redis.Connection
        )
        kwargs = self._kwargs
        if limit_s is not None:
            kwargs = kwargs | {name: min(float(kwargs[name]), limit_s) for name in _TIMEOUTS}
        connection = self._made(kind, kwargs, Retry(NoBackoff(), 0))
        try:
            connection.connect()
            if self._primary:
                connection.send_command("ROLE")
                self._refuse_replica(connection.read_response())
            link: socket.socket | None = connection._sock  # noqa: SLF001 - taken over from here on
        except Exception as error:
            connection.disconnect()
            raise self.trouble(error) from None
        if link is None:
            raise Unavailable("redis", self._away, f"no connection to {self.url}")
        connection._sock = None  # noqa: SLF001 - so that redis-py neither closes nor uses it
        if not self._path:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return link

    async def open_stream(self) -> asyncio.StreamWriter:
        """The same for an event loop. The writer closes its transport when it is dropped, so it must be kept."""
        kind: Any = (
            redis.asyncio.UnixDomainSocketConnection
            if self._path
            else redis.asyncio.SSLConnection
            if self._tls
            else redis.asyncio.Connection
        )
        connection = self._made(kind, self._kwargs, AsyncRetry(NoBackoff(), 0))
        try:
            await connection.connect()
            if self._primary:
                await connection.send_command("ROLE")
                self._refuse_replica(await connection.read_response())
            writer: asyncio.StreamWriter = connection._writer  # noqa: SLF001 - taken over from here on
        except Exception as error:
            await connection.disconnect(nowait=True)
            raise self.trouble(error) from None
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        connection._writer = connection._reader = None  # noqa: SLF001
        return writer

    def _made(self, kind: Any, kwargs: dict[str, Any], retry: Retry | AsyncRetry) -> Any:
        """A connection that is not open yet.

        The two halves of redis-py do not know the same settings. One that is unknown here can be left out if it is not
        set; otherwise something would be looser than its owner thinks.
        """
        unknown = kwargs.keys() - _taken_by(kind)
        if any(kwargs[name] for name in unknown):
            names = ", ".join(sorted(name for name in unknown if kwargs[name]))
            raise Unavailable("redis", "failed", f"{self.url}: {kind.__module__}.{kind.__name__} knows no {names}")
        fitting = {name: value for name, value in kwargs.items() if name not in unknown}
        try:
            return kind(**fitting, retry=retry, **_OWN)
        except Exception as error:  # it reads files, and there may be no descriptor left for one
            raise self.trouble(error) from None

    def _refuse_replica(self, role: Any) -> None:
        if role[0] not in (b"master", "master"):
            raise Unavailable("redis", MOVING, f"{self.url} is named as the primary, but is none yet")

    def trouble(self, error: BaseException) -> Unavailable:
        """What an error on the way to the server means. Never carries a password."""
        if isinstance(error, Unavailable):
            return error
        wrong = word(str(error))
        lacks = isinstance(error, redis.exceptions.NoPermissionError) or wrong == "NOPERM"
        if lacks or isinstance(error, redis.AuthenticationError) or wrong in ("WRONGPASS", "NOAUTH"):
            why = f": {error}{to_grant(str(error))}" if lacks else f" refused the credentials: {error}"
            return Unavailable("redis", "no permission", f"{self.url}{why}")
        if wrong in _ANSWER_REASONS:
            reason = MOVING if self._member and wrong == "LOADING" else _ANSWER_REASONS[wrong]
            return Unavailable("redis", reason, f"{self.url}: {error}")
        if "DB index is out of range" in str(error) or "invalid DB index" in str(error):
            return Unavailable("redis", "failed", f"{self.url}: the server has no such database: {error}")
        if self._tls and not isinstance(error, redis.exceptions.AuthenticationError):
            hint = "; is it a port for TLS?" if isinstance(error, TimeoutError | redis.TimeoutError) else ""
            return Unavailable("redis", self._away, f"{self.url} over TLS: {error or type(error).__name__}{hint}")
        return Unavailable("redis", self._away, f"{self.url}: {error or type(error).__name__}")

    @property
    def _away(self) -> str:
        return MOVING if self._member else "unreachable"


def refused(url: str, error: BaseException, prefix: str = PREFIX) -> Unavailable:
    """What an error reply means: the command was answered, and it was not applied.

    `prefix` is that of the keys, in case the right to them is what is missing.
    """
    reason = _ANSWER_REASONS.get(word(str(error)), "failed")
    hint = to_grant(str(error), prefix) if reason == "no permission" else ""
    if reason == "other topology":
        hint = "; for a cluster, connect to redis+cluster://"
    for said, other in _OTHER_KINDS.items():
        if said in str(error).replace("`", "'"):  # as older servers quote
            reason, hint = "other topology", f"; {other}"
    return Unavailable("redis", reason, f"{url}: {str(error).rstrip()}{hint}")


@lru_cache
def _taken_by(kind: type) -> frozenset[str]:
    """The settings that a connection of this kind takes."""
    own = [vars(each)["__init__"] for each in kind.__mro__ if "__init__" in vars(each) and each is not object]
    return frozenset(name for each in own for name in inspect.signature(each).parameters)


def connector_of(settings: Settings) -> Connector:
    """From a URL."""
    scheme, _, rest = settings.secret.partition("://")
    try:
        read: Any = redis.connection.parse_url
        kwargs: dict[str, Any] = read(f"{_SCHEMES[scheme.lower()]}://{rest}")
    except ValueError as error:
        # Other messages may repeat a part of the password.
        rule = str(error) if str(error).startswith("Invalid value for") else UNREADABLE
        raise InvalidConfig("url", settings.url, rule) from None
    kind = kwargs.pop("connection_class", redis.Connection)
    parts = urlsplit(settings.secret)
    before = {"username": parts.username, "password": parts.password}  # the hosts; an option does not replace it
    for name, text in settings.options.items():
        if isinstance(kwargs.get(name), str) and not before.get(name):
            kwargs[name] = text  # some versions of redis-py decode it twice
    if scheme.lower() == "unix" and (parts.hostname or not parts.path.removeprefix("/")):
        # redis-py would quietly drop the first part of a relative path.
        raise InvalidConfig(
            "url", settings.url, "it must name a socket by its absolute path, as in unix:///run/redis.sock"
        )
    database = "" if scheme.lower() == "unix" else parts.path.removeprefix("/")
    if database and not (database.isascii() and database.isdigit()):
        # redis-py would quietly take database 0, and two services with one typo would not exclude each other. The path
        # itself is not told: it may be the end of a password with a slash in it.
        raise InvalidConfig("url", settings.url, "the path must be the number of a database")
    if database and int(database) != kwargs.get("db"):
        raise InvalidConfig("url", settings.url, "its path and its option db name two databases")
    return _of_options(settings, kind, kwargs)


def _of_options(settings: Settings, kind: Any, kwargs: dict[str, Any]) -> Connector:
    """What was read from a URL, if its options can be meant."""
    tls, path = issubclass(kind, redis.SSLConnection), issubclass(kind, redis.UnixDomainSocketConnection)
    for option in settings.options:
        if option not in _OPTIONS and not option.startswith("ssl_"):
            raise InvalidConfig(f"option {option}", NOT_SHOWN, "redis knows no such option")
        if option not in _OPTIONS and not tls:
            raise InvalidConfig(f"option {option}", NOT_SHOWN, "it is for TLS: rediss://")
    timeouts = {name: _timeout(settings.url, name, kwargs[name]) for name in _TIMEOUTS if name in kwargs}
    kwargs = copied(kwargs) | timeouts
    try:
        kind(**kwargs)  # nothing is dialled
    except (TypeError, ValueError, redis.RedisError):
        raise InvalidConfig("url", settings.url, "one of its ssl_ options is not known, or has no such value") from None
    return Connector(settings.url, kwargs, tls=tls, path=path)


def _timeout(url: str, name: str, seconds: float) -> float:
    if not 0.01 <= seconds <= 3600:
        raise InvalidConfig("url", url, f"{name} must be between 0.01 and 3600 seconds, not {seconds}")
    return seconds


def connector_of_client(client: Any) -> Connector:
    """From a client object of redis-py that knows one server."""
    pool = client.connection_pool
    kind, kwargs = getattr(pool, "connection_class", None), dict(getattr(pool, "connection_kwargs", {}))
    tls = (redis.SSLConnection, redis.asyncio.SSLConnection)
    path = (redis.UnixDomainSocketConnection, redis.asyncio.UnixDomainSocketConnection)
    copyable = kind in (redis.Connection, redis.asyncio.Connection, *tls, *path)
    if not copyable or kwargs.get("redis_connect_func") is not None:
        name = f"{type(client).__module__}.{type(client).__name__}"
        raise InvalidConfig("client", name, f"its connections ({kind}) cannot be copied: give a URL")
    # As a URL would have it: it tells people, and whoever guards a directory, which server this is.
    database = kwargs.get("db") or 0
    if kind in path:
        url = f"unix://{kwargs.get('path')}" + (f"?db={database}" if database else "")
    else:
        where = f"{kwargs.get('host', 'localhost')}:{kwargs.get('port', 6379)}"
        url = f"{'rediss' if kind in tls else 'redis'}://{where}" + (f"/{database}" if database else "")
    return Connector(url, copied(kwargs), tls=kind in tls, path=kind in path)


def copied(kwargs: dict[str, Any]) -> dict[str, Any]:
    """What makes a connection reach the same server as the same user."""
    return {key: value for key, value in kwargs.items() if key in _COPIED or key.startswith("ssl_")}


_SCHEMES = {
    "redis": "redis",
    "rediss": "rediss",
    "valkey": "redis",
    "valkeys": "rediss",
    "unix": "unix",
}
