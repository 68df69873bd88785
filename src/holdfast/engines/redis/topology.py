"""Which server serves which name, and what to do when that changes.

A node is a connector: an object that opens connections to one server. With a single server, or one primary behind
sentinels, all names have the same node; in a cluster the slot of the name decides. A topology blocks while it asks its
servers; the asyncio transport runs such calls in a thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable

    from holdfast.engines.redis.listener import SubscriptionListener


class Node(Protocol):
    """One server, or the server that has taken its place."""

    url: str
    wire_s: float
    db: int

    @property
    def place(self) -> tuple[str, int]:
        """The host and the port."""

    def open_socket(self, limit_s: float | None = None) -> socket.socket:
        """Return a connected, authenticated socket."""

    async def open_stream(self) -> asyncio.StreamWriter:
        """Return a connected, authenticated stream for an event loop."""


class Topology(Protocol):
    """The servers of one client.

    `follows`: there is more than one server, so after an error another one may answer. `only`: the node of all names,
    if there is one. `version` grows when the nodes change, and then `on_change` is called.
    """

    url: str
    wire_s: float
    follows: bool
    only: Node | None
    version: int
    on_change: Callable[[], None]

    @property
    def complete(self) -> bool:
        """Whether there is a node for every name."""

    def node_of(self, name: str) -> Node | None:
        """Return the node that serves the name, if it is known."""

    def node_of_key(self, key: str) -> Node | None:
        """Return the node that stores this key, if it is known."""

    def node_at(self, host: str, port: int, sender: Node) -> Node:
        """Return the node that a redirect names. A redirect without a host means the host of its sender."""

    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes that are in use."""

    def servers(self) -> tuple[str, ...]:
        """Return the present addresses of the servers, for people."""

    def any_node(self) -> Node:
        """Return a node on which a client receives the messages that are published on any node."""

    def learn(self, slot: int, node: Node) -> None:
        """Record that a server has named the node of a slot."""

    def mark_failed(self, node: Node) -> None:
        """Record that a node did not answer: refresh before the next command to it."""

    def refresh(self, limit_s: float) -> None:
        """Ask the servers for changes, but not too often. Raise `Unavailable` if none answers."""

    def agreed_nodes(self) -> tuple[Node, ...]:
        """Ask all servers now, and return the nodes that store keys.

        Raise `Unavailable`, and change nothing, if the servers do not agree.
        """

    def watch(self) -> SubscriptionListener | None:
        """Subscribe to changes, if the servers publish them."""

    def forked(self) -> None:
        """Forget in a child process that a thread of the parent may be asking the servers."""


def ignore_change() -> None:
    """Do nothing: the default for `on_change`."""


class SingleServer:
    """One server that is never replaced by another."""

    follows = False
    complete = True

    def __init__(self, node: Node) -> None:
        self.url, self.wire_s = node.url, node.wire_s
        self.only: Node | None = node
        self._node = node
        self.version = 0
        self.on_change: Callable[[], None] = ignore_change

    def node_of(self, name: str) -> Node:  # noqa: ARG002 - it serves all names
        return self._node

    def node_of_key(self, key: str) -> Node:  # noqa: ARG002 - and stores all keys
        return self._node

    def node_at(self, host: str, port: int, sender: Node) -> Node:  # noqa: ARG002 - there is no other
        return self._node

    def nodes(self) -> tuple[Node, ...]:
        return (self._node,)

    def servers(self) -> tuple[str, ...]:
        return (self.url,)

    def any_node(self) -> Node:
        return self._node

    def learn(self, slot: int, node: Node) -> None:
        """Do nothing: there are no slots."""

    def mark_failed(self, node: Node) -> None:
        """Do nothing: there is no other server."""

    def refresh(self, limit_s: float) -> None:
        """Do nothing: the server stays the same."""

    def agreed_nodes(self) -> tuple[Node, ...]:
        return (self._node,)

    def watch(self) -> SubscriptionListener | None:
        return None

    def forked(self) -> None:
        """Do nothing: no thread asks for changes."""
