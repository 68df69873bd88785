"""The restart guard: the holders that a client remembers in case the engine restarts without its data.

A server that restarts without its data grants a lease that a previous holder may still trust. A client that knows of
that holder waits until the trust has ended before it takes the grant, and keeps others out in the meantime. The client
cannot wait for a holder that it does not know of.

Of a pool, a semaphore or a read-write lock, the guard remembers one moment: when all leases of items, permits, readers
or writers would have ended. The engine's answer does not say which item the next grant is about.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from holdfast.engines import Engine

_HOLDERS_MAX = 1024


class KnownHolder(NamedTuple):
    """A holder that this client knows of: until when it holds, and the restart count of the engine at that time.

    `version`: a number that the engine repeats after a restart only if it has forgotten nothing: the fence of a lease,
    or the `life` of the record of a pool.
    """

    until_ns: int
    version: int | None
    restarts: int


def pool_resource(name: str, kind: str) -> str:
    """Return the restart guard's key for a whole pool, semaphore or read-write lock."""
    return f"{name}\x00{kind}"


class RestartGuard:
    """The holders that one client knows of: its own lost leases, and the leases of others."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.forked()

    def forked(self) -> None:
        """Forget everything, in a child process."""
        self._known: dict[str, KnownHolder] = {}

    def remember(self, name: str, version: int, sent_ns: int, until_ns: int, now_ns: int) -> bool:
        """Remember that a holder holds the name until `until_ns`: the answer to a command sent at `sent_ns` says so.

        Return false if the engine has restarted since the command was sent. The answer then counts as one from before
        the restart, and the caller should send its command again.
        """
        before, restarts = self._known.get(name), self._restarts_at(sent_ns)
        current = restarts == self._engine.restarts
        if before is not None and before.version != version and before.until_ns > now_ns:
            if not current:
                until_ns, version = max(before.until_ns, until_ns), before.version or 0
            elif before.restarts != restarts:
                return True  # this is another lease; the caller must still wait for the holder of the forgotten one
        if len(self._known) >= _HOLDERS_MAX:
            self._known = {each: known for each, known in self._known.items() if known.until_ns > now_ns}
        if len(self._known) < _HOLDERS_MAX:
            self._known[name] = KnownHolder(until_ns, version, restarts)
        return current

    def renewed(self, name: str, sent_ns: int, until_ns: int) -> None:
        """Remember that the known holder holds until `until_ns` at least: the answer to the command says so."""
        before = self._known.get(name)
        if before is not None and before.restarts == self._restarts_at(sent_ns):
            self._known[name] = before._replace(until_ns=max(before.until_ns, until_ns))

    def forgotten(self, name: str, fence: int | None, until_ns: int) -> None:
        """Remember a lease of this client that the engine has forgotten in a restart, trusted until `until_ns`."""
        self._known[name] = KnownHolder(until_ns, fence, self._engine.restarts - 1)

    def until_ns(self, *names: str, life: int = 0) -> int:
        """Return the moment before which the client must not take a grant of these names; 0 if it knows no holder.

        A holder with the same `life` as the granting record does not count: that record has forgotten nothing.
        """
        known, restarts = [self._known[name] for name in names if name in self._known], self._engine.restarts
        return max(
            (
                holder.until_ns
                for holder in known
                if holder.restarts != restarts and (not life or holder.version != life)
            ),
            default=0,
        )

    def _restarts_at(self, sent_ns: int) -> int:
        """Return the lowest restart count that the answer to a command sent at `sent_ns` may belong to."""
        # Read the count first: if the client notices a restart in between, the answer counts as an older one.
        restarts = self._engine.restarts
        return restarts if sent_ns >= self._engine.restarted_ns else restarts - 1
