"""The lock domain of a directory: a marker file inside the directory names the engine that guards it.

Two processes that lock one directory through two engines do not exclude each other, and neither would notice. So the
first process that guards a directory leaves a marker in it: the engine, its location, and an id for the directory. The
library refuses a process with another engine before it writes anything. The id is the same through every path and
mount, so the names of leases contain it.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.config import url_of
from holdfast.core.inspection import lease_info
from holdfast.errors import DomainMismatch, InvalidConfig, Unavailable, UnavailableReason
from holdfast.host import unavailable_error
from holdfast.interrupts import raise_if_of_signal, suppress_unless_signal
from holdfast.names import new_token
from holdfast.shared_files import opened, retry_if_denied

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.core.client import Client

    RunBlocking = Callable[[Callable[[], Any]], Awaitable[Any]]

MARKER = ".holdfast-domain"
_LAYOUT = 1
_MARKER_MAX_BYTES = 4096


class LockDomain(NamedTuple):
    """The id of a guarded directory, and the engine whose leases guard it."""

    id: str
    engine: str
    place: str


def read(directory: Path) -> LockDomain | None:
    """Return the marker, or `None`; raise `InvalidConfig` if it cannot be read, because the domain is then unknown."""
    try:
        text = retry_if_denied(partial(_read, directory), directory)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unavailable_error("directory", error) from error
    try:
        marker = json.loads(text)
        if marker["v"] != _LAYOUT:
            rule = f"its marker has layout version {marker['v']}, but this library reads {_LAYOUT}: upgrade the library"
            raise InvalidConfig("directory", str(directory), rule)
        return LockDomain(str(marker["id"]), str(marker["engine"]), str(marker["place"]))
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise_if_of_signal(error)
        if isinstance(error, InvalidConfig):
            raise
        rule = f"its marker {MARKER} cannot be read; repair it, or stop all users of the directory and remove it"
        raise InvalidConfig("directory", str(directory), rule) from error


def _read(directory: Path) -> bytes:
    with opened(directory) as folder:
        return folder.read(MARKER, _MARKER_MAX_BYTES)


async def enter(client: Client, directory: Path, run_blocking: RunBlocking) -> LockDomain:
    """Return the directory's domain; mark an unmarked directory. `DomainMismatch` if another engine guards it.

    `run_blocking` runs functions that block.
    """
    own = LockDomain(new_token(), client.engine.name, client.engine.location())
    found: LockDomain | None = await run_blocking(partial(read, directory))
    if found is None:
        # Write no domain marker for an engine that does not answer (a mistyped URL): the marker would make clients of
        # the right engine fail.
        await lease_info(client, MARKER)
        found = await run_blocking(partial(_mark, directory, own))
    if (found.engine, found.place) != (own.engine, own.place):
        raise DomainMismatch(
            str(directory), url_of_domain(found), url_of_domain(own, client.url), str(directory / MARKER)
        )
    return found


def url_of_domain(domain: LockDomain, url: str = "") -> str:
    """Return the URL of the domain's engine, without a password, for errors.

    `url`: the URL of a client of the engine; some engines have a location from which no URL can be made.
    """
    if "://" in domain.place:  # an address of servers, and the namespace behind it
        address, _, namespace = domain.place.partition(" ")
        return f"{address}{'&' if '?' in address else '?'}namespace={namespace}" if namespace else address
    if domain.engine == "file":
        return f"{url or 'file://'} (the directory with the id {domain.place})"
    return url_of(domain.engine, domain.place)


def _mark(directory: Path, domain: LockDomain) -> LockDomain:
    """Create the marker and return it, or return the marker that another process created first.

    The marker is complete before it gets its name, and the link does not replace an existing marker.
    """
    draft, text = f"{MARKER}.{new_token()}", json.dumps({"v": _LAYOUT, **domain._asdict()})
    try:
        retry_if_denied(partial(_publish, directory, draft, text.encode()), directory)
    except OSError as error:
        raise_if_of_signal(error)
        # The first process removes all drafts; on a network filesystem, even the draft that this process is writing.
        found = read(directory)
        if found is not None:
            return found
        if not directory.is_dir():
            missing = f"the directory {directory} does not exist; create or mount it first"
            raise Unavailable("directory", UnavailableReason.UNREACHABLE, missing) from error
        if not isinstance(error, FileExistsError | FileNotFoundError):
            raise unavailable_error("directory", error) from error
    else:
        return domain
    return _mark(directory, domain)  # another process created the marker, and then it was removed


def _publish(directory: Path, draft: str, text: bytes) -> None:
    with opened(directory) as folder:
        folder.write_new(draft, text, lasting=True)
        try:
            folder.link(draft, MARKER)
        finally:
            with suppress_unless_signal(OSError):
                folder.remove(draft)


def tidy(directory: Path) -> None:
    """Remove drafts of the marker. The marker exists by now, so no draft can become it any more."""
    with suppress_unless_signal(OSError), opened(directory) as folder:
        for entry in folder.names():
            if entry.startswith(f"{MARKER}."):
                folder.check(entry, folder.status(entry))
                folder.remove(entry)
