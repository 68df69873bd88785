"""How to connect to a server: the settings from a URL or from the user's own redis-py client.

redis-py parses URLs, speaks TLS and authenticates. Once a connection is open, this engine takes over its socket or
transport, because redis-py's retries would resend commands without the engine's knowledge. From a client object the
engine takes the settings and nothing else.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import socket
import ssl
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from holdfast.clock import parsed_seconds
from holdfast.config import UNREADABLE, did_you_mean
from holdfast.engines.redis.acl import grant_hint
from holdfast.engines.redis.keys import PREFIX
from holdfast.engines.redis.redirects import CORRUPT, error_code
from holdfast.errors import MOVING, InvalidConfig, Unavailable, UnavailableReason
from holdfast.host import is_exhausted
from holdfast.interrupts import raise_if_of_signal
from holdfast.text import NOT_SHOWN

if TYPE_CHECKING:
    from holdfast.config import Settings

CONNECT_S = 1.0
WIRE_S = 2.0

_TIMEOUTS = ("socket_connect_timeout", "socket_timeout")
# The settings that make a connection reach the same server as the same user; the engine sets all others itself.
_COPIED = frozenset(
    (
        "host", "port", "path", "db", "username", "password", "credential_provider", "socket_keepalive",
        "socket_keepalive_options", "socket_type",
    )
)  # fmt: skip
# The options of a URL, besides those for TLS.
_OPTIONS = frozenset(("db", "username", "password", "socket_keepalive", "namespace", *_TIMEOUTS))
_OWN = {"protocol": 2, "client_name": "holdfast"}
# The asyncio half of redis-py 5 understands texts only.
_CERT_REQS: dict[object, str] = {
    None: "none",
    **{mode: mode.name.removeprefix("CERT_").lower() for mode in ssl.VerifyMode},
}

_REASONS = {
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
    CORRUPT: "corrupt",
}
# Errors of a server of another kind than the URL says, and the hint for each.
_SENTINEL_HINT = "is it a sentinel? Then connect to redis+sentinel://"
_OTHER_KINDS = {
    "cluster support disabled": "it is no cluster: connect to redis://",
    "unknown command 'SENTINEL'": "it is no sentinel: connect to redis://",
    "unknown command 'GET'": _SENTINEL_HINT,  # GET is the first command
    "unknown command 'EVALSHA'": _SENTINEL_HINT,
}


class Connector:
    """Opens connections to one server, for this engine alone.

    A `member` is one of several servers: if it cannot be reached, another may replace it. A `primary` has to confirm
    with ROLE that it is one.
    """

    def __init__(
        self, url: str, kwargs: dict[str, Any], *, tls: bool, path: bool, member: bool = False, primary: bool = False
    ) -> None:
        self.url = url
        self._given = kwargs
        # redis-py 5 compares the name in the certificate with the host only on request.
        checks = {"ssl_check_hostname": True} if tls and kwargs.get("ssl_cert_reqs", "required") != "none" else {}
        kwargs = {"socket_connect_timeout": CONNECT_S, "socket_timeout": WIRE_S} | checks | kwargs
        self.wire_s = float(kwargs["socket_timeout"])
        self.db = int(kwargs.get("db") or 0)
        # redis-py only opens the connection, and the connect timeout bounds each step of that.
        self._kwargs = kwargs | {"socket_timeout": float(kwargs["socket_connect_timeout"])}
        self._tls = tls
        self._path = path
        self._member = member
        self._primary = primary

    @property
    def place(self) -> tuple[str, int]:
        """The host and the port."""
        return self._kwargs.get("host", "localhost"), int(self._kwargs.get("port", 6379))

    def at(self, host: str, port: int, *, primary: bool = False) -> Connector:
        """Return a connector with the same user and settings for another server."""
        shown = f"[{host}]" if ":" in host else host
        url = f"{'rediss' if self._tls else 'redis'}://{shown}:{port}"
        kwargs = self._given | {"host": host, "port": port}
        return Connector(url, kwargs, tls=self._tls, path=False, member=True, primary=primary)

    def open_socket(self, limit_s: float | None = None) -> socket.socket:
        """Return a connected, authenticated socket in the right database; no step takes longer than the limit."""
        kind: Any = (
            redis.UnixDomainSocketConnection if self._path else redis.SSLConnection if self._tls else redis.Connection
        )
        kwargs = self._kwargs
        if limit_s is not None:
            kwargs = kwargs | {name: min(float(kwargs[name]), limit_s) for name in _TIMEOUTS}
        connection = self._new_connection(kind, kwargs, Retry(NoBackoff(), 0))
        try:
            connection.connect()
            if self._primary:
                connection.send_command("ROLE")
                self._refuse_replica(connection.read_response())
            opened: socket.socket | None = connection._sock  # noqa: SLF001 - taken over from here on
        except Exception as error:
            connection.disconnect()
            raise self.connect_error(error) from None
        if opened is None:
            raise Unavailable("redis", self._unreachable_reason, f"no connection to {self.url}")
        connection._sock = None  # noqa: SLF001 - so that redis-py neither closes nor uses it
        if not self._path:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return opened

    async def open_stream(self) -> asyncio.StreamWriter:
        """Open the same connection for an event loop, and return its writer.

        The caller keeps the writer, because a dropped writer closes its transport.
        """
        kind: Any = (
            redis.asyncio.UnixDomainSocketConnection
            if self._path
            else redis.asyncio.SSLConnection
            if self._tls
            else redis.asyncio.Connection
        )
        connection = self._new_connection(kind, self._kwargs, AsyncRetry(NoBackoff(), 0))
        try:
            await connection.connect()
            if self._primary:
                await connection.send_command("ROLE")
                self._refuse_replica(await connection.read_response())
            writer: asyncio.StreamWriter = connection._writer  # noqa: SLF001 - taken over from here on
        except Exception as error:
            await connection.disconnect(nowait=True)
            raise self.connect_error(error) from None
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        connection._writer = connection._reader = None  # noqa: SLF001
        return writer

    def _new_connection(self, kind: Any, kwargs: dict[str, Any], retry: Retry | AsyncRetry) -> Any:
        """Return a connection of redis-py that is not open yet.

        The blocking and the asyncio half of redis-py do not have the same settings. The engine leaves out a setting
        that this half lacks only if the user did not set it; otherwise the connection would be less strict than the
        user expects.
        """
        unknown = kwargs.keys() - _accepted_settings(kind)
        if any(kwargs[name] for name in unknown):
            names = ", ".join(sorted(name for name in unknown if kwargs[name]))
            raise Unavailable(
                "redis",
                UnavailableReason.FAILED,
                f"{self.url}: {kind.__module__}.{kind.__name__} has no setting {names}",
            )
        fitting = {name: value for name, value in kwargs.items() if name not in unknown}
        try:
            return kind(**fitting, retry=retry, **_OWN)
        except Exception as error:  # the constructor reads files, and the process may have no descriptor left
            raise self.connect_error(error) from None

    def _refuse_replica(self, role: Any) -> None:
        if role[0] not in (b"master", "master"):
            raise Unavailable("redis", MOVING, f"{self.url} is named as the primary, but is not one yet")

    def connect_error(self, error: BaseException) -> Unavailable:
        """Return the `Unavailable` for an error while connecting. It never contains a password."""
        raise_if_of_signal(error)
        text = server_text(error)
        if isinstance(error, Unavailable) or is_exhausted(error):
            exhausted = Unavailable("redis", UnavailableReason.OUT_OF_DESCRIPTORS, f"{self.url}: {text}")
            return error if isinstance(error, Unavailable) else exhausted
        code = error_code(text)
        lacks_right = isinstance(error, redis.exceptions.NoPermissionError) or code == "NOPERM"
        if lacks_right or isinstance(error, redis.AuthenticationError) or code in ("WRONGPASS", "NOAUTH"):
            cause = f": {text}{grant_hint(text)}" if lacks_right else f" refused the credentials: {text}"
            return Unavailable("redis", UnavailableReason.NO_PERMISSION, f"{self.url}{cause}")
        if code in _REASONS:
            reason = MOVING if self._member and code == "LOADING" else _REASONS[code]
            return Unavailable("redis", reason, f"{self.url}: {text}")
        if "DB index is out of range" in text or "invalid DB index" in text:
            return Unavailable(
                "redis", UnavailableReason.FAILED, f"{self.url}: the server has no such database: {text}"
            )
        if self._tls and not isinstance(error, redis.exceptions.AuthenticationError):
            hint = "; is this a TLS port?" if isinstance(error, TimeoutError | redis.TimeoutError) else ""
            if isinstance(error.__context__, ssl.SSLError):
                text = str(error.__context__)  # redis-py 5 shows its number, and not its text
            return Unavailable(
                "redis", self._unreachable_reason, f"{self.url} over TLS: {text or type(error).__name__}{hint}"
            )
        return Unavailable("redis", self._unreachable_reason, f"{self.url}: {text or type(error).__name__}")

    @property
    def _unreachable_reason(self) -> str:
        return MOVING if self._member else "unreachable"


def reply_error(url: str, error: BaseException, prefix: str = PREFIX) -> Unavailable:
    """Return the `Unavailable` for an error reply: the server answered the command and did not apply it.

    `prefix`: the prefix of the keys, for the hint if the right to them is missing.
    """
    text = server_text(error)
    reason = _REASONS.get(error_code(text), "failed")
    hint = grant_hint(text, prefix) if reason == "no permission" else ""
    if reason == "other topology":
        hint = "; for a cluster, connect to redis+cluster://"
    for message, other in _OTHER_KINDS.items():
        if message in text.replace("`", "'"):  # older servers quote with backticks
            reason, hint = "other topology", f"; {other}"
    return Unavailable("redis", reason, f"{url}: {text}{hint}")


def server_text(error: BaseException) -> str:
    """Return the text of an error without the arguments of the command: they may be a password or a message body."""
    return str(error).partition(", with args beginning with")[0].rstrip()


@lru_cache
def _accepted_settings(kind: type) -> frozenset[str]:
    """Return the settings that a connection class of redis-py accepts."""
    own = [vars(each)["__init__"] for each in kind.__mro__ if "__init__" in vars(each) and each is not object]
    return frozenset(name for each in own for name in inspect.signature(each).parameters)


def connector_of(settings: Settings) -> Connector:
    """Return the connector for a URL."""
    scheme, separator, rest = settings.secret.partition("://")
    if not separator:
        raise InvalidConfig("url", settings.url, f"it must begin with {settings.scheme}://")
    rest = _with_seconds(settings, rest)
    try:
        read: Any = redis.connection.parse_url
        kwargs: dict[str, Any] = read(f"{_SCHEMES[scheme.lower()]}://{rest}")
    except ValueError as error:
        raise_if_of_signal(error)
        # Any other message may contain a part of the password.
        rule = str(error) if str(error).startswith("Invalid value for") else UNREADABLE
        raise InvalidConfig("url", settings.url, rule) from None
    kind = kwargs.pop("connection_class", redis.Connection)
    parts = urlsplit(settings.secret)
    before = {"username": parts.username, "password": parts.password}  # these win over options
    for name, text in settings.options.items():
        if isinstance(kwargs.get(name), str) and not before.get(name):
            kwargs[name] = text  # some versions of redis-py decode an option twice
    if scheme.lower() == "unix" and (parts.hostname or not parts.path.removeprefix("/")):
        # redis-py would silently drop the first part of a relative path.
        raise InvalidConfig(
            "url", settings.url, "it must name a socket by its absolute path, as in unix:///run/redis.sock"
        )
    if scheme.lower() == "unix" and ":" in parts.path.rpartition("@")[0]:
        # The error of the connection would show the path, and with it the password.
        rule = "user and password belong before the path, as in unix://user:password@/run/redis.sock"
        raise InvalidConfig("url", settings.url, f"{rule}; in a path, write @ as %40")
    database = "" if scheme.lower() == "unix" else parts.path.removeprefix("/")
    if database and not (database.isascii() and database.isdigit()):
        # redis-py would silently use database 0, and two services with one typo would not exclude each other. The
        # error does not show the path: it may be the end of a password with a slash in it.
        raise InvalidConfig("url", settings.url, "the path must be the number of a database, as in redis://host:6379/0")
    if database and int(database) != kwargs.get("db"):
        raise InvalidConfig("url", settings.url, "its path and its option db name different databases")
    return _connector_of_options(settings, kind, kwargs)


def _with_seconds(settings: Settings, rest: str) -> str:
    """Refuse unknown options, and write the durations of a URL as seconds: redis-py reads numbers only."""
    for option in settings.options:
        if option not in _OPTIONS and not option.startswith("ssl_"):
            known = f"{', '.join(sorted(_OPTIONS))}, and ssl_ options for TLS{did_you_mean(option, _OPTIONS)}"
            raise InvalidConfig(f"option {option}", NOT_SHOWN, f"redis has no such option, only {known}")
    for name in _TIMEOUTS:
        if name in settings.options:
            seconds = parsed_seconds(settings.options[name], setting=f"option {name}")
            rest = re.sub(rf"([?&]{name}=)[^&]*", rf"\g<1>{seconds}", rest)
    return rest


def _connector_of_options(settings: Settings, kind: Any, kwargs: dict[str, Any]) -> Connector:
    """Check the options of a URL and return its connector."""
    tls, path = issubclass(kind, redis.SSLConnection), issubclass(kind, redis.UnixDomainSocketConnection)
    for option in settings.options:
        if option not in _OPTIONS and not tls:
            raise InvalidConfig(f"option {option}", NOT_SHOWN, "it needs TLS: use rediss://")
    timeouts = {name: _timeout(settings.url, name, kwargs[name]) for name in _TIMEOUTS if name in kwargs}
    explicit = {name: value for name, value in kwargs.items() if name == "ssl_check_hostname"}
    kwargs = copied_settings(kwargs) | explicit | timeouts
    try:
        kind(**kwargs)  # the constructor checks the settings and does not connect
    except (TypeError, ValueError, redis.RedisError) as error:
        raise_if_of_signal(error)
        raise InvalidConfig(
            "url", settings.url, "one of its ssl_ options is unknown, or has an invalid value"
        ) from None
    return Connector(settings.url, kwargs, tls=tls, path=path)


def _timeout(url: str, name: str, seconds: float) -> float:
    if not 0.01 <= seconds <= 3600:
        raise InvalidConfig("url", url, f"{name} must be between 0.01 and 3600 seconds, not {seconds}")
    return seconds


def connector_of_client(client: Any) -> Connector:
    """Return the connector for a client object of redis-py with one server."""
    pool = client.connection_pool
    kind, kwargs = getattr(pool, "connection_class", None), dict(getattr(pool, "connection_kwargs", {}))
    tls = (redis.SSLConnection, redis.asyncio.SSLConnection)
    path = (redis.UnixDomainSocketConnection, redis.asyncio.UnixDomainSocketConnection)
    copyable = kind in (redis.Connection, redis.asyncio.Connection, *tls, *path)
    if not copyable or kwargs.get("redis_connect_func") is not None:
        name = f"{type(client).__module__}.{type(client).__name__}"
        raise InvalidConfig("client", name, f"its connections ({kind}) cannot be copied: pass a URL")
    # The same text as the URL of the server: it names the server for people, and for the domain of `build_once`.
    database = kwargs.get("db") or 0
    if kind in path:
        url = f"unix://{kwargs.get('path')}" + (f"?db={database}" if database else "")
    else:
        where = f"{kwargs.get('host', 'localhost')}:{kwargs.get('port', 6379)}"
        url = f"{'rediss' if kind in tls else 'redis'}://{where}" + (f"/{database}" if database else "")
    return Connector(url, copied_settings(kwargs), tls=kind in tls, path=kind in path)


def copied_settings(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that make a connection reach the same server as the same user."""
    copied = {key: value for key, value in kwargs.items() if key in _COPIED or key.startswith("ssl_")}
    if not inspect.signature(redis.SSLConnection).parameters["ssl_check_hostname"].default:
        # A client object of redis-py 5 does not show whether the program or the library left the check out.
        copied.pop("ssl_check_hostname", None)
    if "ssl_cert_reqs" in copied:
        copied["ssl_cert_reqs"] = _CERT_REQS.get(copied["ssl_cert_reqs"], copied["ssl_cert_reqs"])
    return copied


_SCHEMES = {
    "redis": "redis",
    "rediss": "rediss",
    "valkey": "redis",
    "valkeys": "rediss",
    "unix": "unix",
}
