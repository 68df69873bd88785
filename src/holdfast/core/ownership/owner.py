"""Owners: who has a key, for hours, and is told of everything that changes.

An owner is a consumer that keeps what it takes. However many keys it has, one lease vouches for all of them, so that a
thousand cost as many commands as one. It hears of its own losses at once, and of others' ends if it wants to: that only
makes recovery faster.

Nothing piles up. An owner takes no more than it may have, and only when somebody asks it what is new; of what is only
news it keeps so many, and counts the rest.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

from holdfast.clock import NEVER_NS, NS_PER_MS, jittered
from holdfast.commands.queue import KeysHeld, ListKeys
from holdfast.core.client import OPEN
from holdfast.core.lease.state import HELD as LIVING
from holdfast.core.ownership.assignment import Assigned, AssignmentExpired, AssignmentLost, OwnerStopped, mourned, told
from holdfast.core.queue import consumer as consuming
from holdfast.core.queue.queue import _whole
from holdfast.core.resend import WIRE_NS
from holdfast.engines import Capability
from holdfast.errors import Closed, InvalidConfig, Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from holdfast.core.ownership.assignment import News
    from holdfast.core.ownership.consumer import Post
    from holdfast.core.queue.message import MessageBase
    from holdfast.core.queue.queue import QueueBase
    from holdfast.engines import ExpiryWatch, Waker

MOST = 1000
MOST_MAX = 100_000
# How much news is kept for a slow reader; what it owns is never dropped.
NEWS_MAX = 1000
LISTEN, CONFIGURE = "listen", "configure"
STOPPED, CLOSED = "stopped", "closed"
_RETRY_NS = 800 * NS_PER_MS


class OwnerBase:
    """One owner of keys, in one queue or in all parts of one. For one reader at a time; works may be ended by any."""

    _Post: type[Post]

    def __init__(self, queues: Sequence[QueueBase], *, name: str | None, most: int, events: str | None) -> None:
        if events not in (None, LISTEN, CONFIGURE):
            raise InvalidConfig("events", events, f"it must be {LISTEN!r}, {CONFIGURE!r} or None")
        self._client = queues[0]._client
        self._most = _whole("most", most, 1, MOST_MAX)
        self._events = events
        self._posts = [self._Post(each, name=name, heard=bool(events), lost=self._told_lost) for each in queues]
        self._news: deque[News] = deque()
        self._ends: deque[tuple[str, str]] = deque()  # which consumers of which queue have ended
        self._waker: Waker | None = None
        self._listener: Any = None
        self._stopped = self._over = False
        self._turn = 0
        self.dropped = 0  # how much news there was no room for

    @property
    def name(self) -> str:
        """What it is called, for people."""
        return self._posts[0].name

    @property
    def works(self) -> dict[str, Any]:
        """What it owns now, by key."""
        return {work.key: work for post in self._posts for work in tuple(post._with.values())}

    @property
    def owned(self) -> int:
        """How many keys it owns."""
        return sum(post.in_flight for post in self._posts)

    def __repr__(self) -> str:
        return f"<owner {self.name!r} of {self._posts[0]._queue.name!r} owned={self.owned}>"

    def stop(self) -> None:
        """Take no more: whoever waits for news is told that it has ended. Any thread may say so, at any time."""
        self._stopped = True
        self._wake()

    def _wake(self) -> None:
        if self._waker is not None:
            self._waker.wake()

    def _told_lost(self, work: Any) -> None:
        self._news.append(AssignmentLost(work))

    def _told_end(self, queue: str, token: str) -> None:
        """Some consumer has ended. By the thread that hears of it, so it only takes a note."""
        if any(post._lease is not None and post._lease.token == token for post in self._posts):
            return
        if len(self._ends) < NEWS_MAX:
            self._ends.append((queue, token))
            self._wake()
        else:
            self._drop(1)

    def _drop(self, count: int) -> None:
        if count:
            self.dropped += count
            self._client.emit("events_dropped", self._posts[0]._queue.name, detail=f"{count} of others' ends")

    def _end(self, reason: str, error: Exception | None = None) -> None:
        self._over = True
        self._news.append(OwnerStopped(reason, error))


async def enter(owner: OwnerBase, run_blocking: Callable[[Callable[[], Any]], Awaitable[Any]]) -> None:
    """Begin to live in every queue, so that an engine that cannot be used is told at once."""
    client = owner._client
    if owner._waker is not None:
        raise RuntimeError(f"owner {owner.name!r} is in use: make one of its own for each block")
    if owner._events and Capability.EXPIRY_EVENTS not in client.engine.capabilities:
        rule = "this engine tells of no ends: leave it out, deaths are found without"
        raise InvalidConfig("events", owner._events, rule)
    owner._stopped = owner._over = False
    owner._waker = client.transport.waker()
    try:
        for post in owner._posts:
            await consuming.enter(post)
        if owner._events:
            owner._listener = await run_blocking(lambda: _listen(owner))
    except BaseException:
        await leave(owner, run_blocking)
        raise


def _listen(owner: OwnerBase) -> ExpiryWatch:
    """Have the servers tell of others' ends. What is said of that is about the first queue."""
    names = tuple(post._queue.name for post in owner._posts)

    def emit(kind: str, detail: str) -> None:
        owner._client.emit(kind, names[0], detail=detail)

    return owner._client.engine.watch_expiries(
        names, configure=owner._events == CONFIGURE, on_end=owner._told_end, emit=emit
    )


