"""Workers: call a handler for every message, several at a time.

One loop exchanges all commands with the engine: it receives as many messages as there are free handler slots, and sends
the outcomes of finished messages in batches. Handlers run in threads (blocking face) or tasks (asyncio face); a handler
that ends adds its result to `_ended` and wakes the loop. `stop()` releases the messages whose handlers have not
started, lets the running handlers finish, and leaves the queue.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.clock import NEVER_NS, NS, NS_PER_MS, Seconds, timeout_ns
from holdfast.commands.queue import BATCH_MAX, COSTLY_BATCH_MAX, Reclaimed
from holdfast.core.client import OPEN
from holdfast.core.keeper.heartbeats import reclaim_shown
from holdfast.core.queue.outcomes import Reject, Release, Retry, readable
from holdfast.core.queue.queue import whole_number
from holdfast.core.resend import send_safely
from holdfast.errors import UNKNOWN, Closed, InvalidConfig, Unavailable
from holdfast.interrupts import raise_if_of_signal
from holdfast.observer import log

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.commands.queue import MessageOutcome
    from holdfast.core.queue.consumer import ConsumerCore, Delivered
    from holdfast.core.queue.session import ConsumerSession
    from holdfast.engines import Waker

    Ended = tuple[Delivered, BaseException | None]

CONCURRENCY_MAX = 5_000
GRACE_S = 30.0
_RECHECK_NS = NS
# A message with a key counts for two in a batch of outcomes, because other messages may be behind it.
_KEYED_WEIGHT = BATCH_MAX // COSTLY_BATCH_MAX
_CANCEL_NS = 5 * NS
_POLL_NS = 200 * NS_PER_MS
# When the engine asks a worker to drain, the worker receives nothing for `_DRAIN_NS`; it drains again every
# `_DRAIN_AGAIN_NS`.
_DRAIN_NS, _DRAIN_AGAIN_NS = 10 * NS, 60 * NS


class HandlerRunner(Protocol):
    """Runs the handlers of a worker: in threads or in tasks."""

    interruptible: bool  # whether the runner can end a running handler
    same_thread: bool  # whether `done` runs on the thread of the loop, so that one wake-up serves several handlers

    def start(self, delivered: Delivered, running: int, done: Callable[[BaseException | None], None]) -> None:
        """Run the handler for a message; call `done` with its error when it ends. `running`: how many handlers run."""

    def interrupt(self, delivered: list[Delivered]) -> None:
        """End these handlers early, if that is possible."""

    def stop(self, *, wait: bool) -> None:
        """Release the resources of one run. `wait`: return only when they are released; pass it if no handler runs."""


class WorkerCore:
    """A consumer, and the handlers for its messages."""

    def __init__(
        self,
        consumer: ConsumerCore,
        handler: Callable[[Any], Any],
        make_runner: Callable[[Callable[[Any], Any]], HandlerRunner],
        *,
        concurrency: int,
        grace: Seconds,
        on_loss: str | Callable[[Any], object],
        policies: tuple[str, ...],
    ) -> None:
        if not callable(handler):
            raise InvalidConfig("handler", handler, "it must be callable with a message")
        if not callable(on_loss) and on_loss not in policies:
            raise InvalidConfig("on_loss", on_loss, f"it must be {' or '.join(policies)}, or callable with a message")
        self.consumer = consumer
        self.running: dict[str, Delivered] = {}
        self._runner = make_runner(handler)
        self._concurrency = concurrency
        self._grace_ns = timeout_ns(grace, setting="grace")
        self._on_loss = on_loss
        self._client = consumer.queue.client
        self._queued: deque[Delivered] = deque()  # received, and not started
        self._ended: deque[Ended] = deque()  # any thread may append
        self._stops = 0
        self._reclaim_tried = False  # since the last message
        self._drain_since_ns = 0  # since when the engine asks the worker to drain
        self._interrupted = False  # an interrupt hit the sending of outcomes: they may have arrived
        self._waker: Waker | None = None  # of the present run
        self._watched: ConsumerSession | None = None  # the session whose end, or the start of `close()`, wakes the loop

    def stop(self) -> None:
        """Receive no more, release messages without a handler, and wait for running handlers; see `WorkerBase.stop`."""
        self._stops += 1
        self._wake()

    def _wake(self) -> None:
        if self._waker is not None:
            self._waker.wake()
        self.consumer.wake()

    def _done(self, delivered: Delivered, error: BaseException | None) -> None:
        """Add the result of a handler. Any thread may call this."""
        if isinstance(error, Exception) and not isinstance(error, Retry | Reject | Release):
            log.warning("holdfast: the handler failed on %r", delivered.message, exc_info=error)
        woken = self._runner.same_thread and bool(self._ended)
        self._ended.append((delivered, error))
        if not woken:
            self._wake()

    def _outcome(self, delivered: Delivered, error: BaseException | None) -> MessageOutcome:
        """Return the outcome of a handler.

        If the worker stops or the message is lost, the worker itself interrupted the handler. Otherwise the handler
        raised the interruption, and the attempt failed.
        """
        held = delivered.held
        if error is None or isinstance(error, Exception):
            return held.outcome_for(error)
        if self._stops or held.loss_reported:
            # The thread of a plain handler keeps running, even if the task that awaits it was cancelled.
            held.gone = True
            return held.outcome_for(error)
        log.warning("holdfast: the handler raised an interruption on %r", delivered.message, exc_info=error)
        return held.outcome_for(Retry(reason=readable(error)))

    async def work(self, *, until_idle: bool) -> None:
        """Handle messages until stopped; with `until_idle`, until no message is ready and no handler runs."""
        name = self.consumer.name
        if self._waker is not None:
            raise RuntimeError(f"worker {name!r} is already running: make another worker, or increase its concurrency")
        await self.consumer.enter()
        try:
            self._waker = self._client.transport.waker()
            while not self._stops and await self._round(wait=not until_idle):
                pass
        except Closed:
            self._stops += 1  # no new messages: running handlers may finish, because the client waits for them
        except BaseException:
            self._stops += 2  # interrupted: do not wait for running handlers
            raise
        finally:
            try:
                await self._wind_down()
            finally:
                self._waker, self._watched, self._stops = None, None, 0
                self._interrupted = self._reclaim_tried = False
                self._runner.stop(wait=not self.running and not self._runner.same_thread)
                self.running.clear()  # some threads may still run; their messages were requeued

    async def _round(self, *, wait: bool) -> bool:
        """Send outcomes, start handlers, receive, sleep; return false if the worker is idle and `wait` is false."""
        consumer = self.consumer
        if self._client.state is not OPEN:
            raise Closed  # before any handler starts, also if the worker has no room to fetch
        await self._send_outcomes()
        self._report_losses()
        self._start_handlers()
        if consumer.session is not self._watched:
            self._watch_session()
        room = consumer.prefetch - len(self.running) - len(self._queued)
        alone = any(each.held.quarantined for each in self.running.values())
        if room <= 0 or alone or (self.running and self._is_draining()):
            if not await self._release_unseen():
                await self._sleep(_RECHECK_NS, self._doubt_ns())
            return True
        result = await consumer.fetch(room, wait=wait and not self._ended)
        self._drain_since_ns = (self._drain_since_ns or self._client.clock.now_ns()) if result.drain else 0
        self._queued.extend(result.messages)
        if result.messages:
            self._reclaim_tried = False
        if result.messages or self._ended or self._stops:
            return True
        if wait or not result.answered:
            await consumer.sleep(result, self._doubt_ns())
        elif self.running:
            await self._sleep(_RECHECK_NS, self._doubt_ns())
        else:
            return await self._reclaim()
        return True

    def _watch_session(self) -> None:
        """Let the events of the present session wake the loop, also if the worker has no room for a fetch."""
        session, self._watched = self.consumer.session, self.consumer.session
        if session is not None and self._waker is not None:
            session.add_waker(self._waker)

    async def _reclaim(self) -> bool:
        """Reclaim the messages of dead consumers before an idle worker ends, because that may make messages ready.

        Return false if the worker has already tried this since its last message.
        """
        self._reclaim_tried, tried = True, self._reclaim_tried
        if tried:
            return False
        queue = self.consumer.queue
        try:
            answer = await send_safely(self._client, queue.reclaim_command())
        except Unavailable as error:
            self._client.emit("unavailable", queue.name, detail=str(error))
            return True
        assert isinstance(answer, Reclaimed)
        if answer.requeued or answer.dead_lettered:
            self._client.emit("reclaimed", queue.name, detail=reclaim_shown(answer))
        return True

    async def _release_unseen(self) -> bool:
        """Release messages that the worker holds without knowing, because no handler is free; return whether any.

        If the first copy of a fetch arrives after the second, the two take more messages than the worker has room for.
        """
        if not self.consumer.should_compare(self._client.clock.now_ns()):
            return False
        result = await self.consumer.fetch(0, wait=False)
        self._ended.extend((delivered, Release()) for delivered in result.messages)
        return bool(result.messages)

    def _is_draining(self) -> bool:
        """Return whether to receive nothing now, so that the worker becomes idle for a message in quarantine.

        The worker does not drain for ever, because a handler may run for hours.
        """
        now_ns = self._client.clock.now_ns()
        return bool(self._drain_since_ns) and (now_ns - self._drain_since_ns) % _DRAIN_AGAIN_NS < _DRAIN_NS

    async def _sleep(self, span_ns: int, until_ns: int) -> None:
        """Sleep until a handler ends, the worker stops, or `span_ns` or `until_ns` is over."""
        assert self._waker is not None
        await self._waker.wait(min(until_ns, self._client.clock.now_ns() + span_ns))

    def _doubt_ns(self) -> int:
        """Return when to check whether the session is in doubt. A doubt may end and begin again, so check often."""
        session, now_ns = self.consumer.session, self._client.clock.now_ns()
        if session is None:
            return NEVER_NS
        return session.doubt_ns if now_ns < session.doubt_ns else now_ns + _RECHECK_NS

    def _start_handlers(self) -> None:
        """Start handlers for received messages, as far as the concurrency allows."""
        while self._queued and len(self.running) < self._concurrency and self._client.state is OPEN:
            delivered = self._queued[0]
            held = delivered.held
            if held.session.in_doubt():
                return  # another consumer may get the message: the next heartbeat shows it
            self._queued.popleft()
            if held.session is not self.consumer.session or held.is_lost():
                self.consumer.forget(held)  # another consumer has the message by now
                continue
            self.running[held.entry] = delivered
            self._runner.start(delivered, len(self.running), partial(self._done, delivered))

    def _report_losses(self) -> None:
        """Apply `on_loss` to running handlers whose session is lost or in doubt, once for each loss or doubt."""
        lost = [
            each
            for each in self.running.values()
            if each.held.is_lost() and each.held.doubt_ns != each.held.session.doubt_ns
        ]
        if not lost:
            return
        for each in lost:
            each.held.loss_reported, each.held.doubt_ns = True, each.held.session.doubt_ns
        if self._on_loss == "cancel":
            self._runner.interrupt(lost)
        elif callable(self._on_loss):
            for each in lost:
                try:
                    self._on_loss(each.message)
                except Exception as error:
                    raise_if_of_signal(error)
                    log.exception("on_loss of %r failed", each.message)

    async def _send_outcomes(self) -> None:
        """Send the outcomes of ended handlers in batches; if the engine is unavailable, the keeper sends them later."""
        consumer = self.consumer
        while self._ended:
            batch: list[Ended] = []
            session, room = self._ended[0][0].held.session, BATCH_MAX
            while self._ended and room > 0 and self._ended[0][0].held.session is session:
                batch.append(self._ended.popleft())
                room -= _KEYED_WEIGHT if batch[-1][0].held.stored.key else 1
            for delivered, _ in batch:
                self.running.pop(delivered.held.entry, None)
            # A handler may have finished its message itself, even if the engine has not confirmed that.
            unfinished = [each for each in batch if not each[0].held.outcome and each[0].held.unconfirmed is None]
            if unfinished:
                outcomes = tuple(self._outcome(delivered, error) for delivered, error in unfinished)
                lost = await self._record(session, unfinished, outcomes)
                for (delivered, _), outcome in zip(unfinished, outcomes, strict=True):
                    held = delivered.held
                    consumer.forget(held)
                    if held.entry in lost:
                        held.refused(outcome)
                    elif held.unconfirmed is None:  # otherwise the keeper sends the outcome, and reports the answer
                        held.recorded(outcome)

    async def _record(
        self, session: ConsumerSession, ended: list[Ended], outcomes: tuple[MessageOutcome, ...]
    ) -> frozenset[str]:
        """Record these outcomes; return the lost entries. After an interrupt, the worker records them again later."""
        try:
            return frozenset(await self.consumer.record_outcomes(session, outcomes, resent=self._interrupted))
        except Unavailable as error:
            if error.outcome == UNKNOWN:
                return frozenset()
            log.warning("holdfast: the outcomes of %d messages cannot be recorded: %s", len(ended), error)
            raise
        except BaseException:
            self._ended.extendleft(reversed(ended))  # the work is done, so the worker must not release these messages
            self._interrupted = True
            raise

    async def _wind_down(self) -> None:
        """Release messages that have not started, let running handlers finish within the grace, and leave."""
        try:
            clock = self._client.clock
            until_ns = NEVER_NS if self._grace_ns is None else clock.now_ns() + self._grace_ns
            while self._queued:
                self._ended.append((self._queued.popleft(), Release()))
            await self._send_outcomes()
            while self.running and clock.now_ns() < until_ns and self._stops < 2:
                await self._sleep(_RECHECK_NS, until_ns)
                self._report_losses()
                await self._send_outcomes()
            if self.running:
                self._runner.interrupt(list(self.running.values()))
                until_ns = clock.now_ns() + _CANCEL_NS
                while self.running and self._runner.interruptible and clock.now_ns() < until_ns:
                    await self._sleep(_POLL_NS, until_ns)
                    await self._send_outcomes()
        finally:
            await self.consumer.leave()


def checked_concurrency(concurrency: int, prefetch: int) -> tuple[int, int]:
    """Check and return the number of handlers at a time, and the number of messages to receive ahead of them."""
    return (
        whole_number("concurrency", concurrency, 1, CONCURRENCY_MAX),
        whole_number("prefetch", prefetch, 0, CONCURRENCY_MAX),
    )


class WorkerBase:
    """Calls a handler for every message of a queue, several at a time."""

    def __init__(self, core: WorkerCore) -> None:
        self._core = core

    @property
    def name(self) -> str:
        """The name for people to read."""
        return self._core.consumer.name

    @property
    def running(self) -> int:
        """How many handlers run."""
        return len(self._core.running)

    def stop(self) -> None:
        """Stop: receive no more, release messages that have not started, and let running handlers finish.

        A second call does not wait for the handlers. Any thread and any signal handler may call this.
        """
        self._core.stop()

    def __repr__(self) -> str:
        return f"<worker {self.name!r} of {self._core.consumer.queue.name!r} running={self.running}>"
