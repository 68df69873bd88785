"""Clients for commands that only look: they create no file.

A typing error in a path must lead to an error, not to a new empty place where nothing is held.
"""

from __future__ import annotations

from pathlib import Path

import holdfast
from holdfast.config import settings, url_setting
from holdfast.errors import InvalidConfig, Unavailable

MISSING = "no such file"
CLOSE_S = 2.0


def connect(url: str | None, feature: str = "") -> holdfast.Holdfast:
    """Open an existing engine.

    `feature`: what the command looks at, if it is not a lease. A shared directory has leases only, so there the
    feature is refused, whether the directory is set up or not.
    """
    if not feature or settings(url).scheme != "file":
        refuse_missing(url)
    return holdfast.connect(url)


def connect_or_create(url: str | None) -> holdfast.Holdfast:
    """Open an engine, and create its file if needed: for commands that set something up."""
    refuse_process_scope(url)
    return holdfast.connect(url)


def refuse_process_scope(url: str | None) -> None:
    """Raise `InvalidConfig` for an engine whose leases no other process sees: there is nothing to find or change."""
    wanted = settings(url)
    if wanted.scheme == "memory":
        rule = "its leases exist in one process only: name an engine that other processes use, such as redis://host"
        raise InvalidConfig(url_setting(url), wanted.url, rule)


def refuse_missing(url: str | None) -> None:
    """Raise `Unavailable` if the URL names a file that does not exist. The user's default file may be created."""
    refuse_process_scope(url)
    wanted = settings(url)
    # The engine refuses a relative path when it opens: nothing could create it.
    if not wanted.chosen or wanted.scheme not in ("sqlite", "file") or not wanted.path.startswith("/"):
        return
    named = Path(wanted.path)
    place = named if wanted.scheme == "sqlite" else named / ".holdfast"
    detail = f"{place}; the first lease that is taken there creates it"
    if wanted.scheme == "file":
        detail = f"{place}: no lease was taken in this directory yet"
    try:
        place.stat()
    except (FileNotFoundError, NotADirectoryError):
        if wanted.scheme == "sqlite" or named.is_dir():  # otherwise the engine reports the missing directory
            raise Unavailable(wanted.scheme, MISSING, detail) from None
    except OSError:
        return  # the engine reports it when it opens
