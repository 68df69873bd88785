"""Wake-ups from Redis: one subscription per client, heard by one thread.

The thread connects again by itself, and then wakes every waiter once, because a ring may have been missed. Without a
subscription, also because the user may not subscribe, waiters are late and nothing else. It is never the keeper's
connection, and there is one of it, however many names are waited for.
"""

from __future__ import annotations

import select
import socket
import threading
from typing import TYPE_CHECKING

from holdfast.engines.redis.link import Link
from holdfast.engines.redis.scripts import packed
from holdfast.errors import ReplyLost, Unavailable
from holdfast.observer import log

if TYPE_CHECKING:
    from holdfast.engines.board import Board
    from holdfast.engines.redis.dial import Dialler

_AGAIN_S = 0.2
_NOT_ALLOWED_S = 10.0


class Ear:
    """Hears the rings of one client."""

    def __init__(self, dialler: Dialler, channel: str, board: Board) -> None:
        self._dialler = dialler
        self._channel = channel
        self._board = board
        self._stop, self._stopper = socket.socketpair()
        self._link: Link | None = None
        self._again_s = _AGAIN_S
        self._listen()
        self._thread = threading.Thread(target=self._hear, name="holdfast-ear", daemon=True)
        self._thread.start()

    def _subscribed(self) -> Link:
        link = Link(self._dialler)
        reply = link.exchange(packed("SUBSCRIBE", self._channel), 1, self._dialler.wire_s)[0]
        if isinstance(reply, Exception):
            link.close()
            raise Unavailable("redis", "no permission", f"cannot subscribe to {self._channel}: {reply}")
        return link

    def _listen(self) -> bool:
        """Subscribe, if that can be done now; a waiter can do without."""
        try:
            self._link = self._subscribed()
        except Unavailable as error:
            log.warning("wake-ups are late: %s", error)
            self._again_s = _NOT_ALLOWED_S if error.reason == "no permission" else _AGAIN_S
        return self._link is not None

    def _hear(self) -> None:
        while True:
            link = self._link
            ready = self._poll(link)
            if self._stop.fileno() in ready:
                break
            if link is None:
                if self._listen():
                    self._board.ring_all()
            elif ready:
                self._heard(link)
        self._drop()

    def _heard(self, link: Link) -> None:
        try:
            for reply in link.heard():
                if isinstance(reply, list) and reply[0] == "message":
                    self._board.ring(reply[2])
        except ReplyLost as error:
            log.warning("wake-ups are late: %s", error)
            self._again_s = _AGAIN_S
            self._drop()

    def _poll(self, link: Link | None) -> set[int]:
        """Sleep until something is heard or the end is asked for; without a link, a moment before trying again."""
        poll = select.poll()
        poll.register(self._stop, select.POLLIN)
        if link is not None:
            poll.register(link, select.POLLIN)
        return {descriptor for descriptor, _ in poll.poll(self._again_s * 1000 if link is None else None)}

    def _drop(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def close(self) -> None:
        self._stopper.close()
        self._thread.join()
        self._stop.close()

    def forked(self) -> None:
        """In a child: the thread is not here, and the subscription is the parent's."""
        self._drop()
        self._stop.close()
        self._stopper.close()
