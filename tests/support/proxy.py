"""A TCP proxy between a client and a Redis or Valkey server that injects faults and counts commands.

The proxy parses the protocol, so that a fault affects a command and not arbitrary bytes. It forwards every request
unchanged and matches every reply to its request by order; everything without a fault passes untouched.

    with Server("valkey") as server, Proxy("127.0.0.1", server.port) as proxy:
        hf = holdfast.connect(proxy.url)
        proxy.drop_reply(when=script(SCRIPTS[Acquire].sha))   # applied, but the answer is lost
        hf.lock("x").acquire()

A fault is armed for the *n*-th next command that `when` accepts; `when` receives the words of the command as bytes.
"""

from __future__ import annotations

import hashlib
import itertools
import socket
import ssl
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from holdfast.testing.resp import RespMessage, RespParser

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.testing.servers import Certificates

    Words = Sequence[bytes]
    When = Callable[[Words], bool]

_READ = 65536
_PUSHED = (b"message", b"pmessage", b"smessage")
_DROP, _SWALLOW = "drop the reply", "swallow"


def any_command(words: Words) -> bool:
    """Accept every command."""
    return True


def named(*names: str) -> When:
    """Return a filter for commands by their first word, in any case."""
    wanted = {name.upper().encode() for name in names}
    return lambda words: words[0].upper() in wanted


def script(*shas: str) -> When:
    """Return a filter for calls of these scripts, by hash or with the whole text."""
    wanted = {sha.encode() for sha in shas}

    def called(words: Words) -> bool:
        name = words[0].upper()
        if name == b"EVALSHA":
            return words[1] in wanted
        return name == b"EVAL" and hashlib.sha1(words[1]).hexdigest().encode() in wanted

    return called


@dataclass(frozen=True, slots=True)
class Sent:
    """A command that passed: the number of its connection (from 1), when, and its words."""

    connection: int
    at: float
    words: tuple[bytes, ...]


@dataclass(slots=True)
class _Fault:
    kind: str
    left: int
    when: When


@dataclass(frozen=True, slots=True)
class _Answer:
    when: Callable[[Any], bool]
    refuse: bool


@dataclass(slots=True)
class _Delay:
    seconds: float
    when: When


