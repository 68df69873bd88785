"""A subscription to one channel, read by one thread. Each client receives its wake-ups through one.

The thread reconnects by itself, at growing intervals while that fails, and then reports that the client may have missed
messages, so that every waiter wakes up once. It pings a quiet subscription, because it would otherwise trust a silently
broken connection for ever. It pings at once when another connection of the client got no answer: usually both have lost
the same server, and a waiter that misses its wake-up loses its offer. With several servers, each of them receives the
messages that are published on any other; when the servers change, the listener subscribes to one that is still there.
Without a subscription, for example because the user may not subscribe, wake-ups are late and nothing else fails. The
listener never uses the keeper's connection. A client has one listener, however many names it waits for.
"""

from __future__ import annotations

import re
import select
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.engines.redis.acl import grant_hint
from holdfast.engines.redis.connection_blocking import RedisConnection
from holdfast.engines.redis.resp import packed
from holdfast.errors import ReplyLost, Unavailable, UnavailableReason
from holdfast.observer import log

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.engines.redis.topology import Node

_RETRY_S = 0.2
_RETRY_MAX_S = 3.0
_NOT_ALLOWED_S = 10.0
_QUIET_S = 5.0
_SIGNALS = 64
_RECONNECT, _PROBE = b".", b"?"
_PING = packed("PING")
# Every client has a channel of its own, and a user has many clients: the hint names the channels of all.
_CHANNEL_OF_CLIENT = re.compile(":wake:.*")


class SubscriptionListener:
    """Listens to one channel. `node` returns the server to subscribe to; `what` names the messages in the log.

    The thread calls `on_message` with each message, and `on_gap` when the client may have missed some.
    """

    def __init__(
        self,
        node: Callable[[], Node],
        channel: str,
        *,
        on_message: Callable[[str], object],
        on_gap: Callable[[], object],
        what: str = "wake-ups",
    ) -> None:
        self._node = node
        self._channel = channel
        self._on_message = on_message
        self._on_gap = on_gap
        self._what = what
        self._url, self._wire_s = "", 0.0
        self._stop, self._stopper = socket.socketpair()
        self._connection: RedisConnection | None = None
        self._retry_s = _RETRY_S
        self._pinged = False  # whether a ping has no reply yet
        self._trouble = ""
        self._subscribe()
        self._thread = threading.Thread(target=self._run, name="holdfast-listener", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # the system refuses a thread
            self.forked()
            raise

    def _open_subscription(self) -> RedisConnection:
        node = self._node()
        self._url, self._wire_s = node.url, node.wire_s
        connection = RedisConnection(node)
        reply = connection.exchange(packed("SUBSCRIBE", self._channel), 1, node.wire_s)[0]
        if isinstance(reply, Exception):
            connection.close()
            channel = _CHANNEL_OF_CLIENT.sub(":wake:*", self._channel)
            hint = grant_hint(str(reply), channel=channel)
            raise Unavailable(
                "redis", UnavailableReason.NO_PERMISSION, f"cannot subscribe to {self._channel}: {reply}{hint}"
            )
        return connection

    def _subscribe(self) -> bool:
        """Try to subscribe and return whether it worked; waiters also work without a subscription, only slower."""
        try:
            self._connection, self._pinged = self._open_subscription(), False
        except Unavailable as error:
            self._report(error)
            self._retry_s = min(2 * self._retry_s, _RETRY_MAX_S)
            if error.reason == UnavailableReason.NO_PERMISSION:
                self._retry_s = _NOT_ALLOWED_S
            return False
        self._retry_s = _RETRY_S
        if self._trouble:
            self._trouble = ""
            log.info("holdfast: %s arrive again", self._what)
        return True

    def _report(self, error: Unavailable) -> None:
        """Log a problem once, however often the listener retries."""
        if not self._trouble:
            log.warning("holdfast: %s are late: %s", self._what, error)
        self._trouble = str(error)

    def _run(self) -> None:
        while True:
            connection = self._connection
            ready = self._poll(connection)
            if self._stop.fileno() in ready:
                signals = self._stop.recv(_SIGNALS)
                if not signals:
                    break
                if _RECONNECT in signals:
                    self._close_connection()
                elif connection is not None and not self._pinged:
                    self._serve(connection, ready=False)
            elif connection is None:
                if self._subscribe():
                    self._on_gap()
            else:
                self._serve(connection, bool(ready))
        self._close_connection()

    def _serve(self, connection: RedisConnection, ready: bool) -> None:
        """Read pushed messages; ping a quiet connection; close one that did not answer a ping."""
        try:
            if ready:
                self._pinged = False
                for reply in connection.read_pushed():
                    if isinstance(reply, list) and reply[0] == "message":
                        self._on_message(reply[2])
            elif self._pinged:
                raise ReplyLost(
                    "redis", UnavailableReason.REPLY_LOST, f"{self._url}: the subscription has fallen silent"
                )
            else:
                self._pinged = True
                connection.write(_PING)
        except ReplyLost as error:
            self._report(error)
            self._close_connection()

    def _poll(self, connection: RedisConnection | None) -> set[int]:
        """Sleep until a message, a signal, or the time to ping or to connect again; return the ready descriptors."""
        poll = select.poll()
        poll.register(self._stop, select.POLLIN)
        if connection is not None:
            poll.register(connection, select.POLLIN)
        wait_s = self._retry_s if connection is None else self._wire_s if self._pinged else _QUIET_S
        return {descriptor for descriptor, _ in poll.poll(wait_s * 1000)}

    def _close_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def reconnect(self) -> None:
        """Subscribe to one of the servers that answer now."""
        self._signal(_RECONNECT)

    def probe(self) -> None:
        """Ping now, because another connection got no answer."""
        self._signal(_PROBE)

    def _signal(self, signal: bytes) -> None:
        with suppress(OSError):  # the listener is closing, or has more signals than it needs
            self._stopper.send(signal, socket.MSG_DONTWAIT)

    def close(self) -> None:
        self._stopper.close()
        self._thread.join()
        self._stop.close()

    def forked(self) -> None:
        """Close the child's copies: the thread is not here, and the subscription belongs to the parent."""
        self._close_connection()
        self._stop.close()
        self._stopper.close()
