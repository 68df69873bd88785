"""The client of whoever only looks: it makes no file, so that a slip in a path is not a place where nothing is held."""

from __future__ import annotations

from pathlib import Path

import holdfast
from holdfast.config import settings, url_setting
from holdfast.errors import InvalidConfig, Unavailable

MISSING = "no such file"


def connect(url: str | None, what: str = "") -> holdfast.Holdfast:
    """Open an engine that is there. `what` is looked at if it is no lease: a directory has none, made or not."""
    if not what or settings(url).scheme != "file":
        refuse_missing(url)
    return holdfast.connect(url)


def refuse_lonely(url: str | None) -> None:
    """`InvalidConfig` for leases that no other process sees: there is nothing to find, and nothing to change."""
    asked = settings(url)
    if asked.scheme == "memory":
        rule = "its leases are of one process: name what others use, such as redis://host"
        raise InvalidConfig(url_setting(url), asked.url, rule)


def connect_or_make(url: str | None) -> holdfast.Holdfast:
    """For whoever sets something up: there a new file is what is wanted."""
    refuse_lonely(url)
    return holdfast.connect(url)


def refuse_missing(url: str | None) -> None:
    """`Unavailable` for a file that was named and is not there. The user's own place may be made by anybody."""
    refuse_lonely(url)
    asked = settings(url)
    # A path that is none is refused when it is opened: nobody could make it.
    if not asked.chosen or asked.scheme not in ("sqlite", "file") or not asked.path.startswith("/"):
        return
    named = Path(asked.path)
    place = named if asked.scheme == "sqlite" else named / ".holdfast"
    told = f"{place}; the first who takes a lease there makes it"
    if asked.scheme == "file":
        told = f"{place}: nobody has taken a lease in this directory yet"
    try:
        place.stat()
    except (FileNotFoundError, NotADirectoryError):
        if asked.scheme == "sqlite" or named.is_dir():  # else whoever opens it says so
            raise Unavailable(asked.scheme, MISSING, told) from None
    except OSError:
        return  # whoever opens it says what is wrong with it
