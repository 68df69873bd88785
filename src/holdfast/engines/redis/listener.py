"""What servers say unasked: one subscription, heard by one thread. Wake-ups come so, with one ear for each client.

The thread connects again by itself, ever less often while that fails, and then says that something may have been
missed, so that every waiter wakes once. A subscription that has been quiet is asked whether it lives: a connection that
was cut without a word would else be trusted for ever. It is asked at once when another connection of the client had no
answer: what has happened to that one has mostly happened to both, and whoever does not hear its turn loses it. Where
there are several servers, any of them hears what is published on another; when they change, one that is still among
them is listened to. Without a subscription, also because the user may not subscribe, waiters are late and nothing else.
It is never the keeper's connection, and there is one of it, however many names are waited for.
"""

from __future__ import annotations

import re
import select
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.engines.redis.acl import to_grant
from holdfast.engines.redis.connection_blocking import RedisConnection
from holdfast.engines.redis.resp import packed
from holdfast.errors import ReplyLost, Unavailable
from holdfast.observer import log

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.engines.redis.topology import Node

_AGAIN_S = 0.2
_AGAIN_MAX_S = 3.0
_NOT_ALLOWED_S = 10.0
_QUIET_S = 5.0
_NUDGES = 64
_AGAIN, _DOUBT = b".", b"?"
_PING = packed("PING")
# Every client has a channel of its own, and a user has many clients.
_OF_ALL = re.compile(":wake:.*")


class SubscriptionListener:
    """Hears what is published on one channel: `node` says where to listen, `what` is said of it in the log.

    `heard` is called with each message, and `missed` when some may have been.
    """

    def __init__(
        self,
        node: Callable[[], Node],
        channel: str,
        *,
        heard: Callable[[str], object],
        missed: Callable[[], object],
        what: str = "wake-ups",
    ) -> None:
        self._node = node
        self._channel = channel
        self._heard = heard
        self._missed = missed
        self._what = what
        self._url, self._wire_s = "", 0.0
        self._stop, self._stopper = socket.socketpair()
        self._link: RedisConnection | None = None
        self._again_s = _AGAIN_S
        self._asked = False  # whether it lives; no answer yet
        self._trouble = ""
        self._listen()
        self._thread = threading.Thread(target=self._hear, name="holdfast-ear", daemon=True)
        self._thread.start()

    def _subscribed(self) -> RedisConnection:
        node = self._node()
        self._url, self._wire_s = node.url, node.wire_s
        link = RedisConnection(node)
        reply = link.exchange(packed("SUBSCRIBE", self._channel), 1, node.wire_s)[0]
        if isinstance(reply, Exception):
            link.close()
            channel = _OF_ALL.sub(":wake:*", self._channel)
            hint = to_grant(str(reply), channel=channel)
            raise Unavailable("redis", "no permission", f"cannot subscribe to {self._channel}: {reply}{hint}")
        return link

    def _listen(self) -> bool:
        """Subscribe, if that can be done now; a waiter can do without."""
        try:
            self._link, self._asked = self._subscribed(), False
        except Unavailable as error:
            self._late(error)
            self._again_s = min(2 * self._again_s, _AGAIN_MAX_S)
            if error.reason == "no permission":
                self._again_s = _NOT_ALLOWED_S
            return False
        self._again_s = _AGAIN_S
        if self._trouble:
            self._trouble = ""
            log.info("holdfast: %s come again", self._what)
        return True

    def _late(self, error: Unavailable) -> None:
        """Say it once, however often it is tried again."""
        if not self._trouble:
            log.warning("holdfast: %s are late: %s", self._what, error)
        self._trouble = str(error)

    def _hear(self) -> None:
        while True:
            link = self._link
            ready = self._poll(link)
            if self._stop.fileno() in ready:
                nudges = self._stop.recv(_NUDGES)
                if not nudges:
                    break
                if _AGAIN in nudges:
                    self._drop()
                elif link is not None and not self._asked:
                    self._attend(link, ready=False)
            elif link is None:
                if self._listen():
                    self._missed()
            else:
                self._attend(link, bool(ready))
        self._drop()

    def _attend(self, link: RedisConnection, ready: bool) -> None:
        """Hear what has come; if nothing has for long, ask; if nothing came of that, it is dead."""
        try:
            if ready:
                self._asked = False
                for reply in link.heard():
                    if isinstance(reply, list) and reply[0] == "message":
                        self._heard(reply[2])
            elif self._asked:
                raise ReplyLost("redis", "reply lost", f"{self._url}: the subscription has fallen silent")
            else:
                self._asked = True
                link.say(_PING)
        except ReplyLost as error:
            self._late(error)
            self._drop()

    def _poll(self, link: RedisConnection | None) -> set[int]:
        """Sleep until something is heard or the end is asked for; without a link, a moment before trying again."""
        poll = select.poll()
        poll.register(self._stop, select.POLLIN)
        if link is not None:
            poll.register(link, select.POLLIN)
        wait_s = self._again_s if link is None else self._wire_s if self._asked else _QUIET_S
        return {descriptor for descriptor, _ in poll.poll(wait_s * 1000)}

    def _drop(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def again(self) -> None:
        """Other servers answer now: listen to one of those."""
        self._nudge(_AGAIN)

    def doubt(self) -> None:
        """Another connection had no answer: does this one still live?"""
        self._nudge(_DOUBT)

    def _nudge(self, word: bytes) -> None:
        with suppress(OSError):  # it is being closed, or has been nudged more than enough
            self._stopper.send(word, socket.MSG_DONTWAIT)

    def close(self) -> None:
        self._stopper.close()
        self._thread.join()
        self._stop.close()

    def forked(self) -> None:
        """In a child: the thread is not here, and the subscription is the parent's."""
        self._drop()
        self._stop.close()
        self._stopper.close()
