"""Faults between a client and its engine, and a record of the commands sent: for laws that no healthy engine can show.

A `Wire` replaces the two transports of a client, the caller's and the keeper's. Each fault affects the next exchanges
with commands of its kind: either the command does not reach the engine, or the engine applies it and the answer is
lost.
"""

import threading
import time
from dataclasses import dataclass

from holdfast.clock import NS
from holdfast.commands.queue_admin import PAGE
from holdfast.core.queue.queue import check_consistency
from holdfast.core.step import run
from holdfast.errors import ReplyLost, Unavailable
from holdfast.testing import eventually

ALWAYS = 10**9


@dataclass
class Fault:
    """A fault of the next `times` exchanges with commands of one kind."""

    kind: type
    times: int
    applied: bool
    hangs: bool
    error: BaseException | None


@dataclass(frozen=True)
class Sent:
    """One command that was sent: when, by the caller or the keeper, and which."""

    at: float
    by: str
    command: object


class Interrupted(BaseException):
    """An exception like KeyboardInterrupt, raised while a waiter sleeps."""


NO_FAULT = Interrupted("let the command pass")


def lost_reply():
    """Return the error of an exchange whose reply was lost."""
    return ReplyLost("law", "reply lost", "as the law demands")


class FaultyTransport:
    """One transport of the client, with the faults of the wire."""

    def __init__(self, wire, transport, by):
        self._wire, self._transport, self._by = wire, transport, by

    def __getattr__(self, name):
        return getattr(self._transport, name)

    async def apply(self, command, until_ns=None):
        fault = self._wire._send(self._by, (command,))
        if fault is None or fault.applied:
            answer = self._transport.apply(command, until_ns)
            answer = answer if isinstance(answer, tuple) else await answer
        if fault is not None:
            self._fail(fault, until_ns)
        return answer

    async def apply_all(self, commands, until_ns=None):
        fault = self._wire._send(self._by, commands)
        if fault is None or fault.applied:
            answers = await self._transport.apply_all(commands, until_ns)
        if fault is not None:
            self._fail(fault, until_ns)
        return answers

    async def wait(self, ask, until_ns):
        if self._wire.wakeups_lost:
            await self._transport.waker().wait(until_ns)
            return None
        answer = await self._transport.wait(ask, until_ns)
        if self._wire.interrupted:
            self._wire.interrupted = False
            raise Interrupted
        return answer

    async def wait_for_wakeup(self, token, until_ns):
        await (
            self._transport.waker().wait(until_ns)
            if self._wire.wakeups_lost
            else self._transport.wait_for_wakeup(token, until_ns)
        )

    def _fail(self, fault, until_ns):
        if fault.hangs and until_ns is not None:
            time.sleep(max(0, until_ns - self._wire.client.clock.now_ns()) / NS)
        if fault.error is not None:
            raise fault.error
        raise lost_reply() if fault.applied else Unavailable("law", "unreachable", "as the law demands")


class Wire:
    """The way between one client and its engine: it records commands and injects faults."""

    def __init__(self, client):
        self.client = client
        self.sent = []
        self.wakeups_lost = False
        self.interrupted = False
        self._faults = []
        self._guard = threading.Lock()
        self._gates = []
        self._whole = client.transport, client.keeper._transport
        client.transport = FaultyTransport(self, client.transport, "caller")
        client.keeper._transport = FaultyTransport(self, client.keeper._transport, "keeper")

    def fail(self, kind=object, times=ALWAYS, *, error=None, hangs=False):
        """Let the next commands of a kind not reach the engine; with `hangs`, the error comes only at the deadline."""
        self._faults.append(Fault(kind, times, applied=False, hangs=hangs, error=error))

    def lose_reply(self, kind=object, times=ALWAYS, *, reached=True, error=None):
        """Apply the next commands of a kind and lose their replies; without `reached`, they are not even applied.

        `error`: what interrupts the caller instead of an answer.
        """
        error = error or (None if reached else lost_reply())
        self._faults.append(Fault(kind, times, applied=reached, hangs=False, error=error))

    def let_pass(self, kind, times):
        """Let the next commands of a kind pass; faults that are added later begin after them."""
        self._faults.append(Fault(kind, times, applied=True, hangs=False, error=NO_FAULT))

    def heal(self):
        """Remove all faults."""
        self._faults.clear()
        self.wakeups_lost = False
        for _, _, go_on in self._gates:
            go_on.set()

    def hold(self, kind):
        """Stop the next command of a kind before it is applied; return the events `stopped` and `go_on`."""
        stopped, go_on = threading.Event(), threading.Event()
        self._gates.append((kind, stopped, go_on))
        return stopped, go_on

    def interrupt(self):
        """Raise `Interrupted` in the next waiter that wakes, and wake all waiters."""
        self.interrupted = True
        self.client.transport.wake_all()

    def commands(self, kind=object, by=None):
        """Return the commands of a kind that were sent, in order."""
        return [sent.command for sent in self.sent if isinstance(sent.command, kind) and by in (None, sent.by)]

    def until_sent(self, kind, count):
        """Wait until so many commands of a kind were sent."""
        eventually(lambda: len(self.commands(kind)) >= count, 20, f"{count} x {kind.__name__}")

    def moments(self, kind):
        """Return when the commands of a kind were sent."""
        return [sent.at for sent in self.sent if isinstance(sent.command, kind)]

    def _send(self, by, commands):
        now = self.client.clock.now_ns() / NS
        self.sent += [Sent(now, by, command) for command in commands]
        for kind, stopped, go_on in self._gates.copy():
            if any(isinstance(command, kind) for command in commands) and not stopped.is_set():
                stopped.set()
                go_on.wait(10)
        with self._guard:
            for fault in self._faults:
                if fault.times and any(isinstance(command, fault.kind) for command in commands):
                    fault.times -= 1
                    return None if fault.error is NO_FAULT else fault
        return None


class Peer:
    """A client that sends plain commands and renews nothing: it dies by sending no more."""

    def __init__(self, engine):
        self.engine = engine
        self._transport = engine.blocking()

    def say(self, command):
        answer = self._transport.apply(command)
        return answer if isinstance(answer, tuple) else run(answer)

    def audit(self, name, most=PAGE):
        """Check the consistency of a queue, in pages of `most` where the engine works in pages."""

        async def ask(command):
            return self.say(command)

        return run(check_consistency(ask, name, most=most))

    def close(self):
        run(self._transport.close())
