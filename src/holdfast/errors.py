"""Every error of the library, and what the caller should do about each.

An error stores its data and derives its message from them. An error survives pickling, because `args` holds the
arguments of its constructor. `retryable` is true if the caller may simply make the same call again: nothing was
started, and another attempt may end differently.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Self

from holdfast.text import plain, shown, shown_error


class _Reason(StrEnum):
    """A reason. A text that this version does not know becomes a reason too: raising an error must not fail."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, str):
            return None
        unknown = str.__new__(cls, value)
        unknown._name_ = unknown._value_ = value
        return unknown


class UnavailableReason(_Reason):
    """Why an engine cannot be used: the `reason` of `Unavailable`."""

    UNREACHABLE = "unreachable"
    REPLY_LOST = "reply lost"  # the command may have been applied
    STALLED = "stalled"  # the engine answers too late, or another process blocks it
    LOADING = "loading"
    BUSY = "busy"
    READ_ONLY = "read-only"
    MOVING = "moving"  # the servers answer, but none serves the name now: a failover, or a slot that migrates
    FULL = "full"
    OUT_OF_DESCRIPTORS = "out of descriptors"
    OUT_OF_THREADS = "out of threads"
    OUT_OF_PROCESSES = "out of processes"
    NOT_CONFIRMED = "not confirmed"  # a replica did not confirm in time
    NO_SUCH_FILE = "no such file"
    NO_INDEX = "no full-text index"
    NO_PERMISSION = "no permission"
    OTHER_LAYOUT = "other layout"
    OTHER_TOPOLOGY = "other topology"
    OTHER_CLOCK = "other clock"  # processes of another time namespace use the file
    CORRUPT = "corrupt"
    REPLACED = "replaced"  # the file or directory is no longer the one that was opened
    FAILED = "failed"


class LossReason(_Reason):
    """Why a lease was lost: the `reason` of `LeaseLost`."""

    EXPIRED = "expired"
    BROKEN = "broken"  # by force, with a message in `detail`
    FORKED = "forked"  # the lease belongs to the parent process
    CLOSED = "closed"  # its client was closed
    REPLACED = "replaced"  # the file or directory of the engine was replaced
    RELEASED = "released"  # not lost: the holder itself released the lease before
    UNDONE = "undone"  # the library took the lease back, because no caller got it


class CommandOutcome(_Reason):
    """What became of a command that was not answered: the `outcome` of `Unavailable`."""

    NOT_STARTED = "not started"
    UNKNOWN = "unknown"  # the engine may have applied the command, or may still apply it


MOVING = UnavailableReason.MOVING
NOT_STARTED, UNKNOWN = CommandOutcome.NOT_STARTED, CommandOutcome.UNKNOWN

# Reasons of `Unavailable` that may pass by themselves while a waiter waits; the others need an operator.
PASSING = frozenset(
    (
        UnavailableReason.UNREACHABLE,
        UnavailableReason.REPLY_LOST,
        UnavailableReason.STALLED,
        UnavailableReason.LOADING,
        UnavailableReason.BUSY,
        UnavailableReason.READ_ONLY,
        UnavailableReason.OUT_OF_DESCRIPTORS,
        UnavailableReason.OUT_OF_THREADS,
        UnavailableReason.OUT_OF_PROCESSES,
        MOVING,
    )
)

# Reasons that waiting does not change: a wrong password, a missing permission, a wrong or damaged location.
LASTING = frozenset(
    (
        UnavailableReason.NO_PERMISSION,
        UnavailableReason.OTHER_LAYOUT,
        UnavailableReason.OTHER_TOPOLOGY,
        UnavailableReason.CORRUPT,
        UnavailableReason.REPLACED,
        UnavailableReason.FAILED,
    )
)

# Reasons that mean: the store that granted the lease is gone, and others may hold the lease elsewhere by now.
GONE = frozenset((UnavailableReason.REPLACED,))


