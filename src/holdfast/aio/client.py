"""The client: what `connect` gives."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from holdfast.aio import build as building
from holdfast.aio.budget import Budget
from holdfast.aio.leader import Leader, Term
from holdfast.aio.lease import Lease
from holdfast.aio.limit import RateLimiter
from holdfast.aio.lock import POLICIES, Lock
from holdfast.aio.once import Once
from holdfast.aio.pool import Item, Pool
from holdfast.aio.registry import Registry
from holdfast.aio.rwlock import RWLease, RWLock
from holdfast.aio.semaphore import Permit, Semaphore
from holdfast.clock import Clock, Seconds
from holdfast.config import FENCE_MEMORY_S
from holdfast.core import client as _client
from holdfast.core import inspection
from holdfast.core import promise as promises
from holdfast.core.build import domain
from holdfast.core.lease import leader
from holdfast.core.lease.lock import TTL_S
from holdfast.core.limit.budget import HOLD_S, PERIOD_S
from holdfast.core.limit.limit import LOCAL_SHARE
from holdfast.core.once.once import LEASE_S, WINDOW_S
from holdfast.core.pool.pool import COOL_S
from holdfast.core.queue.outcomes import BACKOFF, Backoff
from holdfast.core.queue.queue import ATTEMPTS, DEAD_MAX, DEDUP_S, QueueCore
from holdfast.core.queue.queue import GRACE_S as DEATH_GRACE_S
from holdfast.core.queue.queue import TTL_S as QUEUE_TTL_S
from holdfast.core.registry.registry import TTL_S as REGISTRY_TTL_S
from holdfast.rules.promise import required

if TYPE_CHECKING:
    import os
    from collections.abc import Awaitable, Callable, Iterable
    from types import TracebackType

    from holdfast.aio.queue import Queue
    from holdfast.core.build.build_dir import BuildResult
    from holdfast.core.build.build_once import Staging
    from holdfast.core.build.domain import LockDomain
    from holdfast.core.inspection import LeaseStatus
    from holdfast.core.queue.codec import Codec
    from holdfast.engines import Promise
    from holdfast.observer import Observer


class Holdfast:
    """Like `blocking.Holdfast`, awaited. Tasks of one event loop may share it."""

    def __init__(self, client: _client.Client) -> None:
        self._client = client

    @property
    def url(self) -> str:
        """Where the leases live, without any password."""
        return self._client.url

    def lock(
        self,
        name: str,
        ttl: Seconds = TTL_S,
        timeout: Seconds | None = None,
        *,
        reentrant: bool = False,
        on_loss: str | Callable[[Lease], object] = "report",
        confirm: str | None = None,
    ) -> Lock:
        """Like `blocking.Holdfast.lock`."""
        return Lock(
            self._client,
            name,
            ttl=ttl,
            timeout=timeout,
            reentrant=reentrant,
            on_loss=on_loss,
            confirm=confirm,
            policies=POLICIES,
        )

    def leader(
        self,
        name: str,
        ttl: Seconds = TTL_S,
        timeout: Seconds | None = None,
        *,
        candidate: str | None = None,
        on_loss: str | Callable[[Term], object] = "report",
        confirm: str | None = None,
    ) -> Leader:
        """Like `blocking.Holdfast.leader`."""
        label = leader.candidate_name(self._client, candidate)
        return Leader(
            self._client,
            name,
            ttl=ttl,
            timeout=timeout,
            on_loss=on_loss,
            confirm=confirm,
            policies=POLICIES,
            label=label,
        )

    def pool(
        self,
        name: str,
        ttl: Seconds = TTL_S,
        timeout: Seconds | None = None,
        *,
        cool: Seconds = COOL_S,
        cool_on: type[BaseException] | tuple[type[BaseException], ...] = (),
        on_death: Seconds | None = None,
        on_loss: str | Callable[[Item], object] = "report",
        confirm: str | None = None,
    ) -> Pool:
        """Like `blocking.Holdfast.pool`."""
        return Pool(
            self._client,
            name,
            ttl=ttl,
            timeout=timeout,
            cool=cool,
            cool_on=cool_on,
            on_death=on_death,
            on_loss=on_loss,
            confirm=confirm,
            policies=POLICIES,
        )

    def semaphore(
        self,
        name: str,
        permits: int,
        ttl: Seconds = TTL_S,
        timeout: Seconds | None = None,
        *,
        reentrant: bool = False,
        on_loss: str | Callable[[Permit], object] = "report",
        confirm: str | None = None,
    ) -> Semaphore:
        """Like `blocking.Holdfast.semaphore`."""
        return Semaphore(
            self._client,
            name,
            permits=permits,
            ttl=ttl,
            timeout=timeout,
            reentrant=reentrant,
            on_loss=on_loss,
            confirm=confirm,
            policies=POLICIES,
        )

    async def build_once(
        self,
        directory: str | os.PathLike[str],
        key: str,
        build: Callable[[Staging], Awaitable[object]],
        *,
        check: Callable[[Path], bool] | None = None,
        ttl: Seconds = TTL_S,
        timeout: Seconds | None = None,
        relocatable: bool = True,
    ) -> BuildResult:
        """Like `blocking.Holdfast.build_once`, awaited; `build` is a coroutine function."""
        return await building.build_once(
            self._client, directory, key, build, check, ttl, timeout, relocatable=relocatable
        )

    async def domain(self, directory: str | os.PathLike[str]) -> LockDomain:
        """Like `blocking.Holdfast.domain`, awaited."""
        return await building.run_blocking(partial(domain.enter, self._client, Path(directory)))

    def rwlock(
        self,
        name: str,
        ttl: Seconds = TTL_S,
        timeout: Seconds | None = None,
        *,
        reentrant: bool = False,
        on_loss: str | Callable[[RWLease], object] = "report",
        confirm: str | None = None,
    ) -> RWLock:
        """Like `blocking.Holdfast.rwlock`."""
        return RWLock(
            self._client,
            name,
            ttl=ttl,
            timeout=timeout,
            reentrant=reentrant,
            on_loss=on_loss,
            confirm=confirm,
            policies=POLICIES,
        )

    def limit(
        self,
        rate: str,
        *,
        name: str | None = None,
        method: str = "window",
        on_unavailable: str = "local",
        local_share: float = LOCAL_SHARE,
    ) -> RateLimiter:
        """Like `blocking.Holdfast.limit`."""
        return RateLimiter(
            self._client, rate, name=name, method=method, on_unavailable=on_unavailable, local_share=local_share
        )

    def budget(self, name: str, limit: int | None, period: Seconds = PERIOD_S, *, hold: Seconds = HOLD_S) -> Budget:
        """Like `blocking.Holdfast.budget`."""
        return Budget(self._client, name, limit=limit, period=period, hold=hold)

    def once(self, name: str, window: Seconds = WINDOW_S, *, lease: Seconds = LEASE_S) -> Once:
        """Like `blocking.Holdfast.once`."""
        return Once(self._client, name, window=window, lease=lease)

    def queue(
        self,
        name: str,
        *,
        max_attempts: int = ATTEMPTS,
        backoff: Backoff = BACKOFF,
        bound: int | None = None,
        dead_max: int | None = DEAD_MAX,
        dedup_window: Seconds = DEDUP_S,
        codec: str | Codec = "json",
        ttl: Seconds = QUEUE_TTL_S,
        grace: Seconds = DEATH_GRACE_S,
        confirm: str | None = None,
    ) -> Queue:
        """The queue of this name. Nothing is sent before it is used.

        A message whose `max_attempts` have failed is a dead letter; `dead_max` of those are kept. A consumer that was
        not heard of for `ttl` and `grace` is taken for dead. `bound` is how many messages there may be. With
        `confirm="replicas"` a message counts as sent once every replica has it.
        """
        from holdfast.aio.queue import Queue  # noqa: PLC0415 - dear to load, and few programs have a queue

        core = QueueCore(
            self._client,
            name,
            max_attempts=max_attempts,
            backoff=backoff,
            bound=bound,
            dead_max=dead_max,
            dedup_window=dedup_window,
            codec=codec,
            ttl=ttl,
            grace=grace,
            confirm=confirm,
        )
        return Queue(core)

    def registry(self, name: str, ttl: Seconds = REGISTRY_TTL_S) -> Registry:
        """Like `blocking.Holdfast.registry`."""
        return Registry(self._client, name, ttl=ttl)

    async def show(self, name: str) -> LeaseStatus:
        """Like `blocking.Holdfast.show`, awaited."""
        return await inspection.show(self._client, name)

    async def held(self, prefix: str = "", *, limit: int = inspection.NAMES) -> list[LeaseStatus]:
        """Like `blocking.Holdfast.held`, awaited."""
        return await inspection.held(self._client, prefix, limit, building.run_blocking)

    async def break_lease(self, name: str, reason: str) -> None:
        """Like `blocking.Holdfast.break_lease`, awaited."""
        await inspection.break_lease(self._client, name, reason)

    async def refresh_topology(self) -> None:
        """Like `blocking.Holdfast.refresh_topology`, awaited."""
        await self._client.refresh_topology()

    async def promise(self) -> Promise:
        """Like `blocking.Holdfast.promise`, awaited."""
        return await promises.promise(self._client)

    async def close(self, timeout: Seconds | None = _client.CLOSE_S) -> tuple[str, ...]:
        """Like `blocking.Holdfast.close`, awaited."""
        return await self._client.close(timeout)

    async def __aenter__(self) -> Holdfast:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        await self.close(_client.close_timeout(error))
        return False

    def __repr__(self) -> str:
        return f"<holdfast {self._client.url} {self._client.state}>"


async def connect(
    url: str | None = None,
    *,
    label: str = "",
    info: dict[str, Any] | None = None,
    observer: Observer | None = None,
    fence_memory: Seconds = FENCE_MEMORY_S,
    clock: Clock | None = None,
    require: str | Iterable[str] = (),
    namespace: str | None = None,
) -> Holdfast:
    """Like `blocking.connect`, awaited: the client belongs to the running event loop."""
    wanted = required(require)
    client = _client.Client(
        url,
        face="asyncio",
        label=label,
        info=info,
        observer=observer,
        fence_memory=fence_memory,
        clock=clock,
        namespace=namespace,
    )
    try:
        await promises.require(client, wanted)
    except BaseException:
        await client.close(0)
        raise
    return Holdfast(client)
