"""Every error of the library, and what the caller should do about each.

Data first: an error is built from the facts, its sentence is derived from them, and it survives pickling because
`args` holds what the constructor has to be given. `retryable` says whether the same call may simply be made again:
it is true only where nothing was started, and where another try may end otherwise.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any


class UnavailableReason(StrEnum):
    """Why an engine cannot be used: the `reason` of `Unavailable`."""

    UNREACHABLE = "unreachable"
    REPLY_LOST = "reply lost"  # the command may have been applied
    STALLED = "stalled"  # it answers too late, or another process blocks it
    LOADING = "loading"
    BUSY = "busy"
    READ_ONLY = "read-only"
    MOVING = "moving"  # its servers were reached, but none serves the name just now: a failover, a slot on its way
    FULL = "full"
    OUT_OF_DESCRIPTORS = "out of descriptors"
    NOT_CONFIRMED = "not confirmed"  # a replica did not confirm in time
    NO_SUCH_FILE = "no such file"
    NO_INDEX = "no full-text index"
    NO_PERMISSION = "no permission"
    OTHER_LAYOUT = "other layout"
    NEWER = "newer"
    OTHER_TOPOLOGY = "other topology"
    CORRUPT = "corrupt"
    REPLACED = "replaced"  # the file or directory is no longer the one that was opened
    FAILED = "failed"


class LossReason(StrEnum):
    """Why a lease was lost: the `reason` of `LeaseLost`."""

    EXPIRED = "expired"
    BROKEN = "broken"  # by force, with a message in `detail`
    FORKED = "forked"  # it belongs to the parent process
    CLOSED = "closed"  # its client was closed
    REPLACED = "replaced"  # the file or directory of the engine was replaced
    RELEASED = "released"  # it is not lost, but was released before
    UNDONE = "undone"


MOVING = UnavailableReason.MOVING

# Reasons of `Unavailable` that may pass by themselves while a waiter waits; the others need an operator.
PASSING = frozenset(
    (
        UnavailableReason.UNREACHABLE,
        UnavailableReason.REPLY_LOST,
        UnavailableReason.STALLED,
        UnavailableReason.LOADING,
        UnavailableReason.BUSY,
        UnavailableReason.READ_ONLY,
        MOVING,
    )
)

# Reasons that waiting does not change: a password, a permission, a location that is not what it should be.
LASTING = frozenset(
    (
        UnavailableReason.NO_PERMISSION,
        UnavailableReason.OTHER_LAYOUT,
        UnavailableReason.NEWER,
        UnavailableReason.OTHER_TOPOLOGY,
        UnavailableReason.CORRUPT,
        UnavailableReason.REPLACED,
        UnavailableReason.FAILED,
    )
)

# Reasons that mean: the store that granted the lease is gone, and others may hold the lease elsewhere by now.
GONE = frozenset((UnavailableReason.REPLACED,))


# Of many rights it is not one who has them: what to say about when there will be one.
EMPTY_POOL = "empty pool"
_WHEN_MANY = {
    EMPTY_POOL: "it has no items, call set_items first",
    "all busy": "the first of them is busy{}",
    "share used up": "the first that comes back is busy{}",
    "busy": "those inside have it{}",
    "engine restarted": "somebody may trust what it has forgotten{}",
}


# Why an owner could not claim a key.
_UNCLAIMED = {
    "owned": "it is held by {holder} under fence {fence}",
    "ours": "this owner has it already, under fence {fence}: see its `assignments`",
    "delayed": "its delay has not ended",
    "dead": "its consumer died in the last attempt, and it is a dead letter now",
}


class HoldfastError(Exception):
    """The family: `except HoldfastError` catches everything that this library raises on purpose."""

    retryable: bool = False


class Unavailable(HoldfastError):
    """The engine cannot be used; nothing was started. Try again later, unless the reason is one that stays.

    Of `publish_many`, the messages in `sent` were sent before; what came right after them may have been sent too.
    """

    retryable = True
    sent: tuple[str, ...] = ()

    def __init__(self, engine: str, reason: str, detail: str = "") -> None:
        super().__init__(engine, reason, detail)
        self.engine = engine
        self.reason = UnavailableReason(reason)
        self.detail = detail
        self.retryable = reason not in LASTING

    def __str__(self) -> str:
        before = f"; {len(self.sent)} messages were sent before" if self.sent else ""
        detail = f": {self.detail}" if self.detail else ""
        return f"engine {self.engine} is unavailable ({self.reason}){detail}{before}"

    def after(self, sent: tuple[str, ...]) -> Unavailable:
        """The same, of a call that has sent these before: as a whole it is not to be repeated."""
        error = Unavailable(self.engine, self.reason, self.detail)
        error.sent, error.retryable = sent, error.retryable and not sent
        return error


class ReplyLost(Unavailable):
    """The engine was reached, but its answer was not: the command may have been applied.

    Callers of the library meet it only as `Unavailable`. The core sends such a command again, with the same token.
    """


class NotAcquired(HoldfastError, TimeoutError):
    """Somebody else held the lease until the caller's patience ended; or a key of the `queue`, when it was claimed."""

    retryable = True

    def __init__(
        self,
        name: str,
        *,
        reason: str = "busy",
        holder: str = "",
        fence: int | None = None,
        waited: float = 0.0,
        remaining: float | None = None,
        queue: str = "",
    ) -> None:
        super().__init__(name)
        self.name = name
        self.reason = reason
        self.holder = holder
        self.fence = fence
        self.waited = waited
        self.remaining = remaining
        self.queue = queue

    def __str__(self) -> str:
        if self.queue:
            why = _UNCLAIMED.get(self.reason, self.reason).format(holder=self.holder, fence=self.fence)
            return f"key {self.name!r} of queue {self.queue!r} was not claimed: {why}"
        left = "" if self.remaining is None else f" for another {self.remaining:.3f} s unless renewed"
        if self.holder:
            more = f", held by {self.holder} under fence {self.fence}{left}"
        elif self.reason in _WHEN_MANY and (self.remaining or self.reason == EMPTY_POOL):
            more = f"; {_WHEN_MANY[self.reason].format(left)}"
        else:
            more = ""
        return f"lease {self.name!r} was not acquired ({self.reason}) after {self.waited:.3f} s{more}"


