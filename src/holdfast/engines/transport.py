"""The parts that all transports share: how they remember wake-ups for a waiter, and how the waiter sleeps.

The transport of an engine adds `apply_all` and `close`. The asyncio half is in `transport_asyncio`, so that a program
without asyncio does not import it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

from holdfast.commands import POSITIONED, WAITABLE
from holdfast.engines.wakeups import ThreadWaker
from holdfast.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from holdfast.clock import Clock
    from holdfast.commands import AcquireCommand, Answer, Command
    from holdfast.engines import EngineEvent, ExpiryWatch, Promise, Reply, Waker
    from holdfast.engines.wakeups import WaiterRegistry


class WakeupListener(Protocol):
    """Where the wake-ups for one client arrive."""

    clock: Clock
    waiter_registry: WaiterRegistry

    def listen(self, token: str) -> bool:
        """Make sure that wake-ups for this waiter arrive; return true if one may have been missed until now."""

    def next_poll_ns(self, token: str, until_ns: int) -> int:  # noqa: ARG002 - for engines whose wake-ups may not arrive
        """Return when a waiter polls, if no wake-up comes before; at most `until_ns`."""
        return until_ns


class BaseEngine:
    """The defaults of an engine: it never reports a restart, and no child process keeps a client alive."""

    restarts = restarted_ns = 0

    def liveness_fd(self) -> int | None:
        return None

    def outlive_process(self) -> None:
        return None

    def watch_expiries(
        self,
        names: Iterable[str],
        *,
        configure: bool,
        on_end: Callable[[str, str], object],
        emit: Callable[[str, str], object],
    ) -> ExpiryWatch:
        raise NotImplementedError


class BaseTransport:
    """Sending and sleeping, for threads and tasks alike."""

    def __init__(self, listener: WakeupListener) -> None:
        self._listener = listener

    async def apply_all(self, commands: Sequence[Command], until_ns: int | None = None) -> list[Reply]:
        raise NotImplementedError

    async def answer(self, command: Command, until_ns: int | None) -> Answer:
        """Answer one command. An engine overrides this if one command is faster than a list of one."""
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
        """Accept every caller: threads may call from anywhere."""

    async def listen(self, token: str) -> bool:
        return self._listener.listen(token)

    def waker(self) -> Waker:
        raise NotImplementedError

    def apply(self, command: Command, until_ns: int | None = None) -> Answer | Awaitable[Answer]:
        """Answer one command; remember wake-ups for a waiter from before the command until the waiter stops waiting."""
        if type(command) not in WAITABLE:
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

    async def wait(self, command: AcquireCommand, until_ns: int) -> Answer | None:
        await self.wait_for_wakeup(command.token, self._listener.next_poll_ns(command.token, until_ns))
        return None

    def expect(self, token: str) -> None:
        self._listener.waiter_registry.expect(token)

    async def wait_for_wakeup(self, token: str, until_ns: int) -> None:
        await self.wait_for_any((token,), self.waker(), until_ns)

    async def wait_for_any(self, tokens: Sequence[str], waker: Waker, until_ns: int) -> Sequence[str]:
        for token in tokens:
            if await self.listen(token):
                return tokens  # the waiter may have missed a wake-up before the listener opened: the caller tries again

        waiter_registry, added, woken = self._listener.waiter_registry, [], []
        try:
            for token in tokens:
                if not waiter_registry.add(token, waker):
                    woken.append(token)
                    break
                added.append(token)
            else:
                await waker.wait(until_ns)
        finally:
            woken += [token for token in added if waiter_registry.remove(token)]
        return woken

    def forget(self, token: str) -> None:
        self._listener.waiter_registry.forget(token)

    def wake(self, token: str) -> None:
        self._listener.waiter_registry.wake(token)

    def on_unknown_wakeup(self, call: Callable[[], None]) -> None:
        """Do nothing: an engine that forgets no waiter sends no wake-up for an unknown one."""

    def wake_all(self) -> None:
        self._listener.waiter_registry.wake_all()

    async def refresh(self) -> None:
        """Do nothing: the engine has one place, which does not move."""


class BlockingTransport(BaseTransport):
    """The half that threads use: it blocks inside its awaits and never suspends."""

    def waker(self) -> Waker:
        return ThreadWaker(self._listener.clock)

    def run_callback(self, call: Callable[[], object]) -> None:
        # Use a new thread: a slow callback must not keep the keeper from renewing the other leases.
        try:
            threading.Thread(target=call, name="holdfast-callback", daemon=True).start()
        except RuntimeError:  # the system refuses a thread: late is better than never
            call()
