"""What the forms of all engines share: how a waiter's rings are kept, and where its sleep is.

An engine's form adds `apply_all` and `close`. The asyncio half is in `loop`, so that nobody who does without asyncio
has to import it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

from holdfast.commands import ASKING, LINED_UP
from holdfast.engines.wakeups import ThreadBell
from holdfast.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from holdfast.clock import Clock
    from holdfast.commands import Answer, Asking, Command
    from holdfast.engines import Bell, News, Promise, Reply
    from holdfast.engines.wakeups import Board


class Ears(Protocol):
    """Where the rings for one client arrive."""

    clock: Clock
    board: Board

    def listen(self, token: str) -> bool:
        """Make sure that rings for this waiter arrive; true if one may have been missed before now."""


class BaseForm:
    """Asking and sleeping, for threads and tasks alike."""

    def __init__(self, ears: Ears) -> None:
        self._ears = ears

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

    async def attend(self, until_ns: int) -> None:  # noqa: ARG002 - most engines have no connection
        return

    def news(self) -> Sequence[News]:
        return ()

    def refuse_elsewhere(self) -> None:
        """Threads may ask from anywhere."""

    async def listen(self, token: str) -> bool:
        return self._ears.listen(token)

    def bell(self) -> Bell:
        raise NotImplementedError

    def apply(self, command: Command, until_ns: int | None = None) -> Answer | Awaitable[Answer]:
        """One command; a waiter's rings are kept from before its question until it leaves the queue."""
        if type(command) not in ASKING:
            return self.answer(command, until_ns)
        return self._acquire(command, until_ns)  # type: ignore[arg-type]

    async def _acquire(self, command: Asking, until_ns: int | None) -> Answer:
        board = self._ears.board
        if command.wait:
            board.expect(command.token)
        reply: Answer | None = None
        try:
            reply = await self.answer(command, until_ns)
        finally:
            if not (command.wait and type(reply) in LINED_UP and reply.position is not None):  # type: ignore[union-attr]
                self.forget(command.token)
        return reply

    async def wait(self, ask: Asking, until_ns: int) -> Answer | None:
        await self.hear(ask.token, until_ns)
        return None

    def expect(self, token: str) -> None:
        self._ears.board.expect(token)

    async def hear(self, token: str, until_ns: int) -> None:
        await self.hear_any((token,), self.bell(), until_ns)

    async def hear_any(self, tokens: Sequence[str], bell: Bell, until_ns: int) -> Sequence[str]:
        for token in tokens:
            if await self.listen(token):
                return tokens  # a ring may have been missed before the ears were open: ask once more

        board, hung, rung = self._ears.board, [], []
        try:
            for token in tokens:
                if not board.hang(token, bell):
                    rung.append(token)
                    break
                hung.append(token)
            else:
                await bell.wait(until_ns)
        finally:
            rung += [token for token in hung if board.take_down(token)]
        return rung

    def forget(self, token: str) -> None:
        self._ears.board.forget(token)

    def ring(self, token: str) -> None:
        self._ears.board.ring(token)

    def on_stray_ring(self, call: Callable[[], None]) -> None:
        """Where nothing that was said can be forgotten, no ring goes astray."""

    def stir(self) -> None:
        self._ears.board.ring_all()

    async def refresh(self) -> None:
        """There is one place, and it does not move."""


class ThreadForm(BaseForm):
    """The half that threads use: it blocks inside its awaits and never suspends."""

    def bell(self) -> Bell:
        return ThreadBell(self._ears.clock)

    def deliver(self, call: Callable[[], object]) -> None:
        # A thread of its own: a slow callback must not keep the keeper from renewing the other leases.
        threading.Thread(target=call, name="holdfast-told", daemon=True).start()
