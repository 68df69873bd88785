"""The commands and answers of a registry: who runs what, and messages to the owner of an entry."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.commands.lease import Acquire, LeaseParty, ReleaseLease


class ClaimEntry(NamedTuple):
    """Acquire the lease of an entry and add the entry to these indexes of its registry, in one step.

    With a `limit`, the claim is refused once that many other entries are in the index `group`; -1 means no limit. An
    entry that was handed off goes only to a claim with the successor's `label`.
    """

    acquire: Acquire
    indexes: tuple[str, ...]
    group: str = ""
    limit: int = -1
    label: str = ""

    @property
    def name(self) -> str:
        return self.acquire.name


class ReleaseEntry(NamedTuple):
    """Release the lease of an entry and remove the entry from these indexes, in one step, if the token holds it.

    With a `successor`, the entry is reserved for the claimer with that label for `successor_ms`.
    """

    release: ReleaseLease
    indexes: tuple[str, ...]
    successor: str = ""
    successor_ms: int = 0

    @property
    def name(self) -> str:
        return self.release.name


class ListEntries(NamedTuple):
    """List the entries of one index with their holders, in order: those with the prefix that come after `after`."""

    name: str
    index_name: str
    prefix: str
    after: str
    limit: int


class SendToOwner(NamedTuple):
    """Add a message to the mailbox of the entry's owner; `message_id` is the same in both copies of a resend."""

    name: str
    message_id: str
    text: str


class FetchMail(NamedTuple):
    """Return the oldest messages in the mailbox of this token, after deleting those that were `read`.

    The engine deletes only messages that the reader confirmed, so a lost answer loses no message.
    """

    name: str
    token: str
    read: tuple[str, ...] = ()


class AtCapacity(NamedTuple):
    """There is no room: the group has this many other entries, or the mailbox this many messages."""

    size: int


class HandedOff(NamedTuple):
    """The entry is reserved for the claimer with the label `successor`, for another `remaining_ms`."""

    successor: str
    remaining_ms: int


class MailboxMessages(NamedTuple):
    """Pairs of message id and text, in order of arrival."""

    messages: tuple[tuple[str, str], ...]


class EntryPage(NamedTuple):
    """Held entries in order, with their holders. `last`: the entry to continue after; empty on the last page."""

    entries: tuple[tuple[str, LeaseParty], ...]
    last: str
