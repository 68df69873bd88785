"""`build_once` for asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from holdfast.aio.cancellation import finish_in_thread
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


async def run_blocking(call: Callable[[], T]) -> T:
    """Run the function on another thread; a cancelled caller waits until the function has ended."""
    return await finish_in_thread(call)


async def build_once(
    client: Client,
    directory: str | os.PathLike[str],
    key: str,
    build: Callable[[Staging], Awaitable[object]],
    check: Callable[[Path], bool] | None,
    ttl: Seconds,
    timeout: Seconds | None,
    *,
    relocatable: bool,
) -> BuildResult:
    """See `Holdfast.build_once`."""
    from holdfast.core.build import build_once as building  # noqa: PLC0415 - slow to import, and few programs use it

    request = building.BuildRequest(client, directory, key, check, relocatable=relocatable)
    if not is_coroutine_function(build):
        raise InvalidConfig("build", build, "it must be a coroutine function of the staging directory")

    async def built(staging: Staging) -> None:
        await build(staging)

    def lease_of(name: str) -> Lease:
        lock = Lock(
            client, name, ttl=ttl, timeout=timeout, reentrant=False, on_loss="report", policies=POLICIES, template=False
        )
        return Lease(*lock._fields())

    return await building.build_once(request, built, lease_of, run_blocking, building.timeout_of(timeout))
