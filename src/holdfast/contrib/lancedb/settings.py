"""The settings of a store, read from a configuration.

The rule: the mode is always explicit: `off`, `embedded`, `file` or `redis`. `read` refuses an unknown key, because a
typing mistake would otherwise go unnoticed. It looks `${NAME}` up in the environment only if it needs the value. A URL
is a secret: no message repeats it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from holdfast.config import Secret
from holdfast.contrib.lancedb.maintenance import FOLD_AFTER, Schedule
from holdfast.core.lease.lock import TTL_S
from holdfast.engines import ENGINES
from holdfast.errors import InvalidConfig
from holdfast.text import shown_url

URL_VARIABLE = "HOLDFAST_LANCEDB_URL"
# How long a write waits in the mode `redis`: a server may go away for good, unlike the leases in the directory.
REDIS_TIMEOUT_S = 5.0
OFF, EMBEDDED, FILE, REDIS = "off", "embedded", "file", "redis"
MODES = (OFF, EMBEDDED, FILE, REDIS)
_ENGINES = {EMBEDDED: "holdfast.engines.sqlite", FILE: "holdfast.engines.files", REDIS: "holdfast.engines.redis"}
_PLACEHOLDER = re.compile(r"\$\{(\w+)\}")
_LOCKING = ("mode", "enabled", "url", "ttl", "timeout")
_BATCHING = ("batch", "queue", "window", "hold")
_MAINTENANCE = ("enabled", "interval", "first", "retention_days")
_TOP = ("locking", "redis_url", "batching", "maintenance", "read_consistency", "fold_after", "stop_after")


class StoreSettings(NamedTuple):
    """All settings of a store. Every use of one store in a process must have the same settings."""

    mode: str
    url: Secret | None
    ttl: float = TTL_S
    timeout: float | None = None
    batch: int = 250
    queue: int = 1000
    window: float = 0.01
    hold: float = 1.0
    stop_after: int = 3
    fold_after: int = FOLD_AFTER
    read_consistency: float = 0.0
    schedule: Schedule | None = None

    def __repr__(self) -> str:
        return f"Settings(mode={self.mode!r}, url={self.shown!r})"

    @property
    def shown(self) -> str:
        """The URL without secrets, for logs."""
        return "" if self.url is None else shown_url(self.url)


def read(
    config: str | Mapping[str, Any], directory: str | os.PathLike[str], environ: Mapping[str, str] = os.environ
) -> StoreSettings:
    """Read a mode or a configuration; raise `InvalidConfig` before any I/O."""
    if isinstance(config, str):
        config = {"locking": {"mode": config}}
    if not isinstance(config, Mapping):
        raise InvalidConfig("locking", config, f"it must be one of {', '.join(MODES)}, or a configuration")
    top = _Part(config, "", _TOP, environ)
    locking = _Part(top.part("locking"), "locking", _LOCKING, environ)
    batching = _Part(top.part("batching"), "batching", _BATCHING, environ)
    maintenance = _Part(top.part("maintenance"), "maintenance", _MAINTENANCE, environ)
    mode = _mode(locking)
    return StoreSettings(
        mode,
        _url(mode, top, locking, Path(os.path.abspath(directory))),
        ttl=locking.number("ttl", TTL_S, least=0.1) if mode != OFF else TTL_S,
        timeout=None
        if mode == OFF
        else locking.number("timeout", REDIS_TIMEOUT_S if mode == REDIS else None, least=0.0),
        batch=int(batching.number("batch", 250, least=1)),
        queue=int(batching.number("queue", 1000, least=1)),
        window=batching.number("window", 0.01, least=0.0),
        hold=batching.number("hold", 1.0, least=0.0),
        stop_after=int(top.number("stop_after", 3, least=1)),
        fold_after=int(top.number("fold_after", FOLD_AFTER, least=0)),
        read_consistency=top.number("read_consistency", 0.0, least=0.0),
        schedule=_schedule(maintenance),
    )


class _Part:
    """A part of the configuration, and its known keys."""

    def __init__(self, values: Any, name: str, known: tuple[str, ...], environ: Mapping[str, str]) -> None:
        if not isinstance(values, Mapping):
            raise InvalidConfig(name, type(values).__name__, f"it must have {', '.join(known)}")
        self._values = values
        self._prefix = f"{name}." if name else ""
        self.environ = environ
        for key in values:
            if key not in known:
                # Do not show the value: a misspelled key may hold a secret.
                raise InvalidConfig(
                    f"{self._prefix}{key}", "…", f"unknown setting; the settings are {', '.join(known)}"
                )

    def part(self, key: str) -> Any:
        return self._values.get(key, {})

    def has(self, key: str) -> bool:
        return self._values.get(key) not in (None, "")

    def switch(self, key: str, default: bool) -> bool:
        value = self._values.get(key, default)
        if not isinstance(value, bool):
            raise InvalidConfig(f"{self._prefix}{key}", value, "it must be true or false")
        return value

    def text(self, key: str) -> str:
        """Return the text with its placeholders replaced. Called only if the value is needed."""
        value = self._values[key]
        if not isinstance(value, str):
            raise InvalidConfig(f"{self._prefix}{key}", type(value).__name__, "it must be text")
        return _PLACEHOLDER.sub(lambda found: self._resolved(key, found[1]), value)

    def number(self, key: str, default: Any, *, least: float) -> Any:
        value = self._values.get(key)
        if value is None:
            return default
        if isinstance(value, str):
            try:
                value = float(self.text(key))
            except ValueError as error:
                if isinstance(error, InvalidConfig):
                    raise
                raise InvalidConfig(f"{self._prefix}{key}", value, "it must be a number") from None
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < float("inf"):
            raise InvalidConfig(f"{self._prefix}{key}", value, f"it must be a number, {least:g} at least")
        return value

    def _resolved(self, key: str, name: str) -> str:
        if name not in self.environ:
            raise InvalidConfig(f"{self._prefix}{key}", f"${{{name}}}", f"the variable {name} is not set")
        return self.environ[name]


def _mode(locking: _Part) -> str:
    if not locking.switch("enabled", default=True):
        return OFF
    mode = locking.part("mode")
    if mode not in MODES:
        written = mode if mode != {} else ""
        raise InvalidConfig("locking.mode", written, f"it must be one of {', '.join(MODES)}")
    return str(mode)


def _url(mode: str, top: _Part, locking: _Part, directory: Path) -> Secret | None:
    """Return the first of: `locking.url`, `redis_url` (its older place), the environment."""
    if mode == OFF:
        return None
    if locking.has("url"):
        return _checked(mode, "locking.url", locking.text("url"))
    if mode != REDIS:
        return default_url(mode, directory)
    if top.has("redis_url"):
        return _checked(mode, "redis_url", top.text("redis_url"))
    found = locking.environ.get(URL_VARIABLE)
    if found:
        return _checked(mode, URL_VARIABLE, found)
    raise InvalidConfig("locking.url", "", f"the mode redis needs a URL: here, as redis_url, or in {URL_VARIABLE}")


def default_url(mode: str, directory: Path) -> Secret | None:
    """Return the URL of a mode that keeps its leases in the directory; `None` for the other modes."""
    if mode == EMBEDDED:
        return Secret(f"sqlite://{quote(str(directory))}/.holdfast.db")
    return Secret(f"file://{quote(str(directory))}") if mode == FILE else None


def _checked(mode: str, setting: str, url: str) -> Secret:
    schemes = [scheme for scheme, engine in ENGINES.items() if engine == _ENGINES[mode]]
    if url.partition("://")[0] not in schemes:
        raise InvalidConfig(setting, shown_url(url), f"the mode {mode} takes {', '.join(schemes)}")
    return Secret(url)


def _schedule(maintenance: _Part) -> Schedule | None:
    if not maintenance.switch("enabled", default=False):
        return None
    days = min(3650.0, max(1.0, maintenance.number("retention_days", 7.0, least=0.0)))
    return Schedule(
        maintenance.number("interval", 24 * 3600.0, least=1.0),
        maintenance.number("first", 300.0, least=0.0),
        timedelta(days=days),
    )
