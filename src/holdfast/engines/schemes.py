"""From the scheme of a URL to the engine that opens it.

Built-in schemes are a table. Other packages register a scheme through the entry-point group `holdfast.engines`: the
name of the entry is the scheme, its object an `EngineDriver`. A scheme with two claims is refused, because the order of
the path would decide which engine wins.

`import holdfast` reads no metadata of packages. Opening a scheme that is not built in reads all of it. Opening a
built-in scheme only looks for the group's name in the `entry_points.txt` files beside the packages on the path, once
per process: about 10 µs for each installed package. So a claim to a built-in scheme is refused too, except one inside a
zip archive.
"""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.engines.interface import EngineDriver
from holdfast.errors import InvalidConfig

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from holdfast.config import Settings
    from holdfast.engines.interface import Engine

GROUP = "holdfast.engines"
_HEADING = f"[{GROUP}]".encode()
_METADATA = (".dist-info", ".egg-info")
_REDIS = "holdfast.engines.redis"
_SERVERS = ("redis", "rediss", "valkey", "valkeys")
# Each module has a `DRIVER`.
ENGINES = {
    "memory": "holdfast.engines.memory",
    "sqlite": "holdfast.engines.sqlite",
    "file": "holdfast.engines.files",
    "unix": _REDIS,
    **{server + kind: _REDIS for kind in ("", "+sentinel", "+cluster") for server in _SERVERS},
}


def open_engine(settings: Settings) -> Engine:
    """Open the engine that the URL names."""
    return find_driver(settings.scheme, settings.url).open(settings)


def find_driver(scheme: str, url: str = "") -> EngineDriver:
    """Return the driver that is registered for the scheme; `InvalidConfig` if there is none, or more than one.

    `url`: the URL that the error shows.
    """
    shown = url or f"{scheme}://"
    path = tuple(sys.path)
    if scheme in ENGINES:
        claims = _claims(scheme, path) if _is_group_used(path) else []
        if claims:
            raise _contested(shown, scheme, ["holdfast", *claims])
        builtin: EngineDriver = import_module(ENGINES[scheme]).DRIVER
        return builtin

    entries = [entry for entry in _entries(path) if entry.name == scheme]
    if not entries:
        known = ", ".join(sorted({*ENGINES, *(entry.name for entry in _entries(path))}))
        rule = f"the scheme must be one of {known}; a package can add one through the entry-point group {GROUP}"
        raise InvalidConfig("url", shown, rule)
    if len(entries) > 1:
        raise _contested(shown, scheme, _claims(scheme, path))
    return _loaded(entries[0], shown)


def _loaded(entry: EntryPoint, url: str) -> EngineDriver:
    package = _package(entry)
    try:
        driver: Any = entry.load()
    except ModuleNotFoundError as error:
        if not entry.extras:
            raise _failed(entry, url, error) from error
        extras = ",".join(entry.extras)
        rule = f"{error.name} is not installed: pip install '{package}[{extras}]'"
        raise InvalidConfig("url", url, rule) from error
    except Exception as error:
        raise _failed(entry, url, error) from error
    if not isinstance(driver, EngineDriver):
        rule = f"{entry.value} of the package {package} is no holdfast.engines.EngineDriver: report it to its authors"
        raise InvalidConfig("url", url, rule)
    return driver


def _failed(entry: EntryPoint, url: str, error: Exception) -> InvalidConfig:
    what = f"the engine {entry.value} of the package {_package(entry)} cannot be imported"
    return InvalidConfig("url", url, f"{what}: {type(error).__name__}: {error}")


def _contested(url: str, scheme: str, packages: list[str]) -> InvalidConfig:
    rule = f"the scheme {scheme} is claimed by more than one package: {', '.join(packages)}. Uninstall all but one"
    return InvalidConfig("url", url, rule)


def _claims(scheme: str, path: tuple[str, ...]) -> list[str]:
    return sorted(_package(entry) for entry in _entries(path) if entry.name == scheme)


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.value


@lru_cache(maxsize=1)
def _entries(path: tuple[str, ...]) -> tuple[EntryPoint, ...]:  # noqa: ARG001 - the key of the cache
    from importlib.metadata import entry_points  # noqa: PLC0415 - it is slow to import, and seldom needed

    return tuple(entry_points(group=GROUP))


@lru_cache(maxsize=1)
def _is_group_used(path: tuple[str, ...]) -> bool:
    """Whether any package on the path registers an engine."""
    folders = [folder or "." for folder in path]  # an empty text is the current directory
    return any(_registers(f"{folder}/{each}") for folder in folders for each in _metadata_in(folder))


def _metadata_in(folder: str) -> list[str]:
    try:
        return [each for each in os.listdir(folder) if each.endswith(_METADATA)]
    except OSError:
        return []  # no folder, or not ours to read


def _registers(metadata: str) -> bool:
    try:
        with open(f"{metadata}/entry_points.txt", "rb") as file:
            return _HEADING in file.read()
    except OSError:
        return False