# The end of the message of `NotAcquired` if no single holder can be named: when the caller may expect a grant.
EMPTY_POOL = "empty pool"
_NO_SINGLE_HOLDER = {
    EMPTY_POOL: "it has no items; call set_items() first",
    "all busy": "the first item stays lent for another {:.3f} s unless renewed",
    "share used up": "the first item of this share stays lent for another {:.3f} s unless renewed",
    "busy": "others hold it for another {:.3f} s unless renewed",
    "engine restarted": (
        "the server restarted without its data; a previous holder may still believe it holds the lease for up to "
        "{:.3f} s"
    ),
}


# The same for a semaphore: it has permits, and no items.
PERMIT = "permit"
_ALL_PERMITS_HELD = "the first permit stays held for another {:.3f} s unless renewed"

# Why an owner could not claim a key.
_UNCLAIMED = {
    "owned": "it is held by {holder} under fence {fence}",
    "ours": "this owner has it already, under fence {fence}: see its `assignments`",
    "delayed": "its delay has not ended",
    "dead": "its consumer died in the last attempt, and it is a dead letter now",
}


def _published_before(sent: tuple[str, ...]) -> str:
    """Return the end of a message that says how many messages a call published before its error."""
    if not sent:
        return ""
    return f"; {len(sent)} messages were published before" if len(sent) > 1 else "; 1 message was published before"


class HoldfastError(Exception):
    """The base class: `except HoldfastError` catches every error that this library raises on purpose."""

    retryable: bool = False

    def __str__(self) -> str:
        return plain(self._sentence())

    def _sentence(self) -> str:
        """Return the message. It may contain text that others wrote; `__str__` escapes all of it."""
        return super().__str__()


class Unavailable(HoldfastError):
    """The engine cannot be used. Try again later, if `retryable`.

    `outcome`: `"not started"`, or `"unknown"` if the engine may have applied the command; then it is not `retryable`.
    `sent`: the ids of the messages that `publish_many` published before the error. The next ones may be published too.
    """

    retryable = True
    sent: tuple[str, ...] = ()

    def __init__(self, engine: str, reason: str, detail: str = "", outcome: str = NOT_STARTED) -> None:
        super().__init__(engine, str(reason), detail, str(outcome))  # plain text, for `repr` and other versions
        self.engine = engine
        self.reason = UnavailableReason(reason)
        self.detail = detail
        self.outcome = CommandOutcome(outcome)
        self.retryable = reason not in LASTING and outcome == NOT_STARTED

    def _sentence(self) -> str:
        before = _published_before(self.sent)
        detail = f": {self.detail}" if self.detail else ""
        unknown = "; the engine may have applied the command" if self.outcome == UNKNOWN else ""
        return f"engine {self.engine} is unavailable ({self.reason}){detail}{unknown}{before}"

    def after(self, sent: tuple[str, ...]) -> Unavailable:
        """Return the same error for a call that sent these messages first, and must not be repeated as a whole."""
        error = Unavailable(self.engine, self.reason, self.detail, self.outcome)
        error.sent, error.retryable = sent, error.retryable and not sent
        return error

    def with_unknown_outcome(self) -> Unavailable:
        """Return the same error for a command that the engine may have applied, or may still apply."""
        error = Unavailable(self.engine, self.reason, self.detail, UNKNOWN)
        error.__cause__ = self
        return error


class ReplyLost(Unavailable):
    """The command reached the engine, but the answer was lost: the engine may have applied the command.

    Callers of the library see this error only as `Unavailable`. `core/resend.py` sends such a command again, with the
    same token.
    """


class UnreadableRecord(Unavailable):
    """An `Unavailable` with the reason `corrupt`: the engine cannot read the stored data of one name.

    Other names are not affected. Programs catch `Unavailable`.
    """

    retryable = False

    def __init__(
        self, engine: str, reason: str = UnavailableReason.CORRUPT, detail: str = "", outcome: str = NOT_STARTED
    ) -> None:
        super().__init__(engine, reason, detail, outcome)


