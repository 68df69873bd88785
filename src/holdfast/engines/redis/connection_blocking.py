"""A blocking connection: one socket, one command at a time, or several in one write.

An exchange either returns every reply or raises. `ReplyLost` means that something was sent and its outcome is unknown;
the connection is then closed, because a late reply must never be taken for the answer to a later command.
"""

from __future__ import annotations

import os
import socket
import ssl
from time import monotonic
from typing import TYPE_CHECKING, Any

import hiredis

from holdfast.errors import ReplyLost, Unavailable, UnavailableReason
from holdfast.interrupts import raise_if_of_signal

if TYPE_CHECKING:
    from holdfast.engines.redis.topology import Node

INCOMPLETE = object()
_READ = 65536
# The errors of the parser. `TypeError`: a list is the key of a map.
_UNREADABLE = (hiredis.HiredisError, TypeError, ValueError)
_ONE_WRITE = 65536  # the send buffer of an idle connection always has room for this many bytes


def reader() -> hiredis.Reader:
    """Return a parser of replies. Errors come as objects; `INCOMPLETE` means that more bytes are needed.

    Bytes that are not UTF-8 are escaped: bodies of messages may be any bytes, and become the same bytes again.
    """
    return hiredis.Reader(
        encoding="utf-8", errors="surrogateescape", notEnoughData=INCOMPLETE, replyError=hiredis.ReplyError
    )


class RedisConnection:
    """A connection that one thread at a time uses. `run_id`: the run of the server that it leads to, once known."""

    run_id = ""

    def __init__(self, node: Node, limit_s: float | None = None) -> None:
        self._url = node.url
        self._socket = node.open_socket(limit_s)
        # Before each write, Python polls a socket that has a timeout. The buffer of an idle connection is empty, so a
        # second socket object without a timeout writes at once. It has a descriptor of its own: two objects with one
        # descriptor would close it twice, and by the second time it may belong to another file.
        tls = isinstance(self._socket, ssl.SSLSocket)
        try:
            self._out = self._socket if tls else socket.socket(fileno=os.dup(self._socket.fileno()))
        except OSError as error:  # no descriptor is left
            self._socket.close()
            raise_if_of_signal(error)
            raise Unavailable("redis", UnavailableReason.OUT_OF_DESCRIPTORS, f"{self._url}: {error}") from error
        self._reader = reader()
        self._limit_s = 0.0
        self.used_s = monotonic()

    def send(self, command: bytes, limit_s: float) -> Any:
        """Send one command and return its reply: the common case of `exchange`, without its lists."""
        if len(command) <= _ONE_WRITE:
            try:
                if limit_s != self._limit_s:
                    self._set_limit(limit_s)
                if self._out.send(command) != len(command):
                    raise ConnectionError("a command did not fit into the buffer of an idle connection")
                data = self._socket.recv(_READ)
            except OSError as error:
                raise self._lost(error, limit_s) from error
            except BaseException:
                self.close()
                raise
            try:
                read = self._reader
                read.feed(data)
                reply = read.gets()
            except _UNREADABLE as error:
                raise self._lost(error, limit_s) from error
            if reply is not INCOMPLETE:
                return reply
            command = b""  # the rest of the reply is yet to come, or the server has closed the connection
        return self.exchange(command, 1, limit_s)[0]

    def exchange(self, commands: bytes, count: int, limit_s: float) -> list[Any]:
        """Send the commands in one write, and return that many replies, within the limit."""
        if limit_s != self._limit_s:
            self._set_limit(limit_s)
        until_s = monotonic() + limit_s
        replies: list[Any] = []
        connected, read = self._socket, self._reader
        try:
            connected.sendall(commands)
            while True:
                data = connected.recv(_READ)
                self.used_s = monotonic()
                if not data:
                    raise ConnectionError("the server closed the connection")
                read.feed(data)
                while (reply := read.gets()) is not INCOMPLETE:
                    replies.append(reply)
                if len(replies) > count:
                    raise ConnectionError("the server sent more replies than it got commands")
                if len(replies) == count:
                    return replies
                if self.used_s >= until_s:
                    raise TimeoutError
        except (OSError, *_UNREADABLE) as error:
            raise self._lost(error, limit_s) from error
        except BaseException:
            self.close()
            raise

    def _lost(self, error: Exception, limit_s: float) -> ReplyLost:
        """Close the connection, and return the error: it is unknown which commands were applied."""
        self.close()
        raise_if_of_signal(error)
        late = isinstance(error, TimeoutError | BlockingIOError)
        cause = f"no answer within {limit_s:.3f} s" if late else str(error)
        return ReplyLost("redis", UnavailableReason.REPLY_LOST, f"{self._url}: {cause}")

    def fileno(self) -> int:
        return self._socket.fileno()

    def write(self, command: bytes) -> None:
        """Send a command on a subscribed connection; `read_pushed` returns its reply with the rest."""
        try:
            self._socket.sendall(command)
        except OSError as error:
            raise_if_of_signal(error)
            raise ReplyLost("redis", UnavailableReason.REPLY_LOST, f"{self._url}: {error}") from error

    def read_pushed(self) -> list[Any]:
        """Return what the server has pushed to a subscribed connection."""
        try:
            data = self._socket.recv(_READ)
            while isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
                data += self._socket.recv(_READ)  # decrypted already: no poll would report it
        except (BlockingIOError, TimeoutError, ssl.SSLWantReadError) as error:
            raise_if_of_signal(error)
            return []
        except OSError as error:
            raise_if_of_signal(error)
            raise ReplyLost("redis", UnavailableReason.REPLY_LOST, f"{self._url}: {error}") from error
        if not data:
            raise ReplyLost("redis", UnavailableReason.REPLY_LOST, f"{self._url}: the server closed the connection")
        replies = []
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not INCOMPLETE:
                replies.append(reply)
        except _UNREADABLE as error:
            raise_if_of_signal(error)
            raise ReplyLost("redis", UnavailableReason.REPLY_LOST, f"{self._url}: {error}") from error
        return replies

    def alive(self) -> bool:
        """Return whether an idle connection is still open: it has received nothing, not even the end of the stream."""
        try:
            self._socket.setblocking(False)
            self._socket.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            self._limit_s = 0.0
            return True
        except OSError as error:
            self.close()
            raise_if_of_signal(error)
        self.close()
        return False

    def cut(self) -> None:
        """End the exchange of another thread: that thread sees the end of the connection."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            raise_if_of_signal(error)
            return  # the connection has ended already

    def close(self) -> None:
        self._out.close()
        self._socket.close()

    def _set_limit(self, limit_s: float) -> None:
        # Python's timeout costs a poll per call. The kernel's would cost nothing, but every signal would restart it.
        self._limit_s = limit_s
        self._socket.settimeout(max(0.001, limit_s))
