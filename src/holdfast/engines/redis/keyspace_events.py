"""The ends of keys, as every server that keeps keys tells them. They make faster what is found without them.

A server tells of its own keys only, so each master is listened to: one subscription for each, and one thread for all.
It follows the servers by itself: it looks around every few seconds, when a connection breaks, and when somebody else
has noticed a change. While they have not settled, everything stays as it is. A master that has left loses its
subscription; one that has come gets one, and its setting is looked at, and extended if that was asked for.

What happens while nobody listens is not told later. So nothing may depend on it, and no trouble here is more than a
word to the owner: once open, nothing raises.
"""

from __future__ import annotations

import select
import socket
import threading
from contextlib import ExitStack, suppress
from time import monotonic
from typing import TYPE_CHECKING

from holdfast.commands.queue_admin import QUEUES
from holdfast.engines.redis.acl import to_grant
from holdfast.engines.redis.connection_blocking import RedisConnection
from holdfast.engines.redis.keys import record_key
from holdfast.engines.redis.notify_settings import LIMIT_S, NotifySetting, channel
from holdfast.engines.redis.resp import packed
from holdfast.errors import LASTING, ReplyLost, Unavailable
from holdfast.observer import log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from holdfast.engines.redis.topology import Node, Topology

HEARD, MISSING, CHANGED = "events_subscribed", "events_missing", "setting_changed"

_LOOK_EVERY_S = 3.0
_AGAIN_S, _AGAIN_MAX_S = 0.2, 3.0
_NOT_ALLOWED_S = 10.0
_QUIET_S = 5.0
_NUDGES = 64
_PING = packed("PING")


