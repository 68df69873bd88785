"""The interface of an engine: the protocols that the core uses, and the capabilities that an engine declares.

An engine keeps leases. It answers frozen commands, each in one atomic step, and wakes waiters; the rules decide every
answer. A client reaches its engine through transports: a blocking transport blocks inside its awaits and never
suspends, an asyncio transport suspends.

`Transport` is the sum of four small protocols, split by use: commands, waiting, monitoring and the caller's thread or
event loop. `Engine` is the sum of its lifecycle and its administration. The classes in `local`, `remote` and
`transport` implement most of both.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from holdfast.clock import Clock
    from holdfast.commands import AcquireCommand, Answer, Command
    from holdfast.config import Settings
    from holdfast.engines.admin import EngineReport, NamePage
    from holdfast.errors import Unavailable
    from holdfast.rules.promise import Promise

Reply: TypeAlias = "Answer | Unavailable"

# How many commands the Redis engine writes to a server at once. The keeper renews leases in batches of this size: with
# a larger batch, the second write would only have the time that the first write leaves.
COMMANDS_PER_WRITE = 500


class Scope(StrEnum):
    """How far the leases of an engine reach at most; the promise of an opened engine may be narrower."""

    PROCESS = "process"
    HOST = "host"
    HOSTS = "hosts"


class Capability(StrEnum):
    """An ability of an engine besides keeping leases. The value is the words that an error message uses."""

    FIFO = "first-come, first-served waiting lines"
    POOLS = "pools"
    LIMITS = "rate limits"
    BUDGETS = "budgets"
    ONCE = "idempotency keys"
    REGISTRY = "registries"
    QUEUES = "queues"
    REPLICAS = "confirmation by replicas"
    EXPIRY_EVENTS = "expiry events"
    DEATH_PROOF = "proof that a process died"


# The capabilities of an engine that stores all features; scripts and rules exist for each.
ALL_FEATURES = frozenset(
    (
        Capability.POOLS,
        Capability.LIMITS,
        Capability.BUDGETS,
        Capability.ONCE,
        Capability.REGISTRY,
        Capability.QUEUES,
    )
)
ALTERNATIVES = "sqlite:// has them for one host, redis:// and valkey:// for many"


class EngineEvent(NamedTuple):
    """Something that an engine noticed by itself: the kind of the event, seconds and detail as in `observer.Event`.

    After an engine event leases may be lost or close to their end, so the keeper renews all of them at once.
    """

    kind: str
    seconds: float | None
    detail: str


class Waker(Protocol):
    """An object that a thread or task sleeps on.

    Any thread may wake the sleeper; a wake-up before the sleep is not lost.
    """

    def wake(self) -> None:
        """End the present sleep, or the next one."""

    async def wait(self, until_ns: int) -> None:
        """Sleep until woken or until `until_ns`; may return early."""


class CommandTransport(Protocol):
    """Commands in, answers out."""

    def apply(self, command: Command, until_ns: int | None = None) -> Answer | Awaitable[Answer]:
        """Answer one command in one atomic step, or raise `Unavailable` not much later than `until_ns`.

        Return the answer itself if it is known at once; otherwise an awaitable. Every answer is a tuple, and no tuple
        is awaitable, so the caller can tell the two apart.
        """

    async def apply_all(self, commands: Sequence[Command], until_ns: int | None = None) -> list[Reply]:
        """Answer each of several commands in order; together they need not be atomic.

        The reply to a command that failed is its error; the transport answers the other commands all the same.
        """

    async def confirm(self, commands: Sequence[Command], until_ns: int) -> list[Reply]:
        """Like `apply_all`, but a grant, renewal or publish counts only once every known replica has it.

        Only engines that declare `Capability.REPLICAS` implement it.
        """

    async def close(self) -> None:
        """Free every resource; leases that are still held expire by themselves."""


class WaitingTransport(Protocol):
    """Sleep until a wake-up. A wake-up is a hint: it saves time, and nothing depends on its arrival."""

    async def wait(self, command: AcquireCommand, until_ns: int) -> Answer | None:
        """Sleep until `command` may succeed; may return early.

        An engine that can send `command` in the same step returns the answer. `None` means that the caller sends it.
        """

    def expect(self, token: str) -> None:
        """Remember wake-ups for this token from now on, until `forget`."""

    def forget(self, token: str) -> None:
        """Stop remembering wake-ups for this token: its waiter was interrupted or answered."""

    async def wait_for_wakeup(self, token: str, until_ns: int) -> None:
        """Sleep until a wake-up for the token; may return early."""

    async def wait_for_any(self, tokens: Sequence[str], waker: Waker, until_ns: int) -> Sequence[str]:
        """Sleep until a wake-up for one of the tokens, or of the waker itself.

        Return the tokens that were woken, or that may have been.
        """

    def waker(self) -> Waker:
        """Return a new waker for callers of this transport."""

    def wake(self, token: str) -> None:
        """Wake the waiter of this client that has the token: the engine offers the lease to it."""

    def wake_all(self) -> None:
        """End every sleep of this client's waiters early."""

    def on_unknown_wakeup(self, call: Callable[[], None]) -> None:
        """Call `call`, from any thread, when a wake-up arrives for a waiter that this client does not have."""


