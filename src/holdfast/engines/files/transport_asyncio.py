"""The asyncio form of the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.engines.transport_asyncio import LocalAsyncio

if TYPE_CHECKING:
    from holdfast.commands import AcquireCommand, Answer
    from holdfast.engines.files.engine import FileStore


class FileAsyncio(LocalAsyncio):
    """The form for the running event loop."""

    store: FileStore

    async def wait(self, ask: AcquireCommand, until_ns: int) -> Answer | None:
        return await super().wait(ask, self.store.look_again_ns(ask.token, until_ns))
