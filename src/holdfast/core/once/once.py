"""Once: at most one success for a key in a window of time.

While the work runs it has a lease, renewed like any other; a success turns that into a note, in one step with the
release; a failure only releases. So a crash blocks the key for the lease's ttl, not for the window, and the sender's
next try is processed. The note carries what the work returned, if JSON can, and a digest of the payload: the same key
with another payload is a mistake, not a duplicate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.clock import NEVER_NS, NS, Seconds, timeout_ns, ttl_ms
from holdfast.commands import BeginOnce, Busy, DoneMarker, FinishOnce, Granted, IsDone, MarkDone, ResetCounter
from holdfast.core.lease.acquire import AlreadyDone
from holdfast.core.lease.lease import CombinedLease
from holdfast.core.lease.state import PENDING
from holdfast.core.resend import send_safely
from holdfast.engines import Capability
from holdfast.errors import InvalidConfig, NotFound, PayloadMismatch
from holdfast.names import Holder, checked_name, name_of
from holdfast.observer import DEBUG, debugging, log

if TYPE_CHECKING:
    from holdfast.core.client import Client
    from holdfast.core.lease.lease import LeaseBase

WINDOW_S = 60.0
LEASE_S = 30.0
NOTE_MAX_BYTES = 65536
# Under this key of its owner's info a lease carries the digest: none that a program would choose for its own.
_DIGEST = "holdfast.payload"


class OnceBase:
    """Settings, checked before any input or output."""

    def __init__(self, client: Client, name: str, *, window: Seconds, lease: Seconds) -> None:
        client.refuse_without(Capability.ONCE)
        self._client = client
        self.name = checked_name(name)
        self._window_ms = ttl_ms(window, setting="window")
        self._ttl_ms = ttl_ms(lease, setting="lease")

    def __repr__(self) -> str:
        return f"<once {self.name!r} on {self._client.url}>"

    def _fields(self, key: str, digest: str) -> tuple[Any, ...]:
        """What a new lease is made of. Whoever is refused meanwhile reads the digest in the holder's info."""
        client = self._client
        holder = client.holder._replace(info={**client.holder.info, _DIGEST: digest}) if digest else client.holder
        packed = holder.packed() if digest else client.packed
        return (client, name_of(self.name, key), self._ttl_ms, holder, packed, None, False)


class Outcome(CombinedLease):
    """What became of one key: whether this caller is the first, and what the work gave. Both faces make it a lease."""

    _digest = ""
    _window_ms = 0
    _timeout_ns: int | None = 0
    _finished: dict[str, Any] | None = None
    _result: Any = None

    def __bool__(self) -> bool:
        """Whether the work is this caller's to do; false when it has been done. Nobody knows before its block."""
        if self._finished is None and self.state is PENDING:  # type: ignore[attr-defined]
            raise RuntimeError("who is first is known inside of its block: `with once.first(key) as first:`")
        return self._finished is None

    @property
    def result(self) -> Any:
        """What the work gave. Set it inside the block to have it kept for those who come later."""
        if self._finished is not None:
            if "result" not in self._finished:
                raise NotFound(self.name, "stored result: it has been done, but what it gave could not be kept")  # type: ignore[attr-defined]
            return self._finished["result"]
        return self._result

    @result.setter
    def result(self, value: Any) -> None:
        self._result = value


def prepared(first: Any, once: OnceBase, digest: str, timeout: Seconds | None) -> Any:
    """A new first, with the settings of its once."""
    first.begin_with = BeginOnce
    first._digest, first._window_ms, first._timeout_ns = digest, once._window_ms, timeout_ns(timeout)
    return first


