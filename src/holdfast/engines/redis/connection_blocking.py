"""The blocking wire: one socket, one command at a time, or several in one write.

An exchange either gives every reply or raises. `ReplyLost` means that something was sent and its fate is unknown; the
link is then closed, because a late reply must never be taken for the answer to a later question.
"""

from __future__ import annotations

import os
import socket
import ssl
from time import monotonic
from typing import TYPE_CHECKING, Any

import hiredis

from holdfast.errors import ReplyLost, Unavailable

if TYPE_CHECKING:
    from holdfast.engines.redis.topology import Node

MORE = object()
_READ = 65536
_ONE_WRITE = 65536  # what the buffer of an idle connection takes for sure


def reader() -> hiredis.Reader:
    """A parser of replies. Errors come as objects; `MORE` says that a reply is not whole yet.

    Bytes that are no text are escaped: bodies of messages may be any bytes, and are made bytes again.
    """
    return hiredis.Reader(encoding="utf-8", errors="surrogateescape", notEnoughData=MORE, replyError=hiredis.ReplyError)


class RedisConnection:
    """A connection of one thread at a time. `run_id`: the run of the server that it leads to, once that was told."""

    run_id = ""

    def __init__(self, node: Node, limit_s: float | None = None) -> None:
        self._url = node.url
        self._socket = node.open_socket(limit_s)
        # Python asks the kernel whether a socket with a timeout can be written to before it writes. The buffer of a
        # link that is free is empty, so a second object, which knows no timeout, just writes. It has a descriptor of
        # its own: two owners of one would close it twice, and by the second time it may be another file's.
        tls = isinstance(self._socket, ssl.SSLSocket)
        try:
            self._out = self._socket if tls else socket.socket(fileno=os.dup(self._socket.fileno()))
        except OSError as error:  # there is no descriptor left
            self._socket.close()
            raise Unavailable("redis", "unreachable", f"{self._url}: {error}") from error
        self._reader = reader()
        self._limit_s = 0.0
        self.used_s = monotonic()

    def ask(self, command: bytes, limit_s: float) -> Any:
        """Send one command and read its reply, within the limit. The common case of `exchange`, without its lists."""
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
            except hiredis.HiredisError as error:
                raise self._lost(error, limit_s) from error
            if reply is not MORE:
                return reply
            command = b""  # the rest of the reply is still on its way, or the server has closed
        return self.exchange(command, 1, limit_s)[0]

    def exchange(self, commands: bytes, count: int, limit_s: float) -> list[Any]:
        """Send the commands in one write and read that many replies, within the limit."""
        if limit_s != self._limit_s:
            self._set_limit(limit_s)
        until_s = monotonic() + limit_s
        replies: list[Any] = []
        link, read = self._socket, self._reader
        try:
            link.sendall(commands)
            while True:
                data = link.recv(_READ)
                self.used_s = monotonic()
                if not data:
                    raise ConnectionError("the server closed the connection")
                read.feed(data)
                while (reply := read.gets()) is not MORE:
                    replies.append(reply)
                if len(replies) >= count:
                    return replies
                if self.used_s >= until_s:
                    raise TimeoutError
        except (OSError, hiredis.HiredisError) as error:
            raise self._lost(error, limit_s) from error
        except BaseException:
            self.close()
            raise

    def _lost(self, error: Exception, limit_s: float) -> ReplyLost:
        """What trouble on the wire means: the link is of no use any more, and nobody knows what was applied."""
        self.close()
        late = isinstance(error, TimeoutError | BlockingIOError)
        why = f"no answer within {limit_s:.3f} s" if late else str(error)
        return ReplyLost("redis", "reply lost", f"{self._url}: {why}")

    def fileno(self) -> int:
        return self._socket.fileno()

    def say(self, command: bytes) -> None:
        """Send a command whose answer will be heard with the rest, on a link that is subscribed."""
        try:
            self._socket.sendall(command)
        except OSError as error:
            raise ReplyLost("redis", "reply lost", f"{self._url}: {error}") from error

    def heard(self) -> list[Any]:
        """What has come unasked, on a link that is subscribed."""
        try:
            data = self._socket.recv(_READ)
            while isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
                data += self._socket.recv(_READ)  # decrypted already, so that no poll would tell of it
        except (BlockingIOError, TimeoutError, ssl.SSLWantReadError):
            return []
        except OSError as error:
            raise ReplyLost("redis", "reply lost", f"{self._url}: {error}") from error
        if not data:
            raise ReplyLost("redis", "reply lost", f"{self._url}: the server closed the connection")
        replies = []
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not MORE:
                replies.append(reply)
        except hiredis.HiredisError as error:
            raise ReplyLost("redis", "reply lost", f"{self._url}: {error}") from error
        return replies

    def alive(self) -> bool:
        """Whether the idle link still stands: nothing may have come, not even its end."""
        try:
            self._socket.setblocking(False)
            self._socket.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            self._limit_s = 0.0
            return True
        except OSError:
            pass
        self.close()
        return False

    def cut(self) -> None:
        """End an exchange that another thread is in: it sees the end of the connection."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it has ended already

    def close(self) -> None:
        self._out.close()
        self._socket.close()

    def _set_limit(self, limit_s: float) -> None:
        # Python's own timeout costs a poll per call. The kernel's would be free, but every signal would start it anew.
        self._limit_s = limit_s
        self._socket.settimeout(max(0.001, limit_s))
