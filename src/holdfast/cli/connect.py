"""Clients for commands that only read: they create no file.

A typing mistake in a path must lead to an error, not to a new empty file in which nothing is held.
"""

from __future__ import annotations

import holdfast
from holdfast.config import Settings, naming_the_variable, settings, url_setting
from holdfast.engines import Capability, EngineDriver, Scope, find_driver
from holdfast.errors import InvalidConfig

CLOSE_S = 2.0


def connect(url: str | None, feature: Capability | None = None) -> holdfast.Holdfast:
    """Open an existing engine.

    `feature`: what the command looks at, if it is not a lease. An engine without that feature is opened, whether its
    files exist or not, because the client then refuses the feature with a better error.
    """
    _, driver = _driver(url)
    if feature is None or feature in driver.capabilities:
        refuse_missing(url)
    return holdfast.connect(url)


def connect_or_create(url: str | None) -> holdfast.Holdfast:
    """Open an engine, and create its file if needed: for commands that set something up."""
    refuse_process_scope(url)
    return holdfast.connect(url)


def refuse_process_scope(url: str | None) -> None:
    """Raise `InvalidConfig` for an engine whose leases no other process sees: there is nothing to find or change."""
    wanted, driver = _driver(url)
    if driver.scope is Scope.PROCESS:
        rule = "its leases exist in one process only: name an engine that other processes use, such as redis://host"
        raise InvalidConfig(url_setting(url), wanted.url, rule)


def refuse_missing(url: str | None) -> None:
    """Raise `Unavailable` if the URL names a file that does not exist. The user's default file may be created."""
    refuse_process_scope(url)
    wanted, driver = _driver(url)
    missing = driver.missing(wanted) if wanted.chosen else None
    if missing is not None:
        raise missing


def _driver(url: str | None) -> tuple[Settings, EngineDriver]:
    wanted = settings(url)
    with naming_the_variable(url):
        return wanted, find_driver(wanted.scheme, wanted.url)
