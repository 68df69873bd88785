"""The law of directories: an entry is a lease that also stands on shelves, where it can be found.

An entry's name is its directory's name, a NUL and the entry: no other name has a NUL. A shelf knows which token put
something there; what that token does not hold any more is passed over, and taken off. It may be late, and never lies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from holdfast.commands import (
    Claim,
    Done,
    Fetch,
    Full,
    Granted,
    Kept,
    Letters,
    List,
    Listing,
    NotHeld,
    Post,
    Quit,
    Released,
    Seat,
    Show,
    Standing,
)

# A box holds so many letters, and keeps them so long after the last.
LETTERS_MAX = 1000
LETTERS_MS = 3600 * 1000
# How long a shelf is kept after something was put on it.
SHELF_MS = 31 * 86400 * 1000


class Shelves(Protocol):
    """Where an engine keeps what stands where."""

    def put(self, directory: str, shelf: str, entry: str, token: str) -> None:
        """It stands there now, by this token."""

    def drop(self, directory: str, shelf: str, entry: str, token: str) -> None:
        """It does not, if it was put there by this token."""

    def keep_for(self, directory: str, entry: str, heir: str, lasts_ms: int) -> None:
        """Keep it for somebody."""

    def heir(self, directory: str, entry: str) -> tuple[str, int]:
        """For whom it is kept, and for how many more milliseconds; 0 if for nobody."""

    def post(self, token: str, letter: str, text: str) -> bool:
        """Put a letter into a box; false if the box is full."""

    def fetch(self, token: str) -> list[tuple[str, str]]:
        """Empty a box."""

    def standing(self, directory: str, shelf: str, prefix: str, after: str, limit: int) -> Iterable[tuple[str, str]]:
        """Entries that begin so and come after that one, in order, with their tokens; at most so many."""


def entry(command: Any, of_lease: Callable[[Any], Any], shelves: Shelves) -> Any:
    """Answer with the engine's answers to its parts: all in one step."""
    return _RULES[type(command)](command, of_lease, shelves)


def _claim(command: Claim, of_lease: Callable[[Any], Any], shelves: Shelves) -> Any:
    directory, _, name = command.name.partition("\0")
    heir, left_ms = shelves.heir(directory, name)
    if left_ms > 0 and heir != command.label:
        return Kept(heir, left_ms)
    if command.limit >= 0:
        found = shelves.standing(directory, command.group, "", "", 2**31)
        others = [each for each, _ in _live(directory, command.group, found, of_lease, shelves) if each != name]
        if len(others) >= command.limit:
            return Full(len(others))

    answer = of_lease(command.ask)
    if type(answer) is Granted:
        for shelf in command.shelves:
            shelves.put(directory, shelf, name, command.ask.token)
    return answer


def _quit(command: Quit, of_lease: Callable[[Any], Any], shelves: Shelves) -> Any:
    directory, _, name = command.name.partition("\0")
    answer = of_lease(command.end)
    if type(answer) is Released:
        for shelf in command.shelves:
            shelves.drop(directory, shelf, name, command.end.token)
        if command.heir:
            shelves.keep_for(directory, name, command.heir, command.heir_ms)
    return answer


def _post(command: Post, of_lease: Callable[[Any], Any], shelves: Shelves) -> Any:
    now = of_lease(Show(command.name))
    if not isinstance(now, Standing) or now.holder is None or now.offered:
        return NotHeld("no owner")
    return Done() if shelves.post(now.holder.token, command.letter, command.text) else Full(LETTERS_MAX)


def _fetch(command: Fetch, of_lease: Callable[[Any], Any], shelves: Shelves) -> Any:  # noqa: ARG001 - as the others
    return Letters(tuple(shelves.fetch(command.token)))


def _listed(command: List, of_lease: Callable[[Any], Any], shelves: Shelves) -> Listing:
    found = list(shelves.standing(command.name, command.shelf, command.prefix, command.after, command.limit))
    last = found[-1][0] if len(found) == command.limit else ""
    return Listing(tuple(_live(command.name, command.shelf, found, of_lease, shelves)), last)


def _live(
    directory: str, shelf: str, found: Iterable[tuple[str, str]], of_lease: Callable[[Any], Any], shelves: Shelves
) -> list[tuple[str, Seat]]:
    live = []
    for name, token in list(found):
        now = of_lease(Show(f"{directory}\0{name}"))
        held = now.holder if isinstance(now, Standing) and not now.offered else None
        if held is not None and held.token == token:
            live.append((name, held))
        else:
            shelves.drop(directory, shelf, name, token)
    return live


_RULES: dict[type, Callable[[Any, Callable[[Any], Any], Shelves], Any]] = {
    Claim: _claim,
    Quit: _quit,
    List: _listed,
    Post: _post,
    Fetch: _fetch,
}