@dataclass(eq=False)
class _Pair:
    """One connection: both of its sockets, and the requests without a reply."""

    number: int
    client: socket.socket
    server: socket.socket
    silent: bool = False
    came_at: float = 0.0
    waiting: deque[str | None] = field(default_factory=deque)

    def cut(self) -> None:
        for end in (self.client, self.server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class Proxy:
    """A proxy between clients and one server; the `with` block closes it. With `tls`, its clients use TLS."""

    def __init__(self, target_host: str, target_port: int, *, tls: Certificates | None = None) -> None:
        self._target = (target_host, target_port)
        self._tls = tls
        self._context: ssl.SSLContext | None = None
        if tls is not None:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(tls.certificate, tls.key)
        self._guard = threading.Lock()
        self._pairs: list[_Pair] = []
        self._threads: list[threading.Thread] = []
        self._numbers = itertools.count(1)
        self._faults: list[_Fault] = []
        self._answers: list[_Answer] = []
        self._delays: list[_Delay] = []
        self._late_s = 0.0
        self._half_open = self._refusing = self._isolated = self._closed = False
        self._change = threading.Condition(self._guard)
        self._listener = _listener()
        self.port: int = self._listener.getsockname()[1]
        self.reset()
        self._start(self._accept_all, "accept")

    @property
    def url(self) -> str:
        """The URL for `holdfast.connect`, without a password."""
        if self._tls is not None:
            return f"rediss://localhost:{self.port}?ssl_ca_certs={self._tls.authority}"
        return f"redis://127.0.0.1:{self.port}"

    # Counts.

    def reset(self) -> None:
        """Reset all counts. `sent` are the commands that passed, `dropped` the replies that were dropped."""
        with self._guard:
            self.sent: list[Sent] = []
            self.dropped: list[Any] = []
            self.requests = self.replies = self.round_trips = self.connections = 0
            self.bytes_up = self.bytes_down = 0

    def count(self, when: When = any_command) -> int:
        """Return how many commands that `when` accepts have passed since `reset`."""
        return sum(when(sent.words) for sent in self.sent.copy())

    @property
    def open(self) -> int:
        """The number of open connections."""
        return len(self._pairs)

    # Faults.

    def drop_reply(self, n: int = 1, when: When = any_command) -> None:
        """Drop the reply of the n-th next such command, which the server applies, and cut the connection."""
        self._arm(_DROP, n, when)

    def drop_answer(self, when: Callable[[Any], bool], *, refuse: bool = False) -> None:
        """Drop the next reply that `when` accepts, and cut its connection; `when` receives it as Python values.

        With `refuse`, the proxy stops listening at that moment, so that the client cannot resend before `accept`.
        """
        with self._guard:
            self._answers.append(_Answer(when, refuse))

    def swallow(self, n: int = 1, when: When = any_command) -> None:
        """Do not deliver the n-th next such command, nor anything after it on its connection, which stays open."""
        self._arm(_SWALLOW, n, when)

    def delay(self, seconds: float, when: When = any_command) -> None:
        """Delay each such command by that long; `delay(0)` ends all delays."""
        with self._guard:
            if seconds:
                self._delays.append(_Delay(seconds, when))
            else:
                self._delays.clear()

    def delay_answers(self, seconds: float) -> None:
        """Delay every reply by that long, after the server has applied its command; 0 ends that."""
        with self._guard:
            self._late_s = seconds

    def cut(self) -> None:
        """Close all connections now, in both directions. After `refuse`, no connection is open until `accept`."""
        with self._guard:
            self._isolated = self._refusing  # the proxy may have accepted a connection that is not yet a pair
            pairs = self._pairs.copy()
        for pair in pairs:
            pair.cut()

    def half_open(self, *, new: bool = True) -> None:
        """Keep all connections open and deliver nothing on them any more; `new`: also on new connections."""
        with self._guard:
            self._half_open = new
            for pair in self._pairs:
                pair.silent = True

    def refuse(self) -> None:
        """Stop listening; open connections stay as they are."""
        with self._change:
            self._refusing = True
        # On Linux this ends the listening and keeps the port, so that no other process can take it meanwhile.
        self._listener.shutdown(socket.SHUT_RD)

    def accept(self) -> None:
        """Remove all faults. Half-open connections are cut, because bytes of them are lost."""
        with self._change:
            self._half_open = self._isolated = False
            silent = [pair for pair in self._pairs if pair.silent]
            self._faults.clear()
            self._answers.clear()
            self._delays.clear()
            self._late_s = 0.0
            if self._refusing:
                self._listener.listen()
                self._refusing = False
                self._change.notify_all()
        for pair in silent:
            pair.cut()

    def close(self) -> None:
        """Close all connections, and wait for the proxy's threads."""
        with self._change:
            if self._closed:
                return
            self._closed = True
            self._delays.clear()
            self._change.notify_all()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RD)
        self.cut()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        host, port = self._target
        return f"Proxy({host}:{port}, port={self.port}, open={self.open}, requests={self.requests})"

    # Threads: one that accepts, and two for each connection.

    def _start(self, work: Callable[..., None], name: str, *args: object) -> None:
        thread = threading.Thread(target=work, args=args, name=f"proxy-{self.port}-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _arm(self, kind: str, n: int, when: When) -> None:
        if n < 1:
            raise ValueError(f"n is {n}; the next command is number 1")
        with self._guard:
            self._faults.append(_Fault(kind, n, when))

    def _accept_all(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                with self._change:
                    self._change.wait_for(lambda: self._closed or not self._refusing)
                    if self._closed:
                        return
                continue
            self._start(self._join, "join", client)

    def _join(self, client: socket.socket) -> None:
        """Connect a client to the server; if that fails, close the client's connection."""
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._context is not None:
                client = self._context.wrap_socket(client, server_side=True)
            server = socket.create_connection(self._target)
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            client.close()
            return
        pair = _Pair(next(self._numbers), client, server)
        with self._guard:
            self.connections += 1
            pair.silent = self._half_open
            self._pairs.append(pair)
            closed = self._closed or self._isolated
        if closed:
            pair.cut()
        answering = threading.Thread(target=self._pump, args=(pair, server, self._reply), daemon=True)
        answering.start()
        self._pump(pair, client, self._request)
        answering.join()
        with self._guard:
            self._pairs.remove(pair)
        client.close()
        server.close()

    def _pump(self, pair: _Pair, source: socket.socket, forward: Callable[[_Pair, RespMessage], None]) -> None:
        messages = RespParser()
        with suppress(OSError):
            while data := source.recv(_READ):
                with self._guard:
                    if source is pair.client:
                        self.bytes_up += len(data)
                    else:
                        self.bytes_down += len(data)
                        pair.came_at = time.monotonic()  # replies that came together are delayed together
                for message in messages.feed(data):
                    forward(pair, message)
        pair.cut()

    def _request(self, pair: _Pair, message: RespMessage) -> None:
        words = tuple(message.value)
        with self._guard:
            self.sent.append(Sent(pair.number, time.monotonic(), words))
            self.requests += 1
            self.round_trips += not pair.waiting
            fault = self._armed_fault(words)
            if fault == _SWALLOW:
                pair.silent = True
            slow_s = sum(delay.seconds for delay in self._delays if delay.when(words))
            if not pair.silent:
                pair.waiting.append(fault)
        if slow_s:
            self._sleep(slow_s)
        if not pair.silent and not self._closed:
            pair.server.sendall(message.raw)

    def _armed_fault(self, words: Words) -> str | None:
        kind = None
        for fault in self._faults.copy():
            if fault.when(words):
                fault.left -= 1
                if not fault.left:
                    self._faults.remove(fault)
                    kind = kind or fault.kind
        return kind

    def _sleep(self, seconds: float) -> None:
        with self._change:
            self._change.wait_for(lambda: self._closed, seconds)

    def _reply(self, pair: _Pair, message: RespMessage) -> None:
        pushed = message.push or (isinstance(message.value, list) and message.value[:1] and message.value[0] in _PUSHED)
        fault = armed = None
        with self._guard:
            if not pushed:
                fault = pair.waiting.popleft() if pair.waiting else None
                self.replies += 1
                armed = next((answer for answer in self._answers if answer.when(message.value)), None)
                if armed is not None:
                    self._answers.remove(armed)
                    fault = _DROP
            late_s = 0.0 if pushed or not self._late_s else pair.came_at + self._late_s - time.monotonic()
        if late_s > 0:
            self._sleep(late_s)
        if armed is not None and armed.refuse:
            self.refuse()
        if fault == _DROP:
            self.dropped.append(message.value)
            pair.cut()
        elif not pair.silent:
            pair.client.sendall(message.raw)


def _listener() -> socket.socket:
    """Return a listening socket with an explicit port number: the kernel keeps only such a port without a listener."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            place = probe.getsockname()
        with suppress(OSError):
            return socket.create_server(place)
