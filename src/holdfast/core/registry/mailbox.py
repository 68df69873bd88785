"""Messages to the owner of a key, wherever it runs: in order, and each read once.

Every owner has a box of its own on the engine. A letter stays there until the owner says that it has it: an answer that
is lost on its way loses no letter. The owner is rung when one comes; it looks once a second all the same, so that
nothing depends on the ring.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from holdfast.clock import NEVER_NS, NS, Seconds, timeout_ns
from holdfast.commands import AtCapacity, FetchMail, MailboxMessages, NotHeld, SendToOwner
from holdfast.core.lease.lease import CombinedLease
from holdfast.core.resend import send_safely
from holdfast.errors import PASSING, InvalidConfig, NotAcquired, NotFound, Unavailable
from holdfast.names import is_unicode, new_token

if TYPE_CHECKING:
    from holdfast.core.registry.registry import RegistryBase

MESSAGE_MAX_BYTES = 65536
_LOOK_NS = NS
_KNOWN_MAX = 10_000


class Box(CombinedLease):
    """What a claim has besides its lease: for whom it is kept, and letters that were not read yet."""

    _successor: tuple[str, int] = ("", 0)
    _read: tuple[str, ...] = ()  # what has arrived, and the engine does not know it yet

    def _open(self) -> None:
        self._letters: deque[str] = deque()
        self._known: dict[str, object] = {}

    def _arrived(self, letters: tuple[tuple[str, str], ...]) -> None:
        """Each letter once: of two copies, or of two threads that ask at the same time, the first counts."""
        known = self._known
        for letter, text in letters:
            mine = object()
            if known.setdefault(letter, mine) is mine:
                self._letters.append(text)
        for oldest in tuple(known)[: max(0, len(known) - _KNOWN_MAX)]:
            known.pop(oldest, None)
        self._read = tuple(letter for letter, _ in letters)


async def send(directory: RegistryBase, key: str, message: str) -> None:
    """Put it into the owner's box; `NotFound` if nobody owns the key, which is an error and no silence."""
    if not isinstance(message, str) or not is_unicode(message) or len(message.encode()) > MESSAGE_MAX_BYTES:
        raise InvalidConfig("message", message, f"it must be text of at most {MESSAGE_MAX_BYTES} bytes")
    answer = await send_safely(directory._client, SendToOwner(directory._name_of_key(key), new_token(), message))
    if isinstance(answer, AtCapacity):
        raise NotAcquired(f"{directory.name}/{key}", reason=f"its owner has {answer.size} messages to read")
    if isinstance(answer, NotHeld):
        raise NotFound(f"{directory.name}/{key}", "owner")


async def receive(lease: Any, timeout: Seconds | None) -> str | None:
    """The next message, or `None` if none comes in time. `LeaseLost` if the key is no longer this owner's."""
    client, wait_ns = lease.client, timeout_ns(timeout)
    until_ns = NEVER_NS if wait_ns is None else client.clock.now_ns() + wait_ns
    client.transport.expect(lease.token)
    try:
        while True:
            lease.check()
            with suppress(IndexError):
                message: str = lease._letters.popleft()
                return message
            trouble = await _fetch(lease)
            if lease._letters:
                continue
            now_ns = client.clock.now_ns()
            if now_ns >= until_ns:
                if trouble is not None:
                    raise trouble
                return None
            await client.transport.wait_for_wakeup(lease.token, min(until_ns, now_ns + _LOOK_NS))
    finally:
        client.transport.forget(lease.token)


async def _fetch(lease: Any) -> Unavailable | None:
    """Look into the box. Trouble that may pass is told and given back: while the key is ours, it can be waited out."""
    client = lease.client
    try:
        box = await send_safely(client, FetchMail(lease.name, lease.token, lease._read))
    except Unavailable as error:
        if error.reason not in PASSING:
            raise
        client.emit("unavailable", lease.name, detail=str(error))
        return error
    assert isinstance(box, MailboxMessages)
    lease._arrived(box.messages)
    return None
