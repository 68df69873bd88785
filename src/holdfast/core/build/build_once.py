"""Build once: look without a lock, take the lease, look again, build in private, publish.

The lease is for "once" only. That what is published is whole does not depend on it: see `site`.
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
from holdfast.core.build.build_dir import BuildResult, Plot, Site
from holdfast.core.lease import acquire as lifecycle
from holdfast.errors import InvalidConfig

if TYPE_CHECKING:
    from holdfast.core.client import Client
    from holdfast.core.lease.lease import LeaseBase

T = TypeVar("T")
Check = Callable[[Path], bool]
Aside = Callable[[Callable[[], Any]], Awaitable[Any]]
_NAME_MAX = 300


class Staging:
    """The private place in which something is built, as the builder gets it. It is a path."""

    def __init__(self, plot: Plot, lease: LeaseBase) -> None:
        self.path = plot.path
        self._lock = plot.lock
        self._lease = lease

    @property
    def fence(self) -> int:
        """The fence of the lease under which this is built."""
        return self._lease.fence

    def check(self) -> None:
        """Raise `LeaseLost` if the lease cannot be vouched for: there is no use in going on."""
        self._lease.check()

    @property
    def liveness_fds(self) -> tuple[int, ...]:
        """Descriptors for the `pass_fds` of child processes.

        While one of them runs, nobody clears this place away; and where the engine can tell, nobody takes the lease.
        """
        descriptor = self._lease._client.engine.liveness_fd()
        return (self._lock,) if descriptor is None else (self._lock, descriptor)

    def run(self, *command: str | os.PathLike[str], **options: Any) -> subprocess.CompletedProcess[Any]:
        """`subprocess.run` in this place, with the lifeline handed down."""
        fds = (*options.pop("pass_fds", ()), *self.liveness_fds)
        check = options.pop("check", True)
        cwd = options.pop("cwd", self.path)
        return subprocess.run(command, cwd=cwd, check=check, pass_fds=fds, **options)  # noqa: S603

    def __truediv__(self, other: str | os.PathLike[str]) -> Path:
        return self.path / other

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)


class Work:
    """What is to be built, and where; checked before any input or output."""

    def __init__(
        self, client: Client, directory: str | os.PathLike[str], key: str, check: Check | None, *, movable: bool
    ) -> None:
        self.client = client
        self.directory = Path(os.path.abspath(directory))
        if check is not None and not callable(check):
            raise InvalidConfig("check", check, "it must be callable with the path of what was built")
        self.site = Site(self.directory, key, movable=movable)
        self._check = check

    def find(self) -> BuildResult | None:
        """What is there already, and good."""
        return self._good(self.site.find())

    def find_afresh(self) -> BuildResult | None:
        return self._good(self.site.find_afresh())

    def _good(self, found: BuildResult | None) -> BuildResult | None:
        if found is None or (self._check is not None and not self._check(found.path)):
            return None
        return found

    def lease_name(self) -> str:
        """The same for everybody who builds this key in this directory, whatever path leads there."""
        guarded = domain.enter(self.client, self.directory)
        key = self.site.key
        if len(key.encode()) > _NAME_MAX:
            key = blake2b(key.encode(), digest_size=16).hexdigest()
        return f"build/{guarded.id}/{key}"


def patience(timeout: Seconds | None) -> int | None:
    """How long to wait for the lease, checked."""
    return timeout_ns(timeout)


async def build_once(
    work: Work,
    build: Callable[[Staging], Awaitable[object]],
    lease_of: Callable[[str], LeaseBase],
    aside: Aside,
    wait_ns: int | None,
) -> BuildResult:
    """What is there, or what `build` makes of an empty place. `aside` runs what may take a while."""
    found = work.find()
    if found is not None:
        return found
    lease = lease_of(await aside(work.lease_name))
    try:
        await lifecycle.acquire(lease, wait_ns)
        lease._owned = True
    except BaseException:
        lifecycle.undo(lease)
        raise
    try:
        try:
            built: BuildResult = await aside(work.find_afresh) or await _build(work, build, lease, aside)
        except BaseException as error:
            await lifecycle.leave(lease, error)
            raise
        await lifecycle.leave(lease, None)
    finally:
        lifecycle.end(lease)
    return built


async def _build(
    work: Work, build: Callable[[Staging], Awaitable[object]], lease: LeaseBase, aside: Aside
) -> BuildResult:
    site = work.site
    await aside(partial(domain.tidy, work.directory))
    bad: BuildResult | None = await aside(site.find)
    plots: list[Plot] = []  # whoever is cancelled while it is staged has one all the same
    try:
        await aside(lambda: plots.append(site.stage(lease.fence)))
        await build(Staging(plots[0], lease))
        lease.check()
        built: BuildResult = await aside(partial(site.publish, plots[0], lease.fence, str(lease.holder), bad))
    finally:
        for plot in plots:
            await aside(partial(site.withdraw, plot))
    return built
