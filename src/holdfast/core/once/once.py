"""`once`: at most one success for an idempotency key in a window of time.

While the work runs, the caller holds a lease, which the keeper renews like any other. A success releases the lease and
stores a marker, in one step; a failure only releases. So a crash blocks the key for the lease's ttl, not for the
window, and the sender's next try can succeed. The marker contains the result of the work, which JSON must encode, and a
digest of the payload: the same key with another payload is a mistake, not a duplicate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.clock import NEVER_NS, NS, Seconds, timeout_ns, ttl_ms
from holdfast.commands import BeginOnce, Busy, DoneMarker, FinishOnce, Granted, IsDone, MarkDone, ResetCounter
from holdfast.core.lease.acquire import AlreadyDone
from holdfast.core.lease.lease import CombinedLease, LeaseBase
from holdfast.core.lease.state import PENDING
from holdfast.core.resend import send_safely
from holdfast.engines import Capability
from holdfast.errors import InvalidConfig, PayloadMismatch
from holdfast.interrupts import raise_if_of_signal
from holdfast.names import Holder, checked_name, name_of
from holdfast.observer import DEBUG, debugging
from holdfast.text import size_of

if TYPE_CHECKING:
    from holdfast.core.client import Client

WINDOW_S = 60.0
LEASE_S = 30.0
MARKER_MAX_BYTES = 65536
# The key of the digest in the holder's info. No program would choose this key for its own info.
_DIGEST = "holdfast.payload"


class OnceOptions(NamedTuple):
    """The settings of one claim: the digest of its payload, the window of the marker, and the timeout."""

    digest: str
    window_ms: int
    timeout_ns: int | None


class OnceBase:
    """A `once`: its settings, checked before any I/O, and its commands."""

    def __init__(self, client: Client, name: str, *, window: Seconds, lease: Seconds) -> None:
        client.refuse_without(Capability.ONCE)
        self._client = client
        self.name = checked_name(name)
        self._window_ms = ttl_ms(window, setting="window")
        self._ttl_ms = ttl_ms(lease, setting="lease")

    def __repr__(self) -> str:
        return f"<once {self.name!r} on {self._client.url}>"

    def _claim_fields(self, key: str, payload: Any, timeout: Seconds | None) -> tuple[Any, ...]:
        """Return the arguments of a new claim. A refused caller compares the payload's digest in the holder's info."""
        client, digest = self._client, digest_of(payload)
        holder = client.holder._replace(info={**client.holder.info, _DIGEST: digest}) if digest else client.holder
        packed = holder.packed() if digest else client.packed
        options = OnceOptions(digest, self._window_ms, timeout_ns(timeout))
        return (options, client, name_of(self.name, key), self._ttl_ms, holder, packed, None, False)

    async def _seen(self, key: str) -> bool:
        """Return whether the work of the key was done."""
        answer = await send_safely(self._client, IsDone(name_of(self.name, key)))
        assert isinstance(answer, DoneMarker)
        return answer.exists

    async def _forget(self, key: str) -> None:
        """Delete the marker of the key, so that its work can be done again."""
        await send_safely(self._client, ResetCounter(name_of(self.name, key), "o"))


class OnceClaimBase(CombinedLease, LeaseBase):
    """The claim of one key: true if this caller must do the work, false if the work was done before."""

    def __init__(self, options: OnceOptions, client: Client, *fields: Any) -> None:
        self._options = options
        self._earlier: dict[str, Any] | None = None  # the marker of the earlier success
        self._result: Any = None
        self.begin_with = BeginOnce
        super().__init__(client, *fields)

    def __bool__(self) -> bool:
        """Return whether this caller must do the work. The answer is known only inside the block."""
        if self._earlier is None and self.state is PENDING:
            raise RuntimeError("use a claim inside its block: `with once.first(key) as first:`")
        return self._earlier is None

    @property
    def result(self) -> Any:
        """The result of the work. Set it inside the block to store it for later callers."""
        if self._earlier is not None:
            return self._earlier.get("result")
        return self._result

    @result.setter
    def result(self, value: Any) -> None:
        self._result = value

    async def _begin(self) -> None:
        """Acquire the lease, or find the marker; raise `NotAcquired` if another caller still works at the timeout."""
        if self.state is not PENDING or self.was_sent:
            raise RuntimeError("a claim can be entered only once; call first() again")
        client, wait_ns = self.client, self._options.timeout_ns
        began_ns = client.clock.now_ns()
        until_ns = NEVER_NS if wait_ns is None else began_ns + wait_ns
        client.begin(self)
        try:
            answer = await self.request_once_steps(began_ns, until_ns)
            if isinstance(answer, Busy):
                self._refuse_other_payload(Holder.unpacked(answer.holder).info.get(_DIGEST, ""))
            if isinstance(answer, Busy) and wait_ns != 0:
                await self._wait(until_ns)
            elif isinstance(answer, DoneMarker):
                self._accept_marker(answer)
            elif not isinstance(answer, Granted):
                raise self.not_acquired(answer, began_ns)
        except BaseException:
            self.undo()
            raise
        if self._earlier is not None:
            client.emit("duplicate", self.name)
            return
        client.keeper.wake_by(self.due_ns)
        if isinstance(answer, Granted) and (client.observer is not None or debugging(DEBUG)):
            # The steps of the waiting line report a grant themselves.
            client.emit("granted", self.name, self.fence_or_none, (client.clock.now_ns() - began_ns) / NS)

    async def _wait(self, until_ns: int) -> None:
        """Wait in line for the lease; once it is granted, the earlier caller has finished or failed."""
        client = self.client
        left_ns = None if until_ns == NEVER_NS else max(0, until_ns - client.clock.now_ns())
        try:
            await self.acquire_steps(left_ns)
        except AlreadyDone as done:
            self._accept_marker(done.marker)
            return
        marker = await send_safely(client, IsDone(self.name))
        assert isinstance(marker, DoneMarker)
        if marker.exists:
            await self.release_steps()
            self._accept_marker(marker)

    def _accept_marker(self, marker: DoneMarker) -> None:
        """Store the marker of the earlier success, for its result. There is no lease to release."""
        import json  # noqa: PLC0415 - needed only for a duplicate

        earlier = json.loads(marker.marker)
        self._refuse_other_payload(earlier.get("payload", ""))
        self.withdraw()
        self._earlier = earlier

    def _refuse_other_payload(self, digest: str) -> None:
        own = self._options.digest
        if digest and own and digest != own:
            raise PayloadMismatch(self.name)

    async def _leave(self, error: BaseException | None) -> None:
        """End the block: a success releases and stores a marker, in one step; a failure only releases."""
        if self._earlier is not None:
            return
        if error is None:
            try:
                self._store_success()
            except InvalidConfig as refused:
                await self.leave_steps(refused)  # the key is free again, and not marked as done
                raise
        await self.leave_steps(error)

    def _store_success(self) -> None:
        """Make the release store the marker, with the result."""
        mark = MarkDone(self.name, self._marker(), self._options.window_ms)
        self.end_with = lambda release: FinishOnce(release, mark)

    def _marker(self) -> str:
        """Return the marker as JSON; raise `InvalidConfig` for a result that a later caller could not get."""
        import json  # noqa: PLC0415 - needed only for a success

        fields = {"payload": self._options.digest, "fence": self.fence_or_none, "result": self._result}
        kind = type(self._result).__name__
        try:
            marker = json.dumps(fields, separators=(",", ":"))
        except (TypeError, ValueError, RecursionError) as error:
            raise_if_of_signal(error)
            rule = f"JSON cannot encode it ({error}); return None or a plain value. The key is not marked as done"
            raise InvalidConfig(f"result of {self.name!r}", kind, rule) from None
        if len(marker) > MARKER_MAX_BYTES:
            rule = (
                f"it has {len(marker)} bytes as JSON, and the maximum is {MARKER_MAX_BYTES}; store it elsewhere and "
                "return a reference. The key is not marked as done"
            )
            raise InvalidConfig(f"result of {self.name!r}", kind, rule)
        return marker


def digest_of(payload: Any) -> str:
    """Return a digest of the payload: of bytes as they are, of anything else as JSON with sorted keys."""
    if payload is None:
        return ""
    import hashlib  # noqa: PLC0415 - needed only with a payload
    import json  # noqa: PLC0415

    if not isinstance(payload, bytes | bytearray):
        try:
            payload = json.dumps(payload, sort_keys=True, separators=(",", ":")).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise_if_of_signal(error)
            raise InvalidConfig(
                "payload", size_of(payload), "it must be bytes, or a value that JSON can encode"
            ) from None
    return hashlib.sha256(payload).hexdigest()
