"""The SQLite engine: leases of one host, in one file, without a server."""

from __future__ import annotations

import importlib.util
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.engines.interface import ALL_FEATURES, Capability, EngineDriver, Scope
from holdfast.engines.sqlite import location
from holdfast.errors import InvalidConfig, Unavailable, UnavailableReason
from holdfast.interrupts import raise_if_of_signal
from holdfast.observer import log

if TYPE_CHECKING:
    from holdfast.config import Settings
    from holdfast.engines.local import LocalEngine

SCOPE = Scope.HOST
CAPABILITIES = ALL_FEATURES | {Capability.FIFO, Capability.DEATH_PROOF}


def open_engine(settings: Settings) -> LocalEngine:
    """Open `sqlite:///path/to/file.db`: every process of this host that opens the same file shares its leases."""
    settings.refuse_options()
    path = Path(settings.path)
    if not path.is_absolute() or settings.path.endswith("/"):
        raise InvalidConfig(
            "url", settings.url, "it must name a file by its absolute path, as in sqlite:///srv/app/holdfast.db"
        )
    if path.parts[1].startswith("~") or path.name == ":memory:":
        hint = "a path beginning with ~ is not expanded, and leases in memory are memory://"
        raise InvalidConfig("url", settings.url, f"it must name a file by its absolute path; {hint}")
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        pass  # the first command creates it
    except OSError as error:
        raise Unavailable("sqlite", location.trouble(error), f"{path}: {error.strerror}") from error
    else:
        if not stat.S_ISREG(mode):
            what = "a directory" if stat.S_ISDIR(mode) else "a device, a socket or a pipe"
            raise InvalidConfig("url", settings.url, f"it must name a regular file, and this is {what}")
    settings.refuse_clock()
    if importlib.util.find_spec("fcntl") is None:
        raise InvalidConfig("url", settings.url, "the SQLite engine needs POSIX file locks")

    # Imported here, because not every system has what these modules import.
    from holdfast.engines.local import LocalEngine  # noqa: PLC0415
    from holdfast.engines.sqlite.database import open_database  # noqa: PLC0415
    from holdfast.engines.sqlite.engine import SqliteStore  # noqa: PLC0415

    store = SqliteStore(open_database(path), settings.fence_memory_us)
    if not settings.chosen:
        log.info("leases live in %s: this host only", path)
    return LocalEngine(store)


def missing(settings: Settings) -> Unavailable | None:
    """Return an error if the file does not exist; `open_engine` reports every other problem."""
    path = Path(settings.path)
    if not path.is_absolute():
        return None
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return Unavailable(
            "sqlite", UnavailableReason.NO_SUCH_FILE, f"{path}; the first client that takes a lease there creates it"
        )
    except OSError as error:
        raise_if_of_signal(error)
    return None


DRIVER = EngineDriver(
    open_engine,
    SCOPE,
    CAPABILITIES,
    missing,
    {
        "no permission": "give the file and its directory to this user, or name another by --url or HOLDFAST_URL",
        "read-only": "that disk is read-only: name another file by --url or HOLDFAST_URL",
        "unreachable": "name a file that this user can create, by --url or HOLDFAST_URL",
    },
)
