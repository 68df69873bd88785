"""From the scheme of a URL to the engine that opens it.

Built-in schemes are a table. Other packages register a scheme through the entry-point group `holdfast.engines`: the
name of the entry is the scheme, its object an `EngineDriver`. `find_driver` refuses a scheme that two packages claim,
because the order of the path would decide which engine wins.

`import holdfast` reads no metadata of packages. Opening a scheme that is not built in reads all of it. Opening a
built-in scheme only looks for the group's name in the `entry_points.txt` files beside the packages on the path, once
per process: about 10 µs for each installed package. So `find_driver` also refuses a claim to a built-in scheme, except
one inside a zip archive.
"""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.config import server_hint
from holdfast.engines.interface import EngineDriver
from holdfast.errors import HoldfastError, InvalidConfig
from holdfast.host import Exhaustion
from holdfast.interrupts import raise_if_of_signal

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
    """Open the engine that the URL names; `InvalidConfig` if a package's engine cannot be imported."""
    with Exhaustion(settings.scheme):
        return _open(settings)


def _open(settings: Settings) -> Engine:
    driver = find_driver(settings.scheme, settings.url)
    try:
        return driver.open(settings)
    except HoldfastError:
        raise
    except Exception as error:
        raise_if_of_signal(error)
        # A driver imports its engine when it opens it, so a missing library may show only now.
        if settings.scheme in ENGINES or not _is_import_failure(error):
            raise
        (entry,) = (entry for entry in _entries(tuple(sys.path)) if entry.name == settings.scheme)
        raise _not_importable(entry, settings.url, error) from error


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
        rule += server_hint(shown)
        raise InvalidConfig("url", shown, rule)
    if len(entries) > 1:
        raise _contested(shown, scheme, _claims(scheme, path))
    return _loaded(entries[0], shown)


def _loaded(entry: EntryPoint, url: str) -> EngineDriver:
    try:
        driver: Any = entry.load()
    except Exception as error:
        raise_if_of_signal(error)
        raise _not_importable(entry, url, error) from error
    if not isinstance(driver, EngineDriver):
        what = f"{entry.value} of the package {_package(entry)}"
        raise InvalidConfig("url", url, f"{what} is no holdfast.engines.EngineDriver: report it to its authors")
    return driver


def _is_import_failure(error: Exception) -> bool:
    """Whether an import failed: a module is missing, or its top-level code raised the error."""
    step = error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_name == "<module>":
            return True
        step = step.tb_next
    return isinstance(error, ImportError | SyntaxError)


def _not_importable(entry: EntryPoint, url: str, error: Exception) -> InvalidConfig:
    if isinstance(error, ModuleNotFoundError) and entry.extras:
        rule = f"{error.name} is not installed: pip install '{_package(entry)}[{','.join(entry.extras)}]'"
        return InvalidConfig("url", url, rule)
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
    except OSError as error:
        raise_if_of_signal(error)
        return []  # there is no folder, or this user may not read it


def _registers(metadata: str) -> bool:
    try:
        with open(f"{metadata}/entry_points.txt", "rb") as file:
            return _HEADING in file.read()
    except OSError as error:
        raise_if_of_signal(error)
        return False
