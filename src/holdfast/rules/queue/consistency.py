"""Check the consistency of a queue that is in use, page by page, although no two pages show the same instant.

The check makes two promises: it never reports a fault in a consistent queue, however fast the queue changes; and it
finds every fault that lasts.

The engine reports the faults that one page proves by itself, because the page shows all their entries at one instant.
Faults that need several pages rest on one rule: an entry is created in one place and moves at most once, from its lane
to a consumer; any other move of a message creates a new entry. It follows:

- A message is in no place if it is stored before the check reads the places, appears in none of them (lanes first, then
  consumers), and is still stored after that.
- An entry that appears in two places is in both, unless the first is a lane and the second a consumer. So the check
  reads the consumers before the lanes as well.
- A lane grows at its end, with entries whose numbers only grow. So an entry that is in a lane twice breaks the order
  somewhere.

The engine reads each candidate for a fault again, together with the other entries of that fault, at one instant.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

from holdfast.commands.queue import BEHIND, DEAD, DELAYED, HELD, READY
from holdfast.commands.queue_admin import (
    CONSUMERS,
    DEAD_LETTERS,
    DEAD_ORDER,
    KEY_HEADS,
    KEY_LINES,
    LANES,
    MESSAGES,
    PAGE,
    RECHECK,
    CheckConsistency,
    ConsistencyChecked,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from holdfast.commands.queue_admin import ConsistencyPage

    Pages = Generator[CheckConsistency, ConsistencyPage, None]

RECHECKED_AT_ONCE = 100
NEWEST = 2**63
_OWN_ENTRY = re.compile(r"(\d{16,})k?", re.ASCII)
# The kinds of faults. An engine reports all but the first; `UNINDEXED_HEAD` becomes one of the others.
NOWHERE = "nowhere"
MISSING = "missing"
SEVERAL_HEADS = "several_heads"
NO_HEAD = "no_head"
WRONG_HEAD = "wrong_head"
UNINDEXED_HEAD = "unindexed_head"
NOT_IN_LINE = "not_in_line"
OUT_OF_ORDER = "out_of_order"
DEAD_NOT_IN_ORDER = "dead_not_in_order"
_SENTENCES = {
    NOWHERE: "messages are in no place",
    MISSING: "places name a message that is not stored",
    SEVERAL_HEADS: "keys have more than one first message",
    NO_HEAD: "keys have no first message",
    WRONG_HEAD: "keys are indexed with a message that is not their first",
    NOT_IN_LINE: "messages are missing in the order of their key",
    OUT_OF_ORDER: "ready messages are out of order",
    DEAD_NOT_IN_ORDER: "dead letters are not in order",
}


def check_pages(name: str, most: int = PAGE) -> Generator[CheckConsistency, ConsistencyPage, ConsistencyChecked]:
    """Yield a command for each page of every part; return the faults at the end."""
    return _Check(name, most).check_all_parts()


class _Check:
    """One check of a queue, with the data of all pages so far."""

    def __init__(self, name: str, most: int) -> None:
        self._name, self._most = name, max(2, most)
        self._places: dict[str, str] = {}  # entry -> the place that showed it last; empty if none did yet
        self._ids: dict[str, str] = {}  # id -> entry
        self._dead_letters: set[str] = set()
        self._shared: dict[str, set[str]] = defaultdict(set)  # id -> its entries, if there is more than one
        self._twice: dict[str, list[str]] = {}  # entry -> the places that showed it
        self._unindexed: dict[str, set[str]] = defaultdict(set)  # key -> heads that the index does not name
        self._orphans: dict[str, tuple[str, str]] = {}  # entry in no place -> the key it heads; whether others follow
        self._found: dict[str, set[str]] = defaultdict(set)  # kind of fault -> values
        self._messages = 0

    def check_all_parts(self) -> Generator[CheckConsistency, ConsistencyPage, ConsistencyChecked]:
        """Yield the commands of the whole check, in an order in which moving messages cause no false fault."""
        yield from self._read_part(MESSAGES, self._store)
        self._messages = len(self._places)
        yield from self._consumers()
        for _ in range(2):  # twice if messages are in no place: a failover may have undone their delivery
            yield from self._all_places()
            yield from self._find_orphans()
            if not self._orphans:
                break
        for part in (KEY_HEADS, KEY_LINES, DEAD_ORDER):
            yield from self._read_part(part)
        yield from self._read_part(DEAD_LETTERS, lambda _, ids: self._dead_letters.update(ids))
        doubled = yield from self._find_doubled()
        yield from self._find_double_heads()
        return self._result(doubled)

    # Pages.

    def _command(self, part: str, which: str = "", at: str = "0", candidates: Sequence[str] = ()) -> CheckConsistency:
        return CheckConsistency(self._name, part, which, at, self._most, tuple(candidates))

    def _read_part(
        self, part: str, read: Callable[[str, Sequence[str]], None] | None = None, which: str = ""
    ) -> Generator[CheckConsistency, ConsistencyPage, None]:
        """Yield the commands for the pages of one part, and pass the values of each page to `read`."""
        at, place = "0", f"{part} {which}" if which else part
        while True:
            page = yield self._command(part, which, at)
            self._add_faults(place, page)
            if read is not None:
                read(place, page.values)
            at = page.at
            if at == "0":
                return

    def _add_faults(self, place: str, page: ConsistencyPage) -> None:
        for kind, value, entry in page.faults:
            if kind == MISSING:
                self._found[kind].add(f"{place} {value}")
            elif kind == UNINDEXED_HEAD:
                self._unindexed[value].add(entry)
            else:
                self._found[kind].add(value)

    def _store(self, _: str, values: Sequence[str]) -> None:
        for entry, id_ in zip(values[::2], values[1::2], strict=True):
            self._places.setdefault(entry, "")
            other = self._ids.setdefault(id_, entry)
            if other != entry:
                self._shared[id_] |= {other, entry}

    def _add_to_place(self, place: str, entries: Sequence[str]) -> None:
        for entry in entries:
            before = self._places.get(entry)
            if before is None:
                continue  # published after the first part of the check, or without a stored message
            if before not in ("", place) and not (before.startswith(READY) and place.startswith(HELD)):
                self._add_twice(entry, before, place)
            self._places[entry] = place

    def _add_twice(self, entry: str, *places: str) -> None:
        found = self._twice.setdefault(entry, [])
        found += [place for place in places if place not in found]

    def _consumers(self) -> Pages:
        tokens: dict[str, None] = {}
        yield from self._read_part(CONSUMERS, lambda _, found: tokens.update(dict.fromkeys(found)))
        for token in tokens:
            yield from self._read_part(HELD, self._add_to_place, token)

    def _all_places(self) -> Pages:
        for part in (DELAYED, BEHIND):
            yield from self._read_part(part, self._add_to_place)
        page = yield self._command(LANES)
        for lane in page.values:
            yield from self._lane(lane)
        yield from self._consumers()

    def _lane(self, lane: str) -> Pages:
        """Read a lane from its end, because a receive does not shift positions there.

        A publish in the meantime makes the check read some entries again. An entry that leaves the middle shifts older
        entries towards the end. So a page must begin with an entry that the check has already read, or a newer one;
        otherwise the check reads the part nearer to the end again.
        """
        place, at, oldest = f"{READY} {lane}", 1, NEWEST
        while True:
            page = yield self._command(READY, lane, str(at))
            self._add_faults(place, page)
            self._add_to_place(place, page.values)
            size, entries = int(page.at), page.values
            numbers = self._check_order(place, entries)
            if at > 1 and (not entries or (numbers and numbers[0] < oldest)):
                at = max(1, min(at - self._most, size))
                continue
            oldest = min([oldest, *numbers])
            if at + len(entries) > size:
                return
            at += len(entries) - 1

    def _check_order(self, place: str, entries: Sequence[str]) -> list[int]:
        """Return the numbers of a page, the newest first. Report entries that are older than the next one."""
        for entry, count in Counter(entries).items():
            if count > 1 and entry in self._places:
                self._twice[entry] = [place] * count
        own = [(int(found[1]), entry) for entry in entries if (found := _OWN_ENTRY.fullmatch(entry))]
        self._found[OUT_OF_ORDER] |= {entry for (number, entry), (older, _) in pairwise(own) if number <= older}
        return [number for number, _ in own]

    # Candidates: the engine reads them again, at one instant.

    def _find_orphans(self) -> Pages:
        """Find the messages that were stored before, appeared in no place, and are still stored."""
        unseen, at = [entry for entry, place in self._places.items() if not place], 0
        self._orphans.clear()
        while at < len(unseen):
            part = unseen[at : at + RECHECKED_AT_ONCE]
            page = yield self._command(RECHECK, candidates=[value for entry in part for value in (entry, "")])
            for entry, (id_, key, followed) in zip(part, _triples(page.values), strict=False):
                if id_:
                    self._orphans[entry] = (key, followed)
                else:
                    del self._places[entry]
            at += len(page.values) // 3

    def _find_doubled(self) -> Generator[CheckConsistency, ConsistencyPage, dict[str, int]]:
        """Return the ids of the messages that are in more than one place, with the number of places."""
        candidates = [[(entry, place) for place in places] for entry, places in self._twice.items()]
        for id_ in self._shared.keys() | (self._dead_letters & self._ids.keys()):
            entries = self._shared.get(id_) or {self._ids[id_]}
            found = [(entry, self._places[entry]) for entry in sorted(entries) if self._places.get(entry)]
            candidates.append([*found, (id_, DEAD)] if id_ in self._dead_letters else found)
        doubled: dict[str, int] = {}
        for group in candidates:
            page = yield self._command(RECHECK, candidates=[value for each in group for value in each])
            remaining = [id_ for id_, _, _ in _triples(page.values) if id_]
            if len(remaining) > 1:
                doubled[remaining[0]] = len(remaining)
                self._found[OUT_OF_ORDER] -= {entry for entry, _ in group}
        return doubled

    def _find_double_heads(self) -> Pages:
        """Find keys with two heads if the index names neither."""
        for key, entries in self._unindexed.items():
            if len(entries) > 1:
                candidates = [value for entry in sorted(entries) for value in (entry, "")]
                page = yield self._command(RECHECK, candidates=candidates)
                if sum(bool(id_) for id_, _, _ in _triples(page.values)) > 1:
                    self._found[SEVERAL_HEADS].add(key)

    def _result(self, doubled: dict[str, int]) -> ConsistencyChecked:
        """Return the answer. If the head of a key is in no place, the messages behind it have no head."""
        found, lost = self._found, {key for key, _ in self._orphans.values() if key}
        found[NOWHERE] = set(self._orphans)
        found[SEVERAL_HEADS] -= lost
        found[WRONG_HEAD] |= self._unindexed.keys() | lost
        found[NO_HEAD] |= {key for key, followed in self._orphans.values() if followed}
        found[NO_HEAD] -= self._unindexed.keys() | found[SEVERAL_HEADS]
        faults = [f"message {id_} is in {count} places" for id_, count in doubled.items()]
        faults += [f"{len(found[kind])} {sentence}" for kind, sentence in _SENTENCES.items() if found[kind]]
        return ConsistencyChecked(self._messages + len(self._dead_letters), tuple(faults))


def _triples(values: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    return zip(values[::3], values[1::3], values[2::3], strict=True)
