"""The client: the object that `connect` returns."""

from __future__ import annotations

import functools
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from holdfast.blocking import build as building
from holdfast.blocking.leader import Leader, Leading, Term
from holdfast.blocking.lease import Lease
from holdfast.blocking.limit import Budget, RateLimiter
from holdfast.blocking.lock import Lock, LockMany
from holdfast.blocking.once import Once
from holdfast.blocking.pool import Item, Permit, Pool, RWLease, RWLock, Semaphore
from holdfast.blocking.registry import Registry
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
from holdfast.core.unknown_options import taught, teaching
from holdfast.host import Exhaustion
from holdfast.rules.promise import required

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType

    from holdfast.blocking.queue import Queue
    from holdfast.config import RedisClient, RedisClusterClient
    from holdfast.core.build.build_dir import BuildResult
    from holdfast.core.build.build_once import Staging
    from holdfast.core.build.domain import LockDomain
    from holdfast.core.inspection import LeaseStatus
    from holdfast.core.queue.codec import Codec
    from holdfast.engines import Promise
    from holdfast.observer import Observer


@teaching
class Holdfast:
    """A client of one engine, as `connect` returns it. Threads may share it."""

    def __init__(self, client: _client.Client) -> None:
        self._client = client

    @property
    def url(self) -> str:
        """The URL of the engine, without any password."""
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
        busy: str = "raise",
    ) -> Lock:
        """Make a distributed lock. No I/O happens before it is acquired.

        `name`: the name to lock, any text.
        `ttl`: seconds that a grant lasts without renewal; a background thread renews it while it is held.
        `timeout`: seconds to wait; `None` waits for ever, `0` asks once.
        `reentrant`: let a thread that is inside enter again.
        `on_loss`: what happens when the lease is lost: `"report"` (`lease.lost`, and `LeaseLost` at the end of
            the block), or a function that is called with the lease.
        `confirm`: `"replicas"` to hold only what every known replica has confirmed (Redis and Valkey).
        `busy`: what a decorated function does if another holder keeps the lock until the timeout: `"raise"` raises
            `NotAcquired`; `"skip"` returns `None` and does not run the function.
        """
        return Lock(
            self._client,
            name,
            ttl=ttl,
            timeout=timeout,
            reentrant=reentrant,
            on_loss=on_loss,
            confirm=confirm,
            busy=busy,
            policies=("report",),
        )

    def lock_many(
        self,
        names: Iterable[str],
        ttl: Seconds = TTL_S,
        timeout: Seconds | None = None,
        *,
        on_loss: str | Callable[[Lease], object] = "report",
        confirm: str | None = None,
    ) -> LockMany:
        """Return a lock of several names; `acquire` gets all of them or none. Does no I/O.

        Two callers never wait for each other, because every `lock_many` acquires in the order of the names.

        `names`: the names to lock, each once.
        `ttl`: seconds that a grant lasts without renewal; a background thread renews it while it is held.
        `timeout`: seconds to wait for all of them; `None` waits for ever, `0` asks once.
        `on_loss`: what happens when one of the leases is lost: `"report"` (`lease.lost`, and `LeaseLost` at the end of
            the block), or a function that is called with the lease.
        `confirm`: `"replicas"` to hold only what every known replica has confirmed (Redis and Valkey).
        """

        def lock(name: str) -> Lock:
            return self.lock(name, ttl, on_loss=on_loss, confirm=confirm)

        return LockMany(self._client, names, lock, timeout, on_loss)

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
        """Make a candidate for a leader election.

        `name`: the name of the election.
        `ttl`: seconds that a grant lasts without renewal; a background thread renews it while it is held.
        `timeout`: seconds to wait; `None` waits for ever, `0` asks once.
        `candidate`: the name of this candidate; by default the label of the process, else host and pid.
        `on_loss`: what happens when the lease is lost: `"report"` (`lease.lost`, and `LeaseLost` at the end of
            the block), or a function that is called with the term.
        `confirm`: `"replicas"` to hold only what every known replica has confirmed (Redis and Valkey).
        """
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

    def leading(
        self,
        name: str,
        work: Callable[[Term], object],
        ttl: Seconds = TTL_S,
        *,
        candidate: str | None = None,
        on_loss: str | Callable[[Term], object] = "report",
        confirm: str | None = None,
    ) -> Leading:
        """Keep a candidate in an election during a block, on a thread: `with hf.leading("scheduler", work):`.

        The candidate leads again after a loss or an outage, as with `leader.keep`. The end of the block ends the term
        and waits for the work. It raises an error that the work raised.

        `name`: the name of the election.
        `work`: a function that takes the `Term`; it should stop when `term.over` is set.
        `ttl`: seconds that a grant lasts without renewal; a background thread renews it while it is held.
        `candidate`, `on_loss`, `confirm`: as in `leader`.
        """
        return Leading(self.leader(name, ttl, candidate=candidate, on_loss=on_loss, confirm=confirm), work)

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
        """Make a pool: items that are lent exclusively. No I/O happens before it is used.

        `name`: the name of the pool.
        `ttl`: seconds that a grant lasts without renewal; a background thread renews it while it is held.
        `timeout`: seconds to wait; `None` waits for ever, `0` asks once.
        `cool`: seconds of cooldown of an item after a use that ended badly.
        `cool_on`: errors that give an item its cooldown when they leave its block.
        `on_death`: seconds of cooldown, after its ttl, of the item of a dead or lost borrower; by default
            `cool`.
        `on_loss`: what happens when the lease is lost: `"report"` (`lease.lost`, and `LeaseLost` at the end of
            the block), or a function that is called with the item.
        `confirm`: `"replicas"` to hold only what every known replica has confirmed (Redis and Valkey).
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
        """Make a semaphore: a lock with several permits.

        `name`: the name of the semaphore.
        `permits`: how many holders may be inside at once; every user of the name must pass the same number.
        `ttl`: seconds that a grant lasts without renewal; a background thread renews it while it is held.
        `timeout`: seconds to wait; `None` waits for ever, `0` asks once.
        `reentrant`: let a thread that is inside enter again.
        `on_loss`: what happens when the lease is lost: `"report"` (`lease.lost`, and `LeaseLost` at the end of
            the block), or a function that is called with the permit.
        `confirm`: `"replicas"` to hold only what every known replica has confirmed (Redis and Valkey).
        """
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
        """Return the build of a key in a shared directory; build it first if it is not there yet.

        `directory`: the shared directory.
        `key`: the name of the build, such as a version or a hash.
        `build`: a function that fills the private `Staging` directory that it gets.
        `check`: a function that gets the path of a finished build; if it returns false, the build is made
            again.
        `ttl`: seconds that a grant lasts without renewal; a background thread renews it while it is held.
        `timeout`: seconds to wait; `None` waits for ever, `0` asks once.
        `relocatable`: whether the build works under another path than the one it was made in.
        """
        return building.build_once(self._client, directory, key, build, check, ttl, timeout, relocatable=relocatable)

    def domain(self, directory: str | os.PathLike[str]) -> LockDomain:
        """Mark a directory as guarded by this engine; raise `DomainMismatch` if another engine guards it.

        `directory`: the directory.
        """
        return run(domain.enter(self._client, Path(directory), building.run_blocking))

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
        """Make a read-write lock: many readers or one writer, in the order in which they came.

        `name`: the name of the lock.
        `ttl`: seconds that a grant lasts without renewal; a background thread renews it while it is held.
        `timeout`: seconds to wait; `None` waits for ever, `0` asks once.
        `reentrant`: let a thread that is inside enter again.
        `on_loss`: what happens when the lease is lost: `"report"` (`lease.lost`, and `LeaseLost` at the end of
            the block), or a function that is called with the lease.
        `confirm`: `"replicas"` to hold only what every known replica has confirmed (Redis and Valkey).
        """
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
        """Make a rate limit, for rate limiting (throttling) by key. No I/O happens before it is used.

        `rate`: how often, as `"10/second; 100/minute"`; each key has its own count.
        `name`: tells limits with the same rate apart; by default the rate is the name.
        `method`: `"window"` counts hits in a sliding window, `"gcra"` spreads them evenly.
        `on_unavailable`: the decision while the engine cannot be reached: `"local"` allows a share of the rate
            in this process, `"allow"` everything, `"deny"` nothing.
        `local_share`: that share, above 0 and at most 1.
        """
        return RateLimiter(
            self._client, rate, name=name, method=method, on_unavailable=on_unavailable, local_share=local_share
        )

    def budget(self, name: str, limit: int | None, period: Seconds = PERIOD_S, *, hold: Seconds = HOLD_S) -> Budget:
        """Make a budget: a limit on an amount in a period, separately for each key.

        `name`: the name of the budget.
        `limit`: the amount per period; `None` only counts.
        `period`: seconds.
        `hold`: seconds after which a reservation that was not settled is free again.
        """
        return Budget(self._client, name, limit=limit, period=period, hold=hold)

    def once(self, name: str, window: Seconds = WINDOW_S, *, lease: Seconds = LEASE_S) -> Once:
        """Make an idempotency guard (deduplication): at most one success for each key in a window of time.

        `name`: the name of the guard.
        `window`: seconds for which a success is remembered.
        `lease`: seconds for which a crash blocks its key.
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
        """Make a message queue. No I/O happens before it is used.

        `name`: the name of the queue.
        `max_attempts`: after how many failed attempts a message becomes a dead letter.
        `backoff`: how long a failed message waits before its next attempt.
        `bound`: how many messages the queue may hold; `None` has no bound.
        `dead_max`: how many dead letters are kept; `None` keeps all.
        `dedup_window`: seconds for which a `dedup_key` is remembered.
        `codec`: how bodies are stored: `"json"`, `"bytes"`, or a `Codec`.
        `ttl`, `grace`: a consumer without a heartbeat for `ttl` plus `grace` seconds counts as dead, and its
            messages are redelivered.
        `confirm`: `"replicas"` to count a message as published only once every known replica has it (Redis and
            Valkey).
        """
        with Exhaustion(self._client.engine.name):
            from holdfast.blocking.queue import Queue  # noqa: PLC0415 - slow to import, and few programs have a queue

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
        """Make a registry: who owns which key, for every process to look up. No I/O happens before it is used.

        `name`: the name of the registry.
        `ttl`: seconds that an entry lasts without renewal; a background thread renews it while it is held.
        """
        return Registry(self._client, name, ttl=ttl)

    def show(self, name: str) -> LeaseStatus:
        """Return who holds the name, and who waits for it.

        `name`: the name.
        """
        return run(inspection.show(self._client, name))

    def held(self, prefix: str = "", *, limit: int = inspection.NAMES) -> list[LeaseStatus]:
        """Return names that are held or waited for, in no order. For people: it scans all names.

        `prefix`: return only names that begin with this text.
        `limit`: the maximum number of names.
        """
        return run(inspection.held(self._client, prefix, limit, building.run_blocking))

    def break_lease(self, name: str, reason: str) -> None:
        """End the lease of a name by force.

        `name`: the name.
        `reason`: text that its holder reads in `LeaseLost`.
        """
        run(inspection.break_lease(self._client, name, reason))

    def refresh_topology(self) -> None:
        """Look up the servers again; raise `Unavailable` while they disagree.

        Rarely needed: the client follows a failover by itself.
        """
        run(self._client.refresh_topology())

    def promise(self) -> Promise:
        """Inspect the engine as it is now, and return what a program may rely on. Print the result to read it."""
        return run(promises.promise(self._client))

    def on_closing(self, call: Callable[[], object]) -> None:
        """Register a function that `close()` calls first, for example to stop work that holds leases.

        The client logs the function's errors.

        `call`: a plain function without arguments; it must return quickly.
        """
        self._client.on_closing(call)

    def close(self, timeout: Seconds | None = _client.CLOSE_S) -> tuple[str, ...]:
        """Close the client; return the names of leases that are left to expire.

        Refuse new calls, end every waiting acquire with `Closed`, set `term.over`, stop workers and owners, and call
        the functions of `on_closing`. Then wait for held leases. A second call waits for the first.

        `timeout`: seconds to wait for held leases; `None` waits for ever.
        """
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


