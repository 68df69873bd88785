"""The client: what `connect` gives."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from holdfast.blocking import build as building
from holdfast.blocking.budget import Budget
from holdfast.blocking.leader import Leader, Term
from holdfast.blocking.lease import Lease
from holdfast.blocking.limit import RateLimiter
from holdfast.blocking.lock import Lock
from holdfast.blocking.once import Once
from holdfast.blocking.pool import Item, Pool
from holdfast.blocking.registry import Registry
from holdfast.blocking.rwlock import RWLease, RWLock
from holdfast.blocking.semaphore import Permit, Semaphore
from holdfast.clock import Clock, Seconds
from holdfast.config import FENCE_MEMORY_S
from holdfast.core import client as _client
from holdfast.core import inspection
from holdfast.core import promise as promises
from holdfast.core.build import domain
from holdfast.core.lease import leader
from holdfast.core.lease.lock import (
    TTL_S,
)
from holdfast.core.limit.budget import HOLD_S, PERIOD_S
from holdfast.core.limit.limit import LOCAL_SHARE
from holdfast.core.once.once import LEASE_S, WINDOW_S
from holdfast.core.pool.pool import COOL_S
from holdfast.core.queue.outcomes import BACKOFF, Backoff
from holdfast.core.queue.queue import ATTEMPTS, DEAD_MAX, DEDUP_S, QueueCore
from holdfast.core.queue.queue import GRACE_S as DEATH_GRACE_S
from holdfast.core.queue.queue import TTL_S as QUEUE_TTL_S
from holdfast.core.registry.registry import TTL_S as REGISTRY_TTL_S
from holdfast.core.step import run
from holdfast.rules.promise import required

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from holdfast.blocking.queue import Queue
    from holdfast.core.build.build_dir import BuildResult
    from holdfast.core.build.build_once import Staging
    from holdfast.core.build.domain import LockDomain
    from holdfast.core.inspection import LeaseStatus
    from holdfast.core.queue.codec import Codec
    from holdfast.engines import Promise
    from holdfast.observer import Observer


class Holdfast:
    """A client: what `connect` gives. Threads may share it."""

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
        """A lock on the name. Nothing is sent before it is acquired."""
        return Lock(
            self._client,
            name,
            ttl=ttl,
            timeout=timeout,
            reentrant=reentrant,
            on_loss=on_loss,
            confirm=confirm,
            policies=("report",),
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
        """A candidate for the leadership of the name."""
        label = leader.candidate_name(self._client, candidate)
        return Leader(
            self._client,
            name,
            ttl=ttl,
            timeout=timeout,
            on_loss=on_loss,
            confirm=confirm,
            policies=("report",),
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
        """The pool of this name. An error listed in `cool_on` that leaves an item's block has the item cool.

        `on_death` is how long the item of a dead or lost borrower rests after its ttl; without it, as long as `cool`.
        """
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
            policies=("report",),
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
        """A semaphore on the name: so many may be inside at once. All of its users say the same number."""
        return Semaphore(
            self._client,
            name,
            permits=permits,
            ttl=ttl,
            timeout=timeout,
            reentrant=reentrant,
            on_loss=on_loss,
            confirm=confirm,
            policies=("report",),
        )

    def build_once(
        self,
        directory: str | os.PathLike[str],
        key: str,
        build: Callable[[Staging], object],
        *,
        check: Callable[[Path], bool] | None = None,
        ttl: Seconds = TTL_S,
        timeout: Seconds | None = None,
        relocatable: bool = True,
    ) -> BuildResult:
        """What stands under the key in the directory; `build` makes it in a private place if it is not there yet."""
        return building.build_once(self._client, directory, key, build, check, ttl, timeout, relocatable=relocatable)

    def domain(self, directory: str | os.PathLike[str]) -> LockDomain:
        """Mark the directory as guarded by this engine; `DomainMismatch` if it is guarded by another."""
        return domain.enter(self._client, Path(directory))

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
        """A read-write lock on the name: many readers or one writer, in the order in which they came."""
        return RWLock(
            self._client,
            name,
            ttl=ttl,
            timeout=timeout,
            reentrant=reentrant,
            on_loss=on_loss,
            confirm=confirm,
            policies=("report",),
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
        """A limit on how often: `"10/second; 100/minute"`, for each key by itself. Nothing is sent before it is used.

        `name` tells limits apart; without it the rate does. `on_unavailable` answers while the engine cannot: `"local"`
        admits a share of the rate in this process, `"allow"` everything, `"deny"` nothing.
        """
        return RateLimiter(
            self._client, rate, name=name, method=method, on_unavailable=on_unavailable, local_share=local_share
        )

    def budget(self, name: str, limit: int | None, period: Seconds = PERIOD_S, *, hold: Seconds = HOLD_S) -> Budget:
        """A limit on how much in a period, for each key by itself; `None` only counts.

        What is put aside and not settled is free again after `hold`.
        """
        return Budget(self._client, name, limit=limit, period=period, hold=hold)

    def once(self, name: str, window: Seconds = WINDOW_S, *, lease: Seconds = LEASE_S) -> Once:
        """At most one success for each key in a window of time; a failure lets it be tried again.

        A crash blocks the key for `lease` seconds, no longer.
        """
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
        from holdfast.blocking.queue import Queue  # noqa: PLC0415 - dear to load, and few programs have a queue

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
        """Who owns which key, for everyone to look up. Nothing is sent before it is used."""
        return Registry(self._client, name, ttl=ttl)

    def show(self, name: str) -> LeaseStatus:
        """Who holds the name, and who waits for it."""
        return run(inspection.show(self._client, name))

    def held(self, prefix: str = "", *, limit: int = inspection.NAMES) -> list[LeaseStatus]:
        """Every name that begins so and is held or waited for, at most `limit` of them, in no order.

        For people who look, as `holdfast ls`: it scans, and takes its time where there are many names.
        """
        return run(inspection.held(self._client, prefix, limit, building.run_blocking))

    def break_lease(self, name: str, reason: str) -> None:
        """End the lease of the name by force; its holder is told why."""
        run(inspection.break_lease(self._client, name, reason))

    def refresh_topology(self) -> None:
        """Learn anew which servers there are; `Unavailable` while they do not agree. They are followed without it."""
        run(self._client.refresh_topology())

    def promise(self) -> Promise:
        """What may be relied on here, from a look at the engine as it is now; print it."""
        return run(promises.promise(self._client))

    def close(self, timeout: Seconds | None = _client.CLOSE_S) -> tuple[str, ...]:
        """Refuse new work, wait for what is under way, end. Gives the names of leases that are left to lapse."""
        return run(self._client.close(timeout))

    def __enter__(self) -> Holdfast:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self.close(_client.close_timeout(error))
        return False

    def __repr__(self) -> str:
        return f"<holdfast {self._client.url} {self._client.state}>"


def connect(
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
    """Open an engine: the URL's, else `$HOLDFAST_URL`'s, else the embedded one of this user on this host.

    `require` are words that its promise must hold, such as `"survives restart"`; else `PromiseNotKept`.
    `namespace` keeps the leases of one tenant apart from all others on the same servers (Redis and Valkey).
    """
    wanted = required(require)
    client = _client.Client(
        url,
        face="blocking",
        label=label,
        info=info,
        observer=observer,
        fence_memory=fence_memory,
        clock=clock,
        namespace=namespace,
    )
    try:
        run(promises.require(client, wanted))
    except BaseException:
        run(client.close(0))
        raise
    return Holdfast(client)
