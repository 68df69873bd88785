"""The servers of a cluster: which of them answers for which slot.

The map is learned from any server that answers, one at a time and not too often, and corrected by every redirection.
What is not known, or belongs to a server that did not answer, is looked for before it is asked again.

A URL outlives the servers that it names. One that has left the cluster answers still, and knows nothing of it, or of
another one: it is believed only if nobody else answers.
"""

from __future__ import annotations

import random
import threading
from binascii import crc_hqx
from time import monotonic
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from holdfast.engines.redis.connect import refused
from holdfast.engines.redis.connection_blocking import RedisConnection
from holdfast.engines.redis.keys import hash_tag
from holdfast.engines.redis.resp import packed
from holdfast.engines.redis.topology import ignore_change
from holdfast.errors import MOVING, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.engines.redis.connect import Connector
    from holdfast.engines.redis.listener import SubscriptionListener
    from holdfast.engines.redis.topology import Node

SLOTS = 16384
_LOOK_S = 0.5
_LOOK_EVERY_S = 0.1
# Whoever has less time than this to answer is not silent.
_FAIR_S = 0.05
# For so long a server that did not answer is asked after all others.
_DOUBT_S = 5.0
# What needs somebody to act.
_REFUSALS = ("no permission", "other topology", "failed")
_VIEW = packed("CLUSTER", "SLOTS")
_STATE = packed("CLUSTER", "INFO")


def slot_of(text: str) -> int:
    """The slot of a hash tag, or of a key without one."""
    return crc_hqx(text.encode(), 0) % SLOTS