async def leave(owner: OwnerBase, run_blocking: Callable[[Callable[[], Any]], Awaitable[Any]]) -> None:
    """Give back everything that is owned, as if it had never been taken, and end. Again is no harm."""
    listener, owner._listener = owner._listener, None
    try:
        if listener is not None:
            await run_blocking(listener.close)
    finally:
        await _leave_all(owner._posts)
        owner._news.clear()
        owner._ends.clear()
        owner._over, owner._waker = True, None


async def _leave_all(posts: Sequence[Post], *, patient: bool = True) -> None:
    """Each of them, also if one fails. An engine that does not answer is waited for once, and not for each."""
    if posts:
        for work in tuple(posts[0]._with.values()):
            if work._lease.state is LIVING:
                told(work, "unassigned", f"key {work.key}: handed back")
            else:
                mourned(work, work._lease.loss_reason)
        clock = posts[0]._queue._client.clock
        began_ns = clock.now_ns()
        try:
            await consuming.leave(posts[0], patient=patient)
        finally:
            soon = clock.now_ns() < began_ns + WIRE_NS - _RETRY_NS
            await _leave_all(posts[1:], patient=patient and soon)


async def news(owner: OwnerBase, wait_ns: int | None) -> News | None:
    """What is new; `None` if there is nothing before patience ends, or nothing more to come."""
    clock = owner._client.clock
    until_ns = NEVER_NS if wait_ns is None else clock.now_ns() + wait_ns
    if wait_ns == 0:  # no ring is waited for
        _rung(owner._posts)
    while (event := _unread(owner)) is None and not owner._over:
        if owner._waker is None:
            raise RuntimeError(f"owner {owner.name!r} takes keys inside its `with` block only")
        if owner._stopped:
            owner._end(STOPPED)
            continue
        await _look_or_end(owner)
        if owner._news or owner._stopped or owner._over:
            continue
        if clock.now_ns() >= until_ns:
            return None
        await _sleep(owner, until_ns)
    return event


def _unread(owner: OwnerBase) -> News | None:
    """The first that is for the reader. What a claim was given is not, nor, in a child, what its parent has."""
    while owner._news:
        event = owner._news.popleft()
        if not isinstance(event, Assigned) or (not _is_parents(event) and event.work._give()):
            return event
    return None


