"""The rules of a registry: an entry is a lease that is also listed in indexes and has a mailbox.

The name of an entry's lease is the registry's name, a NUL and the entry; no other name contains a NUL. An index stores
the token that added each entry. A reader skips and removes entries whose token no longer holds the lease, so an index
may be outdated but never gives a wrong answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from holdfast.commands import (
    AtCapacity,
    ClaimEntry,
    EntryPage,
    FetchMail,
    Granted,
    HandedOff,
    LeaseInfo,
    LeaseParty,
    ListEntries,
    MailboxMessages,
    NotHeld,
    Released,
    ReleaseEntry,
    SendToOwner,
    Show,
    WakeHolder,
)
from holdfast.rules.lease_record import Moment

# How many messages a mailbox holds, how many one fetch returns, and how long the engine keeps the mailbox after the
# last message.
MAILBOX_MAX = 1000
FETCH_MAX = 100
MAILBOX_MS = 3600 * 1000
# How long the engine keeps an index after the last entry was added to it.
INDEX_MS = 31 * 86400 * 1000
NO_OWNER = "no owner"

ApplyLease = Callable[[Any], Any]


class Parts(NamedTuple):
    """The state that a combined rule may change in one step: leases and counters by commands, registries directly."""

    lease: ApplyLease
    counter: Callable[[Any], Any]
    registry: RegistryState


class RegistryState(Protocol):
    """The indexes, successors and mailboxes of an engine's registries."""

    def add(self, registry: str, index_name: str, entry: str, token: str) -> None:
        """Add the entry to the index under this token."""

    def remove(self, registry: str, index_name: str, entry: str, token: str) -> None:
        """Remove the entry from the index, if this token added it."""

    def set_successor(self, registry: str, entry: str, successor: str, lasts_ms: int) -> None:
        """Reserve the entry for the claimer with this label; an empty label ends the reservation."""

    def successor(self, registry: str, entry: str) -> tuple[str, int]:
        """Return the label that the entry is reserved for and the milliseconds left; 0 if it is not reserved."""

    def add_message(self, token: str, message_id: str, text: str) -> bool:
        """Add a message to the mailbox of this token; return false if the mailbox is full."""

    def messages(self, token: str, most: int) -> list[tuple[str, str]]:
        """Return at most `most` of the oldest messages in the mailbox, as pairs of id and text."""

    def delete_messages(self, token: str, count: int) -> None:
        """Delete this number of the oldest messages in the mailbox."""

    def entries(self, registry: str, index_name: str, prefix: str, after: str, limit: int) -> Iterable[tuple[str, str]]:
        """Return at most `limit` entries with their tokens, in order: those with the prefix that come after `after`."""


def claim_entry(parts: Parts, command: ClaimEntry, moment: Moment) -> Any:  # noqa: ARG001 - the signature of all rules
    """Refuse an entry that is reserved for another label or whose group is full; otherwise acquire and index it."""
    apply_lease, state = parts.lease, parts.registry
    registry, _, name = command.name.partition("\0")
    successor, left_ms = state.successor(registry, name)
    if left_ms > 0 and successor != command.label:
        return HandedOff(successor, left_ms)
    if command.limit >= 0:
        found = state.entries(registry, command.group, "", "", 2**31)
        others = [each for each, _ in _live(registry, command.group, found, apply_lease, state) if each != name]
        if len(others) >= command.limit:
            return AtCapacity(len(others))

    answer = apply_lease(command.acquire)
    if type(answer) is Granted:
        for index_name in command.indexes:
            state.add(registry, index_name, name, command.acquire.token)
        if successor:
            state.set_successor(registry, name, "", 0)  # the successor has claimed it, or the reservation ended
    return answer


def release_entry(parts: Parts, command: ReleaseEntry, moment: Moment) -> Any:  # noqa: ARG001 - the signature of all rules
    """Release the entry, remove it from its indexes, delete its mailbox, and reserve it for the successor.

    Only the copy of the command that releases the lease does the rest: a later copy must not reserve the entry again.
    """
    apply_lease, state = parts.lease, parts.registry
    registry, _, name = command.name.partition("\0")
    held = _holder(apply_lease(Show(command.name)))
    answer = apply_lease(command.release)
    if type(answer) is Released and held is not None and held.token == command.release.token:
        state.delete_messages(command.release.token, MAILBOX_MAX)
        for index_name in command.indexes:
            state.remove(registry, index_name, name, command.release.token)
        if command.successor:
            state.set_successor(registry, name, command.successor, command.successor_ms)
    return answer


def send_to_owner(parts: Parts, command: SendToOwner, moment: Moment) -> Any:  # noqa: ARG001 - the signature of all rules
    """Add a message to the owner's mailbox and wake the owner."""
    apply_lease, state = parts.lease, parts.registry
    now = apply_lease(Show(command.name))
    if not isinstance(now, LeaseInfo):
        return now
    owner = _holder(now)
    if owner is None:
        return NotHeld(NO_OWNER)
    if not state.add_message(owner.token, command.message_id, command.text):
        return AtCapacity(MAILBOX_MAX)
    return apply_lease(WakeHolder(command.name))


def fetch_mail(parts: Parts, command: FetchMail, moment: Moment) -> Any:  # noqa: ARG001 - the signature of all rules
    """Delete the messages that were read, and return the oldest of the others."""
    state = parts.registry
    found = state.messages(command.token, len(command.read) + FETCH_MAX)
    read = 0
    while read < len(found) and found[read][0] in command.read:
        read += 1
    if read:
        state.delete_messages(command.token, read)
    return MailboxMessages(tuple(found[read : read + FETCH_MAX]))


def list_entries(parts: Parts, command: ListEntries, moment: Moment) -> EntryPage:  # noqa: ARG001 - the signature of all rules
    """Return a page of the held entries of an index."""
    apply_lease, state = parts.lease, parts.registry
    found = list(state.entries(command.name, command.index_name, command.prefix, command.after, command.limit))
    last = found[-1][0] if len(found) == command.limit else ""
    return EntryPage(tuple(_live(command.name, command.index_name, found, apply_lease, state)), last)


def _live(
    registry: str,
    index_name: str,
    found: Iterable[tuple[str, str]],
    apply_lease: ApplyLease,
    state: RegistryState,
) -> list[tuple[str, LeaseParty]]:
    """Return the entries that their token still holds, with their holders; remove the others from the index.

    An entry whose record cannot be read is in neither group: its holder cannot renew it, and people must see it.
    """
    live = []
    for name, token in list(found):
        now = apply_lease(Show(f"{registry}\0{name}"))
        if not isinstance(now, LeaseInfo):
            continue
        held = _holder(now)
        if held is not None and held.token == token:
            live.append((name, held))
        else:
            state.remove(registry, index_name, name, token)
    return live


def _holder(now: Any) -> LeaseParty | None:
    """Return the holder; an offered lease has none yet."""
    return now.holder if isinstance(now, LeaseInfo) and not now.offered else None