class NotAcquired(HoldfastError, TimeoutError):
    """Another holder kept the lease until the timeout. With `queue`: the owner could not claim the key `name` of it.

    `unit`: what the name has several of, "item" (of a pool) or "permit" (of a semaphore).
    """

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
        unit: str = "item",
    ) -> None:
        super().__init__(name)
        self.name = name
        self.reason = reason
        self.holder = holder
        self.fence = fence
        self.waited = waited
        self.remaining = remaining
        self.queue = queue
        self.unit = unit

    def _sentence(self) -> str:
        if self.queue:
            why = _UNCLAIMED.get(self.reason, self.reason).format(holder=self.holder, fence=self.fence)
            return f"key {self.name!r} of queue {self.queue!r} was not claimed: {why}"
        if self.holder:
            left = "" if self.remaining is None else f" for another {self.remaining:.3f} s unless renewed"
            more = f", held by {self.holder} under fence {self.fence}{left}"
        elif self.reason in _NO_SINGLE_HOLDER and (self.remaining or self.reason == EMPTY_POOL):
            permits = self.unit == PERMIT and self.reason == "all busy"
            end = _ALL_PERMITS_HELD if permits else _NO_SINGLE_HOLDER[self.reason]
            more = f"; {end.format(self.remaining or 0.0)}"
        else:
            more = ""
        return f"lease {self.name!r} was not acquired ({self.reason}) after {self.waited:.3f} s{more}"


class LeaseLost(HoldfastError):
    """The work finished, but the lease did not protect it to the end. Do not simply run it again.

    `result` is what the work returned, if it returned; otherwise the work's own error is the `__cause__`.
    """

    def __init__(self, name: str, fence: int | None, reason: str, *, detail: str = "", result: Any = None) -> None:
        super().__init__(name, fence, str(reason))
        self.name = name
        self.fence = fence
        self.reason = LossReason(reason)
        self.detail = detail
        self.result = result

    def _sentence(self) -> str:
        detail = f": {self.detail}" if self.detail else ""
        if self.reason == LossReason.RELEASED and not self.detail:
            return f"lease {self.name!r} with fence {self.fence} was already released; acquire a new one"
        during = f"; the work itself failed with {shown_error(self.__cause__)}" if self.__cause__ is not None else ""
        return f"lease {self.name!r} with fence {self.fence} was lost ({self.reason}){detail}{during}"


class RateLimited(HoldfastError, TimeoutError):
    """A rate limit refused the call for longer than the caller was willing to wait. Nothing was counted.

    `trouble` says why the engine could not be reached, if that is the reason; then the limit may have room left.
    """

    retryable = True

    def __init__(self, name: str, retry_after: float, remaining: int, limit: int, *, trouble: str = "") -> None:
        super().__init__(name)
        self.name = name
        self.retry_after = retry_after
        self.remaining = remaining
        self.limit = limit
        self.trouble = trouble

    def __reduce__(self) -> tuple[Any, ...]:  # TimeoutError reads several arguments as errno and text
        return type(self), (self.name, self.retry_after, self.remaining, self.limit), self.__dict__

    def _sentence(self) -> str:
        if self.trouble:
            later = f"try again in {self.retry_after:.3f} s"
            return f"rate limit {self.name!r} refuses while the engine cannot be reached ({self.trouble}); {later}"
        left = f"{self.remaining} of {self.limit} left"
        return f"rate limit {self.name!r} is used up ({left}); try again in {self.retry_after:.3f} s"


class BudgetExceeded(HoldfastError):
    """A budget has no room for the amount. Nothing was reserved."""

    retryable = True

    def __init__(self, name: str, amount: int, remaining: int, limit: int, retry_after: float) -> None:
        super().__init__(name, amount, remaining, limit, retry_after)
        self.name = name
        self.amount = amount
        self.remaining = remaining
        self.limit = limit
        self.retry_after = retry_after
        self.retryable = amount <= limit  # more than the whole budget never fits

    def _sentence(self) -> str:
        left = f"{self.remaining} of {self.limit} left"
        later = f"; try again in {self.retry_after:.3f} s" if self.retry_after else ""
        return f"budget {self.name!r} has no room for {self.amount} ({left}){later}"


