"""The lease of a registry entry, with the mailbox of its owner.

Every owner has its own mailbox on the engine, and reads its messages in order, each once. A message stays there until
the owner has confirmed it, so a lost reply loses no message. The engine wakes the owner when a message arrives. The
owner also polls once a second, so that it does not depend on the wake-up.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.clock import NEVER_NS, NS, Seconds, timeout_ns, ttl_ms
from holdfast.commands import ClaimEntry, FetchMail, MailboxMessages, ReleaseEntry
from holdfast.core.lease.lease import CombinedLease, LeaseBase
from holdfast.core.resend import send_safely
from holdfast.errors import PASSING, InvalidConfig, Unavailable
from holdfast.names import LABEL_MAX, is_unicode

if TYPE_CHECKING:
    from holdfast.core.client import Client

_POLL_NS = NS
_KNOWN_MAX = 10_000


class ClaimOptions(NamedTuple):
    """The settings of one claim: the key, the indexes of the entry, and the limit of its group (-1: none).

    `label`: the label of the claimer; an entry that was handed off goes only to the claimer with the successor's label.
    """

    key: str
    indexes: tuple[str, ...]
    group_index: str = ""
    limit: int = -1
    label: str = ""


class Mailbox:
    """The messages that the owner has fetched and the program has not read yet."""

    def __init__(self) -> None:
        self.messages: deque[str] = deque()
        self.fetched: tuple[str, ...] = ()  # ids that the next fetch confirms
        self._known: dict[str, object] = {}

    def add(self, messages: tuple[tuple[str, str], ...]) -> None:
        """Add each message once, even if two threads fetch at the same time or two replies contain it."""
        known = self._known
        for message_id, text in messages:
            marker = object()
            if known.setdefault(message_id, marker) is marker:  # atomic: only one thread stores its marker
                self.messages.append(text)
        for oldest in tuple(known)[: max(0, len(known) - _KNOWN_MAX)]:
            known.pop(oldest, None)
        self.fetched = tuple(message_id for message_id, _ in messages)


class RegistryLeaseBase(CombinedLease, LeaseBase):
    """The lease of an entry, or of a member: its claim and its release also change the indexes of the registry."""

    def __init__(self, claim: ClaimOptions, client: Client, *fields: Any) -> None:
        self.key = claim.key
        self._successor = ("", 0)
        self._mailbox = Mailbox()
        indexes = claim.indexes
        self.begin_with = lambda acquire: ClaimEntry(acquire, indexes, claim.group_index, claim.limit, claim.label)
        self.end_with = lambda release: ReleaseEntry(release, indexes, *self._successor)
        super().__init__(client, *fields)

    async def _hand_off(self, to: str, within: Seconds) -> None:
        """Release the entry, and reserve it for the server with this label."""
        self._successor = checked_successor(to, within)
        await self.release_steps()

    async def _receive(self, timeout: Seconds | None) -> str | None:
        """Return the next message, or `None` if none comes in time; raise `LeaseLost` if the entry is not held."""
        client, mailbox, wait_ns = self.client, self._mailbox, timeout_ns(timeout)
        until_ns = NEVER_NS if wait_ns is None else client.clock.now_ns() + wait_ns
        client.transport.expect(self.token)
        try:
            while True:
                self.check()
                with suppress(IndexError):
                    return mailbox.messages.popleft()
                error = await self._fetch()
                if mailbox.messages:
                    continue
                now_ns = client.clock.now_ns()
                if now_ns >= until_ns:
                    if error is not None:
                        raise error
                    return None
                await client.transport.wait_for_wakeup(self.token, min(until_ns, now_ns + _POLL_NS))
        finally:
            client.transport.forget(self.token)

    async def _fetch(self) -> Unavailable | None:
        """Fetch messages. Report and return a passing error: the owner can wait while it holds the entry."""
        client = self.client
        try:
            answer = await send_safely(client, FetchMail(self.name, self.token, self._mailbox.fetched))
        except Unavailable as error:
            if error.reason not in PASSING:
                raise
            client.emit("unavailable", self.name, detail=str(error))
            return error
        assert isinstance(answer, MailboxMessages)
        self._mailbox.add(answer.messages)
        return None


def checked_successor(to: str, within: Seconds) -> tuple[str, int]:
    """Return the label of the successor, and how long the entry is reserved for it, in milliseconds."""
    if not isinstance(to, str) or not 0 < len(to) <= LABEL_MAX or not is_unicode(to):
        raise InvalidConfig("to", to, f"it must be the label of a server: text of 1 to {LABEL_MAX} characters")
    return to, ttl_ms(within, setting="within")
