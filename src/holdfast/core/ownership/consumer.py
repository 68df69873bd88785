"""The consumer through which an owner takes keys from one queue.

This consumer keeps its messages for a long time. So only new messages get the blame if it dies; it takes no more than
its share; and the owner watches its session, so that every loss becomes an event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.clock import NEVER_NS, NS, NS_PER_MS
from holdfast.commands.queue import BATCH_MAX
from holdfast.core.ownership.assignment import HeldAssignment
from holdfast.core.queue.consumer import ConsumerCore
from holdfast.core.resend import WIRE_NS
from holdfast.rules.queue.state import BLAME_WINDOWS_PER_TTL

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.core.queue.consumer import Delivered
    from holdfast.core.queue.queue import QueueCore
    from holdfast.core.queue.session import ConsumerSession
    from holdfast.engines import Waker


class OwnerConsumer(ConsumerCore):
    """The consumer of an owner in one queue."""

    keeps_messages = fair_share = True
    reconcile_ns = 60 * NS
    held_class = HeldAssignment

    def __init__(
        self,
        queue: QueueCore,
        make_message: Callable[[Any], Any],
        *,
        name: str | None,
        announce_expiry: bool,
        on_lost: Callable[[Delivered], None],
        on_regained: Callable[[Delivered], None],
    ) -> None:
        super().__init__(queue, make_message, name=name, prefetch=1)
        self.announce_expiry = announce_expiry
        self.waiting_token = ""  # the token of the session while it waits for a wake-up
        self.again_ns = 0  # when to fetch again
        self.newest_ns = 0  # when the consumer received its newest message
        self.woken = True  # the consumer must fetch
        self.full = False  # the consumer did not fetch, because the owner had no room
        self.draining = False  # the engine has asked the consumer to drain for a message in quarantine
        self._on_lost = on_lost
        self._on_regained = on_regained  # for an assignment that was only in doubt
        self._in_doubt = False  # the session was in doubt when the owner last looked
        self._watched: ConsumerSession | None = None  # the session whose end wakes the owner
        # How many messages in quarantine the consumer accepts: twice as many each time that it has survived some.
        self._quarantine_batch = 1

    def quarantine_max(self, now_ns: int) -> int:  # noqa: ARG002
        """Return how many messages in quarantine to accept: none while a message is in its blame window."""
        return self._quarantine_batch if self.past_blame_window() else 0

    def past_blame_window(self) -> bool:
        """Return whether no held message is in its blame window: if the consumer died now, no message would get blame.

        The window counts back from the last heartbeat that the engine got: see `ConsumerRecord.blame_from_us`.
        """
        session = self.session
        return self.blame_window_ends_ns() <= (session.heard_ns if session is not None else 0)

    def blame_window_ends_ns(self) -> int:
        """Return when the blame window of the newest message ends, if the engine gets a heartbeat after that."""
        return self.newest_ns + self.blame_window_ns() if self.held else 0

    def blame_window_ns(self) -> int:
        """Return how long the blame window of a message lasts."""
        return self.queue.ttl_ms * NS_PER_MS // BLAME_WINDOWS_PER_TTL

    def received(self, messages: Sequence[Delivered]) -> None:
        """Accept more messages from quarantine next time, if these came from there: many dead owners leave many."""
        if messages and messages[0].held.quarantined:
            self._quarantine_batch = min(2 * len(messages), BATCH_MAX)

    def must_fetch(self, now_ns: int, room: int) -> bool:
        """Return whether to fetch now. A waiting consumer gets a wake-up, so it does not fetch after other events."""
        session = self.session
        if self.woken or now_ns >= self.again_ns or session is None or not session.is_live():
            return True
        return (self.full and room > 0) or (self.draining and self.past_blame_window()) or self.should_compare(now_ns)

    def message_lost(self, delivered: Delivered) -> None:
        """Report a lost assignment as an event."""
        delivered.held.loss_reported = True
        self._report_lost_once(delivered)

    def _report_lost_once(self, delivered: Delivered) -> None:
        if not delivered.held.doubt_ns:  # otherwise the doubt was reported as a loss
            self._on_lost(delivered)

    def doubt_ns(self, now_ns: int) -> int:
        """Return when the assignments are in doubt unless the engine answers a heartbeat before."""
        session = self.session
        return session.doubt_ns if session is not None and session.is_live() and session.doubt_ns > now_ns else NEVER_NS

    def answer_until_ns(self, now_ns: int) -> int | None:
        """Return until when to wait for the answer to a fetch.

        At most until the assignments are in doubt, because the owner must then report them as lost.
        """
        return min(now_ns + WIRE_NS, self.doubt_ns(now_ns))

    def _watch_doubt(self, session: ConsumerSession) -> None:
        """Report the assignments as lost when the session comes into doubt, and as assigned if the doubt ends well.

        The owner cannot know whether another owner has the keys, so its program must stop the work.
        """
        in_doubt = session.in_doubt()
        if in_doubt == self._in_doubt:
            return
        for delivered in tuple(self.held.values()):
            held = delivered.held
            if held.session is session and not held.outcome and not held.gone and bool(held.doubt_ns) != in_doubt:
                if in_doubt:
                    self._on_lost(delivered)
                else:
                    self._on_regained(delivered)
                held.doubt_ns = session.doubt_ns if in_doubt else 0
        self._in_doubt = in_doubt

    def watch_session(self, waker: Waker) -> None:
        """Report the assignments of a lost session, and make the loss of the present session wake the owner.

        This also covers a session that was never watched: a claim may use a session that is lost before the next call.
        """
        session, watched = self.session, self._watched
        if session is not watched or (watched is not None and not watched.is_live()):
            self._watched, self._quarantine_batch, self._in_doubt = None, 1, False
            for delivered in tuple(self.held.values()):
                held = delivered.held
                if not held.session.is_live() and not held.outcome:
                    self.forget(held)
                    if isinstance(held, HeldAssignment):
                        held.report_lost(held.session.loss_reason)
                    self._report_lost_once(delivered)
        if session is None or not session.is_live():
            return
        self._watch_doubt(session)
        if session is not self._watched:
            session.add_waker(waker)  # first: an interrupt must not leave a session that only seems to be watched
            self._watched = session
            if not session.is_live():
                waker.wake()  # the session was lost before `add_waker`
