"""Is a queue in motion sound? It is looked at page by page, and the pages never show the same instant.

Two promises: of a sound queue no fault is told, however fast it moves; and a fault that stands is found.

What one page proves by itself is told by the engine: it has seen all that it takes at one instant. What needs several
pages rests on one law: an entry is made in one place, and moves at most once, from its lane to a consumer; whatever
else becomes of a message, it goes on under a new entry. So it is told apart:

- Who is stored before the places are looked at, is seen in none of them, lanes first and then consumers, and is stored
  after them all, is nowhere.
- Who is seen in two places is in both, unless the second one is a consumer's and the first a lane. So consumers are
  looked at before the lanes as well.
- A lane is filled at its end with entries that only grow: so one that stands in it twice breaks the order somewhere.

Whoever is suspected is looked at once more, at one instant with everything that it is suspected with.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

from holdfast.commands.queue import BEHIND, DEAD, DELAYED, HELD, READY
from holdfast.commands.queue_admin import (
    AGAIN,
    CONSUMERS,
    DEATHS,
    LANES,
    LETTERS,
    LINES,
    MESSAGES,
    NOTES,
    PAGE,
    CheckConsistency,
    ConsistencyChecked,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from holdfast.commands.queue_admin import ConsistencyPage

    Pages = Generator[CheckConsistency, ConsistencyPage, None]

RECHECKED_AT_ONCE = 100
NEWEST = 2**63
_OURS = re.compile(r"(\d{16,})k?", re.ASCII)
# What is told of all that was found of a kind.
_SENTENCES = {
    "nowhere": "messages are in no place",
    "missing": "places have no message",
    "several": "keys have more than one message that comes first",
    "unled": "keys have no message that comes first",
    "misnoted": "keys have another message noted as the one that comes first",
    "unlined": "messages behind others are not in line",
    "unordered": "ready messages are out of order",
    "unplaced": "dead letters are not in order",
}


def walk(name: str, most: int = PAGE) -> Generator[CheckConsistency, ConsistencyPage, ConsistencyChecked]:
    """Ask about every part, page by page; what is wrong comes out at the end."""
    return _Walk(name, most).all()


class _Walk:
    """What was seen so far."""

    def __init__(self, name: str, most: int) -> None:
        self._name, self._most = name, max(2, most)
        self._places: dict[str, str] = {}  # entry -> where it was seen last; empty for those seen nowhere yet
        self._ids: dict[str, str] = {}  # id -> entry
        self._letters: set[str] = set()
        self._shared: dict[str, set[str]] = defaultdict(set)  # id -> entries that have it, if there is more than one
        self._twice: dict[str, list[str]] = {}  # entry -> the places in which it was seen
        self._unnoted: dict[str, set[str]] = defaultdict(set)  # key -> who comes first, and is not noted
        self._orphans: dict[str, tuple[str, str]] = {}  # entry that is nowhere -> the key that it leads; any who follow
        self._found: dict[str, set[str]] = defaultdict(set)  # kind of fault -> words
        self._messages = 0

    def all(self) -> Generator[CheckConsistency, ConsistencyPage, ConsistencyChecked]:
        yield from self._each(MESSAGES, self._stored)
        self._messages = len(self._places)
        yield from self._consumers()
        for _ in range(2):  # again for the lost: another server may have taken over, and put back what was taken
            yield from self._all_places()
            yield from self._lost()
            if not self._orphans:
                break
        for part in (NOTES, LINES, DEATHS):
            yield from self._each(part)
        yield from self._each(LETTERS, lambda _, ids: self._letters.update(ids))
        doubled = yield from self._doubled()
        yield from self._rivals()
        return self._told(doubled)

    # Pages.

    def _ask(self, part: str, which: str = "", at: str = "0", candidates: Sequence[str] = ()) -> CheckConsistency:
        return CheckConsistency(self._name, part, which, at, self._most, tuple(candidates))

    def _each(
        self, part: str, see: Callable[[str, Sequence[str]], None] | None = None, which: str = ""
    ) -> Generator[CheckConsistency, ConsistencyPage, None]:
        at, place = "0", f"{part} {which}" if which else part
        while True:
            page = yield self._ask(part, which, at)
            self._hear(place, page)
            if see is not None:
                see(place, page.values)
            at = page.at
            if at == "0":
                return

    def _hear(self, place: str, page: ConsistencyPage) -> None:
        for kind, word, entry in page.faults:
            if kind == "missing":
                self._found[kind].add(f"{place} {word}")
            elif kind == "unnoted":
                self._unnoted[word].add(entry)
            else:
                self._found[kind].add(word)

    def _stored(self, _: str, words: Sequence[str]) -> None:
        for entry, id_ in zip(words[::2], words[1::2], strict=True):
            self._places.setdefault(entry, "")
            other = self._ids.setdefault(id_, entry)
            if other != entry:
                self._shared[id_] |= {other, entry}

    def _sight(self, place: str, entries: Sequence[str]) -> None:
        for entry in entries:
            before = self._places.get(entry)
            if before is None:
                continue  # it came later, or has no message
            if before not in ("", place) and not (before.startswith(READY) and place.startswith(HELD)):
                self._seen_twice(entry, before, place)
            self._places[entry] = place

    def _seen_twice(self, entry: str, *places: str) -> None:
        seen = self._twice.setdefault(entry, [])
        seen += [place for place in places if place not in seen]

    def _consumers(self) -> Pages:
        tokens: dict[str, None] = {}
        yield from self._each(CONSUMERS, lambda _, found: tokens.update(dict.fromkeys(found)))
        for token in tokens:
            yield from self._each(HELD, self._sight, token)

    def _all_places(self) -> Pages:
        for part in (DELAYED, BEHIND):
            yield from self._each(part, self._sight)
        page = yield self._ask(LANES)
        for lane in page.values:
            yield from self._lane(lane)
        yield from self._consumers()

    def _lane(self, lane: str) -> Pages:
        """From its end, where what is taken meanwhile moves nothing; what is sent meanwhile has it read again.

        What is taken out of its middle moves the rest towards the end. So a page has to begin with what was seen
        before, or with something newer; else what is nearer to the end is read again.
        """
        place, at, oldest = f"{READY} {lane}", 1, NEWEST
        while True:
            page = yield self._ask(READY, lane, str(at))
            self._hear(place, page)
            self._sight(place, page.values)
            size, words = int(page.at), page.values
            numbers = self._in_order(place, words)
            if at > 1 and (not words or (numbers and numbers[0] < oldest)):
                at = max(1, min(at - self._most, size))
                continue
            oldest = min([oldest, *numbers])
            if at + len(words) > size:
                return
            at += len(words) - 1

    def _in_order(self, place: str, words: Sequence[str]) -> list[int]:
        """The numbers of a page, which begins with the newest; whoever is older than the next one was put there."""
        for entry, count in Counter(words).items():
            if count > 1 and entry in self._places:
                self._twice[entry] = [place] * count
        ours = [(int(found[1]), word) for word in words if (found := _OURS.fullmatch(word))]
        self._found["unordered"] |= {word for (number, word), (older, _) in pairwise(ours) if number <= older}
        return [number for number, _ in ours]

    # A second look.

    def _lost(self) -> Pages:
        """Who was stored before, was seen in no place, and is stored now."""
        unseen, at = [entry for entry, place in self._places.items() if not place], 0
        self._orphans.clear()
        while at < len(unseen):
            part = unseen[at : at + RECHECKED_AT_ONCE]
            page = yield self._ask(AGAIN, candidates=[word for entry in part for word in (entry, "")])
            for entry, (id_, key, followed) in zip(part, _threes(page.values), strict=False):
                if id_:
                    self._orphans[entry] = (key, followed)
                else:
                    del self._places[entry]
            at += len(page.values) // 3

    def _doubled(self) -> Generator[CheckConsistency, ConsistencyPage, dict[str, int]]:
        """In how many places a message is, by its id, of those that are in more than one."""
        suspects = [[(entry, place) for place in places] for entry, places in self._twice.items()]
        for id_ in self._shared.keys() | (self._letters & self._ids.keys()):
            entries = self._shared.get(id_) or {self._ids[id_]}
            seen = [(entry, self._places[entry]) for entry in sorted(entries) if self._places.get(entry)]
            suspects.append([*seen, (id_, DEAD)] if id_ in self._letters else seen)
        doubled: dict[str, int] = {}
        for group in suspects:
            page = yield self._ask(AGAIN, candidates=[word for each in group for word in each])
            standing = [id_ for id_, _, _ in _threes(page.values) if id_]
            if len(standing) > 1:
                doubled[standing[0]] = len(standing)
                self._found["unordered"] -= {entry for entry, _ in group}
        return doubled

    def _rivals(self) -> Pages:
        """Keys of which two come first, and neither is noted."""
        for key, entries in self._unnoted.items():
            if len(entries) > 1:
                page = yield self._ask(AGAIN, candidates=[word for entry in sorted(entries) for word in (entry, "")])
                if sum(bool(id_) for id_, _, _ in _threes(page.values)) > 1:
                    self._found["several"].add(key)

    def _told(self, doubled: dict[str, int]) -> ConsistencyChecked:
        """Whoever is noted as the first of its key and is nowhere leaves those without a first who stand behind it."""
        found, lost = self._found, {key for key, _ in self._orphans.values() if key}
        found["nowhere"] = set(self._orphans)
        found["several"] -= lost
        found["misnoted"] |= self._unnoted.keys() | lost
        found["unled"] |= {key for key, followed in self._orphans.values() if followed}
        found["unled"] -= self._unnoted.keys() | found["several"]
        faults = [f"message {id_} is in {count} places" for id_, count in doubled.items()]
        faults += [f"{len(found[kind])} {sentence}" for kind, sentence in _SENTENCES.items() if found[kind]]
        return ConsistencyChecked(self._messages + len(self._letters), tuple(faults))


def _threes(words: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    return zip(words[::3], words[1::3], words[2::3], strict=True)
