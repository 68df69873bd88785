"""`build_once` for threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from holdfast.blocking.lease import Lease
from holdfast.blocking.lock import Lock
from holdfast.core.lease.lock import is_coroutine_function
from holdfast.core.step import run
from holdfast.errors import InvalidConfig

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from pathlib import Path

    from holdfast.clock import Seconds
    from holdfast.core.build.build_dir import BuildResult
    from holdfast.core.build.build_once import Staging
    from holdfast.core.client import Client

T = TypeVar("T")


async def run_blocking(call: Callable[[], T]) -> T:
    """Run the function on this thread."""
    return call()


def build_once(
    client: Client,
    directory: str | os.PathLike[str],
    key: str,
    build: Callable[[Staging], object],
    check: Callable[[Path], bool] | None,
    ttl: Seconds,
    timeout: Seconds | None,
    *,
    relocatable: bool,
) -> BuildResult:
    """See `Holdfast.build_once`."""
    from holdfast.core.build import build_once as building  # noqa: PLC0415 - slow to import, and few programs use it

    request = building.BuildRequest(client, directory, key, check, relocatable=relocatable)
    if not callable(build) or is_coroutine_function(build):
        raise InvalidConfig("build", build, "it must be a plain function of the staging directory")

    async def built(staging: Staging) -> None:
        build(staging)

    def lease_of(name: str) -> Lease:
        lock = Lock(
            client,
            name,
            ttl=ttl,
            timeout=timeout,
            reentrant=False,
            on_loss="report",
            policies=("report",),
            template=False,
        )
        return Lease(*lock._fields())

    return run(building.build_once(request, built, lease_of, run_blocking, building.timeout_of(timeout)))