class MonitoringTransport(Protocol):
    """Observe the engine itself: its connection, its promise, and what happened to it."""

    async def ensure_connected(self, until_ns: int) -> None:
        """Connect if no connection is open, so that a restart of the engine is noticed before a renewal is due."""

    async def refresh(self) -> None:
        """Look up the engine's servers again, where there are several; `Unavailable` if the servers disagree."""

    async def promise(self, until_ns: int | None = None) -> Promise:
        """Return what may be relied on, after a look at the engine now."""

    def events(self) -> Sequence[EngineEvent]:
        """Return what the engine noticed by itself since the last call."""


class CallerTransport(Protocol):
    """The thread or event loop of the caller."""

    def run_callback(self, call: Callable[[], object]) -> None:
        """Run a user's function where this transport's users run: in their event loop, or on a thread of its own."""

    def check_loop(self) -> None:
        """Raise `InvalidConfig` if the caller runs in another event loop than the one that opened the client."""


class Transport(CommandTransport, WaitingTransport, MonitoringTransport, CallerTransport, Protocol):
    """One face's way to its engine: everything that the core calls."""


class ExpiryWatch(Protocol):
    """An open subscription to expiry events."""

    def close(self) -> None:
        """Stop, and free the connections."""


class Administration(Protocol):
    """Read-only views of an engine for people and tools: no lease depends on these methods."""

    def location(self) -> str:
        """Return a text that is equal for all clients that share these leases, and different for all others."""

    def liveness_fd(self) -> int | None:
        """Return a descriptor for child processes: while one of them has it open, this client does not count as dead.

        `None` where an engine never counts a client as dead before its ttl has passed.
        """

    def outlive_process(self) -> None:
        """Keep the locks of this client until their ttl has passed, also if its process dies before that.

        The call comes before the first acquire. It does nothing where a death is no proof anyway.
        """

    def names(self, prefix: str, limit: int, kind: str = "") -> NamePage:
        """Return names of leases that begin with `prefix`, without keys of registries; with `kind`, of pools or queues.

        The call may scan, and it blocks: only people and tools make it.
        """

    def examine(self) -> EngineReport:
        """Return the state of the engine for `holdfast doctor`. The call may scan, and it blocks."""

    def watch_expiries(
        self,
        names: Iterable[str],
        *,
        configure: bool,
        on_end: Callable[[str, str], object],
        emit: Callable[[str, str], object],
    ) -> ExpiryWatch:
        """Call `on_end(queue, token)` when a consumer of one of these queues expires. Blocks until it listens.

        `configure`: change the server's setting if its events are off. `emit`: receives kind and detail of events about
        the subscription. Only engines that declare `Capability.EXPIRY_EVENTS` implement it.
        """


class Engine(Administration, Protocol):
    """An opened engine, of one client."""

    name: str
    clock: Clock
    scope: Scope
    capabilities: frozenset[Capability]

    @property
    def restarts(self) -> int:
        """How many restarts of the engine this client has noticed; each may have forgotten everything."""

    @property
    def restarted_ns(self) -> int:
        """When the client noticed the last restart; 0 if never. Commands sent later reach the new run."""

    def keeper(self) -> Transport:
        """Return the keeper thread's transport: it never suspends, and shares its connections with no other."""

    def blocking(self) -> Transport:
        """Return a transport that never suspends."""

    def asyncio(self) -> Transport:
        """Return a transport for the running event loop."""

    def forked(self) -> None:
        """In a new child process: forget every session and connection, and send nothing on inherited ones."""


def _nothing_missing(settings: Settings) -> Unavailable | None:  # noqa: ARG001 - a server is there or unreachable
    return None


class EngineDriver(NamedTuple):
    """The object that an engine package registers for its URL schemes: it opens the engine and lists its abilities.

    `missing` returns an error if the URL names a file or folder that does not exist yet and that the first lease would
    create; a command that only reads refuses such a URL. `hints` tell people what to do, by the reason of an
    `Unavailable`.
    """

    open: Callable[[Settings], Engine]
    scope: Scope
    capabilities: frozenset[Capability] = frozenset()
    missing: Callable[[Settings], Unavailable | None] = _nothing_missing
    hints: Mapping[str, str] = {}
