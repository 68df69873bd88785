"""What an engine is, and how one is opened.

An engine is where leases live. It answers frozen commands, each in one atomic step, and wakes waiters; it decides
nothing by itself. It comes in two forms: the blocking form blocks inside its awaits and never suspends, the asyncio
form suspends. A new engine is one folder, one line in `ENGINES` and one line in the test matrix.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from holdfast.errors import InvalidConfig
from holdfast.rules.promise import Caveat, Promise

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from holdfast.clock import Clock
    from holdfast.commands import Answer, Asking, Command
    from holdfast.config import Settings
    from holdfast.engines.admin import EngineReport, NamePage
    from holdfast.errors import Unavailable

__all__ = [
    "ALL_CAPABILITIES",
    "ALTERNATIVES",
    "ENGINES",
    "Caveat",
    "Engine",
    "EngineEvent",
    "Promise",
    "Reply",
    "Transport",
    "Waker",
    "open_engine",
]

ENGINES = {
    "memory": "holdfast.engines.memory.engine",
    "sqlite": "holdfast.engines.sqlite",
    "file": "holdfast.engines.files",
    "redis": "holdfast.engines.redis",
    "rediss": "holdfast.engines.redis",
    "valkey": "holdfast.engines.redis",
    "valkeys": "holdfast.engines.redis",
    "unix": "holdfast.engines.redis",
    "redis+sentinel": "holdfast.engines.redis",
    "rediss+sentinel": "holdfast.engines.redis",
    "valkey+sentinel": "holdfast.engines.redis",
    "valkeys+sentinel": "holdfast.engines.redis",
    "redis+cluster": "holdfast.engines.redis",
    "rediss+cluster": "holdfast.engines.redis",
    "valkey+cluster": "holdfast.engines.redis",
    "valkeys+cluster": "holdfast.engines.redis",
}


ALL_CAPABILITIES = frozenset(("pools", "limits", "budgets", "notes of what was done", "directories", "queues"))
ALTERNATIVES = "sqlite:// has them for one host, redis:// and valkey:// for many"


class EngineEvent(NamedTuple):
    """Something that an engine noticed by itself: the kind of the event, seconds and detail as in `observer.Event`.

    After any of it leases may be gone or near their end, so they are renewed at once.
    """

    kind: str
    seconds: float | None
    detail: str


Reply: TypeAlias = "Answer | Unavailable"


class Waker(Protocol):
    """Something to sleep on, which any thread may ring. A ring before the sleep is not lost."""

    def wake(self) -> None:
        """End the sleep, now or the next one."""

    async def wait(self, until_ns: int) -> None:
        """Sleep until rung or until then; may return early."""


class Transport(Protocol):
    """One client's way to its engine: all that the core awaits."""

    def apply(self, command: Command, until_ns: int | None = None) -> Answer | Awaitable[Answer]:
        """Answer one command in one atomic step, or raise `Unavailable` not much later than `until_ns`.

        An answer that is there at once is given as it is; otherwise there is something to await. Every answer is a
        tuple, and nothing that can be awaited is.
        """

    async def apply_all(self, commands: Sequence[Command], until_ns: int | None = None) -> list[Reply]:
        """Answer each of several commands in order; together they need not be atomic.

        Where one of them is refused, its error stands in its place, and the others are answered all the same.
        """

    async def confirm(self, commands: Sequence[Command], until_ns: int) -> list[Reply]:
        """Like `apply_all`, but a grant, renewal or publish counts only once every known replica has it.

        Only where the engine says that it `replicates`.
        """

    async def promise(self, until_ns: int | None = None) -> Promise:
        """What may be relied on, from a look at the engine as it is now."""

    async def ensure_connected(self, until_ns: int) -> None:
        """Have a connection that stands, so that an engine that was replaced is met now, not when something is due."""

    def events(self) -> Sequence[EngineEvent]:
        """What the engine has noticed by itself since this was asked last."""

    async def wait(self, ask: Asking, until_ns: int) -> Answer | None:
        """Sleep until `ask` may succeed. An engine that can ask in the same step answers; `None` means: ask again.

        A hint and no more: it may return early, and nothing but speed depends on its coming in time.
        """

    def expect(self, token: str) -> None:
        """A ring for this token is kept from now on, until it is forgotten."""

    async def wait_for_wakeup(self, token: str, until_ns: int) -> None:
        """Sleep until the token is rung: a hint and no more, as above."""

    async def wait_for_any(self, tokens: Sequence[str], waker: Waker, until_ns: int) -> Sequence[str]:
        """Sleep until one of these tokens is rung, or the bell itself; those that were, or may have been."""

    def waker(self) -> Waker:
        """A new bell of this form."""

    def forget(self, token: str) -> None:
        """This waiter was interrupted and asks no more: no ring need be kept for it."""

    def wake(self, token: str) -> None:
        """Wake this waiter of the client: the lease is offered to it."""

    def on_unknown_wakeup(self, call: Callable[[], None]) -> None:
        """Have this called, by any thread, when a ring comes for a waiter that this client does not have."""

    def wake_all(self) -> None:
        """End every sleep of this client's waiters early."""

    async def refresh(self) -> None:
        """Learn anew where the engine's servers are, where there are several; `Unavailable` if they do not agree."""

    def run_callback(self, call: Callable[[], object]) -> None:
        """Have a user's function called where this form's users live: in their loop, or on a thread of its own."""

    def check_loop(self) -> None:
        """`InvalidConfig` in another event loop than the one in which the client was opened."""

    async def close(self) -> None:
        """Give back every resource; leases that stand are left to lapse."""


class Engine(Protocol):
    """An opened engine, of one client."""

    name: str
    clock: Clock
    replicates: bool
    capabilities: frozenset[str]  # what can be kept there besides leases: EVERYTHING, or a part of it

    @property
    def restarts(self) -> int:
        """How often this client has seen the engine replaced, by a run of it that may have forgotten everything."""

    @property
    def restarted_ns(self) -> int:
        """When it has last noticed that; 0 if never. Whatever is asked later is answered by the new run."""

    def keeper(self) -> Transport:
        """The form of the keeper's thread: it never suspends, and its connections are nobody else's."""

    def blocking(self) -> Transport:
        """The form that never suspends."""

    def asyncio(self) -> Transport:
        """The form for the running event loop."""

    def forked(self) -> None:
        """In a new child: forget every session and connection, and send nothing on what was inherited."""

    def location(self) -> str:
        """What everybody who shares these leases finds the same, and nobody else does."""

    def liveness_fd(self) -> int | None:
        """A descriptor for child processes: while any of them has it open, this client is not taken for dead.

        `None` where nobody is taken for dead before the ttl has passed.
        """

    def names(self, prefix: str, limit: int, kind: str = "") -> NamePage:
        """Names that begin so, without keys of directories; with a roof, those of pools or of queues.

        It may scan, and it blocks: for people who look only.
        """

    def examine(self) -> EngineReport:
        """How the engine stands, for `holdfast doctor`. It may scan, and it blocks."""


def open_engine(settings: Settings) -> Engine:
    """Open the engine that the URL names."""
    module = ENGINES.get(settings.scheme)
    if module is None:
        raise InvalidConfig("url", settings.url, f"the scheme must be one of {', '.join(sorted(ENGINES))}")

    engine: Engine = import_module(module).open_engine(settings)
    return engine
