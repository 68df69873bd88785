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
    ListEntries,
    MailboxMessages,
    NotHeld,
    Nudge,
    Released,
    ReleaseEntry,
    Seat,
    SendToOwner,
    Show,
    Standing,
)

# A box holds so many letters, gives so many at once, and keeps them so long after the last.
LETTERS_MAX = 1000
LETTERS_AT_ONCE = 100
LETTERS_MS = 3600 * 1000
# How long a shelf is kept after something was put on it.
SHELF_MS = 31 * 86400 * 1000


class RegistryIndex(Protocol):
    """Where an engine keeps what stands where."""

    def put(self, directory: str, shelf: str, entry: str, token: str) -> None:
        """It stands there now, by this token."""

    def drop(self, directory: str, shelf: str, entry: str, token: str) -> None:
        """It does not, if it was put there by this token."""

    def keep_for(self, directory: str, entry: str, heir: str, lasts_ms: int) -> None:
        """Keep it for somebody; for nobody any more, if the heir is empty."""

    def heir(self, directory: str, entry: str) -> tuple[str, int]:
        """For whom it is kept, and for how many more milliseconds; 0 if for nobody."""

    def post(self, token: str, letter: str, text: str) -> bool:
        """Put a letter into a box; false if the box is full."""

    def letters(self, token: str, most: int) -> list[tuple[str, str]]:
        """The oldest letters in a box, at most so many."""

    def tear(self, token: str, count: int) -> None:
        """Take the oldest letters out of a box, so many."""

    def standing(self, directory: str, shelf: str, prefix: str, after: str, limit: int) -> Iterable[tuple[str, str]]:
        """Entries that begin so and come after that one, in order, with their tokens; at most so many."""


def entry(command: Any, of_lease: Callable[[Any], Any], shelves: RegistryIndex) -> Any:
    """Answer with the engine's answers to its parts: all in one step."""
    return _RULES[type(command)](command, of_lease, shelves)


def _claim(command: ClaimEntry, of_lease: Callable[[Any], Any], shelves: RegistryIndex) -> Any:
    directory, _, name = command.name.partition("\0")
    heir, left_ms = shelves.heir(directory, name)
    if left_ms > 0 and heir != command.label:
        return HandedOff(heir, left_ms)
    if command.limit >= 0:
        found = shelves.standing(directory, command.group, "", "", 2**31)
        others = [each for each, _ in _live(directory, command.group, found, of_lease, shelves) if each != name]
        if len(others) >= command.limit:
            return AtCapacity(len(others))

    answer = of_lease(command.ask)
    if type(answer) is Granted:
        for shelf in command.shelves:
            shelves.put(directory, shelf, name, command.ask.token)
        if heir:
            shelves.keep_for(directory, name, "", 0)  # whoever it was kept for has come, or did not in time
    return answer


def _quit(command: ReleaseEntry, of_lease: Callable[[Any], Any], shelves: RegistryIndex) -> Any:
    """All of it is done by the copy that releases: one that comes later must not keep it for the heir once more."""
    directory, _, name = command.name.partition("\0")
    now = of_lease(Show(command.name))
    held = None if now.offered else _holder(now)
    answer = of_lease(command.end)
    if type(answer) is Released and held is not None and held.token == command.end.token:
        shelves.tear(command.end.token, LETTERS_MAX)
        for shelf in command.shelves:
            shelves.drop(directory, shelf, name, command.end.token)
        if command.heir:
            shelves.keep_for(directory, name, command.heir, command.heir_ms)
    return answer


def _post(command: SendToOwner, of_lease: Callable[[Any], Any], shelves: RegistryIndex) -> Any:
    owner = _holder(of_lease(Show(command.name)))
    if owner is None:
        return NotHeld("no owner")
    if not shelves.post(owner.token, command.letter, command.text):
        return AtCapacity(LETTERS_MAX)
    return of_lease(Nudge(command.name))


def _fetch(command: FetchMail, of_lease: Callable[[Any], Any], shelves: RegistryIndex) -> Any:  # noqa: ARG001 - as the others
    found = shelves.letters(command.token, len(command.read) + LETTERS_AT_ONCE)
    read = 0
    while read < len(found) and found[read][0] in command.read:
        read += 1
    if read:
        shelves.tear(command.token, read)
    return MailboxMessages(tuple(found[read : read + LETTERS_AT_ONCE]))


def _listed(command: ListEntries, of_lease: Callable[[Any], Any], shelves: RegistryIndex) -> EntryPage:
    found = list(shelves.standing(command.name, command.shelf, command.prefix, command.after, command.limit))
    last = found[-1][0] if len(found) == command.limit else ""
    return EntryPage(tuple(_live(command.name, command.shelf, found, of_lease, shelves)), last)


def _live(
    directory: str, shelf: str, found: Iterable[tuple[str, str]], of_lease: Callable[[Any], Any], shelves: RegistryIndex
) -> list[tuple[str, Seat]]:
    live = []
    for name, token in list(found):
        held = _holder(of_lease(Show(f"{directory}\0{name}")))
        if held is not None and held.token == token:
            live.append((name, held))
        else:
            shelves.drop(directory, shelf, name, token)
    return live


def _holder(now: Any) -> Seat | None:
    """Who holds it; an offer is not held yet."""
    return now.holder if isinstance(now, Standing) and not now.offered else None


_RULES: dict[type, Callable[[Any, Callable[[Any], Any], RegistryIndex], Any]] = {
    ClaimEntry: _claim,
    ReleaseEntry: _quit,
    ListEntries: _listed,
    SendToOwner: _post,
    FetchMail: _fetch,
}
