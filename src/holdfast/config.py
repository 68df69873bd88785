"""Settings from a URL and the environment, checked before any I/O.

`connect()` without a URL uses `$HOLDFAST_URL`; if that is not set either, the SQLite file in the user's state
directory. A password never leaves this module in readable form: only the result of `text.shown_url` may be logged.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from holdfast.clock import SYSTEM, Clock, Seconds, timeout_ns
from holdfast.errors import InvalidConfig
from holdfast.names import is_unicode
from holdfast.text import NOT_SHOWN, shown_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

UNREADABLE = "it is not a valid URL: the port must be a number, as in redis://host:6379; percent-encode a password"
URL_VARIABLE = "HOLDFAST_URL"
FENCE_MEMORY_S = 60.0
FENCE_MEMORY_MIN_S = 1.0


class RedisClient(Protocol):
    """A client object of redis-py, blocking or asyncio: `Redis`, or what `Sentinel.master_for` returns."""

    @property
    def connection_pool(self) -> object:
        """The pool whose settings Holdfast copies."""


class RedisClusterClient(Protocol):
    """A `RedisCluster` of redis-py, blocking or asyncio."""

    @property
    def nodes_manager(self) -> object:
        """The servers of the cluster, whose settings Holdfast copies."""


class Secret(str):
    """Text whose repr hides it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "(secret)"


class Settings(NamedTuple):
    """The settings from which an engine opens.

    `source`: the caller's redis-py client, if it passed one instead of a URL. `chosen`: false for the default URL.
    """

    scheme: str
    url: str
    secret: Secret
    source: Any
    path: str
    options: Mapping[str, str]
    fence_memory_us: int
    clock: Clock
    chosen: bool

    def __repr__(self) -> str:
        return f"Settings({self.url!r})"  # path, options and source may contain a password

    def refuse_options(self) -> None:
        """Raise `InvalidConfig` for any option: an option without effect is a mistake. The error hides its value."""
        for option, value in self.options.items():
            if option == "namespace":
                rule = f"{self.scheme}:// takes no namespace; redis://, valkey:// and unix:// take one"
                raise InvalidConfig("option namespace", value, rule)
            rule = f"{self.scheme}:// takes no options: remove it from the URL"
            raise InvalidConfig(f"option {option}", NOT_SHOWN, rule)

    def refuse_clock(self) -> None:
        """Raise `InvalidConfig` if the caller passed a clock of its own: only the memory engine can use one."""
        if self.clock is not SYSTEM:
            raise InvalidConfig("clock", self.clock, "only memory:// takes a clock that a test moves")


def url_setting(url: Any, environ: Mapping[str, str] = os.environ) -> str:
    """Return the name of the setting that holds the URL, for errors: the environment variable, or `url`."""
    found = environ.get(URL_VARIABLE)
    return URL_VARIABLE if found and (url is None or (isinstance(url, str) and url == found)) else "url"


@contextmanager
def naming_the_variable(url: Any, environ: Mapping[str, str] = os.environ) -> Iterator[None]:
    """In an `InvalidConfig` about a URL from the environment, name the variable as the setting to correct."""
    try:
        yield
    except InvalidConfig as error:
        name, setting = url_setting(url, environ), error.setting
        if name == "url" or not (setting == "url" or f"{setting.removeprefix('option ')}=" in environ[URL_VARIABLE]):
            raise
        raise InvalidConfig(
            name if setting == "url" else f"{setting} of {name}", error.value, error.rule
        ) from error.__cause__