class SlotMap:
    """What one server says of the cluster: who owns which slot, and who else is there."""

    def __init__(self, reply: Any, host: str) -> None:
        self.owners: list[str] = [""] * SLOTS
        self.places: list[tuple[str, int] | None] = [None] * SLOTS
        self.everybody: list[tuple[str, int]] = []
        self.ids: set[str] = set()
        for first, last, *servers in reply:
            # Without a host it is the one that was asked; `?` is one that it does not know either.
            places = [(str(server[0] or host), int(server[1])) for server in servers]
            count = last - first + 1
            self.owners[first : last + 1] = [str(servers[0][2])] * count
            self.places[first : last + 1] = [places[0] if places[0][0] != "?" else None] * count
            self.everybody += [place for place in places if place[0] != "?"]
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
        # Also of those that are not known any more, for as long as somebody has a connection there.
        self._diallers: WeakValueDictionary[tuple[str, int], Connector] = WeakValueDictionary(self._known)
        self._slots: list[Connector | None] = [None] * SLOTS
        self._ids: set[str] = set()  # of all servers in the map
        self._doubted: WeakKeyDictionary[Node, float] = WeakKeyDictionary()
        self._looked_s = -_LOOK_EVERY_S
        self.forked()

    def forked(self) -> None:
        self._guard = threading.Lock()

    def node_of(self, name: str) -> Node | None:
        return self._slots[slot_of(hash_tag(name))]

    def node_of_key(self, key: str) -> Node | None:
        return self._slots[slot_of(key)]

    def node_at(self, host: str, port: int, asked: Node) -> Node:
        here = getattr(asked, "place", self._seeds[0].place)
        place = (host or here[0], port)
        return self._known.setdefault(place, self._at(place))

    @property
    def whole(self) -> bool:
        return None not in self._slots

    def nodes(self) -> tuple[Node, ...]:
        """The owners of slots; before they are known, those that the user named."""
        owners = dict.fromkeys(node for node in self._slots if node is not None)
        return tuple(owners) or tuple(self._seeds)

    def servers(self) -> tuple[str, ...]:
        return tuple(sorted(node.url for node in self.nodes()))

    def any_node(self) -> Node:
        sound = [node for node in self.nodes() if not self._is_doubted(node)]
        return random.choice(sound or self.nodes())  # noqa: S311 - nobody is deceived by it

    def learn(self, slot: int, node: Node) -> None:
        self._slots[slot] = node  # type: ignore[call-overload]

    def doubt(self, node: Node) -> None:
        self._doubted[node] = monotonic()
        self._slots = [None if owner is node else owner for owner in self._slots]

    def refresh(self, limit_s: float) -> None:
        seen, until_s = self._looked_s, monotonic() + limit_s
        # One at a time; whoever waited for it has what it wanted, or goes without when its time is over.
        if not self._guard.acquire(timeout=max(0.0, limit_s)):
            return
        try:
            if self._looked_s != seen or monotonic() - self._looked_s < _LOOK_EVERY_S:
                return
            try:
                self._adopt(self._view(min(until_s, monotonic() + self.wire_s)))
            finally:
                self._looked_s = monotonic()
        finally:
            self._guard.release()

    def _view(self, until_s: float) -> SlotMap:
        """However many are silent, it takes hardly longer than that: other leases wait for it, on servers that live.

        One that is silent has half of the time that is left, so that another has some, and is asked last the next time.
        """
        refusal, trouble, strange = None, "", None
        for node in self._askable():
            left_s = until_s - monotonic()
            if trouble and left_s <= 0:
                trouble += "; there was no time to ask all of them"
                break
            limit_s = max(_FAIR_S, min(_LOOK_S, left_s / 2))
            try:
                view = self._seen_by(node, limit_s)
            except Unavailable as error:
                refusal, trouble = refusal or _refusal(error), error.detail
                self._doubted[node] = monotonic()
                continue
            if self._is_ours(view):
                return view
            strange = strange if strange is not None and strange.ids else view
        else:  # all were asked: only then is a stranger believed, or a refusal
            if strange is not None:
                return strange
            if refusal is not None:
                raise refusal
        raise Unavailable("redis", "unreachable", f"no server of {self.url} answers: {trouble}")

    def _is_ours(self, view: SlotMap) -> bool:
        """Whether it is of the cluster that we know; before we know one, of any at all."""
        return bool(view.ids & self._ids if self._ids else view.ids)

    def _askable(self) -> list[Connector]:
        """All that are known, in no order; those that did not answer come last."""
        known = list(self._known.values())
        random.shuffle(known)
        return sorted(known, key=self._is_doubted)

    def _is_doubted(self, node: Node) -> bool:
        return monotonic() - self._doubted.get(node, -_DOUBT_S) < _DOUBT_S

    def _seen_by(self, node: Connector, limit_s: float) -> SlotMap:
        link = RedisConnection(node, limit_s)
        try:
            reply = link.exchange(_VIEW, 1, limit_s)[0]
        finally:
            link.close()
        if isinstance(reply, Exception):
            raise refused(node.url, reply)
        return SlotMap(reply, node.place[0])

    def _adopt(self, view: SlotMap) -> None:
        before = set(self.nodes())
        known = {place: self._at(place) for place in (*view.everybody, *(seed.place for seed in self._seeds))}
        self._slots = [None if place is None else known[place] for place in view.places]
        self._known, self._ids = known, view.ids or self._ids
        if not self.version or set(self.nodes()) != before:
            self.version += 1
            self.on_change()

    def _at(self, place: tuple[str, int]) -> Connector:
        """The dialler of a place: one and the same, while anybody uses it."""
        return self._diallers.get(place) or self._diallers.setdefault(place, self._seeds[0].at(*place))

    def watch(self) -> SubscriptionListener | None:
        """A server that is asked for what is not its own says so: nothing has to be watched."""

    def settle(self) -> tuple[Node, ...]:
        view = self._agreed()
        with self._guard:
            self._adopt(view)
        return tuple(self._at(place) for place in dict.fromkeys(view.places) if place is not None)

    def _agreed(self) -> SlotMap:
        """What all that answer see. Nobody has to wait for it who only wants to look around."""
        reports, refusals, trouble = [], [], ""
        for node in self._askable():
            try:
                reports.append((node, *self._report(node)))
            except Unavailable as error:
                if _refusal(error):
                    refusals.append((node, error))
                trouble = error.detail  # whoever does not answer is left out
        if not reports and not refusals:
            raise Unavailable("redis", "unreachable", f"no server of {self.url} answers: {trouble}")
        ours = [view for _, _, view in reports if self._is_ours(view)] or [view for _, _, view in reports]
        named = {place for view in ours for place in view.everybody}
        for node, refusal in refusals:
            if not reports or node.place in named:
                raise refusal
        # Whoever knows nothing of the cluster, and is not named by it, has left: what it says does not matter.
        members = [report for report in reports if report[2] in ours or report[0].place in named]
        unwell = [node.url for node, well, _ in members if not well]
        if unwell:
            raise Unavailable("redis", MOVING, f"{', '.join(unwell)} of {self.url}: the cluster is down")
        view = ours[0]
        if any(other.owners != view.owners for _, _, other in members):
            raise Unavailable("redis", MOVING, f"the servers of {self.url} do not agree on who owns which slot")
        if None in view.places:
            raise Unavailable("redis", MOVING, f"the servers of {self.url} do not know who owns some of the slots")
        return view

    def _report(self, node: Connector) -> tuple[bool, SlotMap]:
        """Whether the server finds the cluster well, and what it sees."""
        link = RedisConnection(node, _LOOK_S)
        try:
            state, slots = link.exchange(_STATE + _VIEW, 2, _LOOK_S)
        finally:
            link.close()
        for reply in (state, slots):
            if isinstance(reply, Exception):
                raise refused(node.url, reply)
        return "cluster_state:ok" in state, SlotMap(slots, node.place[0])


def _refusal(error: Unavailable) -> Unavailable | None:
    return error if error.reason in _REFUSALS else None