class LeaseLost(HoldfastError):
    """The work settled, but exclusivity cannot be vouched for. Do not simply run it again.

    `result` is what the work returned, if it returned; otherwise the work's own error is the `__cause__`.
    """

    def __init__(self, name: str, fence: int | None, reason: str, *, detail: str = "", result: Any = None) -> None:
        super().__init__(name, fence, reason)
        self.name = name
        self.fence = fence
        self.reason = LossReason(reason)
        self.detail = detail
        self.result = result

    def __str__(self) -> str:
        detail = f": {self.detail}" if self.detail else ""
        during = f"; the work itself failed with {self.__cause__!r}" if self.__cause__ is not None else ""
        return f"lease {self.name!r} with fence {self.fence} was lost ({self.reason}){detail}{during}"


class RateLimited(HoldfastError, TimeoutError):
    """A limit refused it for longer than the caller was willing to wait. Nothing was counted.

    `trouble`: why the engine could not be asked, if that is the reason; then it need not be over its limit.
    """

    retryable = True

    def __init__(self, name: str, retry_after: float, remaining: int, limit: int, *, trouble: str = "") -> None:
        super().__init__(name)
        self.name = name
        self.retry_after = retry_after
        self.remaining = remaining
        self.limit = limit
        self.trouble = trouble

    def __reduce__(self) -> tuple[Any, ...]:  # a TimeoutError takes several arguments for a number and a text
        return type(self), (self.name, self.retry_after, self.remaining, self.limit), self.__dict__

    def __str__(self) -> str:
        if self.trouble:
            later = f"try again in {self.retry_after:.3f} s"
            return f"{self.name!r} is refused while the engine cannot be asked ({self.trouble}): {later}"
        left = f"{self.remaining} of {self.limit} left"
        return f"{self.name!r} is over its limit ({left}): try again in {self.retry_after:.3f} s"


class BudgetExceeded(HoldfastError):
    """A budget has no room for the amount. Nothing was put aside."""

    retryable = True

    def __init__(self, name: str, amount: int, remaining: int, limit: int, retry_after: float) -> None:
        super().__init__(name, amount, remaining, limit, retry_after)
        self.name = name
        self.amount = amount
        self.remaining = remaining
        self.limit = limit
        self.retry_after = retry_after
        self.retryable = amount <= limit  # what is more than all of it never fits

    def __str__(self) -> str:
        left = f"{self.remaining} of {self.limit} left"
        later = f": try again in {self.retry_after:.3f} s" if self.retry_after else ""
        return f"the budget of {self.name!r} has no room for {self.amount} ({left}){later}"


class PayloadMismatch(HoldfastError):
    """The same key came with another payload than before: a mistake, or two things under one key. Nothing was done."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"{self.name!r} has been used with another payload: it is no duplicate of this"


class Fenced(HoldfastError):
    """A guarded write with an old fence was refused: a newer holder has already written."""

    def __init__(self, name: str, fence: int, newest: int) -> None:
        super().__init__(name, fence, newest)
        self.name = name
        self.fence = fence
        self.newest = newest

    def __str__(self) -> str:
        return f"write to {self.name!r} with fence {self.fence} was refused: fence {self.newest} has written there"


class NotOwner(HoldfastError):
    """This token does not hold that name."""

    def __init__(self, name: str, detail: str = "") -> None:
        super().__init__(name, detail)
        self.name = name
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.name!r} is not held by the caller" + (f": {self.detail}" if self.detail else "")


class NotFound(HoldfastError):
    """There is no such thing."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(name, what)
        self.name = name
        self.what = what

    def __str__(self) -> str:
        return f"{self.name!r} has no {self.what}"


