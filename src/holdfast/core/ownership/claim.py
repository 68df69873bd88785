"""Claims: a key that nobody can vouch for, taken now by whoever asks for it.

A work is given once: to a claim, or as news. So of two parts of a program, one that reads and one that claims, one
begins it, however they meet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.commands import NotHeld
from holdfast.commands.queue import HELD, NotTakenOver, Received, TakeOver
from holdfast.core.lease.state import HELD as LIVING
from holdfast.core.ownership.assignment import AssignmentBase
from holdfast.core.ownership.owner import _tell_owned
from holdfast.core.queue import consumer as consuming
from holdfast.core.queue.partitions import part_of
from holdfast.core.resend import send_safely
from holdfast.errors import LeaseLost, NotAcquired, NotFound

if TYPE_CHECKING:
    from holdfast.core.ownership.consumer import Post
    from holdfast.core.ownership.owner import OwnerBase
    from holdfast.core.queue.session import ConsumerSession


# Of what was not found by its key. A work without one shows its id instead, and that is no way to ask for it.
_NONE = "none was sent, or it is done; what is sent without a key has only an id, and cannot be claimed"


async def claim(owner: OwnerBase, key: str) -> Any:
    """Take over a key that nobody can vouch for, now; `NotAcquired` if somebody does."""
    post = owner._posts[part_of(key, len(owner._posts))]
    if owner._waker is None or owner._over:
        where = "no keys after it was stopped" if owner._waker is not None else "keys inside its `with` block only"
        raise RuntimeError(f"owner {owner.name!r} takes {where}")
    for work in tuple(post._with.values()):
        if isinstance(work, AssignmentBase) and work.key == key and not work._is_lost():
            return _given(post, work)
    name, lease = post._queue.name, post._lease
    if lease is None or lease.state is not LIVING:
        raise LeaseLost(name, None, "expired", detail="this owner was taken for dead, and has not come back yet")
    lease.delivered = True
    try:
        answer = await _taken_over(owner, post, lease, key)
        for each in await consuming._read(post, lease, answer.deliveries):
            _tell_owned(each)
    except (NotAcquired, NotFound, LeaseLost):
        raise
    except BaseException:
        post._missed += 1  # it may be ours, and nobody has seen it: it is told as new
        owner._wake()
        raise
    post._rung = True  # who takes something over stands in line no more: a reader that waits asks again
    owner._wake()
    claimed = post._with.get(answer.deliveries[0].entry)
    if not isinstance(claimed, AssignmentBase):
        raise NotFound(name, f"readable message of key {key!r}")
    return _given(post, claimed)


def _given(post: Post, work: AssignmentBase) -> AssignmentBase:
    """What is ours, unless somebody here was given it before, or is just ending it."""
    if work._settled or not work._give():
        raise NotAcquired(work.key, reason="ours", holder=post.name, fence=work.fence, queue=post._queue.name)
    return work


async def _taken_over(owner: OwnerBase, post: Post, lease: ConsumerSession, key: str) -> Received:
    queue = post._queue
    answer = await send_safely(
        owner._client, TakeOver(queue.name, lease.token, key, queue._attempts_max, queue._dead_max)
    )
    if isinstance(answer, NotHeld):
        lease.lose(answer.reason, answer.detail)
        owner._wake()
        raise LeaseLost(queue.name, lease.fence_or_none, answer.reason, detail=answer.detail)
    if isinstance(answer, NotTakenOver):
        raise _refusal(queue.name, key, answer)
    assert isinstance(answer, Received)
    if lease.state is not LIVING:  # lost while the answer was on its way
        raise lease.loss()
    return answer


def _refusal(queue: str, key: str, answer: NotTakenOver) -> NotAcquired | NotFound:
    if answer.place == HELD:
        return NotAcquired(key, reason="owned", holder=answer.label, fence=answer.fence, queue=queue)
    if answer.place:
        return NotAcquired(key, reason=answer.place, queue=queue)
    return NotFound(queue, f"message of key {key!r}: {_NONE}")
