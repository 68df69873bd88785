"""Engines that answer in this process: the rules run here, inside a lock or a transaction of this host.

A `Store` answers commands by blocking for a moment. This module gives any store the transports that the core awaits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from holdfast.commands import Acquire, Renew, WaiterHeartbeat
from holdfast.engines.transport import BaseEngine, BlockingTransport, WakeupListener
from holdfast.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.commands import Answer, Command
    from holdfast.engines import Capability, Promise, Reply, Scope, Transport
    from holdfast.engines.admin import EngineReport, NamePage
    from holdfast.rules.lease_record import HolderRecord


def keeps_waiting_line(command: Command, holder: HolderRecord | None) -> bool:
    """Return true if the command leaves the waiting line as it is, as long as the holder stays the same."""
    if type(command) is Acquire:
        return holder is not None and command.token == holder.token
    return type(command) in (Renew, WaiterHeartbeat)


class Store(WakeupListener, Protocol):
    """The methods that a local engine implements. `quick`: its answers never wait for a disk or another process."""

    name: str
    quick: bool
    scope: Scope
    capabilities: frozenset[Capability]

    def answer_all(self, commands: Sequence[Command], until_ns: int | None) -> list[Reply]:
        """Answer each command in one atomic step, and wake the waiters that the rules name."""

    def promise(self) -> Promise:
        """Return what this store promises."""

    def forked(self) -> None:
        """In a new child process: forget everything inherited."""

    def close(self) -> None:
        """Free every resource."""

    def location(self) -> str:
        """Return the engine's location."""

    def liveness_fd(self) -> int | None:
        """Return the engine's liveness descriptor."""
        return None

    def outlive_process(self) -> None:
        """Keep the locks of this client until their ttl has passed."""
        return

    def names(self, prefix: str, limit: int, kind: str = "") -> NamePage:
        """Return the engine's names."""

    def examine(self) -> EngineReport:
        """Return the engine's report."""


class LocalEngine(BaseEngine):
    """The engine of one client of a store. It has no replicas, and it cannot restart while the client runs."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.name = store.name
        self.clock = store.clock
        self.scope = store.scope
        self.capabilities = store.capabilities

    def keeper(self) -> Transport:
        return _LocalKeeper(self.store)

    def blocking(self) -> Transport:
        return LocalBlocking(self.store)

    def asyncio(self) -> Transport:
        # Imported here, because a program without asyncio should not pay for importing it.
        from holdfast.engines.transport_asyncio import LocalAsyncio  # noqa: PLC0415

        return LocalAsyncio(self.store)

    def forked(self) -> None:
        self.store.forked()

    def location(self) -> str:
        return self.store.location()

    def liveness_fd(self) -> int | None:
        return self.store.liveness_fd()

    def outlive_process(self) -> None:
        self.store.outlive_process()

    def names(self, prefix: str, limit: int, kind: str = "") -> NamePage:
        return self.store.names(prefix, limit, kind)

    def examine(self) -> EngineReport:
        return self.store.examine()


class LocalBlocking(BlockingTransport):
    """A local store for threads: it blocks inside its awaits."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.store = store

    async def apply_all(self, commands: Sequence[Command], until_ns: int | None = None) -> list[Reply]:
        return self.store.answer_all(commands, until_ns)

    async def answer(self, command: Command, until_ns: int | None) -> Answer:
        reply = self.store.answer_all((command,), until_ns)[0]
        if isinstance(reply, Unavailable):
            raise reply
        return reply

    async def promise(self, until_ns: int | None = None) -> Promise:  # noqa: ARG002 - a look at this machine
        return self.store.promise()

    async def close(self) -> None:
        self.store.close()


class _LocalKeeper(LocalBlocking):
    """The keeper's transport: the store belongs to the client, and the client closes it."""

    async def close(self) -> None:
        return
