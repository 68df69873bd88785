"""The forms of the engine: those of every local store, and besides a waiter looks by itself where nobody can ring."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.engines.local import LocalBlocking, LocalEngine

if TYPE_CHECKING:
    from holdfast.commands import AcquireCommand, Answer
    from holdfast.engines import Transport
    from holdfast.engines.files.engine import FileStore


class FileEngine(LocalEngine):
    """One client's end of a shared directory, where nothing but leases is kept."""

    store: FileStore
    capabilities: frozenset[str] = frozenset()

    def blocking(self) -> Transport:
        return FileBlocking(self.store)

    def asyncio(self) -> Transport:
        # Imported here, because whoever never uses asyncio should not pay for importing it.
        from holdfast.engines.files.transport_asyncio import FileAsyncio  # noqa: PLC0415

        return FileAsyncio(self.store)


class FileBlocking(LocalBlocking):
    """The form that blocks inside its awaits."""

    store: FileStore

    async def wait(self, ask: AcquireCommand, until_ns: int) -> Answer | None:
        return await super().wait(ask, self.store.look_again_ns(ask.token, until_ns))
