"""Posts: what an owner is in one queue.

A consumer like others, but it keeps what it takes: so only what is new may be to blame if it dies, it takes no more
than its share, and it is watched so that every loss is told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.clock import NS, NS_PER_MS
from holdfast.commands.queue import BATCH_MAX
from holdfast.core.lease.state import HELD as LIVING
from holdfast.core.ownership.assignment import mourned
from holdfast.core.queue.consumer import ConsumerBase
from holdfast.rules.queue.state import PROBATIONS_PER_TTL

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.core.queue.message import MessageBase
    from holdfast.core.queue.queue import QueueBase
    from holdfast.core.queue.session import ConsumerSession
    from holdfast.engines import Waker


class Post(ConsumerBase):
    """The consumer of one queue that an owner is."""

    _keeps = _share = True
    _reconcile_ns = 60 * NS

    def __init__(self, queue: QueueBase, *, name: str | None, heard: bool, lost: Callable[[Any], None]) -> None:
        super().__init__(queue, name=name, prefetch=1)
        self._heard = heard
        self._lost = lost
        self._seen: ConsumerSession | None = None  # the lease whose end is watched
        self._token = ""  # under which it is rung, if it waits
        self._again_ns = 0
        self._newest_ns = 0  # when it was given something last
        self._rung = True  # it is to ask
        self._full = False  # it did not ask, as there was no room
        self._drains = False  # it is asked to come back idle, for a suspect
        self._dares = 1  # how many suspects it takes at once: each time that it has lived through some, twice as many

    def _idle(self, now_ns: int) -> int:  # noqa: ARG002
        return self._dares if self._is_calm() else 0

    def _is_calm(self) -> bool:
        """Nothing that it has is new: if it died now, only a suspect that it is given would be to blame.

        What is new is reckoned from when the engine has heard of us last: see `ConsumerRecord.probation_us`.
        """
        lease = self._lease
        return self._calm_ns() <= (lease._heard_ns if lease is not None else 0)

    def _has_taken(self, works: Sequence[MessageBase]) -> None:
        """If those are suspects, and it lives, it takes more the next time: a fleet that died has many of them."""
        if works and works[0].quarantined:
            self._dares = min(2 * len(works), BATCH_MAX)

    def _calm_ns(self) -> int:
        """When it may be asked again for a suspect, if it is heard of after that."""
        return self._newest_ns + self._trial_ns() if self._with else 0

    def _trial_ns(self) -> int:
        return self._queue._ttl_ms * NS_PER_MS // PROBATIONS_PER_TTL

    def _is_due(self, now_ns: int, room: int) -> bool:
        """Whether to ask. Whoever stands in line is rung: what happens elsewhere is no reason."""
        lease = self._lease
        if self._rung or now_ns >= self._again_ns or lease is None or lease.state is not LIVING:
            return True
        return (self._full and room > 0) or (self._drains and self._is_calm()) or self._is_unsure(now_ns)

    def _bereft(self, message: MessageBase) -> None:
        message._told_of_loss = True
        self._lost(message)

    def _look_after(self, waker: Waker) -> None:
        """Tell what was lost with a lease; and have the bell rung when the present one is lost.

        Also what came by a lease that was never watched: one that somebody claimed by, and that was lost before a look.
        """
        lease, seen = self._lease, self._seen
        if lease is not seen or (seen is not None and seen.state is not LIVING):
            self._seen, self._dares = None, 1
            for work in tuple(self._with.values()):
                if work._lease.state is not LIVING and not work._settled:
                    self._forget(work)
                    mourned(work, work._lease.loss_reason)
                    self._lost(work)
        if lease is not None and lease.state is LIVING and lease is not self._seen:
            self._seen = lease
            lease.add_waker(waker)
            if lease.state is not LIVING:
                waker.wake()  # it was lost before it could ring
