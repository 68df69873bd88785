"""Which engine guards a directory, written inside it.

Two processes that lock one directory through two engines do not exclude each other, and nothing would tell them. So
the first one that guards a directory leaves a marker in it: the engine, where it is, and an id for the directory. A
process that is configured otherwise is refused before it writes anything. The id is the same through every path and
mount that leads there, so it is what leases are named by.
"""

from __future__ import annotations

import contextlib
import json
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from holdfast.errors import DomainMismatch, InvalidConfig, Unavailable
from holdfast.host import open_up, patiently, trouble
from holdfast.names import new_token

if TYPE_CHECKING:
    from holdfast.core.client import Client

MARKER = ".holdfast-domain"
_LAYOUT = 1
_MOST = 4096


class LockDomain(NamedTuple):
    """A guarded directory: its own id, and the engine whose leases guard it."""

    id: str
    engine: str
    place: str


def read(directory: Path) -> LockDomain | None:
    """The marker, if there is one; `InvalidConfig` if it cannot be read, and then nothing may be assumed."""
    path = directory / MARKER
    look = partial(os.open, path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        descriptor = patiently(look, directory)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise trouble("directory", error) from error
    try:
        marker = json.loads(os.read(descriptor, _MOST))
        if marker["v"] != _LAYOUT:
            raise InvalidConfig("directory", str(directory), f"its marker is of a newer version: {marker['v']}")
        return LockDomain(str(marker["id"]), str(marker["engine"]), str(marker["place"]))
    except (ValueError, LookupError, TypeError, OSError) as error:
        if isinstance(error, InvalidConfig):
            raise
        rule = f"its marker {MARKER} cannot be read: put it right, or remove it when nobody uses the directory"
        raise InvalidConfig("directory", str(directory), rule) from error
    finally:
        os.close(descriptor)


def enter(client: Client, directory: Path) -> LockDomain:
    """The directory's domain, marked by the first who comes; `DomainMismatch` for whoever is of another."""
    mine = LockDomain(new_token(), client.engine.name, client.engine.location())
    found = read(directory) or _mark(directory, mine)
    if (found.engine, found.place) != (mine.engine, mine.place):
        raise DomainMismatch(str(directory), f"{found.engine} {found.place}", f"{mine.engine} {mine.place}")
    return found


def _mark(directory: Path, domain: LockDomain) -> LockDomain:
    """Only one can: the marker is whole before it has its name, and a name that is taken stays as it is."""
    draft = directory / f"{MARKER}.{new_token()}"
    try:
        with patiently(partial(draft.open, "x", encoding="utf-8"), directory) as file:
            json.dump({"v": _LAYOUT, **domain._asdict()}, file)
            file.flush()
            open_up(file.fileno(), directory)
            os.fsync(file.fileno())
        os.link(draft, directory / MARKER)
    except OSError as error:
        # Whoever was first clears drafts away: on a network filesystem even while this one writes to it.
        found = read(directory)
        if found is not None:
            return found
        if not directory.is_dir():
            missing = f"the directory {directory} is not there; it is never made: make it, or mount it, first"
            raise Unavailable("directory", "unreachable", missing) from error
        if not isinstance(error, FileExistsError | FileNotFoundError):
            raise trouble("directory", error) from error
    else:
        return domain
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
    return _mark(directory, domain)  # it was marked, and the marker is gone again


def tidy(directory: Path) -> None:
    """Clear away drafts of the marker. There is one by now, so that whoever is still at a draft has lost."""
    with contextlib.suppress(OSError):
        for entry in os.listdir(directory):
            if entry.startswith(f"{MARKER}."):
                os.unlink(directory / entry)
