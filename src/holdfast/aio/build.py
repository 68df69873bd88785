"""Building once, for tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from holdfast.aio.cancellation import settled
from holdfast.aio.lease import Lease
from holdfast.aio.lock import POLICIES, Lock
from holdfast.core.lease.lock import is_coroutine_function
from holdfast.errors import InvalidConfig

if TYPE_CHECKING:
    import os
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from holdfast.clock import Seconds
    from holdfast.core.build.build_dir import BuildResult
    from holdfast.core.build.build_once import Staging
    from holdfast.core.client import Client

T = TypeVar("T")


async def aside(call: Callable[[], T]) -> T:
    """On another thread, so that the loop goes on; nothing is cleared away while it works."""
    return await settled(call)


async def build_once(
    client: Client,
    directory: str | os.PathLike[str],
    key: str,
    build: Callable[[Staging], Awaitable[object]],
    check: Callable[[Path], bool] | None,
    ttl: Seconds,
    timeout: Seconds | None,
    *,
    movable: bool,
) -> BuildResult:
    """See `Holdfast.build_once`."""
    from holdfast.core.build import build_once as building  # noqa: PLC0415 - it runs programs and looks at disks: dear to load

    work = building.Work(client, directory, key, check, movable=movable)
    if not is_coroutine_function(build):
        raise InvalidConfig("build", build, "it must be a coroutine function of the staging place")

    async def built(staging: Staging) -> None:
        await build(staging)

    def lease_of(name: str) -> Lease:
        lock = Lock(client, name, ttl=ttl, timeout=timeout, reentrant=False, on_loss="report", policies=POLICIES)
        return Lease(*lock._fields())

    return await building.build_once(work, built, lease_of, aside, building.patience(timeout))
