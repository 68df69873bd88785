"""The servers of a cluster, and which of them serves which slot.

The client learns the slot map from any server that answers, one request at a time and not too often, and every redirect
corrects it. A slot that is unknown, or belongs to a server that did not answer, is looked up before the next command.

A URL outlives the servers that it names. A server that has left the cluster still answers, and knows no cluster or
another one: the client trusts it only if no other server answers.
"""

from __future__ import annotations

import random
import threading
from binascii import crc_hqx
from time import monotonic
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from holdfast.engines.redis.connect import reply_error
from holdfast.engines.redis.connection_blocking import RedisConnection
from holdfast.engines.redis.keys import hash_tag
from holdfast.engines.redis.redirects import SLOTS
from holdfast.engines.redis.resp import packed
from holdfast.engines.redis.topology import ignore_change
from holdfast.errors import MOVING, Unavailable, UnavailableReason

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.engines.redis.connect import Connector
    from holdfast.engines.redis.listener import SubscriptionListener
    from holdfast.engines.redis.topology import Node

_ASK_S = 0.5
_REFRESH_EVERY_S = 0.1
# A server gets at least this time to answer, so that a client out of time does not call it silent.
_FAIR_S = 0.05
# For this time after a server did not answer, the client asks it only after all others.
_FAILED_S = 5.0
# Errors that an operator has to fix.
_REFUSALS = ("no permission", "other topology", "failed")
_SLOT_MAP = packed("CLUSTER", "SLOTS")
_STATE = packed("CLUSTER", "INFO")


def slot_of(text: str) -> int:
    """Return the slot of a hash tag, or of a key without one."""
    return crc_hqx(text.encode(), 0) % SLOTS


class SlotMap:
    """The cluster as one server sees it: the owner of each slot, and all servers."""

    def __init__(self, reply: Any, host: str) -> None:
        self.owners: list[str] = [""] * SLOTS
        self.places: list[tuple[str, int] | None] = [None] * SLOTS
        self.all_places: list[tuple[str, int]] = []
        self.ids: set[str] = set()
        for first, last, *servers in reply:
            # Without a host, the entry means the server that answered; `?` is a host that this server does not know.
            if not 0 <= first <= last < SLOTS:
                raise ValueError("a range of slots that no cluster has")
            places = [(str(server[0] or host), int(server[1])) for server in servers]
            count = last - first + 1
            self.owners[first : last + 1] = [str(servers[0][2])] * count
            self.places[first : last + 1] = [places[0] if places[0][0] != "?" else None] * count
            self.all_places += [place for place in places if place[0] != "?"]
            self.ids.update(str(server[2]) for server in servers)


