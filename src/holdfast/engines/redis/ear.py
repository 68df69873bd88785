"""Wake-ups from Redis: one subscription per client, heard by one thread.

The thread connects again by itself, and then wakes every waiter once, because a ring may have been missed. It is never
the keeper's connection, and there is one of it, however many names are waited for.
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


class Ear:
    """Hears the rings of one client."""

    def __init__(self, dialler: Dialler, channel: str, board: Board) -> None:
        self._dialler = dialler
        self._channel = channel
        self._board = board
        self._stop, self._stopper = socket.socketpair()
        self._link: Link | None = self._subscribed()
        self._thread = threading.Thread(target=self._hear, name="holdfast-ear", daemon=True)
        self._thread.start()

    def _subscribed(self) -> Link:
        link = Link(self._dialler)
        reply = link.exchange(packed("SUBSCRIBE", self._channel), 1, self._dialler.wire_s)[0]
        if isinstance(reply, Exception):
            link.close()
            raise Unavailable("redis", "no permission", f"cannot subscribe to {self._channel}: {reply}")
        return link

    def _hear(self) -> None:
        while True:
            link = self._link
            ears: list[socket.socket | Link] = [self._stop] if link is None else [self._stop, link]
            ready, _, _ = select.select(ears, [], [], _AGAIN_S if link is None else None)
            if self._stop in ready:
                break
            try:
                if link is None:
                    self._link = self._subscribed()
                    self._board.ring_all()
                elif ready:
                    for reply in link.heard():
                        if isinstance(reply, list) and reply[0] == "message":
                            self._board.ring(reply[2])
            except (Unavailable, ReplyLost) as error:
                log.warning("wake-ups are late: %s", error)
                self._drop()
        self._drop()

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
