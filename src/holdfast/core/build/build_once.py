"""Build once: look for a build without a lock, acquire the lease, look again, build in a private directory, publish.

The lease only avoids double work. A published tree is complete even without the lease: see `build_dir`.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Awaitable, Callable
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.clock import Seconds, timeout_ns
from holdfast.core.build import domain
from holdfast.core.build.build_dir import BuildDir, BuildResult, StagingDir
from holdfast.errors import InvalidConfig
from holdfast.host import ProcessStart

if TYPE_CHECKING:
    from holdfast.core.client import Client
    from holdfast.core.lease.lease import LeaseBase

T = TypeVar("T")
Check = Callable[[Path], bool]
RunBlocking = Callable[[Callable[[], Any]], Awaitable[Any]]
_NAME_MAX = 300


class Staging:
    """The private directory that the build function fills. It is a path (`os.fspath`, `/`)."""

    def __init__(self, staging_dir: StagingDir, lease: LeaseBase) -> None:
        self.path = staging_dir.path
        self._lock = staging_dir.lock
        self._lease = lease

    @property
    def fence(self) -> int:
        """The fence of the build's lease."""
        return self._lease.fence

    def check(self) -> None:
        """Raise `LeaseLost` if the lease is lost, so that the build function can stop early."""
        self._lease.check()

    @property
    def liveness_fds(self) -> tuple[int, ...]:
        """Descriptors for the `pass_fds` of child processes.

        While such a child process runs, no other builder removes this directory; and on engines that track processes,
        no other process gets the lease.
        """
        descriptor = self._lease.client.engine.liveness_fd()
        return (self._lock,) if descriptor is None else (self._lock, descriptor)

    def run(self, *command: str | os.PathLike[str], **options: Any) -> subprocess.CompletedProcess[Any]:
        """Run a program with `subprocess.run` in this directory and pass it `liveness_fds`.

        `command`: the program and its arguments. `options`: as for `subprocess.run`; `check` is true by default. Raise
        `Unavailable` if the system starts no more processes.
        """
        fds = (*options.pop("pass_fds", ()), *self.liveness_fds)
        check = options.pop("check", True)
        cwd = options.pop("cwd", self.path)
        with ProcessStart("directory"):
            return subprocess.run(command, cwd=cwd, check=check, pass_fds=fds, **options)  # noqa: S603

    def __truediv__(self, other: str | os.PathLike[str]) -> Path:
        return self.path / other

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)


class BuildRequest:
    """The arguments of `build_once`, checked before any I/O."""

    def __init__(
        self, client: Client, directory: str | os.PathLike[str], key: str, check: Check | None, *, relocatable: bool
    ) -> None:
        self.client = client
        self.directory = Path(os.path.abspath(directory))
        if check is not None and not callable(check):
            raise InvalidConfig("check", check, "it must be callable with the path of the build")
        self.build_dir = BuildDir(self.directory, key, relocatable=relocatable)
        self._check = check

    def find(self) -> BuildResult | None:
        """Return the published build, if it is complete and passes the check."""
        return self._if_accepted(self.build_dir.find())

    def find_uncached(self) -> BuildResult | None:
        """Like `find`, but bypass the caches of a network filesystem."""
        return self._if_accepted(self.build_dir.find_uncached())

    def _if_accepted(self, found: BuildResult | None) -> BuildResult | None:
        if found is None or (self._check is not None and not self._check(found.path)):
            return None
        return found

    async def lease_name(self, run_blocking: RunBlocking) -> str:
        """Return the name of the lease. It is the same for all paths to the directory."""
        guarded = await domain.enter(self.client, self.directory, run_blocking)
        key = self.build_dir.key
        if len(key.encode()) > _NAME_MAX:
            key = blake2b(key.encode(), digest_size=16).hexdigest()
        return f"build/{guarded.id}/{key}"


def timeout_of(timeout: Seconds | None) -> int | None:
    """Check the timeout and return it in nanoseconds."""
    return timeout_ns(timeout)


async def build_once(
    request: BuildRequest,
    build: Callable[[Staging], Awaitable[object]],
    lease_of: Callable[[str], LeaseBase],
    run_blocking: RunBlocking,
    wait_ns: int | None,
) -> BuildResult:
    """Return the published build, or build and publish it. `run_blocking` runs functions that block."""
    found = request.find()
    if found is not None:
        return found
    lease = lease_of(await request.lease_name(run_blocking))
    try:
        await lease.acquire_steps(wait_ns)
        lease.delivered = True
    except BaseException:
        lease.undo()
        raise
    try:
        try:
            built: BuildResult = await run_blocking(request.find_uncached) or await _build(
                request, build, lease, run_blocking
            )
        except BaseException as error:
            await lease.leave_steps(error)
            raise
        await lease.leave_steps(None)
    finally:
        lease.end()
    return built


async def _build(
    request: BuildRequest, build: Callable[[Staging], Awaitable[object]], lease: LeaseBase, run_blocking: RunBlocking
) -> BuildResult:
    """Build in a staging directory and publish the result; remove the directory in any case."""
    build_dir = request.build_dir
    await run_blocking(partial(domain.tidy, request.directory))
    bad: BuildResult | None = await run_blocking(build_dir.find)
    staging_dirs: list[StagingDir] = []  # the thread fills this list even if the caller is cancelled
    try:
        await run_blocking(lambda: staging_dirs.append(build_dir.stage(lease.fence)))
        await build(Staging(staging_dirs[0], lease))
        lease.check()
        built: BuildResult = await run_blocking(
            partial(build_dir.publish, staging_dirs[0], lease.fence, str(lease.holder), bad)
        )
    finally:
        for staging_dir in staging_dirs:
            await run_blocking(partial(build_dir.withdraw, staging_dir))
    return built