async def _look_or_end(owner: OwnerBase) -> None:
    try:
        await _look(owner)
    except Closed:
        owner._end(CLOSED)
    except Unavailable as error:
        owner._end(str(error), error)


def _is_parents(event: Assigned) -> bool:
    """In a child: this is the parent's, who tells of it."""
    return bool(event.work._lease._is_forked())


async def _look(owner: OwnerBase) -> None:
    """What was lost, who has ended, and what there is to take; each time another queue comes first."""
    if owner._client.state is not OPEN:
        raise Closed
    assert owner._waker is not None
    while owner._ends:
        await _note_end(owner, *owner._ends.popleft())
    owner._turn += 1
    for at in range(len(owner._posts)):
        post = owner._posts[(owner._turn + at) % len(owner._posts)]
        post._look_after(owner._waker)
        if post._is_due(owner._client.clock.now_ns(), owner._most - owner.owned):
            await _fill(owner, post)
            post._look_after(owner._waker)


def _rung(posts: Sequence[Post], tokens: Sequence[str] | None = None) -> None:
    """These are to ask; all, if it is not known which."""
    for post in posts:
        post._rung = post._rung or tokens is None or post._token in tokens


async def _fill(owner: OwnerBase, post: Post) -> None:
    """Take what there is, up to what it may have."""
    clock = owner._client.clock
    now_ns = clock.now_ns()
    if post._drains and not post._is_calm():
        post._token, post._again_ns = "", max(post._calm_ns(), now_ns + post._trial_ns() // 8)
        return
    room = max(0, owner._most - owner.owned)
    post._full = not room
    if not room and not post._rung and not post._is_unsure(now_ns):
        post._token, post._again_ns = "", now_ns + post._reconcile_ns
        return
    post._rung = True  # until the answer is here
    got = await consuming.take(post, room, wait=room > 0)
    owner._news.extend(map(Assigned, got.messages))  # first of all: what is ours is told, whatever interrupts the rest
    post._rung = False
    post._has_taken(got.messages)
    for work in got.messages:
        _tell_owned(work)
    post._drains = got.drain
    post._token = got.asked.token if got.asked is not None else ""
    post._again_ns = clock.now_ns() if got.messages else got.again_ns


def _tell_owned(work: MessageBase) -> None:
    waited_s = max(0.0, time.time() - work.published)
    work._consumer._queue._client.emit("assigned", work.queue, work.fence, waited_s, detail=f"key {work.key}")


async def _note_end(owner: OwnerBase, queue: str, token: str) -> None:
    """Somebody's time has ended: tell what it had, if that is still with it."""
    try:
        answer = await owner._client.send(ListKeys(queue, token, NEWS_MAX))
    except Unavailable as error:
        owner._client.emit("unavailable", queue, detail=str(error))
        return
    assert isinstance(answer, KeysHeld)
    owner._client.emit("expiry_event", queue, detail=f"of a consumer with {answer.held} keys")
    room = max(0, NEWS_MAX - sum(isinstance(each, AssignmentExpired) for each in owner._news))
    owner._news.extend(map(AssignmentExpired, answer.keys[:room]))
    owner._drop(max(0, answer.held - room))


async def _sleep(owner: OwnerBase, until_ns: int) -> None:
    client, waker = owner._client, owner._waker
    assert waker is not None
    at_ns = min(until_ns, *(post._again_ns for post in owner._posts))
    waiting = [post for post in owner._posts if post._token and not post._rung]
    try:
        rung = await client.transport.wait_for_any([post._token for post in waiting], waker, at_ns)
        _rung(waiting, rung)
    except Unavailable as error:
        _rung(owner._posts)
        client.emit("unavailable", owner._posts[0]._queue.name, detail=str(error))
        now_ns = client.clock.now_ns()
        await waker.wait(now_ns + jittered(_RETRY_NS, now_ns))
    except BaseException:
        _rung(owner._posts)  # a ring may have come as somebody interrupted this
        raise
