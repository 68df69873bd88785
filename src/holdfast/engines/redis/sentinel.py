"""A primary that is found through its sentinels.

The sentinels are asked each time that a connection is opened, and the server must say itself that it is a primary: an
address that was right a minute ago may be that of a replica now, or of a server that has come back from the dead. One
sentinel is not believed against the others: it may have been cut off together with a primary that has been replaced
since, and that one still says that it is a primary. So most of those that answer have to name the same server.

A primary that is replaced while it lives does not know it for some seconds, and would go on granting to whoever is
still connected to it. So one sentinel is listened to, and when it tells of another primary all connections are left.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from holdfast.engines.redis.connect import refused
from holdfast.engines.redis.connection_asyncio import run_in_thread
from holdfast.engines.redis.connection_blocking import RedisConnection
from holdfast.engines.redis.listener import SubscriptionListener
from holdfast.engines.redis.resp import packed
from holdfast.engines.redis.topology import SingleServer, ignore_change
from holdfast.errors import LASTING, MOVING, Unavailable

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable, Sequence

    from holdfast.engines.redis.connect import Connector
    from holdfast.engines.redis.topology import Node

    Views = dict[tuple[str, int], list[str]]

# A sentinel that does not answer by then is passed over; it has at least the second, however little time there is.
_LOOK_S, _FAIR_S = 0.5, 0.05


class SentinelPrimary:
    """The node: whoever is the primary of the service just now."""

    def __init__(self, url: str, service: str, sentinels: Sequence[Connector], server: Connector) -> None:
        self.url = url
        self.wire_s, self.db = server.wire_s, server.db
        self.on_change: Callable[[], None] = ignore_change
        self._service = service
        self._sentinels = list(sentinels)
        self._server = server
        self._address: tuple[str, int] | None = None
        self.forked()

    def forked(self) -> None:
        self._guard = threading.Lock()

    def open_socket(self, limit_s: float | None = None) -> socket.socket:
        if limit_s is None:
            return self._found(None).open_socket()
        until_s = monotonic() + limit_s
        return self._found(limit_s).open_socket(max(_FAIR_S, until_s - monotonic()))

    async def open_stream(self) -> asyncio.StreamWriter:
        found = await run_in_thread(partial(self._found, None))
        return await found.open_stream()

    def _found(self, limit_s: float | None) -> Connector:
        """What most sentinels say. Once more than half of all agree, the rest need not be asked."""
        count, each_s = len(self._sentinels), _LOOK_S
        if limit_s is not None:  # all of them together have no more time than that: other leases may wait for it
            each_s = max(_FAIR_S, min(_LOOK_S, limit_s / count))
        told = self._views(each_s, most=count // 2 + 1)
        address, who = max(told.items(), key=lambda view: len(view[1]))
        if 2 * len(who) <= sum(map(len, told.values())):
            raise Unavailable("redis", MOVING, self._disagreement(told))
        self._is(address)
        return self._server.at(*address, primary=True)

    def _views(self, limit_s: float, most: int | None = None) -> Views:
        """Whom the sentinels that answer name as the primary, until so many are of one mind.

        One that does not answer is asked last the next time. `Unavailable` if nobody answers.
        """
        told: Views = {}
        trouble: list[Unavailable] = []
        for sentinel in self._sentinels:
            try:
                who = told.setdefault(self._told_by(sentinel, limit_s), [])
            except Unavailable as error:
                trouble.append(error)
                self._last(sentinel)
                continue
            who.append(sentinel.url)
            if len(who) == most:
                break
        if not told:
            # What all of them refuse is no trouble that passes.
            reason = trouble[0].reason if all(error.reason in LASTING for error in trouble) else "unreachable"
            detail = "; ".join(error.detail for error in trouble)
            raise Unavailable("redis", reason, f"no sentinel of {self.url} answers: {detail}")
        return told

    def _disagreement(self, told: Views) -> str:
        views = "; ".join(f"{host}:{port} by {', '.join(who)}" for (host, port), who in told.items())
        return f"the sentinels of {self.url} name several primaries: {views}"

    def _told_by(self, sentinel: Connector, limit_s: float) -> tuple[str, int]:
        link = RedisConnection(sentinel, limit_s)
        try:
            ask = packed("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service)
            reply: Any = link.exchange(ask, 1, limit_s)[0]
        finally:
            link.close()
        if not isinstance(reply, list) or len(reply) != 2:
            if isinstance(reply, Exception):
                raise refused(sentinel.url, reply)
            raise Unavailable("redis", "failed", f"{sentinel.url}: it knows no service {self._service!r}")
        return str(reply[0]), int(reply[1])

    def _last(self, sentinel: Connector) -> None:
        with self._guard:  # a list of its own each time: others look at it meanwhile, and none may be missing
            self._sentinels = [*(each for each in self._sentinels if each is not sentinel), sentinel]

    def _is(self, address: tuple[str, int]) -> None:
        before, self._address = self._address, address
        if before not in (None, address):
            self.on_change()

    def where(self) -> tuple[str, ...]:
        """Host and port, once a sentinel has told them."""
        return () if self._address is None else ("{}:{}".format(*self._address),)

    def any_sentinel(self) -> Connector:
        """One to listen to: each time another."""
        first = self._sentinels[0]
        self._last(first)
        return first

    def told(self, message: str) -> None:
        """A sentinel tells of a change: service, old host and port, new host and port."""
        words = message.split(" ")
        if words[0] == self._service and len(words) == 5 and words[4].isdigit():
            self._is((words[3], int(words[4])))

    def look(self) -> None:
        """A change may have been missed."""
        with suppress(Unavailable):  # whoever dials next will be told
            self._found(None)

    def settle(self) -> Connector:
        """All sentinels that answer must name the same server, and it must be a primary: that one, by its address."""
        told = self._views(_LOOK_S)
        if len(told) > 1:
            raise Unavailable("redis", MOVING, self._disagreement(told))
        address = next(iter(told))
        found = self._server.at(*address, primary=True)
        found.open_socket(_LOOK_S).close()
        self._is(address)
        return found


class SentinelService(SingleServer):
    """The topology: one node, which others may take the place of."""

    follows = True

    def __init__(self, primary: SentinelPrimary) -> None:
        super().__init__(primary)
        self._primary = primary
        primary.on_change = self._changed

    def _changed(self) -> None:
        self.version += 1
        self.on_change()

    def servers(self) -> tuple[str, ...]:
        return self._primary.where()

    def settle(self) -> tuple[Node, ...]:
        return (self._primary.settle(),)

    def watch(self) -> SubscriptionListener | None:
        primary = self._primary
        return SubscriptionListener(
            primary.any_sentinel,
            "+switch-master",
            heard=primary.told,
            missed=primary.look,
            what="changes of the primary",
        )

    def forked(self) -> None:
        self._primary.forked()