class ItemsLent(HoldfastError):
    """Nothing was changed: these items of the pool are lent. Wait for them, or have them leave when they come back."""

    retryable = True

    def __init__(self, name: str, items: tuple[str, ...]) -> None:
        super().__init__(name, items)
        self.name = name
        self.items = items

    def __str__(self) -> str:
        more = f" and {len(self.items) - 5} more" if len(self.items) > 5 else ""
        return f"pool {self.name!r} was not changed, items are lent: {', '.join(self.items[:5])}{more}"


class NotPermitted(HoldfastError):
    """Whoever asked may not do that; nothing was changed."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(what, why)
        self.what = what
        self.why = why

    def __str__(self) -> str:
        return f"not permitted to {self.what}: {self.why}"


class DomainMismatch(HoldfastError):
    """The resource is guarded by another engine: two locks on one thing would be none. Nothing was written."""

    def __init__(self, resource: str, guarded_by: str, configured: str) -> None:
        super().__init__(resource, guarded_by, configured)
        self.resource = resource
        self.guarded_by = guarded_by
        self.configured = configured

    def __str__(self) -> str:
        return (
            f"{self.resource} is guarded by {self.guarded_by}, and this client is connected to {self.configured}: "
            "connect to the same, spelled the same, or remove its marker when nobody uses it"
        )


class QueueFull(HoldfastError):
    """A bounded queue has no room. Of many messages, those in `sent` were sent before; nothing else was."""

    retryable = True

    def __init__(self, name: str, size: int, bound: int, sent: tuple[str, ...] = ()) -> None:
        super().__init__(name, size, bound, sent)
        self.name = name
        self.size = size
        self.bound = bound
        self.sent = sent
        self.retryable = not sent

    def after(self, sent: tuple[str, ...]) -> QueueFull:
        """The same, of a call that has sent these before."""
        return QueueFull(self.name, self.size, self.bound, sent)

    def __str__(self) -> str:
        before = f"; {len(self.sent)} messages were sent before" if self.sent else ""
        return f"queue {self.name!r} is full: {self.size} of {self.bound} messages{before}"


class BuildFailed(HoldfastError):
    """npm did not build the package; nothing of it is to be seen. Whether another try helps, its output tells."""

    def __init__(self, key: str, step: str, output: str = "") -> None:
        super().__init__(key, step, output)
        self.key = key
        self.step = step
        self.output = output

    def __str__(self) -> str:
        return f"{self.key} was not built: {self.step} failed" + (f": {self.output}" if self.output else "")


class PartlyDone(HoldfastError):
    """Of a bulk job some parts failed; the others are done and stay so. Do not simply run all of it again.

    `failed` has for each such part its first row, how many rows it has, and its error; `left` rows were not tried,
    because too many parts had failed in a row.
    """

    def __init__(self, name: str, done: int, failed: tuple[tuple[int, int, Exception], ...], left: int) -> None:
        super().__init__(name, done, failed, left)
        self.name = name
        self.done = done
        self.failed = failed
        self.left = left

    def __str__(self) -> str:
        rows = sum(rows for _, rows, _ in self.failed)
        left = f", {self.left} were not tried" if self.left else ""
        why = f"; the last error: {self.failed[-1][2]}" if self.failed else ""
        return f"of the rows for {self.name!r} {self.done} were written, {rows} failed{left}{why}"


class InvalidName(HoldfastError, ValueError):
    """A name was refused before any input or output."""

    def __init__(self, value: object, rule: str) -> None:
        super().__init__(value, rule)
        self.value = value
        self.rule = rule

    def __str__(self) -> str:
        return f"{shown(self.value)} is refused: {self.rule}"


class InvalidConfig(HoldfastError, ValueError):
    """A setting was refused before any input or output."""

    def __init__(self, setting: str, value: object, rule: str) -> None:
        super().__init__(setting, value, rule)
        self.setting = setting
        self.value = value
        self.rule = rule

    def __str__(self) -> str:
        return f"{self.setting}={shown(self.value)} is refused: {self.rule}"


class PromiseNotKept(HoldfastError):
    """The engine cannot carry what `connect` was told to require. Nothing was granted.

    `missing` are the words that do not hold; `promise` is all that does, with reasons and what to change.
    """

    def __init__(self, url: str, missing: tuple[str, ...], promise: Any) -> None:
        super().__init__(url, missing, promise)
        self.url = url
        self.missing = missing
        self.promise = promise

    def __str__(self) -> str:
        why = "; ".join((*self.promise.reasons, *(f"not seen: {what}" for what in self.promise.unseen)))
        change = "; ".join(self.promise.advice(self.missing))
        held = f"{self.promise.scope}, {self.promise.level}"
        return (
            f"{self.url} does not promise {', '.join(self.missing)}, only: {held}. Because {why}. To change: {change}"
        )


class Closed(HoldfastError):
    """This client was closed; nothing was started."""

    def __init__(self, what: str = "client") -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return f"this {self.what} is closed: connect again to go on"


def shown(value: object, limit: int = 80) -> str:
    """A value as it may stand in a message: whole if short, its beginning if long."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"