class Cluster:
    """The topology of a cluster."""

    follows = True
    only: Node | None = None

    def __init__(self, url: str, seeds: Sequence[Connector]) -> None:
        self.url = url
        self.wire_s = seeds[0].wire_s
        self.version = 0
        self.on_change: Callable[[], None] = ignore_change
        self._seeds = seeds
        self._known: dict[tuple[str, int], Connector] = {seed.place: seed for seed in seeds}
        # Includes servers that are no longer known, for as long as a connection to them exists.
        self._connectors: WeakValueDictionary[tuple[str, int], Connector] = WeakValueDictionary(self._known)
        self._slots: list[Connector | None] = [None] * SLOTS
        self._ids: set[str] = set()  # of all servers in the map
        self._failed: WeakKeyDictionary[Node, float] = WeakKeyDictionary()
        self._refreshed_s = -_REFRESH_EVERY_S
        self.forked()

    def forked(self) -> None:
        self._guard = threading.Lock()

    def node_of(self, name: str) -> Node | None:
        return self._slots[slot_of(hash_tag(name))]

    def node_of_key(self, key: str) -> Node | None:
        return self._slots[slot_of(key)]

    def node_at(self, host: str, port: int, sender: Node) -> Node:
        place = (host or sender.place[0], port)
        return self._known.setdefault(place, self._at(place))

    @property
    def complete(self) -> bool:
        return None not in self._slots

    def nodes(self) -> tuple[Node, ...]:
        """Return the owners of slots; before they are known, the servers of the URL."""
        owners = dict.fromkeys(node for node in self._slots if node is not None)
        return tuple(owners) or tuple(self._seeds)

    def servers(self) -> tuple[str, ...]:
        return tuple(sorted(node.url for node in self.nodes()))

    def any_node(self) -> Node:
        answering = [node for node in self.nodes() if not self._has_failed(node)]
        return random.choice(answering or self.nodes())  # noqa: S311 - not for security

    def learn(self, slot: int, node: Node) -> None:
        self._slots[slot] = node  # type: ignore[call-overload]

    def mark_failed(self, node: Node) -> None:
        self._failed[node] = monotonic()
        self._slots = [None if owner is node else owner for owner in self._slots]

    def refresh(self, limit_s: float) -> None:
        seen, until_s = self._refreshed_s, monotonic() + limit_s
        # One thread at a time asks; the others get its result, or continue without it when their time is over.
        if not self._guard.acquire(timeout=max(0.0, limit_s)):
            return
        try:
            if self._refreshed_s != seen or monotonic() - self._refreshed_s < _REFRESH_EVERY_S:
                return
            try:
                self._adopt(self._slot_map(min(until_s, monotonic() + self.wire_s)))
            finally:
                self._refreshed_s = monotonic()
        finally:
            self._guard.release()

    def _slot_map(self, until_s: float) -> SlotMap:
        """Return the slot map of a server of this cluster, at most a little after `until_s`, however many are silent.

        Leases on other servers wait for this call. Each server gets half of the time that is left, so that time remains
        for another server. The next call asks a silent server last.
        """
        refusal, trouble, foreign = None, "", None
        for node in self._candidates():
            left_s = until_s - monotonic()
            if trouble and left_s <= 0:
                trouble += "; there was no time to ask all of them"
                break
            limit_s = max(_FAIR_S, min(_ASK_S, left_s / 2))
            try:
                slot_map = self._slot_map_of(node, limit_s)
            except Unavailable as error:
                refusal, trouble = refusal or _refusal(error), error.detail
                self._failed[node] = monotonic()
                continue
            if self._is_ours(slot_map):
                return slot_map
            foreign = foreign if foreign is not None and foreign.ids else slot_map
        else:  # every server was asked: only now trust a server of another cluster, or raise a refusal
            if foreign is not None:
                return foreign
            if refusal is not None:
                raise refusal
        raise Unavailable("redis", UnavailableReason.UNREACHABLE, f"no server of {self.url} answers: {trouble}")

    def _is_ours(self, slot_map: SlotMap) -> bool:
        """Return whether the map belongs to the known cluster; before one is known, whether it belongs to any."""
        return bool(slot_map.ids & self._ids if self._ids else slot_map.ids)

    def _candidates(self) -> list[Connector]:
        """Return all known servers in random order; those that did not answer come last."""
        known = list(self._known.values())
        random.shuffle(known)
        return sorted(known, key=self._has_failed)

    def _has_failed(self, node: Node) -> bool:
        return monotonic() - self._failed.get(node, -_FAILED_S) < _FAILED_S

    def _slot_map_of(self, node: Connector, limit_s: float) -> SlotMap:
        connection = RedisConnection(node, limit_s)
        try:
            reply = connection.exchange(_SLOT_MAP, 1, limit_s)[0]
        finally:
            connection.close()
        if isinstance(reply, Exception):
            raise reply_error(node.url, reply)
        return _read_slot_map(node, reply)

    def _adopt(self, slot_map: SlotMap) -> None:
        before = set(self.nodes())
        known = {place: self._at(place) for place in (*slot_map.all_places, *(seed.place for seed in self._seeds))}
        self._slots = [None if place is None else known[place] for place in slot_map.places]
        self._known, self._ids = known, slot_map.ids or self._ids
        if not self.version or set(self.nodes()) != before:
            self.version += 1
            self.on_change()

    def _at(self, place: tuple[str, int]) -> Connector:
        """Return the connector of an address: the same one while it is in use."""
        return self._connectors.get(place) or self._connectors.setdefault(place, self._seeds[0].at(*place))

    def watch(self) -> SubscriptionListener | None:
        """Return nothing: a server redirects a command for a slot that it does not own."""

    def agreed_nodes(self) -> tuple[Node, ...]:
        slot_map = self._agreed()
        with self._guard:
            self._adopt(slot_map)
        return tuple(self._at(place) for place in dict.fromkeys(slot_map.places) if place is not None)

    def _agreed(self) -> SlotMap:
        """Return the slot map, if all servers that answer have the same one. Take no lock, so that no refresh waits."""
        reports, refusals, trouble = [], [], ""
        for node in self._candidates():
            try:
                reports.append((node, *self._report(node)))
            except Unavailable as error:
                if _refusal(error):
                    refusals.append((node, error))
                trouble = error.detail  # a server that does not answer is left out
        if not reports and not refusals:
            raise Unavailable("redis", UnavailableReason.UNREACHABLE, f"no server of {self.url} answers: {trouble}")
        ours = [slot_map for _, _, slot_map in reports if self._is_ours(slot_map)]
        ours = ours or [slot_map for _, _, slot_map in reports]
        named = {place for slot_map in ours for place in slot_map.all_places}
        for node, refusal in refusals:
            if not reports or node.place in named:
                raise refusal
        # A server that does not know the cluster, and that the cluster does not name, has left it.
        members = [report for report in reports if report[2] in ours or report[0].place in named]
        failing = [node.url for node, well, _ in members if not well]
        if failing:
            raise Unavailable("redis", MOVING, f"{', '.join(failing)} of {self.url}: the cluster is down")
        slot_map = ours[0]
        if any(other.owners != slot_map.owners for _, _, other in members):
            raise Unavailable("redis", MOVING, f"the servers of {self.url} do not agree on the owners of slots")
        if None in slot_map.places:
            raise Unavailable("redis", MOVING, f"the servers of {self.url} do not know the owners of some slots")
        return slot_map

    def _report(self, node: Connector) -> tuple[bool, SlotMap]:
        """Return whether the server reports the cluster as working, and its slot map."""
        connection = RedisConnection(node, _ASK_S)
        try:
            state, slots = connection.exchange(_STATE + _SLOT_MAP, 2, _ASK_S)
        finally:
            connection.close()
        for reply in (state, slots):
            if isinstance(reply, Exception):
                raise reply_error(node.url, reply)
        return "cluster_state:ok" in str(state), _read_slot_map(node, slots)


def _read_slot_map(node: Connector, reply: Any) -> SlotMap:
    try:
        return SlotMap(reply, node.place[0])
    except (TypeError, ValueError, LookupError) as error:
        what = "cannot read the reply to CLUSTER SLOTS; check that the address is a Redis Cluster node"
        detail = f"{node.url}: {what}"
        raise Unavailable("redis", UnavailableReason.FAILED, detail) from error


def _refusal(error: Unavailable) -> Unavailable | None:
    return error if error.reason in _REFUSALS else None
