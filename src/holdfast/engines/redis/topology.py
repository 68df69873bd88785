"""Which server answers for which name, and what to do when that changes.

A node is a dialler: something that opens connections to one server. Where there is one server, or one primary that is
found through sentinels, all names have the same node; in a cluster the slot of the name decides. A topology blocks
when it looks around; asyncio has that done aside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable

    from holdfast.engines.redis.listener import SubscriptionListener


class Node(Protocol):
    """One server, or whoever takes its place."""

    url: str
    wire_s: float
    db: int

    def open_socket(self, limit_s: float | None = None) -> socket.socket:
        """A connected, authenticated socket."""

    async def open_stream(self) -> asyncio.StreamWriter:
        """The same for an event loop."""


class Topology(Protocol):
    """Where the names of one client live.

    `follows`: there is more than one server, so trouble may mean that another one answers. `only` is the node of all
    names, where there is such. `version` grows when the nodes have changed, and then `on_change` is called.
    """

    url: str
    wire_s: float
    follows: bool
    only: Node | None
    version: int
    on_change: Callable[[], None]

    @property
    def whole(self) -> bool:
        """Whether there is a node for every name."""

    def node_of(self, name: str) -> Node | None:
        """Who answers for the name, as far as is known."""

    def node_of_key(self, key: str) -> Node | None:
        """Who keeps this key, as far as is known."""

    def node_at(self, host: str, port: int, asked: Node) -> Node:
        """The node that a redirection names; without a host, it is that of the node that was asked."""

    def nodes(self) -> tuple[Node, ...]:
        """Those that are in use."""

    def servers(self) -> tuple[str, ...]:
        """Where they are just now, for people."""

    def any_node(self) -> Node:
        """One that hears what is published on any of them."""

    def learn(self, slot: int, node: Node) -> None:
        """A server has said who answers for the slot."""

    def doubt(self, node: Node) -> None:
        """It did not answer: look around before it is asked again."""

    def refresh(self, limit_s: float) -> None:
        """Look around; not more often than is good for the servers. `Unavailable` if nobody answers."""

    def settle(self) -> tuple[Node, ...]:
        """Look around now: who keeps keys? `Unavailable` if the servers do not agree, and then nothing has changed."""

    def watch(self) -> SubscriptionListener | None:
        """Somebody who is told of changes by the servers themselves, where they tell."""

    def forked(self) -> None:
        """In a new child: nobody is looking around."""


def ignore_change() -> None:
    """Nobody wants to know."""


class SingleServer:
    """One server that nobody replaces."""

    follows = False
    whole = True

    def __init__(self, node: Node) -> None:
        self.url, self.wire_s = node.url, node.wire_s
        self.only: Node | None = node
        self._node = node
        self.version = 0
        self.on_change: Callable[[], None] = ignore_change

    def node_of(self, name: str) -> Node:  # noqa: ARG002 - all names live there
        return self._node

    def node_of_key(self, key: str) -> Node:  # noqa: ARG002 - and all keys
        return self._node

    def node_at(self, host: str, port: int, asked: Node) -> Node:  # noqa: ARG002 - there is no other
        return self._node

    def nodes(self) -> tuple[Node, ...]:
        return (self._node,)

    def servers(self) -> tuple[str, ...]:
        return (self.url,)

    def any_node(self) -> Node:
        return self._node

    def learn(self, slot: int, node: Node) -> None:
        """There is nothing to learn."""

    def doubt(self, node: Node) -> None:
        """There is no other to ask."""

    def refresh(self, limit_s: float) -> None:
        """It stays where it is."""

    def settle(self) -> tuple[Node, ...]:
        return (self._node,)

    def watch(self) -> SubscriptionListener | None:
        return None

    def forked(self) -> None:
        """Nobody was looking around."""