@taught
def connect(
    url: str | RedisClient | RedisClusterClient | None = None,
    *,
    label: str = "",
    info: dict[str, Any] | None = None,
    observer: Observer | Sequence[Observer] | None = None,
    fence_memory: Seconds = FENCE_MEMORY_S,
    clock: Clock | None = None,
    require: str | Iterable[str] = (),
    namespace: str | None = None,
) -> Holdfast:
    """Open an engine and return a client.

    `url`: the engine, such as `redis://host:6379` or `sqlite:///path`, or a client object of redis-py, whose settings
        are copied; by default `$HOLDFAST_URL`, else the SQLite file of this user on this host.
    `label`, `info`: text and a dictionary that describe this process to people, in `holdfast ls` and in errors.
    `observer`: a function that is called with every `Event`, or a list of such functions; each must return quickly.
    `fence_memory`: seconds for which the last fence of an unused name is remembered.
    `clock`: the source of time, for tests.
    `require`: words that the promise of the engine must include, such as `"survives restart"`; otherwise
        `PromiseNotKept` is raised.
    `namespace`: keeps the leases of one tenant apart from all others on the same servers (Redis and Valkey).
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
    if client.engine.name != "memory":  # memory:// does no I/O
        client.check_caller = functools.partial(_warn_in_event_loop, client)
    return Holdfast(client)


@functools.cache
def _running_loop() -> Callable[[], object]:
    from asyncio import _get_running_loop  # noqa: PLC0415 - only for programs that have imported asyncio

    return _get_running_loop


def _warn_in_event_loop(client: _client.Client) -> None:
    """Warn, once per client, if a blocking call runs on the thread of a running event loop: it stops the loop."""
    if "asyncio" not in sys.modules or _running_loop()() is None:
        return
    import inspect  # noqa: PLC0415 - slow to import, and needed once

    client.check_caller = None
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_globals.get("__name__", "").startswith("holdfast."):
        frame, level = frame.f_back, level + 1  # the first frame outside of the package made the call
    warnings.warn(
        "a blocking call of holdfast stops the running event loop. Use the asyncio face: "
        "`hf = await holdfast.aio.connect(...)`, then `async with hf.lock(...)`",
        RuntimeWarning,
        stacklevel=level,
    )
