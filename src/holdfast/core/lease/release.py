"""Release a lease, and end the block that holds it.

The engine compares the token. A resent release that finds another token counts as released if the first copy was sent
before the trusted deadline; otherwise the release raises `LeaseLost`. After the wire timeout the keeper sends the
release.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from holdfast.commands import NotHeld, Released
from holdfast.commands.queue import LeaveUnfinished
from holdfast.core.lease.state import ENDED, HELD, LOSING, LOST, RELEASING, LeaseCore
from holdfast.core.resend import WIRE_NS, resend
from holdfast.core.step import Ready
from holdfast.errors import GONE, Fenced, LeaseLost, LossReason, Unavailable

if TYPE_CHECKING:
    from holdfast.commands import Answer, ReleaseCommand


class ReleaseSteps(LeaseCore):
    """The steps from a held lease to an ended one."""

    async def release_steps(self, to: str = "") -> None:
        """Give the lease back; `to` is the token of the waiter that gets it next.

        Raise `LeaseLost` if the lease was lost. A second release does nothing.
        """
        try:
            state = self._begin_release()
            if state is ENDED or state is RELEASING:
                return
            command = self.release_command(to)
            if state is LOST or state is LOSING or self.state is HELD:
                self._release_too_late(command)
            client = self.client
            answer: Answer | None = LeaveUnfinished()
            while isinstance(answer, LeaveUnfinished):  # a consumer that holds many messages gives them back in steps
                sent_ns = client.clock.now_ns()
                try:
                    reply = client.transport.apply(command, sent_ns + WIRE_NS)
                    answer = reply if isinstance(reply, Ready) else await reply
                except Unavailable as error:
                    answer = await self._resend_release(command, sent_ns, error)
            self._end_release(command, answer)
        except LeaseLost:
            raise
        except BaseException:
            # Interrupted: either the caller still holds the lease and may release it again, or the keeper finishes.
            if self.state is not HELD:
                self.end(to)
            raise

    async def leave_steps(self, error: BaseException | None, to: str = "") -> None:
        """End a block whose work has finished with `error`, if any: release the lease, or raise `LeaseLost`.

        `LeaseLost` replaces the work's own error, which becomes its cause. Only an interruption (KeyboardInterrupt, a
        cancelled task, SystemExit) leaves the block unchanged, with a note. The observer gets an event if a guard
        refused a write.
        """
        self._report_fenced(error)
        try:
            await self.release_steps(to)
        except LeaseLost as lost:
            if error is None:
                raise
            if isinstance(error, LeaseLost) and (error.name, error.fence) == (lost.name, lost.fence):
                return  # the work itself raised this loss, by check() or release(): let it pass unchanged
            if isinstance(error, Exception):
                raise lost from error
            error.add_note(str(lost))

    def _release_too_late(self, command: ReleaseCommand) -> NoReturn:
        """Raise `LeaseLost`: the holder no longer has a lease to give back."""
        self.lose(LossReason.EXPIRED, self._trouble)  # no effect if the lease is already lost
        # The holder's trust ends before the lease on the engine does, so a release still helps the next holder.
        late = self.late_release_command(command) if self.loss_reason == LossReason.EXPIRED else None
        if late is not None:
            self.client.keeper.finish_release(self, late)
        raise self.loss()

    async def _resend_release(self, command: ReleaseCommand, first_ns: int, error: Unavailable) -> Answer | None:
        """Resend after an error; return the engine's answer, or `None` if none came within the wire timeout."""
        until_ns, transport = first_ns + WIRE_NS, self.client.transport
        try:
            return await resend(
                self.client,
                lambda: transport.apply(command, until_ns),
                error,
                until_ns,
                should_resend=self._should_resend_release,
                second_answer=_released_before,
            )
        except Unavailable as last_error:
            return NotHeld(last_error.reason, str(last_error)) if last_error.reason in GONE else None

    def _should_resend_release(self, error: Unavailable, _lost: bool, report: bool) -> bool:
        if error.reason in GONE:
            return False
        if report:
            self.client.emit("release_delayed", self.identity.shown, self._fence, detail=str(error))
        return True

    def _report_fenced(self, error: BaseException | None) -> None:
        """Report a refusal of this lease's own fence only: the error also passes through blocks of other leases."""
        if isinstance(error, BaseExceptionGroup):
            for member in error.exceptions:
                self._report_fenced(member)
        elif isinstance(error, Fenced) and error.fence == self._fence:
            self.client.emit("fenced", self.identity.shown, error.fence, detail=str(error))


async def _released_before(answer: Answer) -> Answer:
    """Interpret the answer to a second copy.

    The caller sent the first copy before the trusted deadline, so it still held the lease: the first copy released it.
    """
    if isinstance(answer, NotHeld) and answer.reason in (LossReason.EXPIRED, LossReason.RELEASED):
        return Released()
    return answer
