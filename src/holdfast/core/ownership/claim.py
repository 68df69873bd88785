"""Claim a key: take it over at once, if no live consumer holds it.

An assignment is handed out once: to a claim, or as an event. So if one part of a program reads events and another
claims, only one of them starts the work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.commands import NotHeld
from holdfast.commands.queue import HELD, NotTakenOver, Received, TakeOver
from holdfast.core.ownership.assignment import HeldAssignment
from holdfast.core.queue.partitions import part_of
from holdfast.core.resend import send_safely
from holdfast.errors import LeaseLost, LossReason, NotAcquired, NotFound

if TYPE_CHECKING:
    from holdfast.core.ownership.consumer import OwnerConsumer
    from holdfast.core.ownership.owner import OwnerCore
    from holdfast.core.queue.consumer import Delivered
    from holdfast.core.queue.session import ConsumerSession


# For a key without a message. An assignment without a key shows its id instead, and an id cannot be claimed.
_NONE = "none was published, or it is done; a message without a key has only an id, and cannot be claimed"


async def claim(owner: OwnerCore, key: str) -> Any:
    """Take over a key now; raise `NotAcquired` if a live consumer holds it."""
    consumer = owner.consumers[part_of(key, len(owner.consumers))]
    if owner.waker is None or owner.ended:
        where = "no keys after it was stopped" if owner.waker is not None else "keys inside its `with` block only"
        raise RuntimeError(f"owner {owner.name!r} takes {where}")
    for delivered in tuple(consumer.held.values()):
        held = delivered.held
        if isinstance(held, HeldAssignment) and held.key == key and not held.is_lost():
            return _handed_out(consumer, delivered)
    name, session = consumer.queue.name, consumer.session
    if session is None or not session.is_live():
        detail = "this owner was declared dead, and has no new session yet"
        raise LeaseLost(name, None, LossReason.EXPIRED, detail=detail)
    session.delivered = True
    try:
        answer = await _take_over(owner, consumer, session, key)
        for each in await consumer.read(session, answer.deliveries):
            if isinstance(each.held, HeldAssignment):
                each.held.report_assigned()
    except (NotAcquired, NotFound, LeaseLost):
        raise
    except BaseException:
        consumer.missed += 1  # the key may be ours without our knowledge: the next fetch finds it
        owner.wake()
        raise
    consumer.woken = True  # a take-over ends the wait of this consumer: a reader that waits has to fetch again
    owner.wake()
    claimed = consumer.held.get(answer.deliveries[0].entry)
    if claimed is None:
        raise NotFound(name, f"readable message of key {key!r}")
    return _handed_out(consumer, claimed)


def _handed_out(consumer: OwnerConsumer, delivered: Delivered) -> Any:
    """Return the assignment; raise `NotAcquired` if this process got it before, or is just ending it."""
    held = delivered.held
    assert isinstance(held, HeldAssignment)
    if held.outcome or not held.hand_out():
        raise NotAcquired(held.key, reason="ours", holder=consumer.name, fence=held.fence, queue=consumer.queue.name)
    return delivered.message


async def _take_over(owner: OwnerCore, consumer: OwnerConsumer, session: ConsumerSession, key: str) -> Received:
    queue = consumer.queue
    command = TakeOver(queue.name, session.token, key, queue.attempts_max, queue.dead_max)
    answer = await send_safely(owner.client, command)
    if isinstance(answer, NotHeld):
        session.lose(answer.reason, answer.detail)
        owner.wake()
        raise LeaseLost(queue.name, session.fence_or_none, answer.reason, detail=answer.detail)
    if isinstance(answer, NotTakenOver):
        raise _refusal(queue.name, key, answer)
    assert isinstance(answer, Received)
    if not session.is_live():  # lost while the answer was on its way
        raise session.loss()
    return answer


def _refusal(queue: str, key: str, answer: NotTakenOver) -> NotAcquired | NotFound:
    if answer.place == HELD:
        return NotAcquired(key, reason="owned", holder=answer.label, fence=answer.fence, queue=queue)
    if answer.place:
        return NotAcquired(key, reason=answer.place, queue=queue)
    return NotFound(queue, f"message of key {key!r}: {_NONE}")