class _Post:
    """One master that is listened to. It may be quiet until `until_s`; `asked`: whether it lives, no answer yet."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.asked = False
        self.until_s = monotonic() + _QUIET_S
        self.link = RedisConnection(node, LIMIT_S)
        # Something may be told right behind the answer.
        reply, *self.early = self.link.exchange(packed("SUBSCRIBE", channel(node.db)), 1, LIMIT_S)
        if isinstance(reply, Exception):
            self.link.close()
            hint = to_grant(str(reply), channel=channel(node.db))
            detail = f"{node.url}: cannot subscribe to {channel(node.db)}: {reply}{hint}"
            raise Unavailable("redis", "no permission", detail)


class ExpiryListener:
    """Tells of consumers whose time has ended: `on_end` is called with the queue and the token, by a thread.

    It has to return at once: nothing is kept here for one that does not. `tell` is called with a kind and a detail, by
    any thread: `events heard` from a server, `events missing` and why, `setting changed` and to what. With `configure`
    a setting that lacks letters is extended; without, it is only looked at.

    Opening blocks for a moment. It raises what somebody has to put right; with `configure` also `Unavailable` if no
    master could be reached or they have not settled, and then nothing has changed.
    """

    def __init__(
        self,
        topology: Topology,
        prefix: str,
        names: Iterable[str],
        *,
        configure: bool,
        on_end: Callable[[str, str], object],
        tell: Callable[[str, str], object],
    ) -> None:
        self._topology = topology
        self._queues = {f"{record_key(prefix, name)}:{QUEUES}:alive": name for name in names}
        self._configure = configure
        self._on_end = on_end
        self._send_all = tell
        self._posts: dict[str, _Post] = {}
        self._silent: set[str] = set()  # of whom it was said that nothing is heard
        self._servers: tuple[str, ...] = ()  # as they were when all of them were listened to
        self._looked_s, self._due_s, self._again_s = monotonic(), 0.0, _AGAIN_S
        self._ended = False
        try:
            self._open()
        except BaseException:
            self._leave(tuple(self._posts))
            raise
        self._stop, self._stopper = socket.socketpair()
        self._thread = threading.Thread(target=self._hear, name="holdfast-expiries", daemon=True)
        self._thread.start()

    def _open(self) -> None:
        try:
            nodes = self._topology.settle()
        except Unavailable as error:
            if self._configure or error.reason in LASTING:
                raise
            self._without(self._topology.url, error.detail)
            return
        troubles = self._begin(nodes, opening=True)
        if self._configure and not self._posts:
            last = troubles[-1]
            raise Unavailable(last.engine, last.reason, last.detail) from last
        self._rest(nodes, troubles)

    # Which servers.

    def _follow(self) -> None:
        """Listen to each that keeps keys now; while that is not certain, to those that were listened to."""
        topology, self._looked_s = self._topology, monotonic()
        try:
            topology.refresh(LIMIT_S)
            if self._servers and topology.servers() == self._servers:
                self._due_s = self._looked_s + _LOOK_EVERY_S
                return
            nodes = topology.settle()
        except Unavailable as error:
            self._without(topology.url, error.detail)
            self._rest((), [error])
            return
        if topology.url in self._silent and topology.follows:
            self._say(HEARD, f"{topology.url}: its servers agree")
        masters = {node.url for node in nodes}
        self._silent &= masters
        self._leave([url for url in self._posts if url not in masters])
        self._rest(nodes, self._begin([node for node in nodes if node.url not in self._posts]))

    def _rest(self, nodes: Sequence[Node], troubles: Sequence[Unavailable]) -> None:
        """Until the next look: soon, and ever less often, while somebody is not listened to."""
        now_s = monotonic()
        if nodes and not troubles:
            self._servers, self._again_s = self._topology.servers(), _AGAIN_S
            self._due_s = now_s + _LOOK_EVERY_S
            return
        self._servers = ()
        lasting = all(error.reason in LASTING for error in troubles)
        self._due_s = now_s + (_NOT_ALLOWED_S if lasting else self._again_s)
        self._again_s = min(2 * self._again_s, _AGAIN_MAX_S)

    def _begin(self, nodes: Sequence[Node], *, opening: bool = False) -> list[Unavailable]:
        """Look at the settings of all, subscribe to all, and only then change anything; what went wrong with whom.

        What somebody has to put right is raised while we open, and later only told.
        """
        troubles, alone = [], self._topology.only is not None
        with ExitStack() as talks:
            begun = []
            for node in nodes:
                if self._ended:
                    break
                try:
                    setting = talks.enter_context(NotifySetting(node, alone=alone))
                    may = self._may_change(setting, opening=opening)
                    self._posts[node.url] = _Post(node)
                except Unavailable as error:
                    if opening and error.reason in LASTING:
                        raise
                    troubles.append(error)
                    self._without(node.url, error.detail)
                else:
                    begun.append((setting, may))
            for setting, may in begun:
                try:
                    self._begun(setting, may=may)
                except Unavailable as error:
                    if opening and error.reason in LASTING:
                        raise
                    troubles.append(error)
                    self._leave([setting.url])
                    self._without(setting.url, error.detail)
        return troubles

    def _may_change(self, setting: NotifySetting, *, opening: bool) -> bool:
        """Whether its letters are ours to extend. Nothing has changed."""
        setting.look()
        if not self._configure:
            return False
        try:
            setting.refuse_unless_ours()
        except Unavailable as error:
            if opening or error.reason not in LASTING:
                raise
            self._without(setting.url, error.detail)
            return False
        return True

    def _begun(self, setting: NotifySetting, *, may: bool) -> None:
        changed = setting.extend() if may else ""
        if changed:
            self._say(CHANGED, changed)
        if setting.lacks:
            self._without(setting.url, setting.advice())
        elif may or not self._configure:
            self._silent.discard(setting.url)
            unseen = "" if setting.letters is not None else ": the user may not ask whether it tells of keys that end"
            self._say(HEARD, f"{setting.url}{unseen}")
        post = self._posts[setting.url]
        for reply in post.early:
            self._take(reply)

    def _leave(self, urls: Iterable[str]) -> None:
        for url in urls:
            self._posts.pop(url).link.close()

    # What they tell.

    def _hear(self) -> None:
        try:
            while not self._ended:
                ready = self._poll()
                if self._stop.fileno() in ready:
                    if not self._stop.recv(_NUDGES):
                        break
                    self._due_s = min(self._due_s, self._looked_s + _AGAIN_S)
                for post in tuple(self._posts.values()):
                    self._attend(post, ready=post.link.fileno() in ready)
                if not self._ended and monotonic() >= self._due_s:
                    self._follow()
        finally:
            self._leave(tuple(self._posts))
            self._stop.close()

    def _poll(self) -> set[int]:
        """Sleep until something is told or due."""
        poll = select.poll()
        poll.register(self._stop, select.POLLIN)
        until_s = self._due_s
        for post in self._posts.values():
            poll.register(post.link, select.POLLIN)
            until_s = min(until_s, post.until_s)
        return {descriptor for descriptor, _ in poll.poll(max(0.0, until_s - monotonic()) * 1000)}

    def _attend(self, post: _Post, *, ready: bool) -> None:
        """Hear what has come; if nothing has for long, ask; if nothing came of that, it is dead."""
        try:
            if ready:
                post.asked, post.until_s = False, monotonic() + _QUIET_S
                for reply in post.link.heard():
                    self._take(reply)
            elif monotonic() >= post.until_s:
                if post.asked:
                    raise ReplyLost("redis", "reply lost", f"{post.node.url}: the subscription has fallen silent")
                post.asked, post.until_s = True, monotonic() + post.node.wire_s
                post.link.say(_PING)
        except ReplyLost as error:
            self._leave([post.node.url])
            self._without(post.node.url, error.detail)
            self._servers = ()
            self._due_s = min(self._due_s, self._looked_s + _AGAIN_S)

    def _take(self, reply: object) -> None:
        """A key that has ended: most are none of ours."""
        if not isinstance(reply, list) or reply[0] != "message":
            return
        key, _, token = reply[2].rpartition(":")
        name = self._queues.get(key)
        if name is None or self._ended:
            return
        try:
            self._on_end(name, token)
        except Exception:
            log.exception("holdfast: what is told of the end of a consumer of %r failed", name)

    def _without(self, url: str, why: str) -> None:
        """Say it once, however often it is tried again."""
        if url not in self._silent:
            self._silent.add(url)
            self._say(MISSING, why)

    def _say(self, kind: str, detail: str) -> None:
        try:
            self._send_all(kind, detail)
        except Exception:
            log.exception("holdfast: telling of %s failed", kind)

    # Beginning and end.

    def again(self) -> None:
        """Other servers answer now: look around."""
        with suppress(OSError):  # it is being closed, or has been nudged more than enough
            self._stopper.send(b".", socket.MSG_DONTWAIT)

    def close(self) -> None:
        """End the thread and every subscription, also to servers that do not answer. Settings stay as they are."""
        self._ended = True
        self.again()
        self._stopper.close()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def forked(self) -> None:
        """In a child: the thread is not here, and the subscriptions are the parent's."""
        self._ended = True
        self._leave(tuple(self._posts))
        self._stop.close()
        self._stopper.close()
