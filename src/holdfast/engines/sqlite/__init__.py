"""The embedded engine: leases of one host, in one SQLite file, without a server."""

from __future__ import annotations

import importlib.util
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.clock import SYSTEM
from holdfast.engines.sqlite import location as place
from holdfast.errors import InvalidConfig, Unavailable
from holdfast.observer import log

if TYPE_CHECKING:
    from holdfast.config import Settings
    from holdfast.engines.local import LocalEngine


def open_engine(settings: Settings) -> LocalEngine:
    """`sqlite:///path/to/file.db`: every process of this host that opens the same file shares its leases."""
    settings.refuse_options()
    path = Path(settings.path)
    if not path.is_absolute() or settings.path.endswith("/"):
        raise InvalidConfig(
            "url",
            settings.url,
            "it must name a file by its absolute path, as in sqlite:///srv/app/holdfast.db",
        )
    if path.parts[1].startswith("~") or path.name == ":memory:":
        hint = "a path beginning with ~ is not expanded, and leases in memory are memory://"
        raise InvalidConfig("url", settings.url, f"it must name a file by its absolute path; {hint}")
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        pass  # it will be made
    except OSError as error:
        raise Unavailable("sqlite", place.trouble(error), f"{path}: {error.strerror}") from error
    else:
        if not stat.S_ISREG(mode):
            what = "a directory" if stat.S_ISDIR(mode) else "no regular file"
            raise InvalidConfig("url", settings.url, f"it must name a file, and this is {what}")
    if settings.clock is not SYSTEM:
        raise InvalidConfig("clock", settings.clock, "only memory:// takes a clock that is moved by hand")
    if importlib.util.find_spec("fcntl") is None:
        raise InvalidConfig("url", settings.url, "the embedded engine needs POSIX file locks")

    # Imported here: what these modules need is not on every system.
    from holdfast.engines.local import LocalEngine  # noqa: PLC0415
    from holdfast.engines.sqlite.database import open_database  # noqa: PLC0415
    from holdfast.engines.sqlite.engine import SqliteStore  # noqa: PLC0415

    store = SqliteStore(open_database(path), settings.fence_memory_us)
    if not settings.chosen:
        log.info("leases live in %s: this host only", path)
    return LocalEngine(store)
