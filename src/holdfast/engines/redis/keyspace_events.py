"""Expired consumer sessions, as every server publishes them. Owners take over faster with them, and work without them.

A server publishes its own keys only, so the listener has a subscription to each master, and one thread for all. The
listener follows the servers by itself: it asks for them every few seconds, when a connection breaks, and when another
part of the client has noticed a change. While the servers do not agree, the listener keeps its subscriptions. It ends
the subscription to a master that has left. It subscribes to a new master, reads its setting, and extends the setting if
the user asked for that.

The servers do not repeat events that no client received. So no feature depends on them, and an open listener never
raises: it reports its problems as events.
"""

from __future__ import annotations

import select
import socket
import threading
from contextlib import ExitStack, suppress
from time import monotonic
from typing import TYPE_CHECKING

from holdfast.commands.queue_admin import QUEUES
from holdfast.engines.redis.acl import grant_hint
from holdfast.engines.redis.connection_blocking import RedisConnection
from holdfast.engines.redis.keys import record_key
from holdfast.engines.redis.notify_settings import LIMIT_S, NotifySetting, channel
from holdfast.engines.redis.resp import packed
from holdfast.errors import LASTING, ReplyLost, Unavailable, UnavailableReason
from holdfast.host import start_thread
from holdfast.observer import log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from holdfast.engines.redis.topology import Node, Topology

SUBSCRIBED, MISSING, CHANGED = "events_subscribed", "events_missing", "setting_changed"

_FOLLOW_EVERY_S = 3.0
_RETRY_S, _RETRY_MAX_S = 0.2, 3.0
_NOT_ALLOWED_S = 10.0
_QUIET_S = 5.0
_SIGNALS = 64
_PING = packed("PING")


