"""The shelves of directories, in this process: for the memory engine."""

from __future__ import annotations

from bisect import bisect_left, insort

from holdfast.rules.registry import LETTERS_MAX, LETTERS_MS


class MemoryShelves:
    """Entries in order, with the tokens that put them there. An empty shelf is none."""

    def __init__(self) -> None:
        self._order: dict[tuple[str, str], list[str]] = {}
        self._tokens: dict[tuple[str, str], dict[str, str]] = {}
        self._heirs: dict[tuple[str, str], tuple[str, int]] = {}
        self._boxes: dict[str, tuple[int, list[tuple[str, str]]]] = {}  # with their ends, which come in this order
        self.now_us = 0  # set by whoever asks

    def put(self, directory: str, shelf: str, entry: str, token: str) -> None:
        key = (directory, shelf)
        tokens = self._tokens.setdefault(key, {})
        if entry not in tokens:
            insort(self._order.setdefault(key, []), entry)
        tokens[entry] = token

    def drop(self, directory: str, shelf: str, entry: str, token: str) -> None:
        key = (directory, shelf)
        tokens = self._tokens.get(key, {})
        if tokens.get(entry) != token:
            return
        del tokens[entry]
        order = self._order[key]
        del order[bisect_left(order, entry)]
        if not order:
            del self._order[key], self._tokens[key]

    def standing(self, directory: str, shelf: str, prefix: str, after: str, limit: int) -> list[tuple[str, str]]:
        key = (directory, shelf)
        order, tokens = self._order.get(key, []), self._tokens.get(key, {})
        found: list[tuple[str, str]] = []
        for at in range(bisect_left(order, max(prefix, after)), len(order)):
            entry = order[at]
            if len(found) >= limit or not entry.startswith(prefix):
                break
            if entry > after:
                found.append((entry, tokens[entry]))
        return found

    def keep_for(self, directory: str, entry: str, heir: str, lasts_ms: int) -> None:
        if heir:
            self._heirs[directory, entry] = (heir, self.now_us + lasts_ms * 1000)
        else:
            self._heirs.pop((directory, entry), None)

    def heir(self, directory: str, entry: str) -> tuple[str, int]:
        heir, until_us = self._heirs.get((directory, entry), ("", 0))
        if until_us <= self.now_us:
            self._heirs.pop((directory, entry), None)
        return heir, max(0, until_us - self.now_us) // 1000

    def post(self, token: str, letter: str, text: str) -> bool:
        box = self._box(token)
        if len(box) >= LETTERS_MAX:
            return False
        box.append((letter, text))
        self._boxes.pop(token, None)  # it is the newest now
        self._boxes[token] = (self.now_us + LETTERS_MS * 1000, box)
        return True

    def letters(self, token: str, most: int) -> list[tuple[str, str]]:
        return self._box(token)[:most]

    def tear(self, token: str, count: int) -> None:
        box = self._box(token)
        del box[:count]
        if not box:
            self._boxes.pop(token, None)

    def _box(self, token: str) -> list[tuple[str, str]]:
        """A box that counts; those whose time is over are forgotten, the oldest first."""
        while self._boxes:
            oldest = next(iter(self._boxes))
            if self._boxes[oldest][0] > self.now_us:
                break
            del self._boxes[oldest]
        return self._boxes.get(token, (0, []))[1]