class PayloadMismatch(HoldfastError):
    """An idempotency key was used again with a different payload: probably the sender's mistake. Nothing was done."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def _sentence(self) -> str:
        return f"key {self.name!r} was already used with a different payload"


class Fenced(HoldfastError):
    """A guard refused a write with an old fence: a newer holder has already written."""

    def __init__(self, name: str, fence: int, newest: int) -> None:
        super().__init__(name, fence, newest)
        self.name = name
        self.fence = fence
        self.newest = newest

    def _sentence(self) -> str:
        return f"write to {self.name!r} with fence {self.fence} was refused: fence {self.newest} has already written"


class NotOwner(HoldfastError):
    """The caller does not hold this name: another holder has it, or the caller's lease has ended.

    `message`: the id of the message of the queue `name` that the caller has already finished, if that is the reason.
    """

    def __init__(self, name: str, detail: str = "", *, message: str = "") -> None:
        super().__init__(name, detail)
        self.name = name
        self.detail = detail
        self.message = message

    def _sentence(self) -> str:
        if self.message:
            return f"message {self.message} of queue {self.name!r} was {self.detail}"
        return f"{self.name!r} is not held by the caller" + (f": {self.detail}" if self.detail else "")


class NotFound(HoldfastError):
    """The named thing does not exist."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(name, what)
        self.name = name
        self.what = what

    def _sentence(self) -> str:
        return f"{self.name!r} has no {self.what}"


class ItemsLent(HoldfastError):
    """These items of the pool are lent, so nothing was changed. Wait until they are returned, or pass `leave=True`."""

    retryable = True

    def __init__(self, name: str, items: tuple[str, ...]) -> None:
        super().__init__(name, items)
        self.name = name
        self.items = items

    def _sentence(self) -> str:
        more = f" and {len(self.items) - 5} more" if len(self.items) > 5 else ""
        return f"pool {self.name!r} was not changed, because items are lent: {', '.join(self.items[:5])}{more}"


