"""What goes wrong between a client and its engine, and what has been sent: for laws that no healthy engine can show.

A `Wire` stands in the place of a client's two forms (the caller's and the keeper's). Each fault strikes the next
exchanges that it fits: before the command was applied, or after it, when only the answer is lost.
"""

import threading
import time
from dataclasses import dataclass

from holdfast.clock import NS
from holdfast.commands.queue_admin import PAGE
from holdfast.core.queue.queue import audited
from holdfast.core.step import run
from holdfast.errors import ReplyLost, Unavailable
from holdfast.testing import eventually

ALWAYS = 10**9


@dataclass
class Fault:
    """How the next exchanges with commands of this kind end."""

    kind: type
    times: int
    applied: bool
    hangs: bool
    error: BaseException | None


@dataclass(frozen=True)
class Sent:
    """One command on its way."""

    at: float
    by: str
    command: object


class Interrupted(BaseException):
    """Something like KeyboardInterrupt, which strikes a waiter in its sleep."""


WELL = Interrupted("it goes well")


def lost_reply():
    return ReplyLost("law", "reply lost", "as the law demands")


class Line:
    """One form of the client, with the faults of the wire."""

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
        if self._wire.deaf:
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
            if self._wire.deaf
            else self._transport.wait_for_wakeup(token, until_ns)
        )

    def _fail(self, fault, until_ns):
        if fault.hangs and until_ns is not None:
            time.sleep(max(0, until_ns - self._wire.client.clock.now_ns()) / NS)
        if fault.error is not None:
            raise fault.error
        raise lost_reply() if fault.applied else Unavailable("law", "unreachable", "as the law demands")


class Wire:
    """Between one client and its engine."""

    def __init__(self, client):
        self.client = client
        self.sent = []
        self.deaf = False
        self.interrupted = False
        self._faults = []
        self._guard = threading.Lock()
        self._gates = []
        self._whole = client.transport, client.keeper._transport
        client.transport = Line(self, client.transport, "caller")
        client.keeper._transport = Line(self, client.keeper._transport, "keeper")

    def fail(self, kind=object, times=ALWAYS, *, error=None, hangs=False):
        """The next exchanges with such a command do not reach the engine."""
        self._faults.append(Fault(kind, times, applied=False, hangs=hangs, error=error))

    def lose_reply(self, kind=object, times=ALWAYS, *, reached=True):
        """The next such commands are applied, but their answers are lost (or it only looks so)."""
        error = None if reached else lost_reply()
        self._faults.append(Fault(kind, times, applied=reached, hangs=False, error=error))

    def let_pass(self, kind, times):
        """The next such commands go through; what is said to fail then, fails after them."""
        self._faults.append(Fault(kind, times, applied=True, hangs=False, error=WELL))

    def heal(self):
        """Everything works again."""
        self._faults.clear()
        self.deaf = False
        for _, _, go in self._gates:
            go.set()

    def hold(self, kind):
        """Stop the next such command before it is applied; gives what tells that it is there, and what lets it go."""
        there, go = threading.Event(), threading.Event()
        self._gates.append((kind, there, go))
        return there, go

    def interrupt(self):
        """Have the next waiter that is woken meet an exception instead, and wake it."""
        self.interrupted = True
        self.client.transport.wake_all()

    def commands(self, kind=object, by=None):
        """What was sent, in order."""
        return [sent.command for sent in self.sent if isinstance(sent.command, kind) and by in (None, sent.by)]

    def until_sent(self, kind, count):
        """Wait until so many of them are on their way."""
        eventually(lambda: len(self.commands(kind)) >= count, 20, f"{count} x {kind.__name__}")

    def moments(self, kind):
        """When such commands were sent."""
        return [sent.at for sent in self.sent if isinstance(sent.command, kind)]

    def _send(self, by, commands):
        now = self.client.clock.now_ns() / NS
        self.sent += [Sent(now, by, command) for command in commands]
        for kind, there, go in self._gates.copy():
            if any(isinstance(command, kind) for command in commands) and not there.is_set():
                there.set()
                go.wait(10)
        with self._guard:
            for fault in self._faults:
                if fault.times and any(isinstance(command, fault.kind) for command in commands):
                    fault.times -= 1
                    return None if fault.error is WELL else fault
        return None


class Peer:
    """A client that speaks in plain commands, and dies by never speaking again."""

    def __init__(self, engine):
        self.engine = engine
        self._transport = engine.blocking()

    def say(self, command):
        answer = self._transport.apply(command)
        return answer if isinstance(answer, tuple) else run(answer)

    def audit(self, name, most=PAGE):
        """All of a queue; where the engine does that in pages, in pages of so many."""

        async def ask(command):
            return self.say(command)

        return run(audited(ask, name, most=most))

    def close(self):
        run(self._transport.close())
