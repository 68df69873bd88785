"""The commands of registries on Redis: scripts, arguments and replies. An entry's keys are in its registry's slot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.commands import (
    Answer,
    AtCapacity,
    ClaimEntry,
    EntryPage,
    FetchMail,
    HandedOff,
    LeaseParty,
    ListEntries,
    MailboxMessages,
    Released,
    ReleaseEntry,
    SendToOwner,
)
from holdfast.engines.redis.keys import ENTRY_SEPARATOR
from holdfast.engines.redis.script import Script

if TYPE_CHECKING:
    from collections.abc import Callable


def _entry(command: ClaimEntry | ReleaseEntry) -> str:
    return command.name.partition(ENTRY_SEPARATOR)[2]


def _claim(command: ClaimEntry) -> tuple[str, ...]:
    acquire = command.acquire
    lease = (acquire.token, acquire.holder, str(acquire.ttl_ms), "0")
    return (*lease, _entry(command), str(command.limit), command.group, command.label, *command.indexes)


def _release(command: ReleaseEntry) -> tuple[str, ...]:
    release = command.release
    successor = (command.successor, str(command.successor_ms))
    return (release.token, "1" if release.tombstone else "", _entry(command), *successor, *command.indexes)


SCRIPTS: dict[type, Script] = {
    ClaimEntry: Script("registry/claim", _claim),
    ReleaseEntry: Script("registry/release", _release),
    ListEntries: Script(
        "registry/list", lambda command: (command.index_name, command.prefix, command.after, str(command.limit))
    ),
    SendToOwner: Script("registry/send", lambda command: (command.message_id, command.text)),
    FetchMail: Script("registry/fetch", lambda command: (command.token, *command.read)),
}


def _mailbox(reply: list[Any]) -> MailboxMessages:
    parts = (each.partition("\n") for each in reply[1:])
    return MailboxMessages(tuple((message_id, text) for message_id, _, text in parts))


def _page(reply: list[Any]) -> EntryPage:
    _, last, *rest = reply
    entries = []
    for at in range(0, len(rest), 6):
        entry, token, holder, fence, since_ms, remaining_ms = rest[at : at + 6]
        entries.append((entry, LeaseParty(holder, token, int(fence), since_ms, remaining_ms)))
    return EntryPage(tuple(entries), last)


DONE: dict[type, Answer] = {ReleaseEntry: Released()}
REPLIES: dict[str, Callable[[list[Any]], Answer]] = {
    "entries": _page,
    "at capacity": lambda reply: AtCapacity(reply[1]),
    "handed off": lambda reply: HandedOff(reply[1], reply[2]),
    "messages": _mailbox,
}