async def begin(first: Any) -> None:
    """Take the lease, or find the note. `NotAcquired` if somebody is at it until patience ends."""
    if first.state is not PENDING or first.was_sent:
        raise RuntimeError("a first is entered once: ask for another")
    client, wait_ns = first.client, first._timeout_ns
    began_ns = client.clock.now_ns()
    until_ns = NEVER_NS if wait_ns is None else began_ns + wait_ns
    client.begin(first)
    try:
        answer = await first.decide_steps(began_ns, until_ns)
        if isinstance(answer, Busy):
            _refuse_other(first, Holder.unpacked(answer.holder).info.get(_DIGEST, ""))
        if isinstance(answer, Busy) and wait_ns != 0:
            await _wait(first, until_ns)
        elif isinstance(answer, DoneMarker):
            _found(first, answer)
        elif not isinstance(answer, Granted):
            raise first.not_acquired(answer, began_ns)
    except BaseException:
        undo(first)
        raise
    if first._finished is not None:
        client.emit("duplicate", first.name)
        return
    client.keeper.due(first.due_ns)
    if isinstance(answer, Granted) and (client.observer is not None or debugging(DEBUG)):
        # Whoever stood in line for it was told by the line.
        client.emit("granted", first.name, first.fence_or_none, (client.clock.now_ns() - began_ns) / NS)


async def _wait(first: Any, until_ns: int) -> None:
    """Stand in line for the lease of the one at work; when it comes, that one has finished or failed."""
    client = first.client
    left_ns = None if until_ns == NEVER_NS else max(0, until_ns - client.clock.now_ns())
    try:
        await first.acquire_steps(left_ns)
    except AlreadyDone as done:
        _found(first, done.marker)
        return
    known = await send_safely(client, IsDone(first.name))
    assert isinstance(known, DoneMarker)
    if known.exists:
        await first.release_steps()
        _found(first, known)


def _found(first: Any, known: DoneMarker) -> None:
    """It has been done: there is no lease, and nothing to give back unless a copy of the question may still arrive."""
    import json  # noqa: PLC0415 - only for what was done before

    note = json.loads(known.marker)
    _refuse_other(first, note.get("payload", ""))
    first.withdraw()
    first._finished = note


def _refuse_other(first: Any, digest: str) -> None:
    if digest and first._digest and digest != first._digest:
        raise PayloadMismatch(first.name)


async def leave(first: Any, error: BaseException | None) -> None:
    """A success leaves a note, in the step that releases; a failure only releases."""
    if first._finished is not None:
        return
    if error is None:
        succeeded(first)
    await first.leave_steps(error)


def succeeded(first: Any) -> None:
    """From now on, giving the lease back leaves a note."""
    note = MarkDone(first.name, _note(first), first._window_ms)
    first.end_with = lambda end: FinishOnce(end, note)


def _note(first: Any) -> str:
    import json  # noqa: PLC0415 - only for those who succeed

    facts = {"payload": first._digest, "fence": first.fence_or_none}
    try:
        note = json.dumps({**facts, "result": first._result}, separators=(",", ":"))
        if len(note) <= NOTE_MAX_BYTES:
            return note
        why = f"it has more than {NOTE_MAX_BYTES} bytes as JSON"
    except (TypeError, ValueError, RecursionError) as trouble:
        why = str(trouble)
    log.warning("the result of %r is not kept for those who ask again: %s", first.name, why)
    return json.dumps(facts, separators=(",", ":"))


def undo(first: LeaseBase) -> None:
    """Nobody owns it: take back what may have been granted."""
    first.undo()


def ended(first: LeaseBase) -> None:
    """However the end went: what was interrupted is finished."""
    first.end()


async def seen(once: OnceBase, key: str) -> bool:
    """Whether it has been done."""
    answer = await send_safely(once._client, IsDone(name_of(once.name, key)))
    assert isinstance(answer, DoneMarker)
    return answer.exists


async def forget(once: OnceBase, key: str) -> None:
    """Let it be done again."""
    await send_safely(once._client, ResetCounter(name_of(once.name, key), "o"))


def digest_of(payload: Any) -> str:
    """What tells one payload from another: bytes as they are, all else as JSON with its keys in order."""
    if payload is None:
        return ""
    import hashlib  # noqa: PLC0415 - only for those who have one
    import json  # noqa: PLC0415

    if not isinstance(payload, bytes | bytearray):
        try:
            payload = json.dumps(payload, sort_keys=True, separators=(",", ":")).encode()
        except (TypeError, ValueError, RecursionError):
            raise InvalidConfig("payload", payload, "it must be bytes, or something that JSON can carry") from None
    return hashlib.sha256(payload).hexdigest()
