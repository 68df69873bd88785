"""Rate limits: may this key do this now?"""

from __future__ import annotations

from holdfast.clock import Seconds
from holdfast.core.limit.limit import Decision, LimiterBase
from holdfast.core.step import run


class RateLimiter(LimiterBase):
    """A rate limit per key. Threads may share it."""

    def hit(self, key: str, cost: int = 1) -> Decision:
        """Count an action of `key` if it is allowed now; return the decision, true if so. A refusal counts nothing.

        `cost`: how many units the action counts.
        """
        known = self._known_refusal(key, cost)
        return run(self._hit(key, cost)) if known is None else known

    def peek(self, key: str, cost: int = 1) -> Decision:
        """Return whether an action of `key` with this `cost` would be allowed now. Counts nothing."""
        return run(self._hit(key, cost, take=False))

    def wait(self, key: str, cost: int = 1, timeout: Seconds | None = None) -> Decision:
        """Wait until an action of `key` is allowed, and count it; raise `RateLimited` if that cannot be in time.

        `cost`: how many units the action counts. `timeout`: seconds to wait; `None` waits for ever.
        """
        return run(self._wait(key, cost, timeout))

    def reset(self, key: str) -> None:
        """Delete the counts of `key`."""
        run(self._reset(key))
