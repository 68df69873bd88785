"""Limits: may this be done now, by this key?"""

from __future__ import annotations

from holdfast.clock import Seconds
from holdfast.core.limit import limit
from holdfast.core.limit.limit import Decision, LimiterBase


class RateLimiter(LimiterBase):
    """Like `blocking.RateLimiter`, awaited."""

    async def hit(self, key: str, cost: int = 1) -> Decision:
        """Like `blocking.RateLimiter.hit`, awaited."""
        known = self._known(key, cost)
        return await limit.hit(self, key, cost) if known is None else known

    async def peek(self, key: str, cost: int = 1) -> Decision:
        """Like `blocking.RateLimiter.peek`, awaited."""
        return await limit.hit(self, key, cost, take=False)

    async def wait(self, key: str, cost: int = 1, timeout: Seconds | None = None) -> Decision:
        """Like `blocking.RateLimiter.wait`, awaited."""
        return await limit.wait(self, key, cost, timeout)

    async def reset(self, key: str) -> None:
        """Like `blocking.RateLimiter.reset`, awaited."""
        await limit.reset(self, key)
