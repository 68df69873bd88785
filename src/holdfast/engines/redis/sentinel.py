"""A primary that the client finds through sentinels.

The client asks the sentinels each time it opens a connection, and the server has to confirm that it is a primary: an
address that was right a minute ago may now belong to a replica, or to a primary that has come back. The client does not
trust one sentinel against the others: the network may have cut it off together with a primary that was replaced since,
and that primary still reports that it is one. So the majority of the sentinels that answer has to name the same server.

A primary that was replaced while it runs does not notice this for some seconds, and would continue to grant leases to
clients that are still connected. So the client subscribes to one sentinel, and closes all connections when the sentinel
reports another primary.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from holdfast.engines.redis.connect import reply_error
from holdfast.engines.redis.connection_asyncio import run_in_thread
from holdfast.engines.redis.connection_blocking import RedisConnection
from holdfast.engines.redis.listener import SubscriptionListener
from holdfast.engines.redis.resp import packed
from holdfast.engines.redis.topology import SingleServer, ignore_change
from holdfast.errors import LASTING, MOVING, Unavailable, UnavailableReason

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable, Sequence

    from holdfast.engines.redis.connect import Connector
    from holdfast.engines.redis.topology import Node

    Votes = dict[tuple[str, int], list[str]]

# The most and the least time that a sentinel gets to answer before the client skips it, in seconds.
_ASK_S, _FAIR_S = 0.5, 0.05


class SentinelPrimary:
    """The node: the server that is the primary of the service at the moment."""

    def __init__(self, url: str, service: str, sentinels: Sequence[Connector], server: Connector) -> None:
        self.url = url
        self.wire_s, self.db = server.wire_s, server.db
        self.on_change: Callable[[], None] = ignore_change
        self._service = service
        self._sentinels = list(sentinels)
        self._server = server
        self._address: tuple[str, int] | None = None
        self.forked()

    @property
    def place(self) -> tuple[str, int]:
        return self._address or self._server.place

    def forked(self) -> None:
        self._guard = threading.Lock()

    def open_socket(self, limit_s: float | None = None) -> socket.socket:
        if limit_s is None:
            return self._find(None).open_socket()
        until_s = monotonic() + limit_s
        return self._find(limit_s).open_socket(max(_FAIR_S, until_s - monotonic()))

    async def open_stream(self) -> asyncio.StreamWriter:
        found = await run_in_thread(partial(self._find, None))
        return await found.open_stream()

    def _find(self, limit_s: float | None) -> Connector:
        """Return the server that most sentinels name. Once more than half of all agree, do not ask the rest."""
        count, each_s = len(self._sentinels), _ASK_S
        if limit_s is not None:  # the limit is for all sentinels together, because other leases may wait for this call
            each_s = max(_FAIR_S, min(_ASK_S, limit_s / count))
        votes = self._votes(each_s, most=count // 2 + 1)
        address, voters = max(votes.items(), key=lambda vote: len(vote[1]))
        if 2 * len(voters) <= sum(map(len, votes.values())):
            raise Unavailable("redis", MOVING, self._disagreement(votes))
        self._record(address)
        return self._server.at(*address, primary=True)

    def _votes(self, limit_s: float, most: int | None = None) -> Votes:
        """Return which sentinels name which server; stop once `most` of them name the same.

        The next call asks a sentinel last that does not answer now. Raise `Unavailable` if none answers.
        """
        votes: Votes = {}
        errors: list[Unavailable] = []
        for sentinel in self._sentinels:
            try:
                voters = votes.setdefault(self._named_by(sentinel, limit_s), [])
            except Unavailable as error:
                errors.append(error)
                self._move_to_end(sentinel)
                continue
            voters.append(sentinel.url)
            if len(voters) == most:
                break
        if not votes:
            # If all of them refuse, an operator has to fix the cause.
            reason = errors[0].reason if all(error.reason in LASTING for error in errors) else "unreachable"
            detail = "; ".join(error.detail for error in errors)
            raise Unavailable("redis", reason, f"no sentinel of {self.url} answers: {detail}")
        return votes

    def _disagreement(self, votes: Votes) -> str:
        named = "; ".join(f"{host}:{port} by {', '.join(voters)}" for (host, port), voters in votes.items())
        return f"the sentinels of {self.url} name several primaries: {named}"

    def _named_by(self, sentinel: Connector, limit_s: float) -> tuple[str, int]:
        connection = RedisConnection(sentinel, limit_s)
        try:
            command = packed("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service)
            reply: Any = connection.exchange(command, 1, limit_s)[0]
        finally:
            connection.close()
        if not isinstance(reply, list) or len(reply) != 2 or not str(reply[1]).isdecimal() or len(str(reply[1])) > 5:
            if isinstance(reply, Exception):
                raise reply_error(sentinel.url, reply)
            raise Unavailable("redis", UnavailableReason.FAILED, f"{sentinel.url}: it has no service {self._service!r}")
        return str(reply[0]), int(reply[1])

    def _move_to_end(self, sentinel: Connector) -> None:
        with self._guard:  # make a new list: another thread may iterate over the old one, and must not miss a sentinel
            self._sentinels = [*(each for each in self._sentinels if each is not sentinel), sentinel]

    def _record(self, address: tuple[str, int]) -> None:
        before, self._address = self._address, address
        if before not in (None, address):
            self.on_change()

    def address(self) -> tuple[str, ...]:
        """Return the host and port of the primary, once the sentinels have named it."""
        return () if self._address is None else ("{}:{}".format(*self._address),)

    def next_sentinel(self) -> Connector:
        """Return a sentinel to subscribe to: another one each time."""
        first = self._sentinels[0]
        self._move_to_end(first)
        return first

    def switched(self, message: str) -> None:
        """Record a change that a sentinel published: service, old host and port, new host and port."""
        fields = message.split(" ")
        if fields[0] == self._service and len(fields) == 5 and fields[4].isdigit():
            self._record((fields[3], int(fields[4])))

    def ask_again(self) -> None:
        """Ask the sentinels, because a published change may have been missed."""
        with suppress(Unavailable):  # the next connection asks them as well
            self._find(None)

    def agreed(self) -> Connector:
        """Return the server that all sentinels that answer name; it has to confirm that it is a primary."""
        votes = self._votes(_ASK_S)
        if len(votes) > 1:
            raise Unavailable("redis", MOVING, self._disagreement(votes))
        address = next(iter(votes))
        found = self._server.at(*address, primary=True)
        found.open_socket(_ASK_S).close()
        self._record(address)
        return found


class SentinelService(SingleServer):
    """The topology: one node, which other servers may replace."""

    follows = True

    def __init__(self, primary: SentinelPrimary) -> None:
        super().__init__(primary)
        self._primary = primary
        primary.on_change = self._changed

    def _changed(self) -> None:
        self.version += 1
        self.on_change()

    def servers(self) -> tuple[str, ...]:
        return self._primary.address()

    def agreed_nodes(self) -> tuple[Node, ...]:
        return (self._primary.agreed(),)

    def watch(self) -> SubscriptionListener | None:
        primary = self._primary
        return SubscriptionListener(
            primary.next_sentinel,
            "+switch-master",
            on_message=primary.switched,
            on_gap=primary.ask_again,
            what="changes of the primary",
        )

    def forked(self) -> None:
        self._primary.forked()
