"""Leases in a shared directory, for hosts that have nothing else in common: no server, nothing but files."""

from __future__ import annotations

import importlib.util
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.clock import SYSTEM
from holdfast.errors import InvalidConfig, Unavailable

if TYPE_CHECKING:
    from holdfast.config import Settings
    from holdfast.engines.local import LocalEngine


def open_engine(settings: Settings) -> LocalEngine:
    """`file:///shared/directory`: every process of every host that sees this directory shares its leases."""
    settings.refuse_options()
    root = Path(settings.path)
    if not root.is_absolute() or root.parts[1:2] == ("~",):
        rule = "it must name a directory by its absolute path, as in file:///srv/shared"
        raise InvalidConfig("url", settings.url, rule)
    if settings.clock is not SYSTEM:
        raise InvalidConfig("clock", settings.clock, "only memory:// takes a clock that is moved by hand")
    if importlib.util.find_spec("fcntl") is None:
        raise InvalidConfig("url", settings.url, "shared directories need POSIX file locks")
    try:
        mode = root.stat().st_mode
    except OSError as error:
        raise Unavailable("file", "unreachable", f"{root}: {error.strerror}; it must be there already") from error
    if not stat.S_ISDIR(mode):
        raise InvalidConfig("url", settings.url, "it must name a directory, and this is none")

    # Imported here: what these modules need is not on every system.
    from holdfast.engines.files.engine import FileStore  # noqa: PLC0415
    from holdfast.engines.files.root import Ground  # noqa: PLC0415
    from holdfast.engines.files.transport import FileEngine  # noqa: PLC0415

    return FileEngine(FileStore(Ground(root.resolve()), settings.fence_memory_us))