class _Subscription:
    """The subscription to one master. It may be quiet until `until_s`; `pinged`: a ping has no reply yet."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.pinged = False
        self.until_s = monotonic() + _QUIET_S
        self.connection = RedisConnection(node, LIMIT_S)
        # An event may come right behind the reply.
        reply, *self.early = self.connection.exchange(packed("SUBSCRIBE", channel(node.db)), 1, LIMIT_S)
        if isinstance(reply, Exception):
            self.connection.close()
            hint = grant_hint(str(reply), channel=channel(node.db))
            detail = f"{node.url}: cannot subscribe to {channel(node.db)}: {reply}{hint}"
            raise Unavailable("redis", UnavailableReason.NO_PERMISSION, detail)


class ExpiryListener:
    """Reports expired consumer sessions: a thread calls `on_end` with the queue and the token of the consumer.

    `on_end` has to return at once, because the listener stores no events for a slow callback. Any thread calls `emit`
    with a kind and a detail: `events_subscribed` for a server, `events_missing` and the reason, `setting_changed` and
    the new value. With `configure`, the listener extends a setting that lacks flags; without, it only reads the
    setting.

    The constructor blocks for a moment. It raises every error that an operator has to fix; with `configure` also
    `Unavailable` if it reaches no master or the servers do not agree, and then it has changed nothing.
    """

    def __init__(
        self,
        topology: Topology,
        prefix: str,
        names: Iterable[str],
        *,
        configure: bool,
        on_end: Callable[[str, str], object],
        emit: Callable[[str, str], object],
    ) -> None:
        self._topology = topology
        self._queues = {f"{record_key(prefix, name)}:{QUEUES}:alive": name for name in names}
        self._configure = configure
        self._on_end = on_end
        self._emit = emit
        self._subscriptions: dict[str, _Subscription] = {}
        self._reported: set[str] = set()  # the URLs that were reported as missing
        self._servers: tuple[str, ...] = ()  # as they were when all of them had a subscription
        self._followed_s, self._due_s, self._retry_s = monotonic(), 0.0, _RETRY_S
        self._ended = False
        try:
            self._open()
        except BaseException:
            self._unsubscribe(tuple(self._subscriptions))
            raise
        self._stop, self._stopper = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="holdfast-expiries", daemon=True)
        start_thread(self._thread, "redis")

    def _open(self) -> None:
        try:
            nodes = self._topology.agreed_nodes()
        except Unavailable as error:
            if self._configure or error.reason in LASTING:
                raise
            self._report_missing(self._topology.url, error.detail)
            return
        errors = self._subscribe(nodes, opening=True)
        if self._configure and not self._subscriptions:
            last = errors[-1]
            raise Unavailable(last.engine, last.reason, last.detail) from last
        self._schedule(nodes, errors)

    # Servers.

    def _follow(self) -> None:
        """Subscribe to every present master; while the servers do not agree, keep the present subscriptions."""
        topology, self._followed_s = self._topology, monotonic()
        try:
            topology.refresh(LIMIT_S)
            if self._servers and topology.servers() == self._servers:
                self._due_s = self._followed_s + _FOLLOW_EVERY_S
                return
            nodes = topology.agreed_nodes()
        except Unavailable as error:
            self._report_missing(topology.url, error.detail)
            self._schedule((), [error])
            return
        if topology.url in self._reported and topology.follows:
            self._report(SUBSCRIBED, f"{topology.url}: its servers agree")
        masters = {node.url for node in nodes}
        self._reported &= masters
        self._unsubscribe([url for url in self._subscriptions if url not in masters])
        self._schedule(nodes, self._subscribe([node for node in nodes if node.url not in self._subscriptions]))

    def _schedule(self, nodes: Sequence[Node], errors: Sequence[Unavailable]) -> None:
        """Set the time of the next `_follow`: soon, and at growing intervals, while a subscription is missing."""
        now_s = monotonic()
        if nodes and not errors:
            self._servers, self._retry_s = self._topology.servers(), _RETRY_S
            self._due_s = now_s + _FOLLOW_EVERY_S
            return
        self._servers = ()
        lasting = all(error.reason in LASTING for error in errors)
        self._due_s = now_s + (_NOT_ALLOWED_S if lasting else self._retry_s)
        self._retry_s = min(2 * self._retry_s, _RETRY_MAX_S)

    def _subscribe(self, nodes: Sequence[Node], *, opening: bool = False) -> list[Unavailable]:
        """Read the settings of all nodes, subscribe to all, and only then change settings; return the errors.

        While the listener opens, this method raises an error that an operator has to fix; later it only reports it.
        """
        errors, alone = [], self._topology.only is not None
        with ExitStack() as settings:
            begun = []
            for node in nodes:
                if self._ended:
                    break
                try:
                    setting = settings.enter_context(NotifySetting(node, alone=alone))
                    may_change = self._may_change(setting, opening=opening)
                    self._subscriptions[node.url] = _Subscription(node)
                except Unavailable as error:
                    if opening and error.reason in LASTING:
                        raise
                    errors.append(error)
                    self._report_missing(node.url, error.detail)
                else:
                    begun.append((setting, may_change))
            for setting, may_change in begun:
                try:
                    self._begin(setting, may_change=may_change)
                except Unavailable as error:
                    if opening and error.reason in LASTING:
                        raise
                    errors.append(error)
                    self._unsubscribe([setting.url])
                    self._report_missing(setting.url, error.detail)
        return errors

    def _may_change(self, setting: NotifySetting, *, opening: bool) -> bool:
        """Return whether the listener may extend the setting. Change nothing."""
        setting.read()
        if not self._configure:
            return False
        try:
            setting.check_allowed()
        except Unavailable as error:
            if opening or error.reason not in LASTING:
                raise
            self._report_missing(setting.url, error.detail)
            return False
        return True

    def _begin(self, setting: NotifySetting, *, may_change: bool) -> None:
        changed = setting.extend() if may_change else ""
        if changed:
            self._report(CHANGED, changed)
        if setting.lacks:
            self._report_missing(setting.url, setting.advice())
        elif may_change or not self._configure:
            self._reported.discard(setting.url)
            unknown = "" if setting.flags is not None else ": the user may not read whether it publishes expired keys"
            self._report(SUBSCRIBED, f"{setting.url}{unknown}")
        for reply in self._subscriptions[setting.url].early:
            self._receive(reply)

    def _unsubscribe(self, urls: Iterable[str]) -> None:
        for url in urls:
            self._subscriptions.pop(url).connection.close()

    # Events.

    def _run(self) -> None:
        try:
            while not self._ended:
                ready = self._poll()
                if self._stop.fileno() in ready:
                    if not self._stop.recv(_SIGNALS):
                        break
                    self._due_s = min(self._due_s, self._followed_s + _RETRY_S)
                for subscription in tuple(self._subscriptions.values()):
                    self._serve(subscription, ready=subscription.connection.fileno() in ready)
                if not self._ended and monotonic() >= self._due_s:
                    self._follow()
        finally:
            self._unsubscribe(tuple(self._subscriptions))
            self._stop.close()

    def _poll(self) -> set[int]:
        """Sleep until an event arrives or something is due; return the ready descriptors."""
        poll = select.poll()
        poll.register(self._stop, select.POLLIN)
        until_s = self._due_s
        for subscription in self._subscriptions.values():
            poll.register(subscription.connection, select.POLLIN)
            until_s = min(until_s, subscription.until_s)
        return {descriptor for descriptor, _ in poll.poll(max(0.0, until_s - monotonic()) * 1000)}

    def _serve(self, subscription: _Subscription, *, ready: bool) -> None:
        """Read pushed events; ping a quiet subscription; end one that did not answer a ping."""
        try:
            if ready:
                subscription.pinged, subscription.until_s = False, monotonic() + _QUIET_S
                for reply in subscription.connection.read_pushed():
                    self._receive(reply)
            elif monotonic() >= subscription.until_s:
                url = subscription.node.url
                if subscription.pinged:
                    raise ReplyLost("redis", UnavailableReason.REPLY_LOST, f"{url}: the subscription has fallen silent")
                subscription.pinged, subscription.until_s = True, monotonic() + subscription.node.wire_s
                subscription.connection.write(_PING)
        except ReplyLost as error:
            self._unsubscribe([subscription.node.url])
            self._report_missing(subscription.node.url, error.detail)
            self._servers = ()
            self._due_s = min(self._due_s, self._followed_s + _RETRY_S)

    def _receive(self, reply: object) -> None:
        """Call `on_end` if the expired key belongs to a consumer session; most keys do not."""
        if not isinstance(reply, list) or reply[0] != "message":
            return
        key, _, token = reply[2].rpartition(":")
        name = self._queues.get(key)
        if name is None or self._ended:
            return
        try:
            self._on_end(name, token)
        except Exception:
            log.exception("holdfast: the callback for an expired consumer of %r failed", name)

    def _report_missing(self, url: str, cause: str) -> None:
        """Report a missing server once, however often the listener retries."""
        if url not in self._reported:
            self._reported.add(url)
            self._report(MISSING, cause)

    def _report(self, kind: str, detail: str) -> None:
        try:
            self._emit(kind, detail)
        except Exception:
            log.exception("holdfast: the callback for the event %s failed", kind)

    # Start and end.

    def reconnect(self) -> None:
        """Look up the servers now, because they have changed."""
        with suppress(OSError):  # the listener is closing, or has more signals than it needs
            self._stopper.send(b".", socket.MSG_DONTWAIT)

    def close(self) -> None:
        """End the thread and every subscription, also to servers that do not answer. Settings stay as they are."""
        self._ended = True
        self.reconnect()
        self._stopper.close()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def forked(self) -> None:
        """Close the child's copies: the thread is not here, and the subscriptions belong to the parent."""
        self._ended = True
        self._unsubscribe(tuple(self._subscriptions))
        self._stop.close()
        self._stopper.close()
