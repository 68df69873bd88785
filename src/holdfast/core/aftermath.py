"""After an engine was replaced: whatever this client knew before counts until it would have ended.

A server that comes back without its data grants what somebody still trusts. A client that has heard of that somebody
waits until the trust has ended, and keeps others out meanwhile, before it takes what it is given. It cannot wait for
what it never heard of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from holdfast.engines import Engine

_MOST = 1024


class Heard(NamedTuple):
    """A lease that this client was told of: until when, under which fence, by which run of the engine."""

    until_ns: int
    fence: int | None
    epoch: int


def many_rights(name: str, roof: str) -> str:
    """What all the seats of a semaphore, or all who are inside a read-write lock, are remembered under."""
    return f"{name}\x00{roof}"


class Aftermath:
    """What one client knows of leases, its own lost ones and those of others."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.forked()

    def forked(self) -> None:
        """A child has heard of nothing yet."""
        self._heard: dict[str, Heard] = {}

    def heard(self, name: str, fence: int, until_ns: int, now_ns: int) -> None:
        """Somebody holds the name until then."""
        before, epoch = self._heard.get(name), self._engine.epoch
        if before is not None and before.epoch != epoch and before.fence != fence and before.until_ns > now_ns:
            return  # another lease than the one that was forgotten: that one must still be waited for
        if len(self._heard) >= _MOST:
            self._heard = {each: heard for each, heard in self._heard.items() if heard.until_ns > now_ns}
        if len(self._heard) < _MOST:
            self._heard[name] = Heard(until_ns, fence, epoch)

    def renewed(self, name: str, until_ns: int) -> None:
        """Whoever holds the name does so until then at least."""
        before = self._heard.get(name)
        if before is not None and before.epoch == self._engine.epoch:
            self._heard[name] = before._replace(until_ns=max(before.until_ns, until_ns))

    def forgotten(self, name: str, fence: int | None, until_ns: int) -> None:
        """The engine does not know a lease of ours, which was trusted until then: so it was replaced."""
        self._heard[name] = Heard(until_ns, fence, self._engine.epoch - 1)

    def until_ns(self, *names: str) -> int:
        """Before that moment no grant of what is so named may be taken; 0 if nothing is known against it."""
        heard, epoch = [self._heard[name] for name in names if name in self._heard], self._engine.epoch
        return max((one.until_ns for one in heard if one.epoch != epoch), default=0)
