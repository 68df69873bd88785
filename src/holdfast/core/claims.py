"""Claims: a key that nobody can vouch for, taken now by whoever asks for it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from holdfast.commands import NotHeld
from holdfast.commands.queues import HELD, Elsewhere, Taken, TakeOver
from holdfast.core import consumer as consuming
from holdfast.core.asking import ask_again
from holdfast.core.lease import HELD as LIVING
from holdfast.core.owner import _tell_owned
from holdfast.core.partitions import part_of
from holdfast.core.works import Added, WorkBase
from holdfast.errors import LeaseLost, NotAcquired, NotFound

if TYPE_CHECKING:
    from holdfast.core.incarnation import Incarnation
    from holdfast.core.message import MessageBase
    from holdfast.core.owner import OwnerBase
    from holdfast.core.post import Post


async def claim(owner: OwnerBase, key: str) -> Any:
    """Take over a key that nobody can vouch for, now; `NotAcquired` if somebody does."""
    post = owner._posts[part_of(key, len(owner._posts))]
    if owner._bell is None or owner._over:
        raise RuntimeError(f"owner {owner.name!r} takes keys inside its `with` block only")
    for work in tuple(post._with.values()):
        if isinstance(work, WorkBase) and work.key == key and not work._is_lost():
            if work._settled:  # somebody is just ending it: then it is ours no more
                raise NotAcquired(key, reason="owned", owner=owner.name, fence=work.fence)
            return _unread(owner, work)
    name, lease = post._queue.name, post._lease
    if lease is None or lease._state is not LIVING:
        raise LeaseLost(name, None, "expired", detail="this owner was taken for dead, and has not come back yet")
    lease._owned = True
    try:
        answer = await _taken_over(owner, post, lease, key)
        for each in await consuming._read(post, lease, answer.deliveries):
            _tell_owned(each)
    except (NotAcquired, NotFound, LeaseLost):
        raise
    except BaseException:
        post._missed += 1  # it may be ours, and nobody has seen it: it is told as new
        owner._ring()
        raise
    post._rung = True  # who takes something over stands in line no more: a reader that waits asks again
    owner._ring()
    given = post._with.get(answer.deliveries[0].entry)
    if given is None:
        raise NotFound(name, f"readable message of key {key!r}")
    return _unread(owner, given)


def _unread(owner: OwnerBase, work: MessageBase) -> MessageBase:
    """What is claimed does not come as something new: also if it was taken before, and nobody has heard of it yet."""
    with suppress(ValueError):
        owner._news.remove(Added(work))
    return work


async def _taken_over(owner: OwnerBase, post: Post, lease: Incarnation, key: str) -> Taken:
    queue = post._queue
    answer = await ask_again(
        owner._client, TakeOver(queue.name, lease.token, key, queue._attempts_max, queue._dead_max)
    )
    if isinstance(answer, NotHeld):
        lease._lose(answer.reason, answer.detail)
        owner._ring()
        raise LeaseLost(queue.name, lease._fence, answer.reason, detail=answer.detail)
    if isinstance(answer, Elsewhere):
        raise _refusal(queue.name, key, answer)
    assert isinstance(answer, Taken)
    if lease._state is not LIVING:  # lost while the answer was on its way
        raise lease._loss()
    return answer


def _refusal(queue: str, key: str, answer: Elsewhere) -> NotAcquired | NotFound:
    if answer.place == HELD:
        return NotAcquired(key, reason="owned", owner=answer.label, fence=answer.fence)
    if answer.place:
        return NotAcquired(key, reason=answer.place)
    return NotFound(queue, f"message of key {key!r}")
