"""What the forms of all engines share: how a waiter's rings are kept, and where its sleep is.

An engine's form adds `apply_all` and `close`. The asyncio half is in `loop`, so that nobody who does without asyncio
has to import it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

from holdfast.commands import ASKING, POSITIONED
from holdfast.engines.wakeups import ThreadWaker
from holdfast.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from holdfast.clock import Clock
    from holdfast.commands import AcquireCommand, Answer, Command
    from holdfast.engines import EngineEvent, Promise, Reply, Waker
    from holdfast.engines.wakeups import WaiterRegistry


class WakeupListener(Protocol):
    """Where the rings for one client arrive."""

    clock: Clock
    waiter_registry: WaiterRegistry

    def listen(self, token: str) -> bool:
        """Make sure that rings for this waiter arrive; true if one may have been missed before now."""


class BaseTransport:
    """Asking and sleeping, for threads and tasks alike."""

    def __init__(self, listener: WakeupListener) -> None:
        self._listener = listener

    async def apply_all(self, commands: Sequence[Command], until_ns: int | None = None) -> list[Reply]:
        raise NotImplementedError

    async def answer(self, command: Command, until_ns: int | None) -> Answer:
        """One command. An engine that can do one faster than a list of one says so here."""
        reply = (await self.apply_all((command,), until_ns))[0]
        if isinstance(reply, Unavailable):
            raise reply
        return reply

    async def confirm(self, commands: Sequence[Command], until_ns: int) -> list[Reply]:
        raise NotImplementedError

    async def promise(self, until_ns: int | None = None) -> Promise:
        raise NotImplementedError

    async def ensure_connected(self, until_ns: int) -> None:  # noqa: ARG002 - most engines have no connection
        return

    def events(self) -> Sequence[EngineEvent]:
        return ()

    def check_loop(self) -> None:
        """Threads may ask from anywhere."""

    async def listen(self, token: str) -> bool:
        return self._listener.listen(token)

    def waker(self) -> Waker:
        raise NotImplementedError

    def apply(self, command: Command, until_ns: int | None = None) -> Answer | Awaitable[Answer]:
        """One command; a waiter's rings are kept from before its question until it leaves the queue."""
        if type(command) not in ASKING:
            return self.answer(command, until_ns)
        return self._acquire(command, until_ns)  # type: ignore[arg-type]

    async def _acquire(self, command: AcquireCommand, until_ns: int | None) -> Answer:
        waiter_registry = self._listener.waiter_registry
        if command.wait:
            waiter_registry.expect(command.token)
        reply: Answer | None = None
        try:
            reply = await self.answer(command, until_ns)
        finally:
            if not (command.wait and type(reply) in POSITIONED and reply.position is not None):  # type: ignore[union-attr]
                self.forget(command.token)
        return reply

    async def wait(self, ask: AcquireCommand, until_ns: int) -> Answer | None:
        await self.wait_for_wakeup(ask.token, until_ns)
        return None

    def expect(self, token: str) -> None:
        self._listener.waiter_registry.expect(token)

    async def wait_for_wakeup(self, token: str, until_ns: int) -> None:
        await self.wait_for_any((token,), self.waker(), until_ns)

    async def wait_for_any(self, tokens: Sequence[str], waker: Waker, until_ns: int) -> Sequence[str]:
        for token in tokens:
            if await self.listen(token):
                return tokens  # a ring may have been missed before the ears were open: ask once more

        waiter_registry, hung, rung = self._listener.waiter_registry, [], []
        try:
            for token in tokens:
                if not waiter_registry.add(token, waker):
                    rung.append(token)
                    break
                hung.append(token)
            else:
                await waker.wait(until_ns)
        finally:
            rung += [token for token in hung if waiter_registry.remove(token)]
        return rung

    def forget(self, token: str) -> None:
        self._listener.waiter_registry.forget(token)

    def wake(self, token: str) -> None:
        self._listener.waiter_registry.wake(token)

    def on_unknown_wakeup(self, call: Callable[[], None]) -> None:
        """Where nothing that was said can be forgotten, no ring goes astray."""

    def wake_all(self) -> None:
        self._listener.waiter_registry.wake_all()

    async def refresh(self) -> None:
        """There is one place, and it does not move."""


class BlockingTransport(BaseTransport):
    """The half that threads use: it blocks inside its awaits and never suspends."""

    def waker(self) -> Waker:
        return ThreadWaker(self._listener.clock)

    def run_callback(self, call: Callable[[], object]) -> None:
        # A thread of its own: a slow callback must not keep the keeper from renewing the other leases.
        threading.Thread(target=call, name="holdfast-told", daemon=True).start()