class NotPermitted(HoldfastError):
    """The caller has no permission for this action; nothing was changed."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(what, why)
        self.what = what
        self.why = why

    def _sentence(self) -> str:
        return f"not permitted to {self.what}: {self.why}"


class DomainMismatch(HoldfastError):
    """Another lock domain guards the resource, so this lock would not exclude its holders. Nothing was written.

    `guarded_by`, `configured`: the URLs of the two engines, without passwords. `marker`: the path of the marker file.
    """

    def __init__(self, resource: str, guarded_by: str, configured: str, marker: str = "") -> None:
        super().__init__(resource, guarded_by, configured, marker)
        self.resource = resource
        self.guarded_by = guarded_by
        self.configured = configured
        self.marker = marker

    def _sentence(self) -> str:
        marker = f"the marker file {self.marker}" if self.marker else "the marker file"
        return (
            f"{self.resource} is guarded by {self.guarded_by}, but this client is connected to {self.configured}. "
            f"Connect to that URL, spelled the same, or remove {marker} if no process uses the directory"
        )


class QueueFull(HoldfastError):
    """A bounded queue has no room. `sent`: the ids that `publish_many` published before the error, and no others."""

    retryable = True

    def __init__(self, name: str, size: int, bound: int, sent: tuple[str, ...] = ()) -> None:
        super().__init__(name, size, bound, sent)
        self.name = name
        self.size = size
        self.bound = bound
        self.sent = sent
        self.retryable = not sent

    def after(self, sent: tuple[str, ...]) -> QueueFull:
        """Return the same error for a call that has sent these messages before."""
        return QueueFull(self.name, self.size, self.bound, sent)

    def _sentence(self) -> str:
        unit = "message" if self.bound == 1 else "messages"
        return f"queue {self.name!r} is full: {self.size} of {self.bound} {unit}{_published_before(self.sent)}"


class BuildFailed(HoldfastError):
    """npm did not build the package, and nothing was published. `output` shows whether another attempt can help."""

    def __init__(self, key: str, step: str, output: str = "") -> None:
        super().__init__(key, step, output)
        self.key = key
        self.step = step
        self.output = output

    def _sentence(self) -> str:
        return f"{self.key} was not built: {self.step} failed" + (f": {self.output}" if self.output else "")


class PartlyDone(HoldfastError):
    """Some parts of a bulk job failed; the others are done. Do not simply run all of it again.

    `failed` lists for each failed part its first row, its number of rows, and its error. `left` rows were not tried,
    because too many parts had failed in a row.
    """

    def __init__(self, name: str, done: int, failed: tuple[tuple[int, int, Exception], ...], left: int) -> None:
        super().__init__(name, done, failed, left)
        self.name = name
        self.done = done
        self.failed = failed
        self.left = left

    def _sentence(self) -> str:
        rows = sum(rows for _, rows, _ in self.failed)
        left = f", {self.left} not tried" if self.left else ""
        why = f"; the last error: {self.failed[-1][2]}" if self.failed else ""
        return f"{self.name!r}: {self.done} rows written, {rows} failed{left}{why}"


class InvalidName(HoldfastError, ValueError):
    """The library refused a name, before any I/O."""

    def __init__(self, value: object, rule: str) -> None:
        super().__init__(value, rule)
        self.value = value
        self.rule = rule

    def _sentence(self) -> str:
        return f"{shown(self.value)} is refused: {self.rule}"


class InvalidConfig(HoldfastError, ValueError):
    """The library refused a setting, before any I/O."""

    def __init__(self, setting: str, value: object, rule: str) -> None:
        super().__init__(setting, value, rule)
        self.setting = setting
        self.value = value
        self.rule = rule

    def _sentence(self) -> str:
        return f"{self.setting}={shown(self.value)} is refused: {self.rule}"


class UnknownOption(InvalidConfig, TypeError):
    """A call passed a keyword option that does not exist. The error lists the options that do."""


class PromiseNotKept(HoldfastError):
    """The engine does not promise what `connect(require=...)` requires. Nothing was granted.

    `missing`: the required words that the engine's promise lacks. `promise`: the promise, with reasons and advice.
    """

    def __init__(self, url: str, missing: tuple[str, ...], promise: Any) -> None:
        super().__init__(url, missing, promise)
        self.url = url
        self.missing = missing
        self.promise = promise

    def _sentence(self) -> str:
        why = "; ".join((*self.promise.reasons, *(f"not seen: {what}" for what in self.promise.unseen)))
        change = "; ".join(self.promise.advice(self.missing))
        only = f"{self.promise.scope}, {self.promise.level}"
        return (
            f"{self.url} does not promise {', '.join(self.missing)}, only: {only}. Because {why}. To change: {change}"
        )


class Deadlock(HoldfastError):
    """The same thread or task holds the lease in an open block, so the wait would never end."""

    def __init__(self, name: str, fence: int) -> None:
        super().__init__(name, fence)
        self.name = name
        self.fence = fence

    def _sentence(self) -> str:
        return (
            f"this thread or task already holds lease {self.name!r}, in an open block with fence {self.fence}; "
            "leave that block first, or make the lock with reentrant=True"
        )


CANDIDATE = "candidate"


class Closed(HoldfastError):
    """This client was closed; nothing was started."""

    def __init__(self, what: str = "client") -> None:
        super().__init__(what)
        self.what = what

    def _sentence(self) -> str:
        if self.what == CANDIDATE:
            return "this candidate was stopped; make a new leader object"
        return f"this {self.what} is closed; connect again"
