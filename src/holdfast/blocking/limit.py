"""Limits: may this be done now, by this key?"""

from __future__ import annotations

from holdfast.clock import Seconds
from holdfast.core.limit import limit
from holdfast.core.limit.limit import Decision, LimiterBase
from holdfast.core.step import run


class RateLimiter(LimiterBase):
    """So many in so long, for each key by itself. Threads may share it."""

    def hit(self, key: str, cost: int = 1) -> Decision:
        """Count it if it may be done now; true if so. A refusal counts nothing."""
        known = self._known(key, cost)
        return run(limit.hit(self, key, cost)) if known is None else known

    def peek(self, key: str, cost: int = 1) -> Decision:
        """Whether it could be done now. Counts nothing."""
        return run(limit.hit(self, key, cost, take=False))

    def wait(self, key: str, cost: int = 1, timeout: Seconds | None = None) -> Decision:
        """Wait until it may be done, and count it; `RateLimited` if that cannot be in time."""
        return run(limit.wait(self, key, cost, timeout))

    def reset(self, key: str) -> None:
        """Forget what was counted under the key."""
        run(limit.reset(self, key))
