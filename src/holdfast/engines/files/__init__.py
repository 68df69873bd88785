"""The file engine: leases in a shared directory, for hosts that share nothing but files."""

from __future__ import annotations

import importlib.util
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.engines.interface import Capability, EngineDriver, Scope
from holdfast.errors import InvalidConfig, Unavailable, UnavailableReason
from holdfast.interrupts import raise_if_of_signal

if TYPE_CHECKING:
    from holdfast.config import Settings
    from holdfast.engines.local import LocalEngine

SCOPE = Scope.HOSTS
CAPABILITIES = frozenset((Capability.FIFO, Capability.DEATH_PROOF))
HOME = ".holdfast"


def open_engine(settings: Settings) -> LocalEngine:
    """Open `file:///shared/directory`: every process of every host that sees this directory shares its leases."""
    settings.refuse_options()
    root = Path(settings.path)
    if not root.is_absolute() or root.parts[1:2] == ("~",):
        rule = "it must name a directory by its absolute path, as in file:///srv/shared"
        raise InvalidConfig("url", settings.url, rule)
    settings.refuse_clock()
    if importlib.util.find_spec("fcntl") is None:
        raise InvalidConfig("url", settings.url, "shared directories need POSIX file locks")
    try:
        mode = root.stat().st_mode
    except OSError as error:
        raise_if_of_signal(error)
        detail = f"{root}: {error.strerror}; holdfast does not create it"
        raise Unavailable("file", UnavailableReason.UNREACHABLE, detail) from error
    if not stat.S_ISDIR(mode):
        raise InvalidConfig("url", settings.url, "it must name a directory, and this is not a directory")

    # Imported here, because not every system has what these modules import.
    from holdfast.engines.files.engine import FileStore  # noqa: PLC0415
    from holdfast.engines.files.root import Root  # noqa: PLC0415
    from holdfast.engines.local import LocalEngine  # noqa: PLC0415

    return LocalEngine(FileStore(Root(root.resolve()), settings.fence_memory_us))


def missing(settings: Settings) -> Unavailable | None:
    """Return an error if the directory exists and has no leases yet; `open_engine` reports every other problem."""
    root = Path(settings.path)
    if not root.is_absolute():
        return None
    try:
        (root / HOME).stat()
    except (FileNotFoundError, NotADirectoryError):
        if root.is_dir():
            return Unavailable(
                "file", UnavailableReason.NO_SUCH_FILE, f"{root / HOME}: no lease was taken in this directory yet"
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
        "no permission": "let this user, or a group that it is in, write there, or name another directory",
        "read-only": "that disk is read-only: name another directory",
        "unreachable": "is the volume mounted, and the path right?",
        "no such file": "is --url (or HOLDFAST_URL) the directory that the others name? The first `holdfast run NAME "
        "-- CMD` there, or the first lock of a program, creates the missing files",
    },
)
