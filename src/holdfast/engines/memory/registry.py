"""The state of registries in memory: for the memory engine."""

from __future__ import annotations

from bisect import bisect_left, insort

from holdfast.rules.journal import Journaled
from holdfast.rules.registry import MAILBOX_MAX, MAILBOX_MS


class MemoryRegistryState(Journaled):
    """The entries of each index in order, with the tokens that added them. An empty index is deleted.

    Its journal also has the leases and counters that the step of a combined command changes.
    """

    def __init__(self) -> None:
        super().__init__()
        self._order: dict[tuple[str, str], list[str]] = {}
        self._tokens: dict[tuple[str, str], dict[str, str]] = {}
        self._successors: dict[tuple[str, str], tuple[str, int]] = {}
        self._mailboxes: dict[str, tuple[int, list[tuple[str, str]]]] = {}  # with their ends, the first to end first
        self.now_us = 0  # on the calendar; the engine sets it before each command

    def _reindex(self) -> None:
        self._tokens = {key: tokens for key, tokens in self._tokens.items() if tokens}
        self._order = {key: sorted(tokens) for key, tokens in self._tokens.items()}
        self._mailboxes = dict(sorted(self._mailboxes.items(), key=lambda each: each[1][0]))

    def add(self, registry: str, index_name: str, entry: str, token: str) -> None:
        key = (registry, index_name)
        tokens = self._tokens.setdefault(key, {})
        self.journal.note(tokens, entry)
        if entry not in tokens:
            insort(self._order.setdefault(key, []), entry)
        tokens[entry] = token

    def remove(self, registry: str, index_name: str, entry: str, token: str) -> None:
        key = (registry, index_name)
        tokens = self._tokens.get(key, {})
        if tokens.get(entry) != token:
            return
        self.journal.note(tokens, entry)
        del tokens[entry]
        order = self._order[key]
        del order[bisect_left(order, entry)]
        if not order:
            self.journal.note(self._tokens, key)
            del self._order[key], self._tokens[key]

    def entries(self, registry: str, index_name: str, prefix: str, after: str, limit: int) -> list[tuple[str, str]]:
        key = (registry, index_name)
        order, tokens = self._order.get(key, []), self._tokens.get(key, {})
        found: list[tuple[str, str]] = []
        for at in range(bisect_left(order, max(prefix, after)), len(order)):
            entry = order[at]
            if len(found) >= limit or not entry.startswith(prefix):
                break
            if entry > after:
                found.append((entry, tokens[entry]))
        return found

    def set_successor(self, registry: str, entry: str, successor: str, lasts_ms: int) -> None:
        self.journal.note(self._successors, (registry, entry))
        if successor:
            self._successors[registry, entry] = (successor, self.now_us + lasts_ms * 1000)
        else:
            self._successors.pop((registry, entry), None)

    def successor(self, registry: str, entry: str) -> tuple[str, int]:
        successor, until_us = self._successors.get((registry, entry), ("", 0))
        if until_us <= self.now_us:
            self._successors.pop((registry, entry), None)
        return successor, max(0, until_us - self.now_us) // 1000

    def add_message(self, token: str, message_id: str, text: str) -> bool:
        mailbox = self._mailbox(token)
        if len(mailbox) >= MAILBOX_MAX:
            return False
        self._set_mailbox(token, self.now_us + MAILBOX_MS * 1000, [*mailbox, (message_id, text)])
        return True

    def messages(self, token: str, most: int) -> list[tuple[str, str]]:
        return self._mailbox(token)[:most]

    def delete_messages(self, token: str, count: int) -> None:
        mailbox = self._mailbox(token)[count:]
        self._set_mailbox(token, self._mailboxes.get(token, (0, []))[0], mailbox)

    def _set_mailbox(self, token: str, ends_us: int, mailbox: list[tuple[str, str]]) -> None:
        """Store the mailbox; insert it again as the last if it ends last now. An empty one is deleted."""
        self.journal.note(self._mailboxes, token)
        if not mailbox or ends_us != self._mailboxes.get(token, (0, []))[0]:
            self._mailboxes.pop(token, None)
        if mailbox:
            self._mailboxes[token] = (ends_us, mailbox)

    def _mailbox(self, token: str) -> list[tuple[str, str]]:
        """Delete the mailboxes that have ended, and return the mailbox of a token."""
        while self._mailboxes:
            oldest = next(iter(self._mailboxes))
            if self._mailboxes[oldest][0] > self.now_us:
                break
            del self._mailboxes[oldest]
        return self._mailboxes.get(token, (0, []))[1]