def settings(
    url: Any,
    *,
    fence_memory: Seconds = FENCE_MEMORY_S,
    clock: Clock | None = None,
    namespace: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Settings:
    """Return the settings for a URL or a redis-py client; with `None`, for the default URL."""
    with naming_the_variable(url, environ):
        return _read(url, fence_memory, clock, namespace, environ)


def _read(
    url: Any, fence_memory: Seconds, clock: Clock | None, namespace: str | None, environ: Mapping[str, str]
) -> Settings:
    from urllib.parse import parse_qsl, unquote, urlsplit  # noqa: PLC0415 - once per client

    chosen = url if url is not None else environ.get(URL_VARIABLE) or None
    source = url if hasattr(url, "connection_pool") or hasattr(url, "nodes_manager") else None
    text = "redis://" if source is not None else _default_url(environ) if chosen is None else chosen
    if not isinstance(text, str):
        rule = f"it must be text such as redis://localhost:6379, or a redis-py client, not {type(text).__name__}"
        is_path = isinstance(text, os.PathLike) and str(text).startswith("/")
        hint = f'; did you mean "sqlite://{text}"?' if is_path else ""
        raise InvalidConfig("url", NOT_SHOWN, f"{rule}{hint}")
    try:
        parts = urlsplit(text)
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        # The error of the parser may repeat a part of the password, so it is not chained.
        raise InvalidConfig("url", shown_url(text), UNREADABLE) from None
    if "#" in text:
        raise InvalidConfig("url", shown_url(text), "it contains a #; in a path or a password, write %23")
    if not parts.scheme or not text[len(parts.scheme) :].startswith("://"):
        rule = f"it must begin with a scheme, as in sqlite:///path or memory://{server_hint(shown_url(text))}"
        raise InvalidConfig("url", shown_url(text), rule)
    path = unquote(parts.netloc + parts.path)
    if "\x00" in path or not is_unicode(path):
        raise InvalidConfig("url", shown_url(text), "it contains a NUL or an unpaired surrogate")

    if namespace is not None:
        options = _with_namespace(options, namespace)

    memory_ns = timeout_ns(fence_memory, setting="fence_memory")
    if memory_ns is None or memory_ns < FENCE_MEMORY_MIN_S * 1e9:
        raise InvalidConfig("fence_memory", fence_memory, f"it must be at least {FENCE_MEMORY_MIN_S} s")
    return Settings(
        scheme=parts.scheme.lower(),
        url=shown_url(text),
        secret=Secret(text),
        source=source,
        path=path,
        options=options,
        fence_memory_us=memory_ns // 1000,
        clock=clock or SYSTEM,
        chosen=chosen is not None,
    )


def _with_namespace(options: dict[str, str], namespace: Any) -> dict[str, str]:
    """Add the namespace to the options; the URL may name the same one. The engine accepts or refuses the option."""
    if not isinstance(namespace, str):
        raise InvalidConfig("namespace", namespace, "it must be text")
    if options.get("namespace", namespace) != namespace:
        raise InvalidConfig("namespace", namespace, "the URL names another namespace")
    return options | {"namespace": namespace}


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a hint with the known word that is most like this one, to end an error with; else no text."""
    from difflib import get_close_matches  # noqa: PLC0415 - only for errors

    return "".join(f"; did you mean {found}?" for found in get_close_matches(word.lower(), list(known), 1))


def server_hint(url: str) -> str:
    """Return a hint for an address without a scheme, such as `localhost:6379`, to end an error with; else no text."""
    host, _, port = url.rpartition(":")
    is_address = bool(host) and "/" not in host and port.partition("/")[0].isdecimal()
    return f"; did you mean redis://{url}?" if is_address else ""


def url_of(scheme: str, path: str | os.PathLike[str]) -> str:
    """Return the URL of a path, with `#`, `?` and `%` quoted: they would end the path or begin an escape."""
    import re  # noqa: PLC0415 - only for paths that are not literals

    quoted = re.sub(r"[%?#\x00-\x1f]", lambda found: f"%{ord(found[0]):02X}", os.fspath(path))
    return f"{scheme}://{quoted}"


def _default_url(environ: Mapping[str, str]) -> str:
    state = environ.get("XDG_STATE_HOME") or ""
    try:
        home = Path(environ.get("HOME") or Path.home())
    except RuntimeError:  # the system does not know this user, so there is no home directory
        home = Path()
    base = Path(state) if state.startswith("/") else home / ".local" / "state"
    if not state.startswith("/") and not (home.is_absolute() and home.is_dir()):
        rule = f"it is no directory, so the default file has no place: set {URL_VARIABLE}, or pass a URL to connect()"
        raise InvalidConfig("HOME", str(home), rule)
    return url_of("sqlite", base / "holdfast" / "holdfast.db")
