"""What a client remembers of holders in case the engine restarts without its data.

A server that comes back without its data grants a lease that a previous holder may still trust. A client that knows of
that holder waits until the trust has ended, and keeps others out meanwhile, before it takes the grant. It cannot wait
for a holder that it never heard of.

Of a resource with many rights (a pool, a semaphore, a read-write lock) the guard remembers one moment: when everything
that was lent would have come back. The engine's answer does not say which of the rights the next grant is about.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from holdfast.engines import Engine

_MOST = 1024


class KnownHolder(NamedTuple):
    """A holder that this client heard of: until when it holds, and after how many restarts of the engine that was.

    `version` is a number that the engine repeats after a restart only if it has forgotten nothing: the fence of a
    lease, or the `life` of the record of many rights.
    """

    until_ns: int
    version: int | None
    restarts: int


def many_rights(name: str, kind: str) -> str:
    """Return the key of all items of a pool, permits of a semaphore, or readers and writers of a read-write lock."""
    return f"{name}\x00{kind}"


class RestartGuard:
    """What one client knows of holders: its own lost leases, and the leases of others."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.forked()

    def forked(self) -> None:
        """Forget everything, in a child process."""
        self._known: dict[str, KnownHolder] = {}

    def remember(self, name: str, version: int, sent_ns: int, until_ns: int, now_ns: int) -> bool:
        """Remember that a holder holds the name until `until_ns`, by the answer to a command that left at `sent_ns`.

        Return false if the engine has restarted since the command left. The answer may then be from before the restart
        and counts as such; the caller should send its command again.
        """
        before, restarts = self._known.get(name), self._restarts_at(sent_ns)
        current = restarts == self._engine.restarts
        if before is not None and before.version != version and before.until_ns > now_ns:
            if not current:
                until_ns, version = max(before.until_ns, until_ns), before.version or 0
            elif before.restarts != restarts:
                return True  # another lease than the forgotten one, which must still be waited for
        if len(self._known) >= _MOST:
            self._known = {each: known for each, known in self._known.items() if known.until_ns > now_ns}
        if len(self._known) < _MOST:
            self._known[name] = KnownHolder(until_ns, version, restarts)
        return current

    def renewed(self, name: str, sent_ns: int, until_ns: int) -> None:
        """Remember that the known holder holds until `until_ns` at least, by the answer to a command of `sent_ns`."""
        before = self._known.get(name)
        if before is not None and before.restarts == self._restarts_at(sent_ns):
            self._known[name] = before._replace(until_ns=max(before.until_ns, until_ns))

    def forgotten(self, name: str, fence: int | None, until_ns: int) -> None:
        """Remember that the engine has forgotten a lease of ours, trusted until `until_ns`: so it has restarted."""
        self._known[name] = KnownHolder(until_ns, fence, self._engine.restarts - 1)

    def until_ns(self, *names: str, life: int = 0) -> int:
        """Return before which moment no grant of these names may be taken; 0 if no holder is known.

        A holder that was heard of from the very record that grants (`life`) does not count: that record has forgotten
        nothing.
        """
        known, restarts = [self._known[name] for name in names if name in self._known], self._engine.restarts
        return max(
            (one.until_ns for one in known if one.restarts != restarts and (not life or one.version != life)), default=0
        )

    def _restarts_at(self, sent_ns: int) -> int:
        """Return the lowest number of restarts that an answer to a command of that moment may be from."""
        restarts = (
            self._engine.restarts
        )  # read first: a restart that is noticed meanwhile makes the answer an older one
        return restarts if sent_ns >= self._engine.restarted_ns else restarts - 1
