"""The law of directories: an entry is a lease that also stands on shelves, where it can be found.

An entry's name is its directory's name, a NUL and the entry: no other name has a NUL. A shelf knows which token put
something there; what that token does not hold any more is passed over, and taken off. It may be late, and never lies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

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

# A box holds so many letters, gives so many at once, and keeps them so long after the last.
MAILBOX_MAX = 1000
FETCH_MAX = 100
MAILBOX_MS = 3600 * 1000
# How long a shelf is kept after something was put on it.
INDEX_MS = 31 * 86400 * 1000


class RegistryState(Protocol):
    """Where an engine keeps what stands where."""

    def add(self, directory: str, index_name: str, entry: str, token: str) -> None:
        """It stands there now, by this token."""

    def remove(self, directory: str, index_name: str, entry: str, token: str) -> None:
        """It does not, if it was put there by this token."""

    def set_successor(self, directory: str, entry: str, successor: str, lasts_ms: int) -> None:
        """Keep it for somebody; for nobody any more, if the heir is empty."""

    def successor(self, directory: str, entry: str) -> tuple[str, int]:
        """For whom it is kept, and for how many more milliseconds; 0 if for nobody."""

    def add_message(self, token: str, message_id: str, text: str) -> bool:
        """Put a letter into a box; false if the box is full."""

    def messages(self, token: str, most: int) -> list[tuple[str, str]]:
        """The oldest letters in a box, at most so many."""

    def delete_messages(self, token: str, count: int) -> None:
        """Take the oldest letters out of a box, so many."""

    def entries(
        self, directory: str, index_name: str, prefix: str, after: str, limit: int
    ) -> Iterable[tuple[str, str]]:
        """Entries that begin so and come after that one, in order, with their tokens; at most so many."""


def entry(command: Any, apply_lease: Callable[[Any], Any], state: RegistryState) -> Any:
    """Answer with the engine's answers to its parts: all in one step."""
    return _RULES[type(command)](command, apply_lease, state)


def _claim(command: ClaimEntry, apply_lease: Callable[[Any], Any], state: RegistryState) -> Any:
    directory, _, name = command.name.partition("\0")
    successor, left_ms = state.successor(directory, name)
    if left_ms > 0 and successor != command.label:
        return HandedOff(successor, left_ms)
    if command.limit >= 0:
        found = state.entries(directory, command.group, "", "", 2**31)
        others = [each for each, _ in _live(directory, command.group, found, apply_lease, state) if each != name]
        if len(others) >= command.limit:
            return AtCapacity(len(others))

    answer = apply_lease(command.ask)
    if type(answer) is Granted:
        for index_name in command.indexes:
            state.add(directory, index_name, name, command.ask.token)
        if successor:
            state.set_successor(directory, name, "", 0)  # whoever it was kept for has come, or did not in time
    return answer


def _quit(command: ReleaseEntry, apply_lease: Callable[[Any], Any], state: RegistryState) -> Any:
    """All of it is done by the copy that releases: one that comes later must not keep it for the heir once more."""
    directory, _, name = command.name.partition("\0")
    now = apply_lease(Show(command.name))
    held = None if now.offered else _holder(now)
    answer = apply_lease(command.end)
    if type(answer) is Released and held is not None and held.token == command.end.token:
        state.delete_messages(command.end.token, MAILBOX_MAX)
        for index_name in command.indexes:
            state.remove(directory, index_name, name, command.end.token)
        if command.successor:
            state.set_successor(directory, name, command.successor, command.successor_ms)
    return answer


def _post(command: SendToOwner, apply_lease: Callable[[Any], Any], state: RegistryState) -> Any:
    owner = _holder(apply_lease(Show(command.name)))
    if owner is None:
        return NotHeld("no owner")
    if not state.add_message(owner.token, command.message_id, command.text):
        return AtCapacity(MAILBOX_MAX)
    return apply_lease(WakeHolder(command.name))


def _fetch(command: FetchMail, apply_lease: Callable[[Any], Any], state: RegistryState) -> Any:  # noqa: ARG001 - as the others
    found = state.messages(command.token, len(command.read) + FETCH_MAX)
    read = 0
    while read < len(found) and found[read][0] in command.read:
        read += 1
    if read:
        state.delete_messages(command.token, read)
    return MailboxMessages(tuple(found[read : read + FETCH_MAX]))


def _listed(command: ListEntries, apply_lease: Callable[[Any], Any], state: RegistryState) -> EntryPage:
    found = list(state.entries(command.name, command.index_name, command.prefix, command.after, command.limit))
    last = found[-1][0] if len(found) == command.limit else ""
    return EntryPage(tuple(_live(command.name, command.index_name, found, apply_lease, state)), last)


def _live(
    directory: str,
    index_name: str,
    found: Iterable[tuple[str, str]],
    apply_lease: Callable[[Any], Any],
    state: RegistryState,
) -> list[tuple[str, LeaseParty]]:
    live = []
    for name, token in list(found):
        held = _holder(apply_lease(Show(f"{directory}\0{name}")))
        if held is not None and held.token == token:
            live.append((name, held))
        else:
            state.remove(directory, index_name, name, token)
    return live


def _holder(now: Any) -> LeaseParty | None:
    """Who holds it; an offer is not held yet."""
    return now.holder if isinstance(now, LeaseInfo) and not now.offered else None


_RULES: dict[type, Callable[[Any, Callable[[Any], Any], RegistryState], Any]] = {
    ClaimEntry: _claim,
    ReleaseEntry: _quit,
    ListEntries: _listed,
    SendToOwner: _post,
    FetchMail: _fetch,
}
