"""Works: keys that are owned, what becomes of them, and what an owner is told.

What is said of a work counts only while it is ours: the engine compares, in the step that does it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.clock import NS
from holdfast.core.queue import message
from holdfast.core.queue.message import MessageBase
from holdfast.core.queue.outcomes import checked_reason
from holdfast.errors import LeaseLost

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from holdfast.clock import Seconds
    from holdfast.commands.queue import Delivery
    from holdfast.core.ownership.consumer import Post
    from holdfast.core.queue.session import ConsumerSession


@dataclass(frozen=True, slots=True)
class Assigned:
    """This work is ours now."""

    work: Any


@dataclass(frozen=True, slots=True)
class AssignmentLost:
    """This work is not ours any more: stop. Whatever is still said of it is refused."""

    work: Any


@dataclass(frozen=True, slots=True)
class AssignmentExpired:
    """Somebody else's time has ended who had this key. Nothing needs to be done: `claim` it, or let it come."""

    key: str


@dataclass(frozen=True, slots=True)
class OwnerStopped:
    """There is nothing more to come, for this reason; the error, if it was one."""

    reason: str
    error: Exception | None = None


News = Assigned | AssignmentLost | AssignmentExpired | OwnerStopped


class AssignmentBase(MessageBase):
    """A key that is ours, with what was sent about it. Its fence is larger than every one that the key had before."""

    def __init__(self, post: Post, lease: ConsumerSession, delivery: Delivery, body: Any) -> None:
        super().__init__(post, lease, delivery, body)
        self._got_ns = post._newest_ns = lease.client.clock.now_ns()
        self._given = threading.Lock()  # closed, for good, by whoever gives it

    @property
    def key(self) -> str:
        """What it is about. A message that was sent without a key has its id for one."""
        return self._kept.key or self.id

    @property
    def token(self) -> str:
        """Whose it is: of this owner, in this life of it. For guards, beside the fence."""
        return self._lease.token

    @property
    def info(self) -> Any:
        """What was sent."""
        return self.body

    def _give(self) -> bool:
        """Whether it may be given: once, as news or to a claim, whichever asks first. In one step, of any thread."""
        return self._given.acquire(blocking=False)

    def remaining(self) -> float:
        """For how many seconds it can be vouched for without hearing from the engine."""
        return 0.0 if self._gone or self._settled else self._lease.remaining()

    def __repr__(self) -> str:
        return f"<work {self.key!r} of {self.queue!r} fence={self.fence} {self._standing('owned')}>"


def told(work: MessageBase, kind: str, detail: str) -> None:
    """Tell the observer for how long a key was owned."""
    client = work._consumer._queue._client
    owned_s = (client.clock.now_ns() - work._got_ns) / NS if isinstance(work, AssignmentBase) else None
    client.emit(kind, work.queue, work.fence, owned_s, detail=detail)


def mourned(work: MessageBase, why: str) -> None:
    """Tell the observer, once, that a key was lost."""
    if not work._told_of_loss:
        work._told_of_loss = True
        told(work, "lost", f"{why} (key {work.key})")


async def done(work: AssignmentBase) -> None:
    """The key is done with: what was sent is gone, and whoever comes next for the key may have it, in one step."""
    await _ended(work, message.ack(work), "done")


async def release(work: AssignmentBase, delay: Seconds) -> None:
    """Handed back, for others."""
    await _ended(work, message.release(work, delay), "released")


async def fail(work: AssignmentBase, reason: str, delay: Seconds | None) -> None:
    """An attempt has failed."""
    await _ended(work, message.retry(work, delay, checked_reason(reason)), "failed")


async def _ended(work: AssignmentBase, said: Awaitable[None], how: str) -> None:
    try:
        await said
    except LeaseLost as lost:
        mourned(work, lost.reason)
        raise
    told(work, "unassigned", f"key {work.key}: {how}")
