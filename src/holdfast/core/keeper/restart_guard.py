"""After an engine was replaced: whatever this client knew before counts until it would have ended.

A server that comes back without its data grants what somebody still trusts. A client that has heard of that somebody
waits until the trust has ended, and keeps others out meanwhile, before it takes what it is given. It cannot wait for
what it never heard of.

Of many rights (a pool, a semaphore, a read-write lock) it remembers one moment: when all that was lent would have come
back. Which of them the next grant is about, it was not told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from holdfast.engines import Engine

_MOST = 1024


class KnownHolder(NamedTuple):
    """What this client was told of: until when it is held, and by which run of the engine.

    `mark` is what another run would repeat only if it has forgotten nothing: the fence of a lease, or which life of
    the record of many rights it was.
    """

    until_ns: int
    mark: int | None
    restarts: int


def many_rights(name: str, kind: str) -> str:
    """What all items of a pool, seats of a semaphore, or sides of a read-write lock are remembered under."""
    return f"{name}\x00{kind}"


class RestartGuard:
    """What one client knows of leases, its own lost ones and those of others."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.forked()

    def forked(self) -> None:
        """A child has heard of nothing yet."""
        self._heard: dict[str, KnownHolder] = {}

    def heard(self, name: str, mark: int, sent_ns: int, until_ns: int, now_ns: int) -> bool:
        """Somebody holds the name until then: so a question of `sent_ns` was answered.

        False if the engine was replaced since it was sent. The word may then be that of the run before, and counts as
        such; whoever asks again knows.
        """
        before, restarts = self._heard.get(name), self._run_of(sent_ns)
        sure = restarts == self._engine.restarts
        if before is not None and before.mark != mark and before.until_ns > now_ns:
            if not sure:
                until_ns, mark = max(before.until_ns, until_ns), before.mark or 0
            elif before.restarts != restarts:
                return True  # another lease than the one that was forgotten: that one must still be waited for
        if len(self._heard) >= _MOST:
            self._heard = {each: heard for each, heard in self._heard.items() if heard.until_ns > now_ns}
        if len(self._heard) < _MOST:
            self._heard[name] = KnownHolder(until_ns, mark, restarts)
        return sure

    def renewed(self, name: str, sent_ns: int, until_ns: int) -> None:
        """Whoever holds the name does so until then at least: so a question of `sent_ns` was answered."""
        before = self._heard.get(name)
        if before is not None and before.restarts == self._run_of(sent_ns):
            self._heard[name] = before._replace(until_ns=max(before.until_ns, until_ns))

    def forgotten(self, name: str, fence: int | None, until_ns: int) -> None:
        """The engine does not know a lease of ours, which was trusted until then: so it was replaced."""
        self._heard[name] = KnownHolder(until_ns, fence, self._engine.restarts - 1)

    def until_ns(self, *names: str, life: int = 0) -> int:
        """Before that moment no grant of what is so named may be taken; 0 if nothing is known against it.

        Nothing is, of what was heard from the very record that grants (`life`): that one has forgotten nothing.
        """
        heard, restarts = [self._heard[name] for name in names if name in self._heard], self._engine.restarts
        return max(
            (one.until_ns for one in heard if one.restarts != restarts and (not life or one.mark != life)), default=0
        )

    def _run_of(self, sent_ns: int) -> int:
        """The first run that may have answered a question of that moment."""
        restarts = self._engine.restarts  # read first: a run that is noticed meanwhile makes the word an older one
        return restarts if sent_ns >= self._engine.restarted_ns else restarts - 1
