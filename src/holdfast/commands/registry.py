"""What is asked about the entries of a directory, and what is answered."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.commands.lease import Acquire, LeaseParty, Release


class ClaimEntry(NamedTuple):
    """Give me the lease of an entry and put it on these shelves of its directory; in one step.

    With a `limit`, only if so many others do not stand on the shelf `group` already; -1 is no limit. What is kept for
    somebody is given to nobody of another `label`.
    """

    ask: Acquire
    indexes: tuple[str, ...]
    group: str = ""
    limit: int = -1
    label: str = ""

    @property
    def name(self) -> str:
        return self.ask.name


class ReleaseEntry(NamedTuple):
    """Give the lease of an entry back and take it off these shelves; in one step, and only if it was mine to give.

    With an `successor`, it is kept for whoever has that label, for so long.
    """

    end: Release
    indexes: tuple[str, ...]
    successor: str = ""
    successor_ms: int = 0

    @property
    def name(self) -> str:
        return self.end.name


class ListEntries(NamedTuple):
    """Who holds what on this shelf of the directory: entries that begin so and come after that one, in order."""

    name: str
    index_name: str
    prefix: str
    after: str
    limit: int


class SendToOwner(NamedTuple):
    """Put a letter into the box of whoever holds the entry; `message_id` tells two copies apart from two letters."""

    name: str
    message_id: str
    text: str


class FetchMail(NamedTuple):
    """The oldest letters in the box of this token, after those that were `read` have been taken out.

    What nobody says to have read stays there: an answer that is lost loses no letter.
    """

    name: str
    token: str
    read: tuple[str, ...] = ()


class AtCapacity(NamedTuple):
    """So many others stand on that shelf: there is no room."""

    others: int


class HandedOff(NamedTuple):
    """It is kept for whoever has this label, for so much longer."""

    successor: str
    remaining_ms: int


class MailboxMessages(NamedTuple):
    """Pairs of a letter's own token and its text, in the order in which they came."""

    messages: tuple[tuple[str, str], ...]


class EntryPage(NamedTuple):
    """Entries that are held, in order, with their holders. `last`: where to go on; empty if that was all."""

    entries: tuple[tuple[str, LeaseParty], ...]
    last: str
