"""Engines that answer in this process: the rules run here, inside a lock or a transaction.

A `Store` answers commands by blocking for a moment. This module gives any store the two forms that the core awaits.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

from holdfast.commands import Acquire, Busy
from holdfast.engines.board import ThreadBell

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.clock import Clock
    from holdfast.commands import Answer, Command
    from holdfast.engines import Bell, Form, Promise
    from holdfast.engines.board import Board


class Store(Protocol):
    """What a local engine has to bring."""

    clock: Clock
    board: Board
    quick: bool

    def answer_all(self, commands: Sequence[Command], until_ns: int | None) -> list[Answer]:
        """Answer each command in one atomic step, and ring whom the rules name."""

    def listen(self) -> bool:
        """Make sure that rings arrive; true if only now they begin to, so that one may have been missed."""

    def promise(self) -> Promise:
        """What this store promises."""

    def forked(self) -> None:
        """In a new child: forget everything inherited."""

    def close(self) -> None:
        """Give back every resource."""


class LocalEngine:
    """One client's end of a store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.clock = store.clock

    def promise(self) -> Promise:
        return self.store.promise()

    def blocking(self) -> Form:
        return LocalBlocking(self.store)

    def asyncio(self) -> Form:
        # Imported here, because whoever never uses asyncio should not pay for importing it.
        from holdfast.engines.loop import LocalAsyncio  # noqa: PLC0415

        return LocalAsyncio(self.store)

    def forked(self) -> None:
        self.store.forked()


class LocalBlocking:
    """The form that blocks inside its awaits."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def apply(self, command: Command, until_ns: int | None = None) -> Answer:
        return answer(self.store, command, until_ns)

    async def apply_all(self, commands: Sequence[Command], until_ns: int | None = None) -> list[Answer]:
        return self.store.answer_all(commands, until_ns)

    async def wait(self, ask: Acquire, until_ns: int) -> Answer | None:
        await sleep_on(self.store, ask.token, self.bell(), until_ns)
        return None

    def bell(self) -> Bell:
        return ThreadBell(self.store.clock)

    def stir(self) -> None:
        self.store.board.ring_all()

    def deliver(self, call: Callable[[], object]) -> None:
        # A thread of its own: a slow callback must not keep the keeper from renewing the other leases.
        threading.Thread(target=call, name="holdfast-told", daemon=True).start()

    async def close(self) -> None:
        self.store.close()


def answer(store: Store, command: Command, until_ns: int | None) -> Answer:
    """One command; a waiter's rings are kept from before its question until it leaves the queue."""
    if type(command) is not Acquire:
        return store.answer_all((command,), until_ns)[0]

    if command.wait:
        store.board.expect(command.token)
    reply: Answer | None = None
    try:
        reply = store.answer_all((command,), until_ns)[0]
    finally:
        if not (command.wait and isinstance(reply, Busy)):
            store.board.forget(command.token)
    return reply


async def sleep_on(store: Store, token: str, bell: Bell, until_ns: int) -> None:
    """Sleep until somebody rings for the token."""
    if store.listen():
        return  # a ring may have been missed before the ears were open: ask once more

    if store.board.hang(token, bell):
        try:
            await bell.wait(until_ns)
        finally:
            store.board.take_down(token)
