"""Remote engines in an event loop: every task has a connection of its own, and waits for the server in the loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.engines.remote import RemoteConnection, RemoteTransport
from holdfast.engines.transport_asyncio import AsyncioTransport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.commands import Command
    from holdfast.engines.interface import Reply


class RemoteAsyncio(RemoteTransport[RemoteConnection], AsyncioTransport):
    """A remote engine for tasks."""

    async def connect(self, until_ns: int) -> RemoteConnection:
        return await self.engine.connect_asyncio(until_ns)

    async def apply_all(self, commands: Sequence[Command], until_ns: int | None = None) -> list[Reply]:
        self.check_loop()
        return await super().apply_all(commands, until_ns)
