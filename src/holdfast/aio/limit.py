"""Rate limits: may this key do this now?"""

from __future__ import annotations

from holdfast.clock import Seconds
from holdfast.core.limit.limit import Decision, LimiterBase


class RateLimiter(LimiterBase):
    """A rate limit per key. Tasks may share it."""

    async def hit(self, key: str, cost: int = 1) -> Decision:
        """Count an action of `key` if it is allowed now; return the decision, true if so. A refusal counts nothing.

        `cost`: how many units the action counts.
        """
        known = self._known_refusal(key, cost)
        return await self._hit(key, cost) if known is None else known

    async def peek(self, key: str, cost: int = 1) -> Decision:
        """Return whether an action of `key` with this `cost` would be allowed now. Counts nothing."""
        return await self._hit(key, cost, take=False)

    async def wait(self, key: str, cost: int = 1, timeout: Seconds | None = None) -> Decision:
        """Wait until an action of `key` is allowed, and count it; raise `RateLimited` if that cannot be in time.

        `cost`: how many units the action counts. `timeout`: seconds to wait; `None` waits for ever.
        """
        return await self._wait(key, cost, timeout)

    async def reset(self, key: str) -> None:
        """Delete the counts of `key`."""
        await self._reset(key)
